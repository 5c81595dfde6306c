use std::fmt;

use crate::call::Storage;
use crate::plan::Precision;

/// Positions in one block of the KV cache.
pub const KV_BLOCK: usize = 32;

/// The most KV groups of a plan. Batches and engines collect the block tables of each in arrays.
pub const MAX_KV_GROUPS: usize = 4;

/// Layers whose keys and values have one shape and one window.
///
/// The cache is paged by group: a group has a pool of blocks, and each sequence has a block table per group. A layer has
/// a buffer of keys and a buffer of values, each with all blocks of the pool. A sequence needs blocks of a windowed group
/// only for the positions in the window, so that the pool of such a group is smaller than that of the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvGroup {
    /// Layers that store keys and values in this group.
    pub layers: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Elements of a head.
    pub head_dim: usize,
    /// The attention window: positions that a row attends to, its own included; all if absent.
    pub window: Option<u32>,
}

impl KvGroup {
    /// Elements of K, and of V, that one position takes in one layer.
    pub fn row(&self) -> usize {
        self.kv_heads * self.head_dim
    }

    /// Bytes of keys, or of values, that one block takes in one layer.
    pub fn block_bytes(&self, precision: Precision) -> usize {
        KV_BLOCK * self.row() * precision.kv_storage().bytes() as usize
    }

    /// Bytes of keys and values of one block in all layers.
    pub fn bytes_per_block(&self, precision: Precision) -> usize {
        2 * self.layers * self.block_bytes(precision)
    }

    /// The first position whose block a row at `position` still needs, a multiple of [`KV_BLOCK`]. Kernels read whole tiles
    /// of up to 128 positions and mask those outside the window, so that it is a multiple of 128, too.
    pub fn first_needed(&self, position: usize) -> usize {
        match self.window {
            None => 0,
            Some(window) => (position + 1).saturating_sub(window as usize) / WINDOW_TILE * WINDOW_TILE,
        }
    }
}

/// The keys, or the values, of one layer of a group on a device: blocks of `[n_kv_heads, KV_BLOCK, head_dim]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvShape {
    /// Element type.
    pub kv: Storage,
    /// Blocks.
    pub blocks: u32,
    /// Key and value heads.
    pub n_kv_heads: u32,
    /// Elements of a head.
    pub head_dim: u32,
}

impl KvShape {
    /// A layer of a group with a pool of this many blocks. Numbers beyond 32 bits saturate, which kernels refuse.
    pub fn of(group: &KvGroup, precision: Precision, blocks: usize) -> KvShape {
        let [blocks, n_kv_heads, head_dim] =
            [blocks, group.kv_heads, group.head_dim].map(|n| u32::try_from(n).unwrap_or(u32::MAX));
        KvShape { kv: precision.kv_storage(), blocks, n_kv_heads, head_dim }
    }

    /// Positions of all blocks.
    pub fn positions(&self) -> u64 {
        u64::from(self.blocks) * KV_BLOCK as u64
    }

    /// Words of all blocks.
    pub fn words(&self) -> u64 {
        let row = u64::from(self.n_kv_heads) * u64::from(self.head_dim);
        self.positions().saturating_mul(row).saturating_mul(self.kv.bytes()) / 4
    }
}

/// The size of a plan's KV cache, and of its pool of states.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KvSize {
    /// Positions of all sequences together: what block tables must have entries for.
    pub positions: usize,
    /// Blocks of each group's pool.
    pub blocks: Vec<usize>,
    /// Records of the states of layers of Gated DeltaNet; 0 for plans without such layers.
    pub records: usize,
}

impl KvSize {
    /// Every group has blocks for all positions.
    pub fn full(groups: &[KvGroup], positions: usize) -> KvSize {
        let blocks = positions.div_ceil(KV_BLOCK);
        KvSize { positions: blocks.saturating_mul(KV_BLOCK), blocks: vec![blocks; groups.len()], records: 0 }
    }

