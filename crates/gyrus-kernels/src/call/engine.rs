//! The kernels a plan's ops become, apart from mat-muls. Rows are the grid's second axis.

use bytemuck::Pod;

use crate::batch::KV_BLOCK;
use crate::launch::{Access, Launch, LaunchError, Slot};
use crate::op::Activation;
use crate::params::{AttendParams, ElementwiseParams, RMSNormParams, RopeWriteParams};
use crate::rope::Pairing;
use crate::shader::{Rungs, Variant};

use super::Storage;

const WORKGROUP: u32 = 256;

fn flag(name: &'static str, value: bool) -> (&'static str, String) {
    (name, u32::from(value).to_string())
}

struct Kernel {
    name: &'static str,
    file: &'static str,
    constants: Vec<(&'static str, String)>,
    overrides: Vec<(&'static str, f64)>,
}

fn launch(
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
        params: Some((binding, bytemuck::bytes_of(params).to_vec())),
        groups: [groups[0], groups[1], 1],
    })
}

fn slot(name: &'static str, binding: u32, access: Access, elements: u64) -> Slot {
    Slot { name, binding, access, bytes: 4 * elements }
}

/// `out = x / rms(x) · weight` over rows of `dim`, for `rows` of them.
pub fn rms_norm(rungs: Rungs, rows: u32, dim: u32, eps: f32, in_place: bool) -> Result<Launch, LaunchError> {
    if dim == 0 {
        return Err(LaunchError::Zero { kernel: "rms_norm".to_owned(), name: "dim" });
    }
    let all = u64::from(rows) * u64::from(dim);
    let mut slots = vec![
        slot("x", 0, if in_place { Access::ReadWrite } else { Access::Read }, all),
        slot("weight", 1, Access::Read, dim.into()),
    ];
    if !in_place {
        slots.push(slot("out", 2, Access::ReadWrite, all));
    }
    let kernel = Kernel {
        name: "rms_norm",
        file: "engine/rms_norm.wgsl",
        constants: vec![flag("IN_PLACE", in_place)],
        overrides: vec![("WORKGROUP", f64::from(WORKGROUP))],
    };
    launch(kernel, rungs, slots, (3, &RMSNormParams { dim, eps, ..Default::default() }), [1, rows])
}

/// `out = f(gate) · up` for `rows` of `2·count` elements.
pub fn gate(rungs: Rungs, rows: u32, count: u32, activation: Activation) -> Result<Launch, LaunchError> {
    let name = match activation {
        Activation::Silu => "silu",
        Activation::GeluTanh => "gelu_tanh",
    };
    let all = u64::from(rows) * u64::from(count);
    let slots = vec![slot("x", 0, Access::Read, 2 * all), slot("out", 1, Access::ReadWrite, all)];
    let kernel = Kernel {
        name: "gate",
        file: "engine/gate.wgsl",
        constants: vec![("ACTIVATION", name.to_owned())],
        overrides: vec![("WORKGROUP", f64::from(WORKGROUP))],
    };
    let params = ElementwiseParams { count, ..Default::default() };
    launch(kernel, rungs, slots, (2, &params), [count.div_ceil(WORKGROUP), rows])
}

/// Where the parameters of [`gather`] have `first`.
pub const GATHER_FIRST: usize = 4;

/// `out[i] = x[indices[first + i]]` for rows of `count`; `rows` of x, `gathered` of out. `first` is patched.
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

/// The paged cache of a layer, and how many rows and table entries there can be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Paged {
    /// Element type of the cache.
    pub kv: Storage,
    /// Blocks it has.
    pub blocks: u32,
    /// Rows of the batch.
    pub rows: u32,
    /// Entries of all block tables together.
    pub entries: u32,
}

impl Paged {
    pub(super) fn check(&self, kernel: &str, head_dim: u32) -> Result<(), LaunchError> {
        let kernel = kernel.to_owned();
        if self.kv == Storage::Bf16 {
            return Err(LaunchError::Storage { kernel, storage: self.kv.name() });
        }
        if head_dim < 2 || !head_dim.is_multiple_of(2) {
            return Err(LaunchError::Odd { kernel, name: "head_dim", value: head_dim });
        }
        // What an invocation can own of a head, and what workgroup memory holds everywhere.
        if head_dim > 512 {
            let count = head_dim.into();
            return Err(LaunchError::Large { kernel, what: "elements of a head", count });
        }
        Ok(())
    }

