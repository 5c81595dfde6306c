use gyrus_tensor::TensorError;

use crate::quote::Quote;

/// Why a SafeTensors file was rejected: the tensor if there is one, the offset, and the problem.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SafeTensorsError {
    /// The tensor, if the problem concerns one.
    pub tensor: Option<String>,
    /// File offset of the field at fault, or of the header if the position is unknown.
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
    /// The file is too short for the header length.
    #[error("the file ends within the header's length: 8 bytes needed, {left} left")]
    NoLength {
        /// Bytes that remain in the file.
        left: u64,
    },
    /// A header longer than the file or the limit.
    #[error("the header length is {length} bytes, but {left} bytes follow and the limit is {max}")]
    Length {
        /// The declared length.
        length: u64,
        /// Bytes that remain in the file.
        left: u64,
        /// The limit.
        max: u64,
    },
    /// A header that is not UTF-8.
    #[error("invalid UTF-8 after {valid} bytes of text")]
    Utf8 {
        /// Number of valid bytes before the error.
        valid: usize,
    },
    /// JSON that does not parse or is not a valid header.
    #[error("{message}")]
    Json {
        /// The parser's message without line and column.
        message: String,
    },
    /// A duplicate tensor name.
    #[error("the name occurs twice")]
    Duplicate,
    /// An unknown element type.
    #[error("unknown dtype {}", Quote(.dtype))]
    DType {
        /// The declared name.
        dtype: String,
    },
    /// A shape that overflows or has too many dimensions.
    #[error(transparent)]
    Shape(#[from] TensorError),
    /// A data range that is reversed or beyond the tensor data.
    #[error("data range {start}..{end} is not within the {available} bytes of tensor data")]
    Range {
        /// Declared start.
        start: u64,
        /// Declared end.
        end: u64,
        /// Bytes of tensor data in the file.
        available: u64,
    },
    /// A data range whose length does not match type and shape.
    #[error("data range {start}..{end} has {} bytes, type and shape need {expected}", end - start)]
    Bytes {
        /// Declared start.
        start: u64,
        /// Declared end.
        end: u64,
        /// Bytes that type and shape need.
        expected: u64,
    },
    /// Tensor data that overlaps another tensor.
    #[error("its data overlaps that of tensor {}", Quote(.other))]
    Overlap {
        /// The other tensor.
        other: String,
    },
    /// Bytes that belong to no tensor, which the format forbids.
    #[error("{bytes} bytes of data before offset {before} belong to no tensor")]
    Hole {
        /// Number of bytes.
        bytes: u64,
        /// End of the gap, relative to the tensor data.
        before: u64,
    },
}
