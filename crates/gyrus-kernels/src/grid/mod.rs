//! What op tests have in common: reproducible inputs, a runner's errors, a timer, and the grid of the published kernels.
//!
//! A [`Case`] is a call with its buffers, canaries around what the call may touch. A [`Runner`] is a way to run
//! calls: [`Scalar`] here, SIMD in `gyrus-cpu`, a device in `gyrus-gpu`. [`check`] compares a runner with the
//! twin, [`identities`] are laws that every runner keeps, and benchmarks time the same cases. All of these are about
//! the kernels of [`crate::abi`], which defines them.

mod noise;

pub use crate::abi::cases::{rope_case, rope_cases};
pub use crate::abi::grid::{Case, Runner, Scalar, check};
pub use crate::abi::laws as identities;
pub use noise::Noise;

use std::time::Duration;

use crate::launch::LaunchError;

/// Why a runner did not run a call.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum RunError {
    /// The call is wrong in itself.
    #[error(transparent)]
    Launch(#[from] LaunchError),
    /// The backend failed.
    #[error("{0}")]
    Backend(String),
}

/// The median of as many measurements as are asked for, at least one.
pub fn median<E>(repetitions: usize, mut once: impl FnMut() -> Result<Duration, E>) -> Result<Duration, E> {
    let mut times = (0..repetitions.max(1)).map(|_| once()).collect::<Result<Vec<Duration>, E>>()?;
    times.sort();
    Ok(times[times.len() / 2])
}
