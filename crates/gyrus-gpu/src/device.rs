use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use gyrus_kernels::Bandwidth;
use gyrus_kernels::shader::Rungs;
use wgpu::{DeviceDescriptor, Error, ExperimentalFeatures, Features, Limits, MemoryHints, PollType, Trace};

use crate::adapter::{Adapter, AdapterKind, adapters};
use crate::busy::BusyMeter;
use crate::cache_file::adapter_file;
use crate::error::GpuError;
use crate::lower::Capabilities;
use crate::pipeline::Pipeline;
use crate::pipeline_cache::PipelineCache;

/// Which adapter to open, and how.
#[derive(Debug, Clone)]
pub struct Options {
    /// A part of the adapter's name; if absent, the best one in hardware.
    pub adapter: Option<String>,
    /// Shader features that may be used; each can be turned off.
    pub rungs: Rungs,
    /// Whether shaders check the bounds of every access. Launches are checked on the host, so this only helps to find
    /// a mistake in a kernel.
    pub checked: bool,
    /// The most bytes of memory to use, to leave some to other processes.
    pub memory: Option<u64>,
    /// The folder of the pipeline cache, of tuning results and of the self-test's outcome. Not every API can store
    /// pipelines.
    pub pipelines: Option<PathBuf>,
    /// Whether steps in flight are recorded by Vulkan commands instead of wgpu, where the API is Vulkan.
    pub vulkan_recorder: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            adapter: None,
            rungs: Rungs::ALL,
            checked: cfg!(debug_assertions),
            memory: None,
            pipelines: None,
            vulkan_recorder: true,
        }
    }
}

/// An open GPU.
#[derive(Debug)]
pub struct Gpu {
    pub(crate) device: wgpu::Device,
    pub(crate) queue: wgpu::Queue,
    pub(crate) limits: Limits,
    pub(crate) checked: bool,
    pub(crate) vulkan_recorder: bool,
    pub(crate) most_memory: Option<u64>,
    pub(crate) pipelines: Mutex<HashMap<String, Arc<Pipeline>>>,
    pub(crate) pipeline_cache: Option<PipelineCache>,
    /// The file of tuning results for this device.
    pub(crate) tuning_path: Option<PathBuf>,
    pub(crate) busy: BusyMeter,
    /// What was measured for profiles.
    pub(crate) bandwidth: OnceLock<Bandwidth>,
    adapter: Adapter,
    rungs: Rungs,
    timestamps: bool,
    /// Milliseconds after which a device that completes nothing is given up.
    patience: AtomicU64,
    /// An error that no call has returned yet.
    pending_error: Arc<Mutex<Option<GpuError>>>,
}

/// The sizes of the blocks in which wgpu allocates device memory, half of it for memory of the host: the first is small,
/// since a driver takes 19 ms to map 64 MiB of the host's memory.
const MEMORY_BLOCKS: std::ops::Range<u64> = 16 << 20..256 << 20;

impl Gpu {
    /// Opens an adapter.
    pub fn open(options: &Options) -> Result<Gpu, GpuError> {
        let all = adapters();
        let adapter = choose(&all, options.adapter.as_deref())?.clone();
        let has = adapter.inner.features();
        let cooperative = adapter.rungs.cooperative && options.rungs.cooperative;
        let rungs = Rungs {
            f16: adapter.rungs.f16 && options.rungs.f16,
            subgroups: adapter.rungs.subgroups && options.rungs.subgroups,
            immediates: adapter.rungs.immediates && options.rungs.immediates,
            cooperative,
            int8_matrix: cooperative && adapter.rungs.int8_matrix && options.rungs.int8_matrix,
        };
        let mut features = Features::empty();
        features.set(Features::SHADER_F16, rungs.f16);
        features.set(Features::SUBGROUP, rungs.subgroups);
        features.set(Features::IMMEDIATES, rungs.immediates);
        features.set(Features::EXPERIMENTAL_COOPERATIVE_MATRIX, rungs.cooperative);
        features.set(Features::PASSTHROUGH_SHADERS, rungs.int8_matrix);
        features.insert(has & Features::TIMESTAMP_QUERY);
        if options.pipelines.is_some() {
            features.insert(has & Features::PIPELINE_CACHE);
        }
        // All that the adapter has. wgpu's defaults are the limits that every browser guarantees.
        let mut limits = adapter.inner.limits();
        if !rungs.immediates {
            limits.max_immediate_size = 0;
        }
        let descriptor = DeviceDescriptor {
            label: None,
            required_features: features,
            required_limits: limits.clone(),
            experimental_features: if rungs.cooperative { experimental() } else { Default::default() },
            memory_hints: MemoryHints::Manual { suballocated_device_memory_block_size: MEMORY_BLOCKS },
            trace: Trace::Off,
        };
        let (device, queue) = pollster::block_on(adapter.inner.request_device(&descriptor))
            .map_err(|error| GpuError::Open { adapter: adapter.name.clone(), reason: error.to_string() })?;
        let pending_error = Arc::new(Mutex::new(None));
        let slot = Arc::clone(&pending_error);
        device.on_uncaptured_error(Arc::new(move |error: Error| {
            lock(&slot).get_or_insert_with(|| wgpu_error(&error));
        }));
        let slot = Arc::clone(&pending_error);
        device.set_device_lost_callback(move |reason, message| {
            let reason = match reason {
                wgpu::DeviceLostReason::Destroyed => "it was closed".to_owned(),
                _ => message,
            };
            *lock(&slot) = Some(GpuError::Lost { reason });
        });
        let pipeline_cache =
            options.pipelines.as_ref().filter(|_| features.contains(Features::PIPELINE_CACHE));
        let info = adapter.inner.get_info();
        let pipeline_cache =
            pipeline_cache.and_then(|folder| PipelineCache::open(&device, &info, rungs, folder));
        let timestamps = features.contains(Features::TIMESTAMP_QUERY);
        let patience = if adapter.kind == AdapterKind::Software { 600_000 } else { 30_000 };
        let mut gpu = Gpu {
            device,
            queue,
            limits,
            checked: options.checked,
            vulkan_recorder: options.vulkan_recorder,
            most_memory: options.memory,
            pipelines: Mutex::default(),
            pipeline_cache,
            tuning_path: options.pipelines.as_ref().map(|folder| folder.join(adapter_file(&info, "tuning"))),
            busy: BusyMeter::default(),
            bandwidth: OnceLock::new(),
            adapter,
            rungs,
            timestamps,
            patience: AtomicU64::new(patience),
            pending_error,
        };
        gpu.rungs.int8_matrix = rungs.int8_matrix && gpu.passes_int8_self_test(options);
        Ok(gpu)
    }

