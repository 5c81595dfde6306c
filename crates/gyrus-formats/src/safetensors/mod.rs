//! SafeTensors: a JSON header and the tensors' bytes.
//!
//! ```text
//! header length u64 | {"name": {"dtype": "F32", "shape": [2, 4], "data_offsets": [0, 32]}, …} | data …
//! ```
//!
//! [`SafeTensors`] is one file; [`Index`] says which file of a model split over several holds which
//! tensor. Folders are opened by [`crate::Checkpoint`].

mod error;
mod header;
mod index;
mod parse;

pub use error::{SafeTensorsError, SafeTensorsProblem};
pub use index::Index;
pub use parse::SafeTensors;