    /// For this many sequences of `context` positions each. Groups with a window have blocks for the window of each
    /// sequence and `ahead` positions more: those that one batch computes, and those that may be taken back.
    pub fn windowed(groups: &[KvGroup], sequences: usize, context: usize, ahead: usize) -> KvSize {
        let all = context.div_ceil(KV_BLOCK);
        let blocks_of = |group: &KvGroup| match group.window {
            None => all,
            Some(window) => {
                let kept = (window as usize).saturating_add(WINDOW_TILE).saturating_add(ahead);
                kept.div_ceil(KV_BLOCK).saturating_add(1).min(all)
            }
        };
        let positions = all.saturating_mul(KV_BLOCK).saturating_mul(sequences);
        let blocks = groups.iter().map(|group| blocks_of(group).saturating_mul(sequences)).collect();
        KvSize { positions, blocks, records: 0 }
    }

    /// The same with this many records.
    pub fn with_records(self, records: usize) -> KvSize {
        KvSize { records, ..self }
    }

    /// Bytes of the groups that have a window. They do not grow with the context.
    pub fn window_bytes(&self, groups: &[KvGroup], precision: Precision) -> u64 {
        let windowed = groups.iter().zip(&self.blocks).filter(|(group, _)| group.window.is_some());
        let bytes = windowed
            .map(|(group, blocks)| (group.bytes_per_block(precision) as u64).saturating_mul(*blocks as u64));
        bytes.fold(0, u64::saturating_add)
    }
}

/// Positions that kernels read together: they mask those outside the window.
const WINDOW_TILE: usize = 128;

impl Precision {
    /// The element type of the KV cache.
    pub fn kv_storage(self) -> Storage {
        match self {
            Precision::Exact => Storage::F32,
            Precision::Fast => Storage::F16,
        }
    }
}

/// The keys and values of one layer: a group of a plan and the layer's index in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct KvLayer {
    /// The index of the group in [`crate::Plan::kv`].
    pub group: u8,
    /// The index of the layer in its group.
    pub index: u16,
}

impl fmt::Display for KvLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "kv{}.{}", self.group, self.index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Blocks that a sequence holds never exceed what the pool has for it.
    #[test]
    fn a_pool_has_the_blocks_that_its_sequences_hold() {
        let ahead = 100;
        for window in [1, 16, 64, 100, 512] {
            let group = KvGroup { layers: 1, kv_heads: 1, head_dim: 64, window: Some(window) };
            let size = KvSize::windowed(&[group], 1, 3000, ahead);
            for position in 0..3000 - ahead {
                let first = group.first_needed(position) / KV_BLOCK;
                let held = (position + ahead).div_ceil(KV_BLOCK) - first;
                assert!(held <= size.blocks[0], "window {window}, position {position}: {held}");
            }
        }
        let group = KvGroup { layers: 3, kv_heads: 2, head_dim: 64, window: None };
        let size = KvSize::windowed(&[group], 2, 100, ahead);
        assert_eq!((size.positions, &size.blocks[..]), (256, &[8][..]));
        assert_eq!(size.window_bytes(&[group], Precision::Fast), 0);
        let group = KvGroup { window: Some(16), ..group };
        let size = KvSize::windowed(&[group], 2, 1000, ahead);
        assert_eq!(size.blocks, [2 * 9]);
        assert_eq!(size.window_bytes(&[group], Precision::Fast), 18 * 32 * 2 * 3 * 128 * 2);
    }

    #[test]
    fn a_window_needs_every_position_that_it_covers() {
        for window in [1, 16, 64, 100, 512, 1000] {
            let group = KvGroup { layers: 1, kv_heads: 1, head_dim: 64, window: Some(window) };
            for position in 0..3000 {
                let first = group.first_needed(position);
                assert!(
                    first.is_multiple_of(KV_BLOCK) && first + window as usize <= position + 1 || first == 0
                );
                // No more than a tile beside the window.
                assert!(position + 1 - first < window as usize + 128, "{window} {position}");
            }
        }
        let group = KvGroup { layers: 1, kv_heads: 1, head_dim: 64, window: None };
        assert_eq!(group.first_needed(1 << 20), 0);
    }
}
