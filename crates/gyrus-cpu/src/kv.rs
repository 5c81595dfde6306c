//! The paged key-value cache of one [`KvGroup`].
//!
//! A layer has a buffer of keys and a buffer of values, each of blocks of [`KV_BLOCK`] positions. A sequence
//! is a block table: position `p` is in slot `p % KV_BLOCK` of block `table[p / KV_BLOCK]`. A value block is
//! `[kv_head, KV_BLOCK, head_dim]`. A key block is `[kv_head, head_dim, KV_BLOCK]`: with positions innermost
//! each SIMD lane computes the score of one position, so scores need no horizontal sums.

use std::io::ErrorKind;

use gyrus_kernels::call::Storage;
use gyrus_kernels::{KV_BLOCK, KvGroup};
use half::f16;
use memmap2::MmapMut;

use crate::CpuError;
use crate::isa::Isa;
use crate::pool::Pool;
use crate::simd::{LANES, Simd, dispatch};
use crate::storage::Disjoint;

/// The place of a batch row: the block table of its sequence, and its position.
#[derive(Debug, Clone, Copy)]
pub struct KvRow<'a> {
    /// The block table of the sequence, at least up to `position`. Rows of one sequence pass the same slice;
    /// adjacent rows with the same slice are computed together.
    pub table: &'a [u32],
    /// The row's position.
    pub position: u32,
    /// Positions of its sequence, for spans that are not causal.
    pub extent: u32,
}

impl<'a> KvRow<'a> {
    /// A row of a sequence that attends to positions up to its own.
    pub fn causal(table: &'a [u32], position: u32) -> KvRow<'a> {
        KvRow { table, position, extent: 0 }
    }
}

/// Rows with a stride, such as the queries in a fused QKV projection: row `i` starts at `data[i * stride]`.
#[derive(Debug, Clone, Copy)]
pub struct Strided<'a> {
    /// The elements, starting with the first row.
    pub data: &'a [f32],
    /// Elements between the starts of two rows.
    pub stride: usize,
}

/// Keys and values of all layers of a group.
pub struct KvStore {
    group: KvGroup,
    blocks: usize,
    layers: Vec<Layer>,
}

struct Layer {
    keys: Elems,
    values: Elems,
}

/// Elements in an anonymous mapping: zero at first, committed page by page when written. A failed mapping is
/// an error, not an abort.
struct Elems {
    map: MmapMut,
    storage: Storage,
}

