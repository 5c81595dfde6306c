//! Flash attention of many rows: tiles of queries against tiles of keys, for prompts and encoders.

use std::f32::consts::LOG2_E;

use bytemuck::{Pod, Zeroable};

use super::Storage;
use super::engine::{Paged, check_cache};
use crate::batch::Batch;
use crate::kv::KvShape;
use crate::launch::{AXIS, Access, Launch, LaunchError, Slot};
use crate::params::FlashParams;
use crate::shader::{Rungs, Variant};

const NAME: &str = "flash";

/// The default of [`FlashTuning::memory`]: Metal's 32 KiB.
const MEMORY: u32 = 32 << 10;

/// Attention of tiles of rows over a paged cache, each tile of one sequence.
///
/// Buffers: `qkv`, `k_cache`, `v_cache`, `rows` (position and first entry of the block table), `block_table`, `out`,
/// `tiles` ([`Tile`], by [`push_tiles`]) and, with `tree`, `branches`: 64 bits a row. Bit `i` says whether the row
/// attends to position `base + i` of its tile.
///
/// Heads have 16 to 256 elements, a multiple of 16. Other sizes are refused;
/// [`engine::attention`](super::engine::attention) takes them, with another order of sums.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FlashCall {
    /// Query heads.
    pub n_heads: u32,
    /// Elements from one row of `qkv` to the next, a multiple of 4.
    pub q_stride: u32,
    /// Factor on the scores.
    pub scale: f32,
    /// The window: positions a row attends to, its own included; 0 for all. Without causality it extends as far ahead.
    pub window: u32,
    /// Scores become `soft_cap·tanh(score / soft_cap)`; 0 for no cap.
    pub soft_cap: f32,
    /// Whether a row attends to no later position. If not, it attends to all up to its tile's end.
    pub causal: bool,
    /// Whether rows attend only to their own branch of a draft tree beyond a tile's base.
    pub tree: bool,
    /// Whether each head has a sink, a score that joins the softmax: `sinks`.
    pub sinks: bool,
    /// Cache, rows and block tables.
    pub paged: Paged,
    /// Tiles of this batch.
    pub tiles: u32,
}

/// Tuning. `keys` also changes the order of sums; `queries` does not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FlashTuning {
    /// Queries of a workgroup, a multiple of 4: rows times heads that share a KV head.
    pub queries: Option<u32>,
    /// Keys of a tile: 16, 32, 64 or 128. A workgroup has `queries·keys / 16` invocations.
    pub keys: Option<u32>,
    /// Elements of keys that are staged at a time, a divisor of a head and a multiple of 8.
    pub key_dims: Option<u32>,
    /// Values that are staged at a time, a divisor of `keys` and a multiple of 4.
    pub value_keys: Option<u32>,
    /// Whether an invocation prefetches its part of the next keys or values while it computes on the current ones.
    pub ahead: Option<bool>,
    /// Bytes of workgroup memory that may be used; 32 KiB if absent.
    pub memory: Option<u32>,
    /// Whether f16 cooperative matrices compute what they can, with a division of their own: a cache in f16, heads of up to
    /// 128 elements, and no tree. It changes the order of sums, and rounds queries and weights to f16.
    pub cooperative: bool,
    /// Whether the kernel with cooperative matrices emulates them, in smaller tiles: for tests on devices without them, with
    /// heads of up to 96 elements.
    pub emulated: bool,
}

/// Queries of a subgroup with cooperative matrices.
const SUBGROUP_QUERIES: u32 = 16;

/// Bytes of workgroup memory that cooperative matrices may take, which devices that have them offer.
pub const COOPERATIVE_MEMORY: u32 = 48 << 10;

/// A tile of rows: of one sequence, in order of position.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
pub struct Tile {
    /// The first row.
    pub first: u32,
    /// Number of rows; at least one, at most [`FlashCall::tile_rows`].
    pub rows: u32,
    /// One more than the last position that any of them attends to. The block table must cover it.
    pub end: u32,
    /// The first position of the draft tree, for calls with one; [`Tile::NO_TREE`] for none.
    pub base: u32,
}

