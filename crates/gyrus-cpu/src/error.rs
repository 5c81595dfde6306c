use gyrus_kernels::LaunchError;
use gyrus_tensor::{DType, TensorError};

/// Why a weight or a KV cache could not be created, or a kernel call was rejected.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum CpuError {
    /// The shape or element type is not valid.
    #[error(transparent)]
    Tensor(#[from] TensorError),
    /// The byte range is outside its buffer.
    #[error("byte range {start}..{end} is outside the buffer of {len} bytes")]
    Range {
        /// First byte requested.
        start: usize,
        /// One past the last byte requested.
        end: usize,
        /// Length of the buffer.
        len: usize,
    },
    /// The data has the wrong length for the matrix.
    #[error("a {rows}×{cols} matrix of {dtype} takes {expected} bytes, the data has {found}")]
    ByteCount {
        /// The element type.
        dtype: DType,
        /// Output rows.
        rows: usize,
        /// Elements of a row.
        cols: usize,
        /// Bytes the matrix takes.
        expected: usize,
        /// Bytes given.
        found: usize,
    },
    /// A matrix without elements.
    #[error("a weight of {rows}×{cols} has no elements; both dimensions must be at least 1")]
    Empty {
        /// Output rows.
        rows: usize,
        /// Elements of a row.
        cols: usize,
    },
    /// The system could not allocate memory for a repacked weight.
    #[error("out of memory: cannot allocate {bytes} bytes for weights; try a smaller model or quantisation")]
    Memory {
        /// Bytes requested.
        bytes: usize,
    },
    /// Repacked weights live in mapped memory, and this platform has none.
    #[error("this platform has no memory mapping, which {bytes} bytes of weights need")]
    Unmapped {
        /// Bytes requested.
        bytes: usize,
    },
    /// The KV cache cannot be allocated with this shape.
    #[error(
        "cannot create a KV cache of {layers} layers × {blocks} blocks × {kv_heads} heads × {head_dim}: {reason}"
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
        /// What is wrong with the shape.
        reason: &'static str,
    },
    /// The plan has more KV groups than the backend supports, or not one block count for each.
    #[error("{given} block counts for a plan of {groups} KV groups; at most {most} are supported")]
    Groups {
        /// Groups of the plan.
        groups: usize,
        /// Block counts given.
        given: usize,
        /// The most groups.
        most: usize,
    },
    /// The kernel's parameters or buffers are not valid.
    #[error(transparent)]
    Launch(Box<LaunchError>),
}
