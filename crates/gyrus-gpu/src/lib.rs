//! Runs the kernels of Gyrus on any GPU that wgpu reaches: Vulkan, Metal, DX12.
//!
//! [`adapters`] lists what is there, [`Gpu::open`] takes one, [`Gpu::bind`] makes a checked
//! [`Launch`](gyrus_kernels::Launch) and its buffers ready to run, [`Gpu::run`] runs it and [`Gpu::time`]
//! says how long that takes. [`GpuBackend`] runs a whole plan.
//!
//! This crate knows nothing of files or models.

#![deny(unsafe_code)]

mod adapter;
mod backend;
mod buffer;
mod chain;
mod device;
mod dispatch;
mod error;
mod instruments;
mod kept;
mod lower;
mod memory;
mod pipeline;
mod proof;
mod rooms;
mod runner;
mod spirv;
mod step;
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
