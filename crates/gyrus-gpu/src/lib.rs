//! Runs the kernels of Gyrus on any GPU that wgpu supports: Vulkan, Metal, DX12.
//!
//! [`adapters`] lists GPUs, [`Gpu::open`] opens one, [`Gpu::bind`] binds a checked
//! [`Launch`](gyrus_kernels::Launch) to its buffers, [`Gpu::run`] runs it and [`Gpu::time`] measures it.
//! [`GpuBackend`] runs a whole plan; [`fused`] lists the kernels that it calls.
//!
//! This crate knows nothing of files or models.

#![deny(unsafe_code)]
// Some items are used by the Vulkan recorder only.
#![cfg_attr(
    not(any(windows, target_os = "linux", target_os = "android", target_os = "freebsd")),
    allow(dead_code)
)]

mod adapter;
mod backend;
mod bandwidth;
mod buffer;
mod buffers;
mod busy;
mod cache_file;
mod contents;
mod device;
mod dispatch;
mod error;
mod forward;
mod instruments;
mod int8_self_test;
mod lower;
mod memory;
mod observe;
mod pipeline;
mod pipeline_cache;
mod profile;
mod recorder;
mod runner;
mod slots;
mod spirv;
mod step;
mod tables;
mod tuning;
#[cfg(any(windows, target_os = "linux", target_os = "android", target_os = "freebsd"))]
#[allow(unsafe_code)]
mod vulkan_recorder;
#[cfg(not(any(windows, target_os = "linux", target_os = "android", target_os = "freebsd")))]
#[path = "vulkan_recorder/none.rs"]
mod vulkan_recorder;
mod weight;
mod wgpu_recorder;

pub use adapter::{Adapter, AdapterKind, adapters, may_have_gpu};
pub use backend::GpuBackend;
pub use buffer::Buffer;
pub use buffers::MAX_ROWS;
pub use device::{Gpu, Options};
pub use dispatch::Dispatch;
pub use error::GpuError;
pub use lower::{BatchKind, Capabilities, Fused, fused};
pub use memory::{Memory, MemoryNeed};
pub use runner::GpuRunner;
