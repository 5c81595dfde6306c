//! Calls of the published rope kernels: which kernel, with what parameters.

mod check;
mod launch;
mod slots;

use crate::call::Storage;
use crate::launch::LaunchError;
use crate::params::{NormEpsParams, RoPEBase, RoPEDims, RoPEOpParams, RoPEParams, RoPEQKVWriteParams};
use crate::rope::{Direction, Pairing};

/// Where a kernel gets its frequencies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Freqs {
    /// Computed from the base in the kernel.
    Inline,
    /// A table of `f32` divisors of the position, one a pair.
    Divisors,
    /// A table of 64-bit fractions of a turn per position, one a pair, by [`crate::Rope::turns`]: exact at any
    /// position. The two lowest bits select the row of position ids that the pair reads.
    Turns,
}

impl Freqs {
    fn name(self) -> &'static str {
        match self {
            Freqs::Inline => "inline",
            Freqs::Divisors => "divisors",
            Freqs::Turns => "turns",
        }
    }
}

/// The layout of the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Cache {
    /// One block of `max_seq_len` positions.
    Contiguous,
    /// Blocks of `max_seq_len` positions, addressed through a block table. Kernels trust the table: see
    /// [`RopeCall::check_block_table`].
    Paged {
        /// Entries of the block table.
        entries: u32,
        /// Blocks of the cache.
        blocks: u32,
    },
}

/// One of the rope kernels with its parameters.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum RopeKernel {
    /// `rope`, `rope_neox`: heads in place.
    InPlace {
        /// Which elements form a pair.
        pairing: Pairing,
        /// Sizes and position.
        params: RoPEParams,
    },
    /// `rope_qkv_write`, `rope_neox_qkv_write`: Q and K of one token, K and V to the cache.
    QkvWrite {
        /// Which elements form a pair.
        pairing: Pairing,
        /// Sizes, offsets and position.
        params: RoPEQKVWriteParams,
        /// The cache.
        cache: Cache,
    },
    /// `rope_batch_kv_write`, `rope_neox_batch_kv_write`: the same for several tokens.
    BatchKvWrite {
        /// Which elements form a pair.
        pairing: Pairing,
        /// Sizes and position; `k_elem_offset` is the number of tokens.
        params: RoPEQKVWriteParams,
        /// The cache.
        cache: Cache,
    },
    /// `head_norm_rope_neox_kv_write`: one token, with the RMS norm of each head first.
    HeadNorm {
        /// Sizes, offsets and position.
        params: RoPEQKVWriteParams,
        /// The norm's epsilon.
        eps: NormEpsParams,
        /// Whether the factor is one plus the weight.
        plus_one: bool,
        /// The cache.
        cache: Cache,
    },
    /// `rope_q` or `rope_k` and their `_backward`: heads in place in `f32`, adjacent pairs.
    X {
        /// `q` or `k`.
        of: char,
        /// Sizes and position.
        dims: RoPEDims,
        /// The base.
        base: RoPEBase,
    },
    /// `rope_fwd`, `rope_bwd`: from one tensor to another, by given angles.
    Op {
        /// Sizes and scale.
        params: RoPEOpParams,
    },
}

/// A call of a rope kernel.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RopeCall {
    /// The kernel and its parameters.
    pub kernel: RopeKernel,
    /// Element type of all tensors.
    pub storage: Storage,
    /// The direction of rotation.
    pub direction: Direction,
    /// Frequencies. Not used by [`RopeKernel::Op`], which gets angles.
    pub freqs: Freqs,
    /// Rows of position ids: 0 for consecutive positions, more than 1 for M-RoPE.
    pub positions: u32,
}

/// Tuning. It changes no bit of a result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RopeTuning {
    /// Invocations of a workgroup.
    pub workgroup: Option<u32>,
    /// Invocations that share the heads of a token.
    pub lanes: Option<u32>,
}

/// Sizes that all kernels have in common.
pub(crate) struct Shape {
    pub(crate) tokens: u32,
    /// Heads of a token, those that are only copied included.
    pub(crate) heads: u32,
    pub(crate) head_dim: u32,
    pub(crate) rope_dim: u32,
    pub(crate) offset: u32,
}

impl RopeCall {
    /// The kernel's name.
    pub fn name(&self) -> String {
        let neox = |pairing| if pairing == Pairing::Split { "neox_" } else { "" };
        let name = match self.kernel {
            RopeKernel::InPlace { pairing: Pairing::Split, .. } => "rope_neox".to_owned(),
            RopeKernel::InPlace { .. } => "rope".to_owned(),
            RopeKernel::QkvWrite { pairing, .. } => format!("rope_{}qkv_write", neox(pairing)),
            RopeKernel::BatchKvWrite { pairing, .. } => format!("rope_{}batch_kv_write", neox(pairing)),
            RopeKernel::HeadNorm { .. } => "head_norm_rope_neox_kv_write".to_owned(),
            RopeKernel::X { of, .. } => {
                let backward = if self.direction == Direction::Inverse { "_backward" } else { "" };
                return format!("rope_{of}{backward}");
            }
            RopeKernel::Op { .. } if self.direction == Direction::Inverse => "rope_bwd".to_owned(),
            RopeKernel::Op { .. } => "rope_fwd".to_owned(),
        };
        format!("{name}_{}", self.storage.name())
    }

