//! The published ABI: rope kernels with fixed names, bindings and parameter structs that other programs can call.
//!
//! These kernels are not the engine's path. A plan rotates heads with `engine/rope_write.wgsl` or in the prologue of
//! attention, from [`Rope`](crate::Rope). The kernels here keep the interface under which they were published:
//!
//! | kernels | parameters | what they do |
//! |---|---|---|
//! | `rope`, `rope_neox` | [`RoPEParams`] | rotate heads in place |
//! | `rope_qkv_write`, `rope_neox_qkv_write` | [`RoPEQKVWriteParams`] | rotate Q and K of one token, write K and V to the cache |
//! | `rope_batch_kv_write`, `rope_neox_batch_kv_write` | [`RoPEQKVWriteParams`] | the same for several tokens |
//! | `head_norm_rope_neox_kv_write` | [`RoPEQKVWriteParams`], [`NormEpsParams`] | the same for one token, with an RMS norm of each head first |
//! | `rope_q`, `rope_k`, `rope_q_backward`, `rope_k_backward` | [`RoPEDims`], [`RoPEBase`] | training: rotate in place in `f32`, and the gradient |
//! | `rope_fwd`, `rope_bwd` | [`RoPEOpParams`] | training: rotate by given angles, and the gradient |
//!
//! Names end with the element type (`_f16`, `_f32`, `_bf16`) but for `rope_q` and its siblings. The WGSL is under
//! `wgsl/abi`, the Rust structs under `params/abi`. A [`RopeCall`] checks a call and returns its
//! [`Launch`](crate::Launch); [`scalar`] is the twin of all kernels, [`rope_case`](crate::grid::rope_case) is a test case
//! of a call, and [`laws`] are identities that every backend must satisfy.

mod call;
pub(crate) mod cases;
pub mod laws;
pub mod scalar;
mod tolerance;

#[cfg(doc)]
use crate::params::{NormEpsParams, RoPEBase, RoPEDims, RoPEOpParams, RoPEParams, RoPEQKVWriteParams};

pub use call::{Cache, Freqs, RopeCall, RopeKernel, RopeTuning};
