//! A paged cache with random sequences, as the host and as a device has it.

use crate::call::Storage;
use crate::call::engine::Paged;
use crate::grid::case::CaseBuffer;
use crate::grid::noise::Noise;
use crate::kv::{KV_BLOCK, KvGroup, KvShape};
use crate::plan::Precision;
use crate::scalar::{self, KvCache, Question, element};

/// Sequences whose blocks are scattered over a cache. Slots without a position are NaN on the device.
pub(super) struct Cache {
    pub(super) spec: KvGroup,
    pub(super) kv: Storage,
    pub(super) tables: Vec<Vec<u32>>,
    pub(super) blocks: usize,
    pub(super) host: KvCache,
    /// K and V.
    pub(super) device: [Vec<u32>; 2],
}

/// Blocks that sequences of these lengths take, and two more.
pub(super) fn blocks(lengths: &[u32]) -> usize {
    lengths.iter().map(|length| length.div_ceil(KV_BLOCK as u32) as usize).sum::<usize>() + 2
}

/// The cache of sequences of these lengths, for as many rows.
pub(super) fn paged(group: &KvGroup, kv: Storage, lengths: &[u32], rows: usize) -> Paged {
    let blocks = blocks(lengths);
    let cache = KvShape { kv, ..KvShape::of(group, Precision::Exact, blocks) };
    Paged { cache, rows: rows as u32, entries: blocks as u32 - 2 }
}

impl Cache {
    /// Sequences of these lengths, each position written.
    pub(super) fn new(noise: &mut Noise, spec: KvGroup, kv: Storage, lengths: &[u32]) -> Cache {
        let blocks = blocks(lengths);
        let mut free: Vec<u32> = (0..blocks as u32).collect();
        let words = blocks * KV_BLOCK * spec.row() * kv.bytes() as usize / 4;
        let mut cache = Cache {
            spec,
            kv,
            tables: Vec::new(),
            blocks,
            host: KvCache::new(spec, blocks),
            device: [vec![u32::MAX; words], vec![u32::MAX; words]],
        };
        for (sequence, length) in lengths.iter().enumerate() {
            let count = length.div_ceil(KV_BLOCK as u32);
            let table =
                (0..count).map(|_| free.swap_remove(noise.below(free.len() as u32) as usize)).collect();
            cache.tables.push(table);
            for position in 0..*length as usize {
                let [k, v] = [(), ()].map(|()| noise.gaussians(spec.row()));
                cache.write(sequence, position, [k, v]);
            }
        }
        cache
    }

    /// Index of the first element of a head's vector on the device.
    pub(super) fn at(&self, sequence: usize, position: usize, head: usize) -> usize {
        let block = self.tables[sequence][position / KV_BLOCK] as usize;
        ((block * self.spec.kv_heads + head) * KV_BLOCK + position % KV_BLOCK) * self.spec.head_dim
    }

    /// Writes K and V of a position, rounded to the cache's type.
    pub(super) fn write(&mut self, sequence: usize, position: usize, mut vectors: [Vec<f32>; 2]) {
        let n = self.spec.head_dim;
        for (which, vector) in vectors.iter_mut().enumerate() {
            for (i, value) in vector.iter_mut().enumerate() {
                let at = self.at(sequence, position, i / n) + i % n;
                scalar::set(&mut self.device[which], self.kv, at, f64::from(*value));
                *value = element(&self.device[which], self.kv, at) as f32;
            }
        }
        let [k, v] = vectors;
        self.host.write(0, &self.tables[sequence], position, &k, &v);
    }

    /// For each row its position and the first entry of its block table.
    pub(super) fn rows(&self, rows: &[(usize, u32)]) -> Vec<u32> {
        let first = |sequence: usize| self.tables[..sequence].iter().map(|table| table.len() as u32).sum();
        rows.iter().flat_map(|(sequence, position)| [*position, first(*sequence)]).collect()
    }

    /// The buffers that attention of these rows reads.
    pub(super) fn buffers(&self, qkv: &[f32], rows: &[(usize, u32)]) -> Vec<CaseBuffer> {
        let [k, v] = self.device.clone();
        vec![
            CaseBuffer::floats("qkv", qkv),
            CaseBuffer::read("k_cache", k),
            CaseBuffer::read("v_cache", v),
            CaseBuffer::read("rows", self.rows(rows)),
            CaseBuffer::read("block_table", self.tables.concat()),
        ]
    }

    /// The twin's attention of one query over these positions.
    pub(super) fn attend(
        &self,
        q: &[f32],
        sequence: usize,
        seen: &[usize],
        (scale, soft_cap): (f32, f32),
        sinks: Option<&[f32]>,
    ) -> Vec<f32> {
        let soft_cap = (soft_cap != 0.0).then_some(soft_cap);
        let mut out = vec![0.0; q.len()];
        let question = Question { q, table: &self.tables[sequence], seen, scale, soft_cap, sinks };
        scalar::attend(&self.host, 0, question, &mut out);
        out
    }
}

/// The positions that a row attends to.
pub(super) fn seen(position: u32, window: u32) -> Vec<usize> {
    let first = if window == 0 { 0 } else { (position + 1).saturating_sub(window) };
    (first as usize..=position as usize).collect()
}