impl Tile {
    /// The base of rows without a tree.
    pub const NO_TREE: u32 = u32::MAX;
}

/// Cuts a valid batch into tiles of at most `most` rows and appends them.
///
/// Consecutive rows of a sequence in order of position share tiles; other rows get tiles of their own. Rows see positions
/// up to their own, or those of the sequence's extent in the KV group `of_extent`.
pub fn push_tiles(batch: &Batch<'_>, most: u32, of_extent: Option<u8>, tiles: &mut Vec<Tile>) {
    let (positions, sequences) = (batch.positions, batch.sequences);
    let mut first = 0;
    while first < positions.len() {
        let mut last = first;
        while last + 1 < positions.len()
            && last + 1 - first < most.max(1) as usize
            && sequences[last + 1] == sequences[first]
            && positions[last + 1] >= positions[last]
        {
            last += 1;
        }
        let extent = of_extent.map(|group| batch.extent(first, group));
        tiles.push(Tile {
            first: first as u32,
            rows: (last + 1 - first) as u32,
            end: extent.unwrap_or(positions[last].saturating_add(1)),
            base: Tile::NO_TREE,
        });
        first = last + 1;
    }
}

/// How the work is divided among invocations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Shape {
    queries: u32,
    keys: u32,
    key_dims: u32,
    value_keys: u32,
    /// Query heads of a row in a workgroup, and the workgroups for all query heads of a KV head.
    heads: u32,
    parts: u32,
}

impl Shape {
    fn workgroup(&self) -> u32 {
        self.queries / 4 * (self.keys / 4)
    }

    /// Vectors of a query's output that an invocation accumulates.
    fn vectors(&self, head_dim: u32) -> u32 {
        head_dim.div_ceil(self.keys)
    }

    /// 16-byte loads of an invocation for a stage of keys or values.
    fn loads(&self, head_dim: u32, element: u32) -> u32 {
        let largest = (self.keys * self.key_dims).max(self.value_keys * head_dim);
        (largest * element / 16).div_ceil(self.workgroup())
    }

    /// Bytes of workgroup memory.
    fn memory(&self, head_dim: u32) -> u32 {
        let stage = (self.keys * (self.key_dims / 4 + 1)).max(self.value_keys * (head_dim / 4));
        16 * (self.queries * (head_dim / 4) + self.queries * (self.keys / 4) + self.workgroup() + stage)
    }
}

impl FlashCall {
    /// The most rows of a tile.
    pub fn tile_rows(&self, tuning: FlashTuning) -> Result<u32, LaunchError> {
        self.shape(tuning).map(|shape| shape.queries / shape.heads)
    }

    /// Whether cooperative matrices compute it.
    fn is_cooperative(&self, tuning: FlashTuning) -> bool {
        let KvShape { kv, head_dim, .. } = self.paged.cache;
        let most = if tuning.emulated { 96 } else { 128 };
        tuning.cooperative && !self.tree && kv == Storage::F16 && head_dim <= most
    }

    /// Checks the call: whether there is a kernel for it in this form, whatever the device.
    pub fn check(&self, tuning: FlashTuning) -> Result<(), LaunchError> {
        let kernel = || NAME.to_owned();
        let shape = self.shape(tuning)?;
        let FlashCall { n_heads, q_stride, paged, .. } = *self;
        let KvShape { n_kv_heads, head_dim, .. } = paged.cache;
        check_cache(NAME, &paged.cache)?;
        for (name, value) in [("rows", paged.rows), ("tiles", self.tiles)] {
            if value == 0 {
                return Err(LaunchError::Zero { kernel: kernel(), name });
            }
        }
        let width = u64::from(n_heads) * u64::from(head_dim);
        if u64::from(q_stride) < width {
            let (name, value, least) = ("q_stride", q_stride, width);
            return Err(LaunchError::TooLow { kernel: kernel(), name, value, least });
        }
        if !q_stride.is_multiple_of(4) {
            let (name, value, of) = ("q_stride", q_stride, 4);
            return Err(LaunchError::NotMultiple { kernel: kernel(), name, value, of });
        }
        if self.soft_cap != 0.0 && !(self.soft_cap > 0.0 && (self.soft_cap * LOG2_E).is_finite()) {
            let (name, value) = ("soft_cap", self.soft_cap);
            return Err(LaunchError::NotPositive { kernel: kernel(), name, value });
        }
        let rows = u64::from(paged.rows);
        for (what, count, most) in [
            ("elements of qkv", (rows - 1) * u64::from(q_stride) + width, u64::from(u32::MAX)),
            ("elements of out", rows * width, u64::from(u32::MAX)),
            ("words of a cache", paged.cache.words(), u64::from(u32::MAX)),
            ("groups of heads", u64::from(n_kv_heads) * u64::from(shape.parts), AXIS),
            ("tiles", self.tiles.into(), AXIS),
        ] {
            if count > most {
                return Err(LaunchError::Large { kernel: kernel(), what, count });
            }
        }
        Ok(())
    }