    /// The adapter that was opened.
    pub fn adapter(&self) -> &Adapter {
        &self.adapter
    }

    /// The shader features in use.
    pub fn rungs(&self) -> Rungs {
        self.rungs
    }

    /// The most invocations of a workgroup.
    pub fn most_invocations(&self) -> u32 {
        self.limits.max_compute_invocations_per_workgroup.min(self.limits.max_compute_workgroup_size_x)
    }

    /// Bytes of workgroup memory.
    pub fn workgroup_memory(&self) -> u64 {
        self.limits.max_compute_workgroup_storage_size.into()
    }

    /// What the choice of kernels depends on.
    pub fn capabilities(&self) -> Capabilities {
        Capabilities {
            rungs: self.rungs,
            workgroup_memory: self.workgroup_memory(),
            most_invocations: self.most_invocations(),
            storage_buffers: self.limits.max_storage_buffers_per_shader_stage as usize,
            largest_buffer: self.largest_buffer(),
        }
    }

    /// Whether times are measured by the device's clock.
    pub fn has_timestamps(&self) -> bool {
        self.timestamps
    }

    /// How long to wait for a device that completes nothing, before it is given up: 30 s, and 600 s for a software adapter,
    /// which may be that slow.
    pub fn patience(&self) -> Duration {
        Duration::from_millis(self.patience.load(Ordering::Relaxed))
    }

    /// Sets [`Gpu::patience`].
    pub fn set_patience(&self, patience: Duration) {
        self.patience.store(u64::try_from(patience.as_millis()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// Closes the device and frees its memory. Later calls return [`GpuError::Lost`].
    pub fn close(&self) {
        self.store_pipelines();
        // Steps in flight of the Vulkan recorder use buffers that wgpu destroys, so wait for a later submission.
        let _ = self.flush();
        self.device.destroy();
        *lock(&self.pending_error) = Some(GpuError::Lost { reason: "it was closed".to_owned() });
    }

    /// Waits for all submissions except steps in flight, and returns errors since the last call.
    pub fn wait(&self) -> Result<(), GpuError> {
        // If wgpu has given up the device, waiting would destroy buffers that steps in flight use.
        if let Some(lost @ GpuError::Lost { .. }) = &*lock(&self.pending_error) {
            return Err(lost.clone());
        }
        let polled = self.device.poll(PollType::wait_indefinitely());
        self.take_error()?;
        polled.map(drop).map_err(|error| GpuError::Lost { reason: error.to_string() })
    }

    /// Marks the device as lost, which wgpu may not have noticed yet.
    pub(crate) fn set_lost(&self, reason: &str) -> GpuError {
        let lost = GpuError::Lost { reason: reason.to_owned() };
        lock(&self.pending_error).insert(lost).clone()
    }

    /// Returns the pending error, if there is one. A lost device stays lost.
    pub(crate) fn take_error(&self) -> Result<(), GpuError> {
        let mut pending = lock(&self.pending_error);
        match &*pending {
            Some(lost @ GpuError::Lost { .. }) => Err(lost.clone()),
            _ => pending.take().map_or(Ok(()), Err),
        }
    }
}

/// Permission to use an experimental feature of wgpu: cooperative matrices.
#[allow(unsafe_code)]
fn experimental() -> ExperimentalFeatures {
    // SAFETY: the token stands for the knowledge that the feature may have bugs. Kernels use only what is tested: whole
    // matrices, loaded from and stored to workgroup memory, in uniform control flow.
    unsafe { ExperimentalFeatures::enabled() }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        // Pipelines that were compiled since the last time.
        if self.take_error().is_ok() {
            self.store_pipelines();
        }
    }
}

/// Locks a mutex even if a holder has panicked: the values here are valid at any time.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn wgpu_error(error: &Error) -> GpuError {
    match error {
        Error::OutOfMemory { .. } => GpuError::OutOfMemory { bytes: None },
        Error::Validation { .. } => GpuError::internal(error.to_string()),
        other => GpuError::Refused { reason: other.to_string() },
    }
}

fn choose<'a>(all: &'a [Adapter], name: Option<&str>) -> Result<&'a Adapter, GpuError> {
    if let Some(name) = name {
        let wanted = name.to_lowercase();
        return all.iter().find(|adapter| adapter.name.to_lowercase().contains(&wanted)).ok_or_else(|| {
            GpuError::UnknownAdapter {
                name: name.to_owned(),
                there: all.iter().map(|adapter| adapter.name.clone()).collect(),
            }
        });
    }
    match all.first() {
        Some(best) if best.kind != AdapterKind::Software => Ok(best),
        _ => Err(GpuError::NoAdapter { software: all.iter().map(|adapter| adapter.name.clone()).collect() }),
    }
}
