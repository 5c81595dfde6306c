//! The CPU backend: a thread pool for short loops, matrix multiplication with quantised weights, attention
//! over a paged KV cache, RMS norms, activations and the rotary embedding kernels.
//!
//! Three rules hold for every kernel:
//!
//! - **Batch invariance.** A row's result depends on that row alone, not on the other rows of the batch, the
//!   number of threads or the chunks of a prompt. Each output has one fixed order of summation.
//! - **All instruction sets give the same bits.** The portable Rust form of a kernel is its definition. SIMD
//!   forms round in the same order (fused where the portable form calls `mul_add`), and tests compare them
//!   bit for bit.
//! - **No allocation in the steady state.** Buffers live in [`Scratch`] or in thread-local storage.
//!
//! The crate knows nothing of files or models.

// Kernels are written once over the `Simd` trait. Targets without an implementation call the portable forms only.
#![cfg_attr(not(any(target_arch = "x86_64", target_arch = "aarch64")), allow(dead_code))]

mod activation;
mod attention;
mod backend;
mod delta;
mod elementwise;
mod error;
mod exp;
mod experts;
mod f32_dot;
mod heap;
mod isa;
mod kv;
mod layer_norm;
mod log_softmax;
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
pub use backend::{CpuBackend, MAX_BATCH_ROWS, MAX_ROWS};
pub use error::CpuError;
pub use gyrus_kernels::{Activation, Precision, Span};
pub use heap::{limit_heap, release_free_memory};
pub use isa::Isa;
pub use kv::{KvRow, KvStore, Strided};
pub use matmul::matmul;
pub use matrix::Matrix;
pub use norm::rms_norm;
pub use pool::Pool;
pub use quantize_rows::{GROUP, QBlock, quantize_row};
pub use rope::{CpuRunner, rope};
pub use scratch::Scratch;
pub use storage::Bytes;
