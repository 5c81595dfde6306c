//! SafeTensors: a JSON header, then tensor data.
//!
//! ```text
//! header length u64 | {"name": {"dtype": "F32", "shape": [2, 4], "data_offsets": [0, 32]}, …} | data …
//! ```
//!
//! [`SafeTensors`] is one file. [`Index`] maps the tensors of a sharded model to its files.
//! [`crate::Checkpoint`] opens folders and sharded models.

mod error;
mod header;
mod index;
mod parse;

pub use error::{SafeTensorsError, SafeTensorsProblem};
pub use index::Index;
pub use parse::SafeTensors;