/// A slice of cached elements.
#[derive(Clone, Copy)]
pub(crate) enum Stored<'a> {
    F32(&'a [f32]),
    F16(&'a [f16]),
}

impl KvStore {
    /// Allocates an empty cache with a pool of `blocks` blocks, in f32 or f16. The system commits memory when blocks are
    /// first written.
    pub fn new(group: KvGroup, blocks: usize, storage: Storage) -> Result<KvStore, CpuError> {
        let KvGroup { layers, kv_heads, head_dim, .. } = group;
        let reject = |reason| CpuError::Cache { layers, blocks, kv_heads, head_dim, reason };
        if storage == Storage::Bf16 {
            return Err(reject("its elements are f32 or f16"));
        }
        if layers == 0 || blocks == 0 || kv_heads == 0 || head_dim == 0 {
            return Err(reject("every dimension must be at least 1"));
        }
        let elems = [kv_heads, head_dim, KV_BLOCK].iter().try_fold(blocks, |n, &d| n.checked_mul(d));
        let bytes = elems.and_then(|n| n.checked_mul(storage.bytes() as usize));
        let all = bytes.and_then(|n| n.checked_mul(2)).and_then(|n| n.checked_mul(layers));
        let (Some(elems), Some(_)) = (elems, all.filter(|&n| isize::try_from(n).is_ok())) else {
            return Err(reject("the size in bytes overflows; reduce the context length"));
        };
        if u32::try_from(blocks).is_err() {
            return Err(reject("block indices are 32-bit; reduce the context length"));
        }
        let zeroed = || match MmapMut::map_anon(elems * storage.bytes() as usize) {
            Ok(map) => Ok(Elems { map, storage }),
            Err(error) if error.kind() == ErrorKind::Unsupported => {
                Err(reject("this platform has no memory mapping"))
            }
            Err(_) => Err(reject("out of memory; reduce the context length")),
        };
        let layers = (0..layers)
            .map(|_| Ok(Layer { keys: zeroed()?, values: zeroed()? }))
            .collect::<Result<_, CpuError>>()?;
        Ok(KvStore { group, blocks, layers })
    }

    /// Bytes that it has mapped.
    pub(crate) fn bytes(&self) -> usize {
        self.layers.iter().map(|layer| layer.keys.map.len() + layer.values.map.len()).sum()
    }

    /// The group whose keys and values it holds.
    pub fn group(&self) -> KvGroup {
        self.group
    }

    /// Blocks of the pool.
    pub fn blocks(&self) -> usize {
        self.blocks
    }

    /// Writes the keys and values of `rows` (each `[kv_heads, head_dim]`) to a layer.
    ///
    /// # Panics
    /// If a row's block is missing or out of range, or a slice is too short.
    pub fn write_rows(&mut self, pool: &Pool, layer: usize, rows: &[KvRow], keys: Strided, values: Strided) {
        let (KvGroup { kv_heads, head_dim, .. }, blocks) = (self.group, self.blocks);
        for row in rows {
            let block = row.table[row.position as usize / KV_BLOCK];
            assert!((block as usize) < blocks, "block {block} is outside the cache of {blocks} blocks");
        }
        let isa = pool.isa();
        let layer = &mut self.layers[layer];
        let elems = kv_heads * head_dim;
        let (keys_out, values_out) = (layer.keys.out(), layer.values.out());
        // Rows in sequence, because a head's part of a row is a few cache lines and the next row's is pages away.
        pool.run_rows(rows.len(), rows.len() * elems, |i| {
            let position = rows[i].position as usize;
            let first = rows[i].table[position / KV_BLOCK] as usize * KV_BLOCK * elems;
            let slot = position % KV_BLOCK;
            let key = &keys.data[i * keys.stride..][..elems];
            let value = &values.data[i * values.stride..][..elems];
            // SAFETY: rows have slots of their own, and the blocks are within the cache.
            unsafe {
                keys_out.scatter(isa, first + slot, key);
                for (head, value) in value.chunks_exact(head_dim).enumerate() {
                    values_out.store(isa, first + (head * KV_BLOCK + slot) * head_dim, value);
                }
            }
        });
    }

    /// Reads the keys and values of a row, each `[kv_heads, head_dim]`.
    ///
    /// # Panics
    /// If the row's block is missing or out of range, or a slice is too short.
    pub fn read_row(&self, layer: usize, row: KvRow, keys: &mut [f32], values: &mut [f32]) {
        let KvGroup { kv_heads, head_dim, .. } = self.group;
        let (block, slot) = (row.table[row.position as usize / KV_BLOCK], row.position as usize % KV_BLOCK);
        for head in 0..kv_heads {
            let (k, v) = self.block(layer, block, head);
            for i in 0..head_dim {
                keys[head * head_dim + i] = k.get(i * KV_BLOCK + slot);
                values[head * head_dim + i] = v.get(slot * head_dim + i);
            }
        }
    }

    /// Reads a block of a layer: its keys and its values, each `[kv_heads, KV_BLOCK, head_dim]`, as bytes of elements.
    pub(crate) fn read_block(&self, layer: usize, block: u32, keys: &mut [u8], values: &mut [u8]) {
        let Layer { keys: stored, values: stored_values } = &self.layers[layer];
        let range = self.block_bytes(block, stored.storage);
        match stored.storage {
            Storage::F32 => self.read_keys::<4>(&stored.map[range.clone()], keys),
            _ => self.read_keys::<2>(&stored.map[range.clone()], keys),
        }
        values.copy_from_slice(&stored_values.map[range]);
    }

    /// Writes a block of a layer, as [`KvStore::read_block`] reads it.
    pub(crate) fn write_block(&mut self, layer: usize, block: u32, keys: &[u8], values: &[u8]) {
        let storage = self.layers[layer].keys.storage;
        let range = self.block_bytes(block, storage);
        let places = self.key_places();
        let Layer { keys: stored, values: stored_values } = &mut self.layers[layer];
        let stored = &mut stored.map[range.clone()];
        match storage {
            Storage::F32 => write_keys::<4>(places, stored, keys),
            _ => write_keys::<2>(places, stored, keys),
        }
        stored_values.map[range].copy_from_slice(values);
    }

    /// The bytes of a block in a buffer of a layer.
    fn block_bytes(&self, block: u32, storage: Storage) -> std::ops::Range<usize> {
        let bytes = KV_BLOCK * self.group.row() * storage.bytes() as usize;
        block as usize * bytes..(block as usize + 1) * bytes
    }

    fn read_keys<const BYTES: usize>(&self, stored: &[u8], keys: &mut [u8]) {
        let ((stored, _), (keys, _)) = (stored.as_chunks::<BYTES>(), keys.as_chunks_mut::<BYTES>());
        self.key_places().zip(keys).for_each(|(at, key)| *key = stored[at]);
    }

    /// The place in a key block of each element of `[kv_heads, KV_BLOCK, head_dim]`.
    fn key_places(&self) -> impl Iterator<Item = usize> + use<> {
        let KvGroup { kv_heads, head_dim, .. } = self.group;
        let head = KV_BLOCK * head_dim;
        (0..kv_heads).flat_map(move |h| {
            (0..KV_BLOCK).flat_map(move |slot| (0..head_dim).map(move |i| h * head + i * KV_BLOCK + slot))
        })
    }

    /// Keys (`[head_dim, KV_BLOCK]`) and values (`[KV_BLOCK, head_dim]`) of a head in a block.
    pub(crate) fn block(&self, layer: usize, block: u32, head: usize) -> (Stored<'_>, Stored<'_>) {
        let size = KV_BLOCK * self.group.head_dim;
        let at = (block as usize * self.group.kv_heads + head) * size;
        let layer = &self.layers[layer];
        (layer.keys.range(at..at + size), layer.values.range(at..at + size))
    }
}

fn write_keys<const BYTES: usize>(places: impl Iterator<Item = usize>, stored: &mut [u8], keys: &[u8]) {
    let ((stored, _), (keys, _)) = (stored.as_chunks_mut::<BYTES>(), keys.as_chunks::<BYTES>());
    places.zip(keys).for_each(|(at, key)| stored[at] = *key);
}

impl Stored<'_> {
    /// Asks the CPU to read it into its cache. A block of a head is about a page long, where hardware prefetchers stop.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn prefetch(self) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        let (from, bytes) = match self {
            Stored::F32(elems) => (elems.as_ptr().cast::<i8>(), size_of_val(elems)),
            Stored::F16(elems) => (elems.as_ptr().cast::<i8>(), size_of_val(elems)),
        };
        for line in (0..bytes).step_by(64) {
            // SAFETY: a prefetch has no effect but on the cache.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(from.wrapping_add(line)) };
        }
    }

    #[cfg(not(target_arch = "x86_64"))]
    pub(crate) fn prefetch(self) {}

    fn get(&self, at: usize) -> f32 {
        match self {
            Stored::F32(elems) => elems[at],
            Stored::F16(elems) => elems[at].to_f32(),
        }
    }
}

