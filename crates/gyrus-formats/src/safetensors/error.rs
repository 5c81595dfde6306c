use gyrus_tensor::TensorError;

use crate::quote::Quote;

/// Why a SafeTensors file was refused: at which byte and, where there is one, in which tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SafeTensorsError {
    /// The tensor, if the problem is in one.
    pub tensor: Option<String>,
    /// File offset of the field at fault, or of the header if the JSON says no more.
    pub at: u64,
    /// What is wrong.
    pub problem: SafeTensorsProblem,
}

impl std::error::Error for SafeTensorsError {}

impl std::fmt::Display for SafeTensorsError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.tensor {
            Some(name) => write!(f, "tensor {} ", Quote(name))?,
            None => f.write_str("header ")?,
        }
        write!(f, "at offset {}: {}", self.at, self.problem)
    }
}

/// What can be wrong in a SafeTensors file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SafeTensorsProblem {
    /// Too short for the length field.
    #[error("the file ends within the header's length: 8 bytes needed, {left} left")]
    NoLength {
        /// Bytes there are.
        left: u64,
    },
    /// A header longer than the file or than any real one.
    #[error("a header of {length} bytes: {left} are left in the file and at most {max} are allowed")]
    Length {
        /// The declared length.
        length: u64,
        /// Bytes there are.
        left: u64,
        /// The limit.
        max: u64,
    },
    /// Text that is not UTF-8.
    #[error("invalid UTF-8 after {valid} bytes of text")]
    Utf8 {
        /// Bytes before the first bad one.
        valid: usize,
    },
    /// JSON that does not parse, or is not of the header's form.
    #[error("{message}")]
    Json {
        /// The parser's words, without its own line and column.
        message: String,
    },
    /// A tensor that was there already.
    #[error("the name occurs twice")]
    Duplicate,
    /// An element type that does not exist, or that we do not know.
    #[error("unknown dtype {}", Quote(.dtype))]
    DType {
        /// The declared name.
        dtype: String,
    },
    /// A shape that overflows or has too many axes.
    #[error(transparent)]
    Shape(#[from] TensorError),
    /// A range that ends before it begins or beyond the data.
    #[error("data range {start}..{end} is not within the {available} bytes of data there are")]
    Range {
        /// Declared start.
        start: u64,
        /// Declared end.
        end: u64,
        /// Length of the file's data.
        available: u64,
    },
    /// A range of another length than type and shape call for.
    #[error("data range {start}..{end} has {} bytes, the shape calls for {expected}", end - start)]
    Bytes {
        /// Declared start.
        start: u64,
        /// Declared end.
        end: u64,
        /// What type and shape call for.
        expected: u64,
    },
    /// Data shared with another tensor.
    #[error("its data overlaps that of tensor {}", Quote(.other))]
    Overlap {
        /// The other tensor.
        other: String,
    },
    /// Bytes that belong to no tensor; the format forbids them, and they could hide anything.
    #[error("{bytes} bytes of data before offset {before} belong to no tensor")]
    Hole {
        /// How many.
        bytes: u64,
        /// End of the hole, relative to the data.
        before: u64,
    },
}
