use gyrus_kernels::LaunchError;
use gyrus_tensor::{DType, TensorError};

/// Why a weight or a store could not be prepared, or a kernel not be run.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum CpuError {
    /// The shape or type is not one a tensor can have.
    #[error(transparent)]
    Tensor(#[from] TensorError),
    /// The byte range does not lie in its storage.
    #[error("bytes {start}..{end} are outside a storage of {len} bytes")]
    Range {
        /// First byte asked for.
        start: usize,
        /// One past the last.
        end: usize,
        /// Bytes there are.
        len: usize,
    },
    /// A matrix and its bytes disagree.
    #[error("a {rows}×{cols} matrix of {dtype} takes {expected} bytes, found {found}")]
    ByteCount {
        /// The element type.
        dtype: DType,
        /// Output rows.
        rows: usize,
        /// Elements of a row.
        cols: usize,
        /// Bytes they take.
        expected: usize,
        /// Bytes given.
        found: usize,
    },
    /// A matrix without elements cannot be multiplied by.
    #[error("a {rows}×{cols} matrix has no elements")]
    Empty {
        /// Output rows.
        rows: usize,
        /// Elements of a row.
        cols: usize,
    },
    /// The system has no memory for a re-laid weight.
    #[error("no memory for {bytes} bytes of weights")]
    Memory {
        /// Bytes asked for.
        bytes: usize,
    },
    /// Weights are kept in mapped memory, which this platform does not have.
    #[error("this platform cannot map the {bytes} bytes that weights need")]
    Unmapped {
        /// Bytes asked for.
        bytes: usize,
    },
    /// The cache's shape cannot be stored or addressed.
    #[error(
        "a cache of {layers} layers × {blocks} blocks × {kv_heads} heads × {head_dim} is not possible: {reason}"
    )]
    Cache {
        /// Layers.
        layers: usize,
        /// Blocks per layer.
        blocks: usize,
        /// Key-value heads.
        kv_heads: usize,
        /// Elements of a head.
        head_dim: usize,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// The kernel cannot be run as asked.
    #[error(transparent)]
    Launch(Box<LaunchError>),
}