impl Elems {
    fn range(&self, range: std::ops::Range<usize>) -> Stored<'_> {
        // Mappings are page-aligned, so the casts cannot fail.
        match self.storage {
            Storage::F32 => Stored::F32(&bytemuck::cast_slice(&self.map)[range]),
            _ => Stored::F16(&bytemuck::cast_slice(&self.map)[range]),
        }
    }

    fn out(&mut self) -> Out {
        match self.storage {
            Storage::F32 => Out::F32(Disjoint::new(bytemuck::cast_slice_mut(&mut self.map))),
            _ => Out::F16(Disjoint::new(bytemuck::cast_slice_mut(&mut self.map))),
        }
    }
}

/// A buffer that the tasks of a loop write.
enum Out {
    F32(Disjoint<f32>),
    F16(Disjoint<f16>),
}

impl Out {
    /// Writes `values` to every [`KV_BLOCK`]-th element, starting at `at`.
    ///
    /// # Safety
    /// No other thread accesses these elements during the loop.
    unsafe fn scatter(&self, isa: Isa, at: usize, values: &[f32]) {
        // SAFETY: the caller upholds the contract.
        unsafe {
            match self {
                Out::F32(out) => out.scatter(at, KV_BLOCK, values),
                Out::F16(out) => {
                    let mut converted = [f16::ZERO; 64];
                    for (i, values) in values.chunks(converted.len()).enumerate() {
                        let part = &mut converted[..values.len()];
                        f32_to_f16(isa, values, part);
                        out.scatter(at + i * 64 * KV_BLOCK, KV_BLOCK, part);
                    }
                }
            }
        }
    }

