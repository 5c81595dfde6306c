//! Operations on a paged KV cache between steps: copies of blocks, and shifts of positions.

use std::collections::HashSet;

use crate::kv::{KV_BLOCK, KvShape};
use crate::launch::{AXIS, Access, Launch, LaunchError};
use crate::params::{ElementwiseParams, KVCacheShiftParams};
use crate::rope::{Pairing, Rope};
use crate::shader::Rungs;

use super::engine::{Kernel, check_cache, flag, launch, slot};

const WORKGROUP: u32 = 256;

/// Words of K or V; an error if kernels do not take such heads, or 32-bit indices do not address them.
fn words(kernel: &str, cache: &KvShape) -> Result<u64, LaunchError> {
    check_cache(kernel, cache)?;
    if cache.n_kv_heads == 0 {
        return Err(LaunchError::Zero { kernel: kernel.to_owned(), name: "n_kv_heads" });
    }
    let count = cache.words();
    if count > u64::from(u32::MAX) {
        return Err(LaunchError::Large { kernel: kernel.to_owned(), what: "words of a cache", count });
    }
    Ok(count)
}

/// Pairs of source and target as words. All must be below `capacity`, and no target may be another pair's source or target:
/// the order within a launch is undefined.
fn apart(
    kernel: &'static str,
    what: &'static str,
    pairs: &[[u32; 2]],
    count: u32,
    capacity: u64,
) -> Result<Vec<u32>, LaunchError> {
    let kernel = || kernel.to_owned();
    if pairs.len() as u64 != u64::from(count) {
        let (found, expected) = (pairs.len(), count);
        return Err(LaunchError::Pairs { kernel: kernel(), what, found, expected });
    }
    if let Some(&number) = pairs.iter().flatten().find(|number| u64::from(**number) >= capacity) {
        return Err(LaunchError::Beyond { kernel: kernel(), what, number, capacity });
    }
    let mut targets = HashSet::with_capacity(pairs.len());
    if let Some([_, number]) = pairs.iter().find(|[_, target]| !targets.insert(*target)) {
        return Err(LaunchError::Clash { kernel: kernel(), what, number: *number });
    }
    let moved = pairs.iter().filter(|[source, target]| source != target);
    if let Some([number, _]) = moved.into_iter().find(|[source, _]| targets.contains(source)) {
        return Err(LaunchError::Clash { kernel: kernel(), what, number: *number });
    }
    Ok(pairs.as_flattened().to_vec())
}

/// A copy of blocks of a layer's K and V cache, when sequences that share them diverge.
///
/// Buffers: `k_cache`, `v_cache`, `pairs`. One list of [pairs](KvCopyCall::pairs) serves all layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvCopyCall {
    /// The cache.
    pub cache: KvShape,
    /// Number of blocks.
    pub pairs: u32,
}

impl KvCopyCall {
    const NAME: &str = "kv_copy";

    /// The contents of `pairs`: source and target block numbers, checked. The launch cannot check them.
    pub fn pairs(&self, pairs: &[[u32; 2]]) -> Result<Vec<u32>, LaunchError> {
        if let Some([number, _]) = pairs.iter().find(|[source, target]| source == target) {
            let kernel = Self::NAME.to_owned();
            return Err(LaunchError::Clash { kernel, what: "block", number: *number });
        }
        apart(Self::NAME, "block", pairs, self.pairs, self.cache.blocks.into())
    }

    /// Checks the call and returns its launch.
    pub fn launch(&self, rungs: Rungs) -> Result<Launch, LaunchError> {
        let words = words(Self::NAME, &self.cache)?;
        // A block is a multiple of 32 words.
        let count = (words / u64::from(self.cache.blocks.max(1)) / 4) as u32;
        let slots = vec![
            slot("k_cache", 0, Access::ReadWrite, words),
            slot("v_cache", 1, Access::ReadWrite, words),
            slot("pairs", 3, Access::Read, 2 * u64::from(self.pairs)),
        ];
        let kernel = Kernel {
            name: Self::NAME,
            file: "kv_copy.wgsl",
            constants: Vec::new(),
            overrides: vec![("WORKGROUP", f64::from(WORKGROUP))],
        };
        let params = ElementwiseParams { count, ..Default::default() };
        let groups = [count.div_ceil(WORKGROUP), self.pairs];
        let mut launch = launch(kernel, rungs, slots, (2, &params), groups)?;
        launch.groups[2] = 2;
        Ok(launch)
    }
}

/// A shift of cached keys of a layer by a number of positions: rotates them in place, or while moving them and their
/// values to other slots.
///
/// If a context drops a multiple of [`KV_BLOCK`] positions, block tables change and keys rotate in place, in one
/// launch. If it drops any other number `n`, the slots of `n` positions are free at a time, and [`KvShiftCall::waves`]
/// says which positions can move in one launch.
///
/// Buffers: `k_cache`, `v_cache` unless in place, `moves`, `turns`. The last is that of [`turns`](super::engine::turns)
/// for the length the sequence began with. Its factor is not read, so it may be that of [`Rope::unit`]. One list of
/// [moves](KvShiftCall::moves) serves all layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvShiftCall {
    /// The cache.
    pub cache: KvShape,
    /// Which elements form a rotary pair.
    pub pairing: Pairing,
    /// Elements of a head that are rotated.
    pub rope_dim: u32,
    /// First element that is rotated.
    pub rope_offset: u32,
    /// New position minus old position: negative if the front of the context is dropped.
    pub by: i32,
    /// Number of positions that move.
    pub moves: u32,
    /// Whether keys stay in their slots.
    pub in_place: bool,
    /// Heads that an invocation rotates with one computation of cosines and sines.
    pub each: u32,
}

