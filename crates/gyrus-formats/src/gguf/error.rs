use std::fmt;

use gyrus_tensor::TensorError;

use super::ValueType;
use crate::quote::Quote;

/// Why a GGUF file was refused: which part of it, at which byte, and what is wrong there.
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
    /// The name of the n-th key, which could not be read.
    KeyName(u64),
    /// A key's value.
    Key(String),
    /// The name of the n-th tensor, which could not be read.
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
        /// What is there.
        found: [u8; 4],
    },
    /// A version with another layout.
    #[error("version {version} is not supported, only 2 and 3")]
    Version {
        /// The declared version.
        version: u32,
    },
    /// Written on a big-endian machine.
    #[error("the file is big-endian, only little-endian files are supported")]
    BigEndian,
    /// The file ends within a field.
    #[error("the file ends within {what}: {needed} bytes needed, {left} left")]
    Truncated {
        /// The field.
        what: &'static str,
        /// Bytes it needs.
        needed: u64,
        /// Bytes there are.
        left: u64,
    },
    /// A count that the rest of the file cannot hold.
    #[error("{count} {what} cannot fit into the {left} bytes left")]
    Count {
        /// Counted things, in the plural.
        what: &'static str,
        /// The declared number.
        count: u64,
        /// Bytes there are.
        left: u64,
    },
    /// A name of no characters.
    #[error("the name is empty")]
    EmptyName,
    /// A name beyond any reasonable length.
    #[error("the name has {bytes} bytes, at most {max} are allowed")]
    LongName {
        /// Its length.
        bytes: u64,
        /// The limit.
        max: u64,
    },
    /// Text that is not UTF-8.
    #[error("invalid UTF-8 after {valid} bytes of text")]
    Utf8 {
        /// Bytes before the first bad one.
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
    /// A truth value that is neither 0 nor 1.
    #[error("a bool is {byte}, neither 0 nor 1")]
    Bool {
        /// The byte.
        byte: u8,
    },
    /// A key or tensor that was there already.
    #[error("the name occurs twice, first at offset {first}")]
    Duplicate {
        /// File offset of the first one.
        first: u64,
    },
    /// `general.alignment` is of no use.
    #[error("alignment {found}: it must be an unsigned power of two up to {max}")]
    Alignment {
        /// The declared value, or its type if that is wrong.
        found: String,
        /// The limit.
        max: u64,
    },
    /// A number of dimensions no tensor has.
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
    /// An element type that was withdrawn.
    #[error("tensor type {id} ({name}) was withdrawn from the format, the file must be made anew")]
    WithdrawnDType {
        /// The declared id.
        id: u32,
        /// Its old name.
        name: &'static str,
    },
    /// Dimensions that overflow or do not fit the type's blocks.
    #[error(transparent)]
    Shape(#[from] TensorError),
    /// Data that does not begin on the alignment.
    #[error("data offset {offset} is not a multiple of the alignment {alignment}")]
    Misaligned {
        /// Declared offset within the data.
        offset: u64,
        /// The file's alignment.
        alignment: u64,
    },
    /// Data beyond the end of the file.
    #[error(
        "{bytes} bytes of data at data offset {offset} reach beyond the {available} bytes of data there are"
    )]
    OutOfFile {
        /// Declared offset within the data.
        offset: u64,
        /// Bytes the tensor takes.
        bytes: u64,
        /// Length of the file's data.
        available: u64,
    },
    /// Data shared with another tensor.
    #[error("its data overlaps that of tensor {}", Quote(.other))]
    Overlap {
        /// The other tensor.
        other: String,
    },
}

/// Why a key could not be read as what was asked for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MetadataError {
    /// The key is not in the file.
    #[error("key {} is missing", Quote(.key))]
    Missing {
        /// The key.
        key: String,
    },
    /// The key holds another type.
    #[error("key {} at offset {at}: expected {expected}, found {found}", Quote(.key))]
    Type {
        /// The key.
        key: String,
        /// File offset of the value.
        at: u64,
        /// What was asked for.
        expected: &'static str,
        /// What is there.
        found: Found,
    },
    /// The key holds a number that the type asked for cannot.
    #[error("key {} at offset {at}: {value} is not {expected}", Quote(.key))]
    Range {
        /// The key.
        key: String,
        /// File offset of the value.
        at: u64,
        /// What was asked for.
        expected: &'static str,
        /// The number.
        value: String,
    },
    /// Text that is not UTF-8.
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

/// The type found where another was expected.
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