    /// Writes `values` starting at `at`.
    ///
    /// # Safety
    /// No other thread accesses these elements during the loop.
    unsafe fn store(&self, isa: Isa, at: usize, values: &[f32]) {
        let range = at..at + values.len();
        // SAFETY: the caller upholds the contract.
        unsafe {
            match self {
                Out::F32(out) => out.part(range).copy_from_slice(values),
                Out::F16(out) => f32_to_f16(isa, values, out.part(range)),
            }
        }
    }
}

dispatch! {
    /// f32 to f16, to nearest even. Values beyond the range of f16 saturate, because an infinity in the cache
    /// would turn every later row into NaN. NaN stays NaN.
    fn f32_to_f16(from: &[f32], to: &mut [f16]) { portable_f32_to_f16, simd_f32_to_f16 }
}

fn portable_f32_to_f16(from: &[f32], to: &mut [f16]) {
    let most = f16::MAX.to_f32();
    from.iter().zip(to).for_each(|(v, h)| *h = f16::from_f32(v.clamp(-most, most)));
}

/// # Safety
/// The contract of [`Simd`].
#[inline(always)]
unsafe fn simd_f32_to_f16<S: Simd>(from: &[f32], to: &mut [f16]) {
    let ((from, rest), (to, tail)) = (from.as_chunks::<LANES>(), to.as_chunks_mut::<LANES>());
    let most = f16::MAX.to_f32();
    for (v, h) in from.iter().zip(to) {
        // SAFETY: reads and writes eight elements.
        unsafe {
            // If an operand is NaN, `min` and `max` return the second, so a NaN passes through.
            let low = S::min(S::splat(most), S::load(v.as_ptr()));
            S::store_f16(h.as_mut_ptr(), S::max(S::splat(-most), low));
        }
    }
    portable_f32_to_f16(rest, tail);
}

dispatch! {
    /// f16 to f32.
    pub(crate) fn f16_to_f32(from: &[f16], to: &mut [f32]) { portable_f16_to_f32, simd_f16_to_f32 }
}

fn portable_f16_to_f32(from: &[f16], to: &mut [f32]) {
    from.iter().zip(to).for_each(|(h, v)| *v = h.to_f32());
}

/// # Safety
/// The contract of [`Simd`].
#[inline(always)]
unsafe fn simd_f16_to_f32<S: Simd>(from: &[f16], to: &mut [f32]) {
    let ((from, rest), (to, tail)) = (from.as_chunks::<LANES>(), to.as_chunks_mut::<LANES>());
    for (h, v) in from.iter().zip(to) {
        // SAFETY: reads and writes eight elements.
        unsafe { S::store(v.as_mut_ptr(), S::load_f16(h.as_ptr().cast())) };
    }
    portable_f16_to_f32(rest, tail);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every instruction set rounds, saturates and preserves NaN like the portable form.
    #[test]
    fn f32_to_f16_saturates_and_preserves_nan() {
        let mut from: Vec<f32> =
            vec![0.0, -0.0, 1.0, 65504.0, 65519.9, 65520.0, 1e9, f32::INFINITY, f32::MAX];
        from.extend([-65520.0, -1e9, f32::NEG_INFINITY, f32::NAN, -f32::NAN, 6e-8, 1e-9, 0.1]);
        from.extend((0..64).map(|i| (i as f32 - 31.5) * 3001.7));
        let converted = |isa| {
            let mut to = vec![f16::ONE; from.len()];
            f32_to_f16(isa, &from, &mut to);
            to
        };
        let portable = converted(Isa::PORTABLE);
        for (v, h) in from.iter().zip(&portable) {
            assert_eq!(v.is_nan(), h.is_nan(), "{v}");
            assert!(v.is_nan() || h.is_finite(), "{v}");
            assert!(v.is_nan() || *h == f16::from_f32(v.clamp(-65504.0, 65504.0)), "{v}");
        }
        for (a, b) in portable.iter().zip(converted(Isa::detect())) {
            assert!(a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan(), "{a} {b}");
        }
    }
}