    /// Checks the call and makes it a launch.
    pub fn launch(&self, rungs: Rungs, tuning: FlashTuning) -> Result<Launch, LaunchError> {
        self.check(tuning)?;
        let shape = self.shape(tuning)?;
        let FlashCall { n_heads, q_stride, window, paged, .. } = *self;
        let KvShape { n_kv_heads, head_dim, .. } = paged.cache;
        let capped = self.soft_cap != 0.0;
        let (rows, width) = (u64::from(paged.rows), u64::from(n_heads) * u64::from(head_dim));
        let qkv = (rows - 1) * u64::from(q_stride) + width;
        let cache = paged.cache.words();
        let slot = |name, binding, access, words: u64| Slot { name, binding, access, bytes: 4 * words };
        let mut slots = vec![
            slot("qkv", 0, Access::Read, qkv),
            slot("k_cache", 1, Access::Read, cache),
            slot("v_cache", 2, Access::Read, cache),
            slot("rows", 4, Access::Read, 2 * rows),
            slot("block_table", 5, Access::Read, paged.entries.into()),
            slot("out", 6, Access::ReadWrite, rows * width),
            slot("tiles", 7, Access::Read, 4 * u64::from(self.tiles)),
        ];
        if self.tree {
            slots.push(slot("branches", 8, Access::Read, 2 * rows));
        }
        if self.sinks {
            slots.push(slot("sinks", 9, Access::Read, n_heads.into()));
        }
        let params = FlashParams {
            n_heads,
            n_kv_heads,
            q_stride,
            window,
            causal: self.causal.into(),
            query_scale: if capped { self.scale / self.soft_cap } else { self.scale * LOG2_E },
            cap: self.soft_cap * LOG2_E,
            _pad0: 0,
        };
        if self.is_cooperative(tuning) {
            return self.launch_cooperative(rungs, tuning.emulated, shape, slots, params);
        }
        let held = if tuning.ahead.unwrap_or(false) {
            shape.loads(head_dim, paged.cache.kv.bytes() as u32)
        } else {
            0
        };
        let mut constants = paged.constants();
        constants.extend([
            ("TREE", u32::from(self.tree).to_string()),
            ("SINKS", u32::from(self.sinks).to_string()),
            ("OUTPUT_VECTORS", shape.vectors(head_dim).to_string()),
            ("PREFETCH", held.to_string()),
            ("IMMEDIATES", u32::from(rungs.immediates).to_string()),
            // Maxima are reduced through workgroup memory: relative to a tile's scores they are cheap.
            ("SUBGROUPS", "0".to_owned()),
        ]);
        let overrides = [
            ("QUERIES", shape.queries),
            ("KEYS", shape.keys),
            ("KEY_DIMS", shape.key_dims),
            ("VALUE_KEYS", shape.value_keys),
            ("HEADS", shape.heads),
        ];
        let overrides = overrides.map(|(name, value)| (name, f64::from(value))).to_vec();
        Ok(Launch {
            groups: [n_kv_heads * shape.parts, self.tiles, 1],
            variant: Variant { name: NAME.to_owned(), file: "engine/flash.wgsl", constants, overrides },
            slots,
            uniforms: Vec::new(),
            rope: None,
            params: Some((3, bytemuck::bytes_of(&params).to_vec())),
        })
    }