    pub(super) fn cache_words(&self, n_kv_heads: u32, head_dim: u32) -> u64 {
        let elements = u64::from(self.blocks) * u64::from(n_kv_heads) * KV_BLOCK as u64 * u64::from(head_dim);
        elements * self.kv.bytes() / 4
    }

    pub(super) fn constants(&self) -> Vec<(&'static str, String)> {
        vec![("KV", self.kv.name().to_owned()), ("KV_BLOCK", format!("{KV_BLOCK}u"))]
    }
}

/// Heads normalised (`norm`), turned and written to the cache.
pub fn rope_write(
    rungs: Rungs,
    params: RopeWriteParams,
    pairing: Pairing,
    norm: bool,
    paged: Paged,
) -> Result<Launch, LaunchError> {
    let name = "rope_write";
    let p = params;
    paged.check(name, p.head_dim)?;
    let heads = u64::from(p.n_heads) + 2 * u64::from(p.n_kv_heads);
    if u64::from(p.stride) < heads * u64::from(p.head_dim) {
        let least = heads * u64::from(p.head_dim);
        return Err(LaunchError::TooLow { kernel: name.to_owned(), name: "stride", value: p.stride, least });
    }
    if p.rope_dim < 2 || !p.rope_dim.is_multiple_of(2) || p.rope_offset + p.rope_dim > p.head_dim {
        return Err(LaunchError::RopeDim {
            kernel: name.to_owned(),
            offset: p.rope_offset,
            rope_dim: p.rope_dim,
            head_dim: p.head_dim,
        });
    }
    let rows = u64::from(paged.rows);
    let cache = paged.cache_words(p.n_kv_heads, p.head_dim);
    let mut slots = vec![
        slot("qkv", 0, Access::ReadWrite, rows * u64::from(p.stride)),
        slot("k_cache", 1, Access::ReadWrite, cache),
        slot("v_cache", 2, Access::ReadWrite, cache),
        slot("phases", 4, Access::Read, rows * u64::from(p.rope_dim)),
        slot("rows", 5, Access::Read, 2 * rows),
        slot("block_table", 6, Access::Read, paged.entries.into()),
    ];
    if norm {
        slots.push(slot("q_norm_weight", 7, Access::Read, p.head_dim.into()));
        slots.push(slot("k_norm_weight", 8, Access::Read, p.head_dim.into()));
    }
    let mut constants = paged.constants();
    constants.push(flag("NORM", norm));
    let pairs = if pairing == Pairing::Split { "split" } else { "adjacent" };
    constants.push(("PAIRING", pairs.to_owned()));
    let workgroup = (p.head_dim / 2).next_power_of_two().clamp(32, 128);
    let overrides = vec![
        ("WORKGROUP", f64::from(workgroup)),
        ("ROOM", f64::from(p.head_dim.next_power_of_two().max(64))),
    ];
    let kernel = Kernel { name, file: "engine/rope_write.wgsl", constants, overrides };
    launch(kernel, rungs, slots, (3, &params), [heads as u32, paged.rows])
}

/// Attention of each head of each row over its sequence.
pub fn attention(rungs: Rungs, params: AttendParams, paged: Paged) -> Result<Launch, LaunchError> {
    let name = "attention";
    let p = params;
    paged.check(name, p.head_dim)?;
    if p.n_kv_heads == 0 || !p.n_heads.is_multiple_of(p.n_kv_heads) {
        let (n_heads, n_kv_heads) = (p.n_heads, p.n_kv_heads);
        return Err(LaunchError::Heads { kernel: name.to_owned(), n_heads, n_kv_heads });
    }
    let rows = u64::from(paged.rows);
    let cache = paged.cache_words(p.n_kv_heads, p.head_dim);
    let slots = vec![
        slot("qkv", 0, Access::Read, rows * u64::from(p.q_stride)),
        slot("k_cache", 1, Access::Read, cache),
        slot("v_cache", 2, Access::Read, cache),
        slot("rows", 4, Access::Read, 2 * rows),
        slot("block_table", 5, Access::Read, paged.entries.into()),
        slot("out", 6, Access::ReadWrite, rows * u64::from(p.n_heads) * u64::from(p.head_dim)),
    ];
    const TILE: u32 = 128;
    let overrides = vec![
        ("WORKGROUP", f64::from(TILE)),
        ("OWNED", f64::from(p.head_dim.div_ceil(TILE))),
        ("ROOM", f64::from(p.head_dim.next_power_of_two().max(64))),
    ];
    let kernel = Kernel { name, file: "engine/attention.wgsl", constants: paged.constants(), overrides };
    launch(kernel, rungs, slots, (3, &params), [p.n_heads, paged.rows])
}
