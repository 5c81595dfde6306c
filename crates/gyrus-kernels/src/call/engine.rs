//! Launches of a plan's ops, apart from mat-muls. The grid's second axis is the rows.

use bytemuck::Pod;

use crate::kv::{KV_BLOCK, KvShape};
use crate::launch::{Access, Launch, LaunchError, Slot};
use crate::params::{AttendParams, ElementwiseParams};
use crate::rope::{Pairing, Rope};
use crate::shader::{Rungs, Variant};

use super::Storage;
pub use super::elementwise::{AddCall, activate, gate, gate_by, mul_by, scale};
use super::norm::{Norm, NormCall};

const WORKGROUP: u32 = 256;

pub(super) fn flag(name: &'static str, value: bool) -> (&'static str, String) {
    (name, u32::from(value).to_string())
}

pub(super) struct Kernel {
    pub(super) name: &'static str,
    pub(super) file: &'static str,
    pub(super) constants: Vec<(&'static str, String)>,
    pub(super) overrides: Vec<(&'static str, f64)>,
}

pub(super) fn launch(
    kernel: Kernel,
    rungs: Rungs,
    slots: Vec<Slot>,
    (binding, params): (u32, &impl Pod),
    groups: [u32; 2],
) -> Result<Launch, LaunchError> {
    let Kernel { name, file, mut constants, overrides } = kernel;
    constants.extend([flag("IMMEDIATES", rungs.immediates), flag("SUBGROUPS", rungs.subgroups)]);
    for count in groups {
        if count == 0 {
            return Err(LaunchError::Zero {
                kernel: name.to_owned(),
                name: "the number of rows or workgroups",
            });
        }
        if count > 65_535 {
            return Err(LaunchError::Large {
                kernel: name.to_owned(),
                what: "workgroups",
                count: count.into(),
            });
        }
    }
    Ok(Launch {
        variant: Variant { name: name.to_owned(), file, constants, overrides },
        slots,
        uniforms: Vec::new(),
        rope: None,
        params: Some((binding, bytemuck::bytes_of(params).to_vec())),
        groups: [groups[0], groups[1], 1],
    })
}

pub(super) fn slot(name: &'static str, binding: u32, access: Access, elements: u64) -> Slot {
    Slot { name, binding, access, bytes: 4 * elements }
}

/// `out = x / rms(x) · weight` over rows of `dim`, for `rows` of them.
pub fn rms_norm(rungs: Rungs, rows: u32, dim: u32, eps: f32, in_place: bool) -> Result<Launch, LaunchError> {
    NormCall { in_place, ..NormCall::new(Norm::Rms, rows, dim, eps) }.launch(rungs)
}

/// The byte offset of `first` in the parameters of [`gather`].
pub const GATHER_FIRST: usize = 4;

/// `out[i] = x[indices[first + i]]` for rows of `count`; `x` has `rows` rows, `out` has `gathered`. The host patches
/// `first`.
pub fn gather(rungs: Rungs, rows: u32, gathered: u32, count: u32) -> Result<Launch, LaunchError> {
    let slots = vec![
        slot("x", 0, Access::Read, u64::from(rows) * u64::from(count)),
        slot("indices", 1, Access::Read, rows.into()),
        slot("out", 2, Access::ReadWrite, u64::from(gathered) * u64::from(count)),
    ];
    let kernel = Kernel {
        name: "gather",
        file: "engine/gather.wgsl",
        constants: Vec::new(),
        overrides: vec![("WORKGROUP", f64::from(WORKGROUP))],
    };
    let params = ElementwiseParams { count, ..Default::default() };
    launch(kernel, rungs, slots, (3, &params), [count.div_ceil(WORKGROUP), gathered])
}

/// The paged KV cache of a layer, and the number of rows and block table entries of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Paged {
    /// Keys, and values.
    pub cache: KvShape,
    /// Rows of the batch.
    pub rows: u32,
    /// Entries of all block tables together.
    pub entries: u32,
}

impl Paged {
    pub(super) fn constants(&self) -> Vec<(&'static str, String)> {
        vec![
            ("KV", self.cache.kv.name().to_owned()),
            ("KV_BLOCK", format!("{KV_BLOCK}u")),
            ("HEAD_DIM", self.cache.head_dim.to_string()),
        ]
    }
}

/// Checks that kernels take the heads of a cache.
pub(super) fn check_cache(kernel: &str, cache: &KvShape) -> Result<(), LaunchError> {
    let (kernel, head_dim) = (kernel.to_owned(), cache.head_dim);
    if cache.kv == Storage::Bf16 {
        return Err(LaunchError::Storage { kernel, storage: cache.kv.name() });
    }
    if head_dim < 2 || !head_dim.is_multiple_of(2) {
        return Err(LaunchError::Odd { kernel, name: "head_dim", value: head_dim });
    }
    // The limit of an invocation's accumulators, and of workgroup memory on every device.
    if head_dim > 512 {
        let count = head_dim.into();
        return Err(LaunchError::Large { kernel, what: "elements of a head", count });
    }
    Ok(())
}

/// Norm and rotary embedding of heads before attention.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Heads {
    /// Which elements form a rotary pair.
    pub pairing: Pairing,
    /// Whether heads of Q and K are normalised.
    pub norm: bool,
    /// Whether rows have keys and values, which are written to the cache. Without, rows have queries only.
    pub write: bool,
}

