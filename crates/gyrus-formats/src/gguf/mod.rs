//! GGUF, versions 2 and 3, little-endian.
//!
//! ```text
//! "GGUF" | version u32 | tensors u64 | keys u64 | keys … | tensor infos … | padding | tensor data …
//! ```
//!
//! [`Gguf`] is one file; [`crate::Checkpoint`] also opens models split over several. [`Metadata`] provides typed
//! access to keys. [`Writer`] writes files.

mod cursor;
mod dtype;
mod error;
mod metadata;
mod parse;
mod value;
mod writer;

pub use error::{GgufError, GgufProblem, MetadataError, Subject};
pub use metadata::{FromValue, Metadata};
pub use parse::Gguf;
pub use value::{Array, Number, Value, ValueType};
pub use writer::{WriteError, Writer};

pub(crate) use dtype::dtype_of;
