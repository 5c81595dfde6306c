use crate::DType;

/// Why a shape, a size or a conversion was rejected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TensorError {
    /// More dimensions than [`crate::Shape`] supports.
    #[error("{rank} dimensions, at most {max} are supported")]
    Rank {
        /// Number of dimensions requested.
        rank: usize,
        /// The most that a [`crate::Shape`] holds.
        max: usize,
    },
    /// The number of elements or bytes does not fit the address space.
    #[error("the size of {dims:?} overflows")]
    Overflow {
        /// The dimensions, outermost first.
        dims: Vec<usize>,
    },
    /// A row of a block format must consist of whole blocks.
    #[error("a row of {row} elements is not a multiple of {dtype}'s block of {block}")]
    PartialBlock {
        /// The element type.
        dtype: DType,
        /// Elements of a row (the last dimension).
        row: usize,
        /// Elements in one block of that type.
        block: usize,
    },
    /// The number of bytes does not match the number of elements.
    #[error("{elems} elements of {dtype} take {expected} bytes, found {found}")]
    ByteCount {
        /// The element type.
        dtype: DType,
        /// Elements on the `f32` side.
        elems: usize,
        /// Bytes they take.
        expected: usize,
        /// Bytes given.
        found: usize,
    },
    /// The type has no dequantiser; only its name and size are known.
    #[error("{dtype} cannot be dequantised")]
    NoDequantizer {
        /// The element type.
        dtype: DType,
    },
    /// A block whose scale is NaN.
    #[error("the scale of {dtype} block {block} is NaN")]
    NanScale {
        /// The element type.
        dtype: DType,
        /// Index of the block.
        block: usize,
    },
    /// The type has no quantiser.
    #[error("{dtype} cannot be quantised to")]
    NoQuantizer {
        /// The element type.
        dtype: DType,
    },
    /// A value that the type cannot represent: NaN, an infinity, or so large that the block's f16 scale would
    /// overflow.
    #[error("element {index} is {value}, which {dtype} cannot represent")]
    Unrepresentable {
        /// The element type.
        dtype: DType,
        /// Index in the input.
        index: usize,
        /// The value as a string, so the error can implement `Eq`.
        value: String,
    },
}
