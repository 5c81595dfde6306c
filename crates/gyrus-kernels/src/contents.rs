//! The contents of a backend's cache in a layout that all backends share.

use crate::backend::BackendError;
use crate::call::KvShiftCall;
use crate::kv::{KV_BLOCK, KvShape};
use crate::op::Op;
use crate::plan::Plan;
use crate::rope::Rope;
use crate::scalar;

/// Reads and writes blocks of the KV cache and records of states.
///
/// The caller has nothing in flight. Numbers are little-endian. A block is
/// `[layers, keys and values, kv_heads, KV_BLOCK, head_dim]` in the [element type](crate::Precision::kv_storage) of the
/// plan's precision: [`KvGroup::bytes_per_block`](crate::KvGroup::bytes_per_block) bytes. A record has for each layer
/// with a state the last inputs of its convolution, `[CONV_TAPS - 1, channels]`, the oldest first, and its matrices by
/// columns, `[value_heads, value_dim, key_dim]`, in f32: [`Plan::record_bytes`](crate::Plan::record_bytes) bytes. What is
/// written and read again has the same bits.
///
/// A block, a record or a size that does not exist is [`BackendError::UnsoundBatch`], and nothing was read or written.
pub trait CacheContents {
    /// Reads blocks of a KV group, one after the other.
    fn read_blocks(&mut self, group: usize, blocks: &[u32], bytes: &mut [u8]) -> Result<(), BackendError>;

    /// Writes blocks of a KV group.
    fn write_blocks(&mut self, group: usize, blocks: &[u32], bytes: &[u8]) -> Result<(), BackendError>;

    /// Copies blocks of a KV group, pairs of source and target, with their keys rotated to positions that are `by` later, for
    /// a sequence that may reach this length. No target is a source.
    fn shift_blocks(
        &mut self,
        group: usize,
        moves: &[[u32; 2]],
        by: i32,
        length: u32,
    ) -> Result<(), BackendError>;

    /// Reads a record.
    fn read_record(&mut self, record: u32, bytes: &mut [u8]) -> Result<(), BackendError>;

    /// Writes a record.
    fn write_record(&mut self, record: u32, bytes: &[u8]) -> Result<(), BackendError>;
}

impl Plan {
    /// The rope that rotates the keys of each layer of a KV group; `None` where they are not rotated.
    pub fn key_ropes(&self, group: usize) -> Vec<Option<&Rope>> {
        let mut ropes = vec![None; self.kv[group].layers];
        for op in &self.forward {
            if let Op::RopeWrite { kv, write: true, rope: Some(rope), .. } = op
                && usize::from(kv.group) == group
            {
                ropes[usize::from(kv.index)] = self.ropes.get(usize::from(rope.0));
            }
        }
        ropes
    }

    /// Rotates the keys of a block of a KV group, in the layout of [`CacheContents`], to positions that are `by` later, by
    /// the scalar definition.
    pub fn shift_block(&self, group: usize, block: &mut [u8], by: i32, length: u32) {
        let spec = &self.kv[group];
        let one = spec.block_bytes(self.precision);
        let moves: Vec<[u32; 2]> = (0..KV_BLOCK as u32).map(|slot| [slot, slot]).collect();
        for (layer, rope) in block.chunks_exact_mut(2 * one).zip(self.key_ropes(group)) {
            let Some(rope) = rope else { continue };
            let call = KvShiftCall::new(KvShape::of(spec, self.precision, 1), rope, by, KV_BLOCK as u32);
            let (keys, values) = layer.split_at_mut(one);
            let (mut k, mut v) = (words(keys), words(values));
            scalar::kv_shift(&call, rope, length as usize, &mut k, &mut v, &moves);
            keys.chunks_exact_mut(4).zip(k).for_each(|(to, word)| to.copy_from_slice(&word.to_le_bytes()));
        }
    }
}

fn words(bytes: &[u8]) -> Vec<u32> {
    let (words, _) = bytes.as_chunks::<4>();
    words.iter().map(|word| u32::from_le_bytes(*word)).collect()
}
