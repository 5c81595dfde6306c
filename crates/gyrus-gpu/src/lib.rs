//! Runs the kernels of Gyrus on any GPU that wgpu reaches: Vulkan, Metal, DX12.
//!
//! [`adapters`] lists what is there, [`Gpu::open`] takes one, [`Gpu::bind`] makes a checked
//! [`Launch`](gyrus_kernels::Launch) and its buffers ready to run, [`Gpu::run`] runs it and [`Gpu::time`]
//! says how long that takes. [`GpuBackend`] runs a whole plan.
//!
//! This crate knows nothing of files or models.

#![deny(unsafe_code)]
// What only `direct` needs.
#![cfg_attr(
    not(any(windows, target_os = "linux", target_os = "android", target_os = "freebsd")),
    allow(dead_code)
)]

mod adapter;
mod backend;
mod buffer;
mod chain;
mod device;
// Handles of the API itself.
#[cfg(any(windows, target_os = "linux", target_os = "android", target_os = "freebsd"))]
#[allow(unsafe_code)]
mod direct;
#[cfg(not(any(windows, target_os = "linux", target_os = "android", target_os = "freebsd")))]
#[path = "direct/none.rs"]
mod direct;
mod dispatch;
mod error;
mod instruments;
mod kept;
mod lower;
mod memory;
mod pipeline;
mod proof;
mod recorder;
mod rooms;
mod runner;
mod spirv;
mod step;
mod through;
mod tuning;
mod weight;

pub use adapter::{Adapter, AdapterKind, adapters, may_have_gpu};
pub use backend::GpuBackend;
pub use buffer::Buffer;
pub use device::{Gpu, Options};
pub use dispatch::Dispatch;
pub use error::GpuError;
pub use memory::{Memory, MemoryNeed};
pub use rooms::MAX_ROWS;
pub use runner::GpuRunner;
