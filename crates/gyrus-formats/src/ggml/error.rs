use gyrus_tensor::TensorError;

use crate::quote::Quote;

/// Why a GGML file was rejected: the part of the file, the offset, and the problem.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{} at offset {at}: {problem}", Subject(subject))]
pub struct GgmlError {
    /// The part of the file: a tensor's name, or what is read before the tensors.
    pub subject: Result<String, &'static str>,
    /// File offset of the field at fault.
    pub at: u64,
    /// What is wrong.
    pub problem: GgmlProblem,
}

struct Subject<'a>(&'a Result<String, &'static str>);

impl std::fmt::Display for Subject<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            Ok(tensor) => write!(f, "tensor {}", Quote(tensor)),
            Err(part) => f.write_str(part),
        }
    }
}

/// What can be wrong in a GGML file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GgmlProblem {
    /// The first four bytes are not `lmgg`.
    #[error("not a Whisper GGML file: it begins with {found:02x?} instead of 'lmgg'")]
    Magic {
        /// The first four bytes.
        found: [u8; 4],
    },
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
    /// A number that must not be negative.
    #[error("{what} is {value}, which must not be negative")]
    Negative {
        /// The field.
        what: &'static str,
        /// The number.
        value: i32,
    },
    /// A number of dimensions that tensors do not have.
    #[error("{rank} dimensions, 1 to 4 are possible")]
    Rank {
        /// The declared number.
        rank: i32,
    },
    /// A dimension of zero.
    #[error("dimension {axis} is zero")]
    ZeroDim {
        /// Its index in the file.
        axis: usize,
    },
    /// A type that does not exist.
    #[error("unknown tensor type {id}")]
    DType {
        /// The declared id.
        id: i32,
    },
    /// A name that is empty, too long or not UTF-8.
    #[error("the name of tensor {n} has {bytes} bytes or is not UTF-8; 1 to 256 bytes are possible")]
    Name {
        /// Which tensor.
        n: usize,
        /// The declared length.
        bytes: i32,
    },
    /// A token that is too long.
    #[error("token {n} has {bytes} bytes; at most 512 are possible")]
    Token {
        /// Which token.
        n: usize,
        /// The declared length.
        bytes: usize,
    },
    /// A name that occurs twice.
    #[error("the name occurs twice, first at offset {first}")]
    Duplicate {
        /// Where it was first.
        first: u64,
    },
    /// A shape that no tensor can have.
    #[error(transparent)]
    Tensor(#[from] TensorError),
}