impl KvShiftCall {
    const NAME: &str = "kv_shift";

    /// Keys rotated in place.
    pub fn new(cache: KvShape, rope: &Rope, by: i32, moves: u32) -> KvShiftCall {
        KvShiftCall {
            cache,
            pairing: rope.pairing(),
            rope_dim: rope.rope_dim() as u32,
            rope_offset: rope.offset() as u32,
            by,
            moves,
            in_place: true,
            each: 4,
        }
    }

    /// A position's slot.
    pub fn slot(table: &[u32], position: u32) -> Option<u32> {
        let block = table.get(position as usize / KV_BLOCK)?;
        block.checked_mul(KV_BLOCK as u32)?.checked_add(position % KV_BLOCK as u32)
    }

    /// The moves of positions `first` to `end` down by `n` within one block table: lists of moves, one launch each, in
    /// order. Empty if the table does not have these positions or they cannot move that far.
    pub fn waves(table: &[u32], first: u32, end: u32, n: u32) -> Option<Vec<Vec<[u32; 2]>>> {
        if n == 0 || n > first || table.len() < (end as usize).div_ceil(KV_BLOCK) {
            return None;
        }
        let slot = |position| Self::slot(table, position);
        let positions: Vec<u32> = (first..end).collect();
        let moved = |wave: &[u32]| wave.iter().map(|&p| Some([slot(p)?, slot(p - n)?])).collect();
        positions.chunks(n as usize).map(moved).collect()
    }

    /// The contents of `moves`: source and target slots, checked. The launch cannot check them.
    pub fn moves(&self, moves: &[[u32; 2]]) -> Result<Vec<u32>, LaunchError> {
        if self.in_place
            && let Some([_, number]) = moves.iter().find(|[source, target]| source != target)
        {
            let kernel = Self::NAME.to_owned();
            return Err(LaunchError::Clash { kernel, what: "slot", number: *number });
        }
        apart(Self::NAME, "slot", moves, self.moves, self.cache.positions())
    }

    /// Checks the call and returns its launch.
    pub fn launch(&self, rungs: Rungs) -> Result<Launch, LaunchError> {
        let KvShiftCall { cache, pairing, rope_dim, rope_offset, by, moves, in_place, each } = *self;
        let kernel = || Self::NAME.to_owned();
        let KvShape { kv, n_kv_heads, head_dim, .. } = cache;
        let words = words(Self::NAME, &cache)?;
        let odd = !rope_dim.is_multiple_of(2) || !rope_offset.is_multiple_of(2);
        if rope_dim < 2 || odd || u64::from(rope_offset) + u64::from(rope_dim) > u64::from(head_dim) {
            let offset = rope_offset;
            return Err(LaunchError::RopeDim { kernel: kernel(), offset, rope_dim, head_dim });
        }
        if !(1..=16).contains(&each) {
            let (name, value, needed) = ("each", each, "a number from 1 to 16");
            return Err(LaunchError::Tuning { kernel: kernel(), name, value, needed });
        }
        if moves == 0 {
            return Err(LaunchError::Zero { kernel: kernel(), name: "moves" });
        }
        let mut slots = vec![slot("k_cache", 0, Access::ReadWrite, words)];
        if !in_place {
            slots.push(slot("v_cache", 1, Access::ReadWrite, words));
        }
        slots.push(slot("moves", 3, Access::Read, 2 * u64::from(moves)));
        slots.push(slot("turns", 4, Access::Read, u64::from(rope_dim)));
        let head_words = head_dim * kv.bytes() as u32 / 4;
        let columns = head_words.next_power_of_two().min(WORKGROUP);
        let rows = WORKGROUP / columns;
        let number = |name, value: u32| (name, format!("{value}u"));
        let constants = vec![
            ("STORAGE", kv.name().to_owned()),
            ("PAIRING", if pairing == Pairing::Split { "split" } else { "adjacent" }.to_owned()),
            flag("F16", rungs.f16),
            flag("IN_PLACE", in_place),
            number("WORKGROUP", WORKGROUP),
            number("COLUMNS", columns),
            number("ROWS", rows),
            number("HEADS_PER_INVOCATION", each),
            number("WORDS_PER_INVOCATION", head_words.div_ceil(columns)),
        ];
        let params = KVCacheShiftParams {
            n_kv_heads,
            head_dim,
            max_seq_len: KV_BLOCK as u32,
            shift: by.wrapping_neg().cast_unsigned(),
            new_len: moves,
            rope_dim,
            rope_offset,
            _pad0: 0,
        };
        let groups = [moves.div_ceil(rows * each), n_kv_heads];
        if u64::from(groups[0]) > AXIS {
            let (what, count) = ("workgroups", groups[0].into());
            return Err(LaunchError::Large { kernel: kernel(), what, count });
        }
        let kernel = Kernel { name: Self::NAME, file: "kv_shift.wgsl", constants, overrides: Vec::new() };
        launch(kernel, rungs, slots, (2, &params), groups)
    }
}
