//! Kernels as calls: what to compute, checked and turned into a [`Launch`], whoever then runs it.

mod copy;
pub mod engine;
mod rope;

pub use copy::copy;
pub use rope::{Cache, Freqs, RopeCall, RopeKernel, RopeTuning, Storage};
