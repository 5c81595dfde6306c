use gyrus_kernels::call::{Cache, RopeCall, RopeKernel};
use gyrus_kernels::params::RoPEQKVWriteParams;
use gyrus_kernels::{LaunchError, Pairing};

use crate::CpuError;

/// The memory layout of a call's heads, and what to do with them.
pub(super) struct Layout {
    /// Tokens with their own position.
    pub(super) tokens: usize,
    pub(super) head_dim: usize,
    pub(super) rope_dim: usize,
    pub(super) offset: usize,
    pub(super) pairing: Pairing,
    pub(super) scale: f32,
    /// Whether tensors are `[heads, tokens, head_dim]` instead of `[tokens, heads, head_dim]`.
    pub(super) head_major: bool,
    /// Names of the tensors; sections refer to them by index.
    pub(super) tensors: Vec<&'static str>,
    pub(super) sections: Vec<Section>,
}

/// Heads that are processed alike. Tensors are indices into [`Layout::tensors`].
pub(super) struct Section {
    pub(super) heads: usize,
    pub(super) source: usize,
    pub(super) from: Rows,
    /// The destination; `None` is in place.
    pub(super) target: Option<(usize, Rows)>,
    pub(super) rotated: bool,
    /// The head norm to apply before the rotation: 0 for queries, 1 for keys.
    pub(super) norm: Option<usize>,
}

/// The offsets of heads in a tensor.
pub(super) enum Rows {
    /// `[tokens, heads, head_dim]`, with `row` elements between tokens.
    TokenMajor { first: usize, row: usize, head_dim: usize },
    /// `[heads, tokens, head_dim]`.
    HeadMajor { tokens: usize, head_dim: usize },
    /// A KV cache of blocks `[kv_heads, length, head_dim]`, with the block and slot of each token.
    Cache { slots: Vec<(usize, usize)>, kv_heads: usize, length: usize, head_dim: usize },
}

impl Rows {
    /// The offset of a head's first element.
    pub(super) fn at(&self, token: usize, head: usize) -> usize {
        match self {
            Rows::TokenMajor { first, row, head_dim } => first + token * row + head * head_dim,
            Rows::HeadMajor { tokens, head_dim } => (head * tokens + token) * head_dim,
            Rows::Cache { slots, kv_heads, length, head_dim } => {
                let (block, slot) = slots[token];
                ((block * kv_heads + head) * length + slot) * head_dim
            }
        }
    }
}

impl Layout {
    /// The layout of a checked call, with the block table of its cache if it has one.
    pub(super) fn of(call: &RopeCall, table: &[u32]) -> Result<Layout, CpuError> {
        let size = |v: u32| v as usize;
        let whole = |rope_dim, head_dim| if rope_dim == 0 { size(head_dim) } else { size(rope_dim) };
        let section = |heads, source, from| Section {
            heads: size(heads),
            source,
            from,
            target: None,
            rotated: true,
            norm: None,
        };
        let layout = match call.kernel {
            RopeKernel::InPlace { pairing, params: p } => {
                let (head_dim, dense) = (size(p.head_dim), size(p.n_heads) * size(p.head_dim));
                let row = if p.row_stride == 0 { dense } else { size(p.row_stride) };
                let rows = Rows::TokenMajor { first: 0, row, head_dim };
                Layout {
                    tokens: size(p.seq_len),
                    head_dim,
                    rope_dim: whole(p.rope_dim, p.head_dim),
                    offset: size(p.rope_offset),
                    pairing,
                    scale: 1.0,
                    head_major: false,
                    tensors: vec!["x"],
                    sections: vec![section(p.n_heads, 0, rows)],
                }
            }
            RopeKernel::X { dims, .. } => {
                let head_dim = size(dims.head_dim);
                let rows = Rows::TokenMajor { first: 0, row: size(dims.n_heads) * head_dim, head_dim };
                Layout {
                    tokens: size(dims.seq_len),
                    head_dim,
                    rope_dim: head_dim,
                    offset: 0,
                    pairing: Pairing::Adjacent,
                    scale: 1.0,
                    head_major: false,
                    tensors: vec!["x"],
                    sections: vec![section(dims.n_heads, 0, rows)],
                }
            }
            RopeKernel::Op { params: p } => {
                let (tokens, head_dim) = (size(p.seq_len), size(p.head_dim));
                // All sequences of the batch have the same angles, so their heads count as heads of the same
                // tokens.
                let target = Some((1, Rows::HeadMajor { tokens, head_dim }));
                let heads = section(p.batch * p.n_heads, 0, Rows::HeadMajor { tokens, head_dim });
                Layout {
                    tokens,
                    head_dim,
                    rope_dim: size(p.rope_dim),
                    offset: head_dim - size(p.rope_dim),
                    pairing: Pairing::Split,
                    scale: p.output_scale,
                    head_major: true,
                    tensors: vec!["x", "y"],
                    sections: vec![Section { target, ..heads }],
                }
            }
            RopeKernel::QkvWrite { pairing, params, cache } => {
                fused(&params, pairing, cache, table, 1, false)?
            }
            RopeKernel::BatchKvWrite { pairing, params, cache } => {
                fused(&params, pairing, cache, table, size(params.k_elem_offset), false)?
            }
            RopeKernel::HeadNorm { params, cache, .. } => {
                fused(&params, Pairing::Split, cache, table, 1, true)?
            }
        };
        let layout =
            if matches!(call.kernel, RopeKernel::BatchKvWrite { .. }) { batch(layout) } else { layout };
        Ok(layout)
    }