    /// The launch of the kernel with cooperative matrices.
    fn launch_cooperative(
        &self,
        rungs: Rungs,
        emulated: bool,
        shape: Shape,
        slots: Vec<Slot>,
        params: FlashParams,
    ) -> Result<Launch, LaunchError> {
        let name = "flash_cooperative";
        if !((rungs.cooperative || emulated) && rungs.f16 && rungs.subgroups) {
            let storage = "devices without f16 cooperative matrices";
            return Err(LaunchError::Storage { kernel: name.to_owned(), storage });
        }
        let KvShape { n_kv_heads, head_dim, .. } = self.paged.cache;
        let mut constants = self.paged.constants();
        constants.extend([
            ("SINKS", u32::from(self.sinks).to_string()),
            ("KEYS", format!("{}u", shape.keys)),
            ("HEADS", format!("{}u", shape.heads)),
            ("EMULATED", u32::from(emulated).to_string()),
            ("SUBGROUP_COUNT", format!("{}u", shape.queries / SUBGROUP_QUERIES)),
            ("HEAD_FRAGMENTS", (head_dim / 16).to_string()),
            ("KEY_FRAGMENTS", (shape.keys / 16).to_string()),
            ("IMMEDIATES", u32::from(rungs.immediates).to_string()),
            // Emulated, lanes are those of the workgroup.
            ("SUBGROUPS", if emulated { 1 } else { 32 }.to_string()),
        ]);
        let file = "engine/flash_cooperative.wgsl";
        Ok(Launch {
            groups: [n_kv_heads * shape.parts, self.tiles, 1],
            variant: Variant { name: name.to_owned(), file, constants, overrides: Vec::new() },
            slots,
            uniforms: Vec::new(),
            rope: None,
            params: Some((3, bytemuck::bytes_of(&params).to_vec())),
        })
    }

    /// Divides the work as the tuning asks, else with the largest stages that fit in workgroup memory.
    fn shape(&self, tuning: FlashTuning) -> Result<Shape, LaunchError> {
        let (n_heads, KvShape { n_kv_heads, head_dim, .. }) = (self.n_heads, self.paged.cache);
        let kernel = || NAME.to_owned();
        if n_heads == 0 || n_kv_heads == 0 || !n_heads.is_multiple_of(n_kv_heads) {
            return Err(LaunchError::Heads { kernel: kernel(), n_heads, n_kv_heads });
        }
        if head_dim == 0 || !head_dim.is_multiple_of(16) {
            let (name, value, of) = ("head_dim", head_dim, 16);
            return Err(LaunchError::NotMultiple { kernel: kernel(), name, value, of });
        }
        if head_dim > 256 {
            let (what, count) = ("elements of a head", head_dim.into());
            return Err(LaunchError::Large { kernel: kernel(), what, count });
        }
        if self.is_cooperative(tuning) {
            let queries = if tuning.emulated { 2 } else { 4 } * SUBGROUP_QUERIES;
            let (heads, parts) = self.heads(queries);
            // Keys and values of a tile, queries and scores are in workgroup memory together.
            let keys = if head_dim <= if tuning.emulated { 32 } else { 64 } { 64 } else { 32 };
            let (key_dims, value_keys) = (head_dim, keys);
            return Ok(Shape { queries, keys, key_dims, value_keys, heads, parts });
        }
        let refused = |name, value, needed| LaunchError::Tuning { kernel: kernel(), name, value, needed };
        // An invocation accumulates at most four vectors of a query's output, `head_dim / keys`.
        let keys = tuning.keys.unwrap_or(if head_dim > 128 { 64 } else { 32 });
        if ![16, 32, 64, 128].contains(&keys) || head_dim > 4 * keys {
            return Err(refused("keys", keys, "16, 32, 64 or 128, and at least a quarter of a head"));
        }
        let memory = tuning.memory.unwrap_or(MEMORY);
        let choices = tuning.queries.map_or(vec![32, 16, 8, 4], |queries| vec![queries]);
        for queries in choices {
            if queries == 0 || !queries.is_multiple_of(4) || queries / 4 > 256 / (keys / 4) {
                return Err(refused("queries", queries, "a multiple of 4, with 256 invocations at most,"));
            }
            let (heads, parts) = self.heads(queries);
            let shape = Shape { queries, keys, key_dims: 8, value_keys: 4, heads, parts };
            let fits = |shape: &Shape| shape.memory(head_dim) <= memory;
            // The largest divisor that is a multiple of `unit` and fits.
            let divisors = |of: u32, unit: u32| {
                (1..=of)
                    .filter_map(move |n| of.is_multiple_of(n).then_some(of / n))
                    .filter(move |d| d.is_multiple_of(unit))
            };
            let key_dims = tuning
                .key_dims
                .or_else(|| divisors(head_dim, 8).find(|&d| fits(&Shape { key_dims: d, ..shape })));
            let value_keys = tuning
                .value_keys
                .or_else(|| divisors(keys, 4).find(|&d| fits(&Shape { value_keys: d, ..shape })));
            let (Some(key_dims), Some(value_keys)) = (key_dims, value_keys) else { continue };
            if key_dims == 0 || !key_dims.is_multiple_of(8) || !head_dim.is_multiple_of(key_dims) {
                return Err(refused("key_dims", key_dims, "a divisor of a head and multiple of 8"));
            }
            if value_keys == 0 || !value_keys.is_multiple_of(4) || !keys.is_multiple_of(value_keys) {
                return Err(refused("value_keys", value_keys, "a divisor of keys and multiple of 4"));
            }
            let shape = Shape { key_dims, value_keys, ..shape };
            if fits(&shape) {
                return Ok(shape);
            }
        }
        Err(refused("memory", memory, "more workgroup memory, or smaller tiles,"))
    }

