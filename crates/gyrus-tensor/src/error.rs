use crate::DType;

/// Why a shape, a size or a conversion was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TensorError {
    /// More axes than any format we read uses.
    #[error("{rank} dimensions, at most {max} are supported")]
    Rank {
        /// Number of axes asked for.
        rank: usize,
        /// The most a [`crate::Shape`] holds.
        max: usize,
    },
    /// The number of elements or bytes does not fit the address space.
    #[error("the size of {dims:?} overflows")]
    Overflow {
        /// The axes, outermost first.
        dims: Vec<usize>,
    },
    /// A row of a block format must consist of whole blocks.
    #[error("a row of {row} elements is not a multiple of {dtype}'s block of {block}")]
    PartialBlock {
        /// The element type.
        dtype: DType,
        /// Elements in the contiguous axis.
        row: usize,
        /// Elements in one block of that type.
        block: usize,
    },
    /// A byte buffer and an element count disagree.
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
    /// The type is known by name and size only.
    #[error("{dtype} cannot be dequantised")]
    NoDequantizer {
        /// The element type.
        dtype: DType,
    },
    /// The type has no reference quantiser.
    #[error("{dtype} cannot be quantised to")]
    NoQuantizer {
        /// The element type.
        dtype: DType,
    },
    /// A value that no block of this type can hold: NaN, an infinity, or so large that the block's
    /// half-precision scale would overflow.
    #[error("element {index} is {value}, which {dtype} cannot represent")]
    Unrepresentable {
        /// The element type.
        dtype: DType,
        /// Position in the input.
        index: usize,
        /// The value, as text so that the error stays comparable.
        value: String,
    },
}
