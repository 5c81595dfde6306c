//! Model files from strangers, opened safely.
//!
//! [`Checkpoint::open`] takes a path (a GGUF file, a SafeTensors file, one part of a split model, or a
//! model's folder) and gives tensors as views into the mapped files. Everything a file declares is
//! checked before anything is used: a file that opens has names without duplicates, sizes that do not
//! overflow, and tensors that lie inside the file and do not overlap. No allocation is sized by a
//! declared count; memory follows the bytes that are really there.
//!
//! Files are mapped, shared and read-only. A mapped file that another process shortens ends this process with SIGBUS
//! where the missing part is touched, and one that is written to changes the weights under way.
//! [`Checkpoint::open_with`] and [`Access::Read`] take a copy into memory instead.
//!
//! This crate knows nothing of operations, models or GPUs: it does not ask what a tensor is for.
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
pub mod gguf;
mod quote;
pub mod safetensors;
mod tensor;

pub use bytes::{Access, Bytes};
pub use checkpoint::{Checkpoint, Format};
pub use error::{FormatError, Problem};
pub use tensor::TensorView;