    /// Query heads of each row in a workgroup of this many queries: all of a KV head, or a part of them if that leaves
    /// too many queries idle.
    fn heads(&self, queries: u32) -> (u32, u32) {
        let sharing = self.n_heads / self.paged.cache.n_kv_heads;
        let mut best = (1, sharing);
        let mut best_share = 0;
        for parts in sharing.div_ceil(queries)..=sharing {
            let heads = sharing.div_ceil(parts);
            // With rounding, fewer parts may suffice; every part must have a head.
            let parts = sharing.div_ceil(heads);
            // The share of busy queries, in 64ths.
            let share = 64 * u64::from(sharing) * u64::from(queries / heads)
                / (u64::from(parts) * u64::from(queries));
            if share > best_share {
                (best, best_share) = ((heads, parts), share);
            }
            if share >= 54 {
                break;
            }
        }
        best
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::Inputs;
    use crate::call::Storage;

    fn call(n_heads: u32, n_kv_heads: u32, head_dim: u32) -> FlashCall {
        FlashCall {
            sinks: false,
            n_heads,
            q_stride: (n_heads + 2 * n_kv_heads) * head_dim,
            scale: 0.1,
            window: 0,
            soft_cap: 0.0,
            causal: true,
            tree: false,
            paged: Paged {
                cache: KvShape { kv: Storage::F16, blocks: 4, n_kv_heads, head_dim },
                rows: 3,
                entries: 8,
            },
            tiles: 2,
        }
    }

    fn tiles(positions: &[u32], sequences: &[u32], most: u32, causal: bool) -> Vec<[u32; 3]> {
        let batch = Batch {
            tokens: positions,
            positions,
            sequences,
            kind: crate::RowKind::Prompt,
            logits: &[],
            tables: &[&[], &[]],
            lengths: &[0, 0],
            records: &[],
            inputs: Inputs { extents: &[40, 5], ..Inputs::default() },
        };
        let mut tiles = Vec::new();
        push_tiles(&batch, most, (!causal).then_some(0), &mut tiles);
        tiles.iter().map(|tile| [tile.first, tile.rows, tile.end]).collect()
    }

    #[test]
    fn tiles_hold_rows_of_one_sequence_in_order() {
        assert!(tiles(&[], &[], 4, true).is_empty());
        let (positions, sequences) = ([7, 8, 9, 10, 11, 3, 4, 12], [0, 0, 0, 0, 0, 1, 1, 0]);
        let found = tiles(&positions, &sequences, 4, true);
        assert_eq!(found, [[0, 4, 11], [4, 1, 12], [5, 2, 5], [7, 1, 13]]);
        let found = tiles(&positions, &sequences, 4, false);
        assert_eq!(found, [[0, 4, 40], [4, 1, 40], [5, 2, 5], [7, 1, 40]]);
        // Rows out of order get tiles of their own.
        assert_eq!(tiles(&[5, 4, 6], &[0, 0, 0], 4, true), [[0, 1, 6], [1, 2, 7]]);
    }

    #[test]
    fn every_query_has_a_place_and_most_have_work() {
        for sharing in 1..=80 {
            for queries in [4, 16, 32, 64] {
                let (heads, parts) = call(sharing, 1, 64).heads(queries);
                assert!(heads <= queries && heads * parts >= sharing && heads * (parts - 1) < sharing);
                let busy = f64::from(sharing * (queries / heads)) / f64::from(parts * queries);
                assert!(busy > 0.7, "{sharing} heads, {queries} queries: {busy}");
            }
        }
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let launch = |call: FlashCall| call.launch(Rungs::ALL, FlashTuning::default());
        let good = call(4, 2, 64);
        assert!(launch(good).is_ok());
        for head_dim in (16..=256).step_by(16) {
            for memory in [16 << 10, 32 << 10] {
                let tuning = FlashTuning { memory: Some(memory), ..Default::default() };
                let shape = call(4, 2, head_dim).shape(tuning).unwrap();
                assert!(shape.memory(head_dim) <= memory && shape.vectors(head_dim) <= 4, "{shape:?}");
            }
        }
        assert!(matches!(launch(call(4, 3, 64)), Err(LaunchError::Heads { .. })));
        assert!(matches!(launch(call(4, 0, 64)), Err(LaunchError::Heads { .. })));
        for head_dim in [0, 6, 72] {
            assert!(matches!(launch(call(4, 2, head_dim)), Err(LaunchError::NotMultiple { .. })));
        }
        assert!(matches!(launch(call(4, 2, 272)), Err(LaunchError::Large { .. })));
        assert!(matches!(launch(FlashCall { tiles: 0, ..good }), Err(LaunchError::Zero { .. })));
        assert!(matches!(launch(FlashCall { tiles: 65_536, ..good }), Err(LaunchError::Large { .. })));
        assert!(matches!(launch(FlashCall { q_stride: 252, ..good }), Err(LaunchError::TooLow { .. })));
        assert!(matches!(launch(FlashCall { q_stride: 257, ..good }), Err(LaunchError::NotMultiple { .. })));
        for soft_cap in [-1.0, f32::NAN, f32::INFINITY] {
            assert!(matches!(launch(FlashCall { soft_cap, ..good }), Err(LaunchError::NotPositive { .. })));
        }
        let cache = KvShape { kv: Storage::Bf16, ..good.paged.cache };
        let paged = Paged { cache, ..good.paged };
        assert!(matches!(launch(FlashCall { paged, ..good }), Err(LaunchError::Storage { .. })));
        let cache = KvShape { blocks: u32::MAX, ..good.paged.cache };
        let paged = Paged { cache, ..good.paged };
        assert!(matches!(launch(FlashCall { paged, ..good }), Err(LaunchError::Large { .. })));
        let tuned = |tuning| good.launch(Rungs::ALL, tuning);
        let default = FlashTuning::default();
        for tuning in [
            FlashTuning { queries: Some(0), ..default },
            FlashTuning { queries: Some(6), ..default },
            FlashTuning { queries: Some(256), ..default },
            FlashTuning { keys: Some(24), ..default },
            FlashTuning { key_dims: Some(12), ..default },
            FlashTuning { value_keys: Some(3), ..default },
            FlashTuning { queries: Some(64), key_dims: Some(64), ..default },
            FlashTuning { memory: Some(512), ..default },
        ] {
            assert!(matches!(tuned(tuning), Err(LaunchError::Tuning { .. })), "{tuning:?}");
        }
    }
}
