//! Text on its way into and out of a model.
//!
//! This crate knows nothing of tensors, files or devices: everything it needs is handed to it as
//! strings and values.
//!
//! - [`template`] turns a conversation into the prompt text a model was trained on.
#![forbid(unsafe_code)]

pub mod template;
