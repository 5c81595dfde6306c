use std::fmt;

use gyrus_tensor::TensorError;

use super::ValueType;
use crate::quote::Quote;

/// Why a GGUF file was rejected: the part of the file, the offset, and the problem.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{subject} at offset {at}: {problem}")]
pub struct GgufError {
    /// The part of the file.
    pub subject: Subject,
    /// File offset of the field at fault.
    pub at: u64,
    /// What is wrong.
    pub problem: GgufProblem,
}

/// The part of a GGUF file an error is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Subject {
    /// The fixed fields at the start.
    Header,
    /// The name of the n-th key, which is not valid.
    KeyName(u64),
    /// A key's value.
    Key(String),
    /// The name of the n-th tensor, which is not valid.
    TensorName(u64),
    /// A tensor.
    Tensor(String),
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Subject::Header => f.write_str("header"),
            Subject::KeyName(n) => write!(f, "name of key {n}"),
            Subject::Key(key) => write!(f, "key {}", Quote(key)),
            Subject::TensorName(n) => write!(f, "name of tensor {n}"),
            Subject::Tensor(name) => write!(f, "tensor {}", Quote(name)),
        }
    }
}

/// What can be wrong in a GGUF file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GgufProblem {
    /// The first four bytes are not `GGUF`.
    #[error("not a GGUF file: it begins with {found:02x?} instead of 'GGUF'")]
    Magic {
        /// The first four bytes.
        found: [u8; 4],
    },
    /// An unsupported version.
    #[error("version {version} is not supported, only 2 and 3")]
    Version {
        /// The declared version.
        version: u32,
    },
    /// A big-endian file.
    #[error("the file is big-endian, only little-endian files are supported")]
    BigEndian,
    /// The file ends within a field.
    #[error("the file ends within {what}: {needed} bytes needed, {left} left")]
    Truncated {
        /// The field.
        what: &'static str,
        /// Bytes it needs.
        needed: u64,
        /// Bytes that remain in the file.
        left: u64,
    },
    /// A count of records that exceeds the rest of the file.
    #[error("{count} {what} cannot fit into the {left} bytes left")]
    Count {
        /// What is counted, in the plural.
        what: &'static str,
        /// The declared number.
        count: u64,
        /// Bytes that remain in the file.
        left: u64,
    },
    /// An empty name.
    #[error("the name is empty")]
    EmptyName,
    /// A name that is too long.
    #[error("the name has {bytes} bytes, at most {max} are allowed")]
    LongName {
        /// Its length.
        bytes: u64,
        /// The limit.
        max: u64,
    },
    /// A string that is not UTF-8.
    #[error("invalid UTF-8 after {valid} bytes of text")]
    Utf8 {
        /// Number of valid bytes before the error.
        valid: usize,
    },
    /// A value type that does not exist.
    #[error("unknown value type {id}")]
    ValueType {
        /// The declared id.
        id: u32,
    },
    /// An array whose elements are arrays.
    #[error("arrays of arrays are not supported")]
    NestedArray,
    /// A bool that is neither 0 nor 1.
    #[error("a bool is {byte}, neither 0 nor 1")]
    Bool {
        /// The byte.
        byte: u8,
    },
    /// A duplicate key or tensor name.
    #[error("the name occurs twice, first at offset {first}")]
    Duplicate {
        /// File offset of the first occurrence.
        first: u64,
    },
    /// `general.alignment` is not valid.
    #[error("alignment {found}: it must be an unsigned power of two up to {max}")]
    Alignment {
        /// The declared value, or its type if that is wrong.
        found: String,
        /// The limit.
        max: u64,
    },
    /// A number of dimensions that is not valid.
    #[error("{rank} dimensions, 1 to 4 are allowed")]
    Rank {
        /// The declared number.
        rank: u32,
    },
    /// A dimension of zero.
    #[error("dimension {axis} is zero")]
    ZeroDim {
        /// Which, counted from 0 in file order.
        axis: usize,
    },
    /// An element type that does not exist.
    #[error("unknown tensor type {id}")]
    DType {
        /// The declared id.
        id: u32,
    },
    /// An element type that GGUF no longer has.
    #[error("tensor type {id} ({name}) was removed from GGUF; convert or quantise the model again")]
    WithdrawnDType {
        /// The declared id.
        id: u32,
        /// Its former name.
        name: &'static str,
    },
    /// Dimensions that overflow or do not fit the type's blocks.
    #[error(transparent)]
    Shape(#[from] TensorError),
    /// Tensor data that is not aligned.
    #[error("data offset {offset} is not a multiple of the alignment {alignment}")]
    Misaligned {
        /// Declared offset, relative to the tensor data.
        offset: u64,
        /// The file's alignment.
        alignment: u64,
    },
    /// Tensor data beyond the end of the file.
    #[error(
        "{bytes} bytes at data offset {offset} exceed the {available} bytes of tensor data; the file may be truncated"
    )]
    OutOfFile {
        /// Declared offset, relative to the tensor data.
        offset: u64,
        /// Bytes the tensor takes.
        bytes: u64,
        /// Bytes of tensor data in the file.
        available: u64,
    },
    /// Tensor data that overlaps another tensor.
    #[error("its data overlaps that of tensor {}", Quote(.other))]
    Overlap {
        /// The other tensor.
        other: String,
    },
}

/// Why a metadata key could not be read as the requested type.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MetadataError {
    /// The key is not in the file.
    #[error("key {} is missing", Quote(.key))]
    Missing {
        /// The key.
        key: String,
    },
    /// The value has another type.
    #[error("key {} at offset {at}: expected {expected}, found {found}", Quote(.key))]
    Type {
        /// The key.
        key: String,
        /// File offset of the value.
        at: u64,
        /// The requested type.
        expected: &'static str,
        /// The type in the file.
        found: Found,
    },
    /// The value is out of range for the requested type.
    #[error("key {} at offset {at}: {value} is not {expected}", Quote(.key))]
    Range {
        /// The key.
        key: String,
        /// File offset of the value.
        at: u64,
        /// The requested type.
        expected: &'static str,
        /// The number.
        value: String,
    },
    /// A string that is not UTF-8.
    #[error("key {} at offset {at}: element {index} is not UTF-8", Quote(.key))]
    Utf8 {
        /// The key.
        key: String,
        /// File offset of the value.
        at: u64,
        /// Which element of the array; 0 for a single string.
        index: usize,
    },
}

/// The type of a value that has another type than requested.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    /// A single value.
    One(ValueType),
    /// An array.
    Array(ValueType),
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Found::One(kind) => write!(f, "{kind}"),
            Found::Array(kind) => write!(f, "array of {kind}"),
        }
    }
}
