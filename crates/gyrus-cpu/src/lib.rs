//! The CPU's kernels: a thread pool for short loops, mat-muls over quantised weights, attention over a
//! paged cache, norms, activations and the rope kernels.
//!
//! Three rules hold for everything here:
//!
//! - **A row's result depends on that row alone.** Never on the number of rows, on its neighbours, on the
//!   number of threads or on how a prompt was cut into chunks. Each output has one order of summation.
//! - **All instruction sets give the same bits.** The plain Rust form of a kernel is its definition; SIMD
//!   forms do the same roundings in the same order (fused where the plain form calls `mul_add`), and tests
//!   compare them bit for bit.
//! - **Steady work allocates nothing.** Buffers live in [`Scratch`] or with the thread.
//!
//! The crate knows nothing of files or models.

// Kernels are written once over registers; where there are none, only the plain forms are called.
#![cfg_attr(not(any(target_arch = "x86_64", target_arch = "aarch64")), allow(dead_code))]

mod activation;
mod attention;
mod backend;
mod error;
mod exp;
mod f32_dot;
mod isa;
mod kv;
mod matmul;
mod matrix;
mod norm;
mod panel;
mod pool;
mod quantize_rows;
mod rope;
mod scratch;
mod simd;
mod slab;
mod storage;
mod thread_scratch;

pub use activation::gate;
pub use attention::{Attention, attention};
pub use backend::{CpuBackend, MAX_ROWS};
pub use error::CpuError;
pub use gyrus_kernels::{Activation, Precision};
pub use isa::Isa;
pub use kv::{KvRow, KvShape, KvStore, KvType, Strided};
pub use matmul::matmul;
pub use matrix::Matrix;
pub use norm::rms_norm;
pub use pool::Pool;
pub use quantize_rows::{GROUP, QBlock, quantize_row};
pub use rope::{CpuRunner, rope};
pub use scratch::Scratch;
pub use storage::Bytes;