    fn file(&self) -> &'static str {
        match (self.kernel, self.direction) {
            (RopeKernel::InPlace { pairing: Pairing::Adjacent, .. }, _) => "abi/rope.wgsl",
            (RopeKernel::InPlace { .. }, _) => "abi/rope_neox.wgsl",
            (RopeKernel::QkvWrite { pairing: Pairing::Adjacent, .. }, _) => "abi/rope_qkv_write.wgsl",
            (RopeKernel::QkvWrite { .. }, _) => "abi/rope_neox_qkv_write.wgsl",
            (RopeKernel::BatchKvWrite { pairing: Pairing::Adjacent, .. }, _) => {
                "abi/rope_batch_kv_write.wgsl"
            }
            (RopeKernel::BatchKvWrite { .. }, _) => "abi/rope_neox_batch_kv_write.wgsl",
            (RopeKernel::HeadNorm { .. }, _) => "abi/head_norm_rope_neox_kv_write.wgsl",
            (RopeKernel::X { of: 'q', .. }, Direction::Forward) => "abi/rope_q.wgsl",
            (RopeKernel::X { of: 'q', .. }, Direction::Inverse) => "abi/rope_q_backward.wgsl",
            (RopeKernel::X { .. }, Direction::Forward) => "abi/rope_k.wgsl",
            (RopeKernel::X { .. }, Direction::Inverse) => "abi/rope_k_backward.wgsl",
            (RopeKernel::Op { .. }, Direction::Forward) => "abi/rope_fwd.wgsl",
            (RopeKernel::Op { .. }, Direction::Inverse) => "abi/rope_bwd.wgsl",
        }
    }

    pub(crate) fn shape(&self) -> Shape {
        let all = |rope_dim, head_dim| if rope_dim == 0 { head_dim } else { rope_dim };
        match self.kernel {
            RopeKernel::InPlace { params: p, .. } => Shape {
                tokens: p.seq_len,
                heads: p.n_heads,
                head_dim: p.head_dim,
                rope_dim: all(p.rope_dim, p.head_dim),
                offset: p.rope_offset,
            },
            RopeKernel::QkvWrite { params: p, .. }
            | RopeKernel::BatchKvWrite { params: p, .. }
            | RopeKernel::HeadNorm { params: p, .. } => Shape {
                tokens: if matches!(self.kernel, RopeKernel::BatchKvWrite { .. }) {
                    p.k_elem_offset
                } else {
                    1
                },
                heads: p.n_heads.saturating_add(p.n_kv_heads.saturating_mul(2)),
                head_dim: p.head_dim,
                rope_dim: all(p.rope_dim, p.head_dim),
                offset: p.rope_offset,
            },
            RopeKernel::X { dims, .. } => Shape {
                tokens: dims.seq_len,
                heads: dims.n_heads,
                head_dim: dims.head_dim,
                rope_dim: dims.head_dim,
                offset: 0,
            },
            RopeKernel::Op { params: p } => Shape {
                tokens: p.batch.saturating_mul(p.seq_len),
                heads: p.n_heads,
                head_dim: p.head_dim,
                rope_dim: p.rope_dim,
                offset: p.head_dim.saturating_sub(p.rope_dim),
            },
        }
    }

    /// Checks the contents of the buffer `block_table`, if the call has one: kernels do not. The entries that the call
    /// uses must be blocks of the cache and all different, since two tokens would else write the same block.
    pub fn check_block_table(&self, table: &[u32]) -> Result<(), LaunchError> {
        let (RopeKernel::QkvWrite { params: p, cache, .. }
        | RopeKernel::BatchKvWrite { params: p, cache, .. }
        | RopeKernel::HeadNorm { params: p, cache, .. }) = self.kernel
        else {
            return Ok(());
        };
        let Cache::Paged { blocks, .. } = cache else { return Ok(()) };
        let (first, length) = (p.pos.wrapping_add(p.slot_offset) as usize, (p.max_seq_len as usize).max(1));
        let last = first + (self.shape().tokens as usize).saturating_sub(1);
        let mut used = table.get(first / length..last / length + 1).unwrap_or(table).to_vec();
        used.sort_unstable();
        if let Some(&number) = used.last().filter(|block| **block >= blocks) {
            let (kernel, what, capacity) = (self.name(), "block", blocks.into());
            return Err(LaunchError::Beyond { kernel, what, number, capacity });
        }
        if let Some(pair) = used.array_windows::<2>().find(|[a, b]| a == b) {
            return Err(LaunchError::Clash { kernel: self.name(), what: "block", number: pair[0] });
        }
        Ok(())
    }

    fn cache(&self) -> Option<Cache> {
        match self.kernel {
            RopeKernel::QkvWrite { cache, .. }
            | RopeKernel::BatchKvWrite { cache, .. }
            | RopeKernel::HeadNorm { cache, .. } => Some(cache),
            _ => None,
        }
    }
}
