//! Readers of GGUF, SafeTensors and Whisper GGML files from untrusted sources.
//!
//! [`Checkpoint::open`] takes a path (a GGUF, SafeTensors or Whisper GGML file, one part of a split model, or a model
//! folder) and provides tensors as views into the mapped files. A file is validated before use: names are
//! unique, sizes do not overflow, and tensors are inside the file and do not overlap. No allocation is larger
//! than the file can justify: counts are checked against the bytes that remain.
//!
//! Files are mapped (MAP_SHARED, read-only). If another process shortens a mapped file, access to the missing part ends
//! this process with SIGBUS; if it writes to the file, the weights change. [`Checkpoint::open_with`] with
//! [`Access::Read`] reads a copy into memory instead.
//!
//! This crate knows nothing of operations, models or GPUs.
//!
//! ```no_run
//! use gyrus_formats::Checkpoint;
//!
//! let model = Checkpoint::open("SmolLM2-135M-Instruct.Q4_1.gguf".as_ref())?;
//! for tensor in model.tensors() {
//!     println!("{} {} {}", tensor.name, tensor.dtype, tensor.shape);
//! }
//! # Ok::<(), gyrus_formats::FormatError>(())
//! ```

#![deny(unsafe_code)]

mod bytes;
mod checkpoint;
mod error;
pub mod ggml;
pub mod gguf;
mod quote;
pub mod safetensors;
mod tensor;

pub use bytes::{Access, Bytes};
pub use checkpoint::{Checkpoint, Format};
pub use error::{FormatError, Problem};
pub use tensor::TensorView;
