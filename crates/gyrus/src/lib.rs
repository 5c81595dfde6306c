//! tmp
#![forbid(unsafe_code)]
mod arch;
mod error;
pub use error::Error;