impl Heads {
    pub(super) fn constants(&self, head_dim: u32) -> [(&'static str, String); 4] {
        let pairs = if self.pairing == Pairing::Split { "split" } else { "adjacent" };
        // A 32-lane group shares a head's pairs.
        let pairs_per_lane = (head_dim / 2).div_ceil(32).to_string();
        [
            flag("NORM", self.norm),
            flag("WRITE", self.write),
            ("PAIRING", pairs.to_owned()),
            ("PAIRS_PER_LANE", pairs_per_lane),
        ]
    }

    pub(super) fn check(&self, kernel: &str, p: &AttendParams, head_dim: u32) -> Result<(), LaunchError> {
        let kernel = kernel.to_owned();
        let rotated_end = u64::from(p.rope_offset) + u64::from(p.rope_dim);
        let odd = !p.rope_dim.is_multiple_of(2) || !p.rope_offset.is_multiple_of(2);
        if p.rope_dim < 2 || odd || rotated_end > u64::from(head_dim) {
            return Err(LaunchError::RopeDim {
                kernel,
                offset: p.rope_offset,
                rope_dim: p.rope_dim,
                head_dim,
            });
        }
        Ok(())
    }

    /// Bytes of the tables of [`turns`] of this many rows.
    pub(super) fn turns(&self, p: &AttendParams, rows: u64) -> u64 {
        8 * ((rows - 1) * u64::from(p.turns_stride) + u64::from(p.rope_dim) / 2 + 1)
    }
}

/// A rope that rotates nothing, for heads of `head_dim`, in the form of [`turns`].
pub fn no_turns(head_dim: usize) -> Vec<u32> {
    let mut words = vec![0; head_dim];
    words.extend([1f32.to_bits(), 0]);
    words
}

/// A rope in the form that kernels read, for sequences of up to `length` tokens: the turns per position of each pair in
/// two words, low and high, then the factor on cosine and sine, and a padding word.
pub fn turns(rope: &Rope, length: usize) -> Vec<u32> {
    let spectrum = rope.spectrum(length);
    let words = spectrum.turns().iter().flat_map(|turns| [*turns as u32, (*turns >> 32) as u32]);
    let scale = (spectrum.attention_factor() * rope.output_scale()) as f32;
    words.chain([scale.to_bits(), 0]).collect()
}

/// Checks that heads of Q and, with `kv`, of K and V fit side by side in rows of `stride`.
pub(super) fn check_rows(
    kernel: &str,
    p: &AttendParams,
    cache: &KvShape,
    kv: bool,
) -> Result<(), LaunchError> {
    let (n_heads, n_kv_heads, head_dim) = (p.n_heads, p.n_kv_heads, cache.head_dim);
    if n_kv_heads != cache.n_kv_heads
        || n_kv_heads == 0
        || (n_heads == 0 && !kv)
        || !n_heads.is_multiple_of(n_kv_heads)
    {
        return Err(LaunchError::Heads { kernel: kernel.to_owned(), n_heads, n_kv_heads });
    }
    let heads = if kv { u64::from(n_heads) + 2 * u64::from(n_kv_heads) } else { n_heads.into() };
    let least = heads * u64::from(head_dim);
    if u64::from(p.stride) < least {
        return Err(LaunchError::TooLow {
            kernel: kernel.to_owned(),
            name: "stride",
            value: p.stride,
            least,
        });
    }
    Ok(())
}

/// Positions of a tile of decode attention.
pub const SPLIT_TILE: u32 = 64;

/// The most splits of a row's attention.
pub const MOST_SPLITS: u32 = 24;

/// The number of splits of a row's attention. It depends only on the row's position and the window.
pub fn splits(position: u32, window: u32) -> u32 {
    let first = match window {
        0 => 0,
        window => (position + 1).saturating_sub(window) / SPLIT_TILE * SPLIT_TILE,
    };
    let tiles = (position - first) / SPLIT_TILE + 1;
    let size = SPLIT_TILE * tiles.div_ceil(MOST_SPLITS);
    (position - first) / size + 1
}

/// The most splits that a row has at any position from `first` to `last`. It need not be that of the last: splits become
/// longer when there would be too many, and a window may begin in a later tile.
pub fn most_splits(first: u32, last: u32, window: u32) -> u32 {
    // The number changes only where a row or the beginning of its window enters a tile.
    let next_tile = |position: u32| SPLIT_TILE - position % SPLIT_TILE;
    let (mut position, mut most) = (first, 0);
    while position <= last {
        most = most.max(splits(position, window));
        let begins = match window {
            0 => SPLIT_TILE,
            window => (position + 1).checked_sub(window).map_or_else(|| window - position - 1, next_tile),
        };
        position += next_tile(position).min(begins.max(1));
    }
    most.max(1)
}

/// Normalises and rotates heads, and writes K and V to the cache.
///
/// Buffers: `qkv`, `rows`, `turns`; if keys are written `k_cache`, `v_cache` and `block_table`; if heads are normalised
/// `head_norms`.
pub fn rope_write(
    rungs: Rungs,
    params: AttendParams,
    heads: Heads,
    paged: Paged,
) -> Result<Launch, LaunchError> {
    let name = "rope_write";
    let p = params;
    let head_dim = paged.cache.head_dim;
    check_cache(name, &paged.cache)?;
    check_rows(name, &p, &paged.cache, heads.write)?;
    heads.check(name, &p, head_dim)?;
    let (rows, cache) = (u64::from(paged.rows), paged.cache.words());
    let mut slots = vec![
        slot("qkv", 0, Access::ReadWrite, rows * u64::from(p.stride)),
        slot("k_cache", 1, Access::ReadWrite, cache),
        slot("v_cache", 2, Access::ReadWrite, cache),
        slot("rows", 4, Access::Read, 2 * rows),
        slot("block_table", 5, Access::Read, paged.entries.into()),
        slot("turns", 6, Access::Read, heads.turns(&p, rows.max(1)) / 4),
    ];
    if !heads.write {
        slots.retain(|slot| !["k_cache", "v_cache", "block_table"].contains(&slot.name));
    }
    if heads.norm {
        slots.push(slot("head_norms", 7, Access::Read, 2 * u64::from(head_dim)));
    }
    let mut constants = paged.constants();
    constants.extend(heads.constants(head_dim));
    let all = if heads.write { p.n_heads + 2 * p.n_kv_heads } else { p.n_heads };
    let kernel = Kernel { name, file: "engine/rope_write.wgsl", constants, overrides: Vec::new() };
    launch(kernel, rungs, slots, (3, &params), [all.div_ceil(4), paged.rows])
}

/// Attention of each row over its sequence, a workgroup per head. The plain kernel.
///
/// Buffers: `qkv`, `k_cache`, `v_cache`, `rows`, `block_table`, `out`, and `sinks` if each head has one: a score that joins
/// the softmax. With `around` a row attends to positions before and after its own, fewer than the window away from it, up
/// to the position that `ends` has for it, in the form of `rows`.
pub fn attention(
    rungs: Rungs,
    params: AttendParams,
    sinks: bool,
    around: bool,
    paged: Paged,
) -> Result<Launch, LaunchError> {
    let name = "attention";
    let (p, head_dim) = (params, paged.cache.head_dim);
    check_cache(name, &paged.cache)?;
    check_rows(name, &p, &paged.cache, false)?;
    let (rows, cache) = (u64::from(paged.rows), paged.cache.words());
    let mut slots = vec![
        slot("qkv", 0, Access::Read, rows * u64::from(p.stride)),
        slot("k_cache", 1, Access::Read, cache),
        slot("v_cache", 2, Access::Read, cache),
        slot("rows", 4, Access::Read, 2 * rows),
        slot("block_table", 5, Access::Read, paged.entries.into()),
        slot("out", 6, Access::ReadWrite, rows * u64::from(p.n_heads) * u64::from(head_dim)),
    ];
    if sinks {
        slots.push(slot("sinks", 7, Access::Read, p.n_heads.into()));
    }
    if around {
        slots.push(slot("ends", 8, Access::Read, 2 * rows));
        if p.window == 0 {
            return Err(LaunchError::Zero { kernel: name.to_owned(), name: "window" });
        }
    }
    if !(p.soft_cap >= 0.0 && p.soft_cap.is_finite()) {
        let (kernel, value) = (name.to_owned(), p.soft_cap);
        return Err(LaunchError::NotPositive { kernel, name: "soft_cap", value });
    }
    const TILE: u32 = 128;
    let overrides =
        vec![("WORKGROUP", f64::from(TILE)), ("ELEMENTS_PER_INVOCATION", f64::from(head_dim.div_ceil(TILE)))];
    let mut constants = paged.constants();
    constants.extend([flag("SINKS", sinks), flag("AROUND", around)]);
    let kernel = Kernel { name, file: "engine/attention.wgsl", constants, overrides };
    launch(kernel, rungs, slots, (3, &params), [p.n_heads, paged.rows])
}

#[cfg(test)]
mod tests {
    use super::{MOST_SPLITS, SPLIT_TILE, most_splits, splits};

    #[test]
    fn the_most_splits_of_a_range_are_those_of_one_of_its_positions() {
        let long = MOST_SPLITS * SPLIT_TILE;
        for window in [0, 1, 2, 63, 64, 65, 100, 128, 512, 1000, 4096] {
            for first in (0..300).chain(long - 3..long + 140).chain([2 * long - 1, 2 * long, 3 * long + 7]) {
                for length in [0, 1, 7, 63, 64, 65, 200] {
                    let expected = (first..=first + length).map(|position| splits(position, window)).max();
                    let found = most_splits(first, first + length, window);
                    assert_eq!(Some(found), expected, "{first}, {length} more, window {window}");
                }
            }
        }
    }
}
