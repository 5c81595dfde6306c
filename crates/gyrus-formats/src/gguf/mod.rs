//! GGUF, versions 2 and 3, little-endian.
//!
//! ```text
//! "GGUF" | version u32 | tensors u64 | keys u64 | keys … | tensor infos … | padding | tensor data …
//! ```
//!
//! [`Gguf`] is one file; a model split over several is a [`crate::Checkpoint`]. [`Metadata`] reads keys by
//! type, [`Writer`] makes files.

mod cursor;
mod dtype;
mod error;
mod metadata;
mod parse;
mod value;
mod writer;

pub use dtype::{dtype_of, id_of};
pub use error::{GgufError, GgufProblem, MetadataError, Subject};
pub use metadata::{FromValue, Metadata};
pub use parse::Gguf;
pub use value::{Array, Number, Value, ValueType};
pub use writer::{WriteError, Writer};
