//! The GGML files of whisper.cpp: hyperparameters, mel filters, a vocabulary, then tensors one after another.
//!
//! The container has no version, no alignment and no directory. Tensors are found by reading all descriptions.

mod error;
mod parse;

pub use error::{GgmlError, GgmlProblem};
pub use parse::{Ggml, WhisperHeader};
