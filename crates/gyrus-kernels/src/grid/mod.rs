//! The op-test grid: cases of every kernel, run on a backend and judged by their scalar twins.
//!
//! A [`Case`] is a [`Launch`](crate::Launch), or a few of them in a row, with its buffers before and after: the twin
//! computes the latter, and a [`Rule`] for each buffer says how closely a backend must agree. [`families`] is the table
//! of all kernels; each [`Family`] is a grid of shapes. A [`Runner`] runs launches: a device in `gyrus-gpu`; for the
//! published rope kernels also SIMD in `gyrus-cpu` and the twin, [`Scalar`]. [`check`] compares a runner with a case,
//! [`identities`] are laws that every runner of rope kernels keeps, and benchmarks time the same launches.

mod case;
mod check;
mod families;
mod family;
mod noise;
mod runner;
mod weights;

pub use crate::abi::cases::{rope_buffers, rope_case};
pub use crate::abi::laws as identities;
pub use case::{Case, CaseBuffer, Int8, Rule, Step, UNTOUCHED, largest, words};
pub use check::check;
pub use families::{families, int8_magnitude};
pub use family::{Family, Point};
pub use noise::Noise;
pub use runner::{RunError, Runner, Scalar, median};
pub use weights::{Weight, dtypes};