    /// Heads of a token in all sections.
    pub(super) fn heads(&self) -> usize {
        self.sections.iter().map(|section| section.heads).sum()
    }
}

/// Q, K and V of one fused row; K and V are written to the cache.
fn fused(
    p: &RoPEQKVWriteParams,
    pairing: Pairing,
    cache: Cache,
    table: &[u32],
    tokens: usize,
    norm: bool,
) -> Result<Layout, CpuError> {
    let head_dim = p.head_dim as usize;
    let slots = slots(p, cache, table, tokens);
    let to = |tensor| {
        let (kv_heads, length) = (p.n_kv_heads as usize, p.max_seq_len as usize);
        Some((tensor, Rows::Cache { slots: slots.clone(), kv_heads, length, head_dim }))
    };
    let from = |first: u32| Rows::TokenMajor { first: first as usize, row: 0, head_dim };
    let (heads, kv_heads) = (p.n_heads as usize, p.n_kv_heads as usize);
    let norm = |i| norm.then_some(i);
    Ok(Layout {
        tokens,
        head_dim,
        rope_dim: if p.rope_dim == 0 { head_dim } else { p.rope_dim as usize },
        offset: p.rope_offset as usize,
        pairing,
        scale: 1.0,
        head_major: false,
        tensors: vec!["qkv", "k_cache", "v_cache"],
        sections: vec![
            Section { heads, source: 0, from: from(0), target: None, rotated: true, norm: norm(0) },
            Section {
                heads: kv_heads,
                source: 0,
                from: from(p.k_elem_offset),
                target: to(1),
                rotated: true,
                norm: norm(1),
            },
            Section {
                heads: kv_heads,
                source: 0,
                from: from(p.v_elem_offset),
                target: to(2),
                rotated: false,
                norm: None,
            },
        ],
    })
}

/// Changes a fused layout to Q, K and V of several tokens in separate tensors.
fn batch(mut layout: Layout) -> Layout {
    layout.tensors = vec!["q", "k", "v", "k_cache", "v_cache"];
    let head_dim = layout.head_dim;
    for (i, section) in layout.sections.iter_mut().enumerate() {
        section.source = i;
        section.from = Rows::TokenMajor { first: 0, row: section.heads * head_dim, head_dim };
        if let Some((tensor, _)) = &mut section.target {
            *tensor += 2;
        }
    }
    layout
}

/// The block and slot of each token, from a checked block table.
fn slots(p: &RoPEQKVWriteParams, cache: Cache, table: &[u32], tokens: usize) -> Vec<(usize, usize)> {
    let (first, length) = (p.pos.wrapping_add(p.slot_offset) as usize, p.max_seq_len as usize);
    let slots = first..first + tokens;
    match cache {
        Cache::Contiguous => slots.map(|slot| (0, slot)).collect(),
        Cache::Paged { .. } => slots.map(|slot| (table[slot / length] as usize, slot % length)).collect(),
    }
}

impl From<LaunchError> for CpuError {
    fn from(error: LaunchError) -> CpuError {
        CpuError::Launch(Box::new(error))
    }
}
