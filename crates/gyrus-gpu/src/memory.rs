//! The memory that a plan needs and the memory that a device has, before anything is uploaded.

use std::fmt;

use gyrus_kernels::{KV_BLOCK, KvSize, Plan, WeightError, WeightLayout, WeightSpec};

use crate::adapter::Adapter;
use crate::buffers::{PADDING_BLOCKS, logits_readback_bytes, sizes};
use crate::device::Gpu;
use crate::error::GpuError;
use crate::lower::Operand;

/// Memory of an adapter in bytes, as its driver reports it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Memory {
    /// All of it.
    pub total: u64,
    /// What this process can still allocate; all of it if the driver does not report that.
    pub free: u64,
}

/// Memory that a plan needs, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryNeed {
    /// Weights in the layout of the device.
    pub weights: u64,
    /// Keys and values of every position, and records of states.
    pub cache: u64,
    /// The part of the cache that is records of states, with one that measurements write to.
    pub states: u64,
    /// Activations, inputs of a batch, logits and the buffer that they are read back through.
    pub scratch: u64,
    /// What drivers and allocators take: partly filled blocks, compiled kernels.
    pub spare: u64,
    /// Positions of the cache.
    pub positions: usize,
    /// Bytes of the cache that one block more of positions takes: those of layers without a window.
    pub per_block: u64,
}

/// wgpu's allocator requests memory in blocks of up to this size.
const BLOCK: u64 = 256 << 20;
/// One part in this many is expected to be lost between buffers.
const SPARE_SHARE: u64 = 32;

impl MemoryNeed {
    /// The need of a plan with a cache of this size.
    pub fn new(plan: &Plan, kv: &KvSize) -> Result<MemoryNeed, GpuError> {
        let mut weights = 0u64;
        for spec in &plan.weights {
            weights = weights.saturating_add(weight_bytes(spec)?);
        }
        // What only some requests need, such as a sampler's counts, is small beside what is spare.
        let (mut cache, mut states, mut scratch) = (0u64, 0u64, logits_readback_bytes(plan));
        for (operand, bytes) in sizes(plan, kv) {
            let sum = match operand {
                Operand::Keys(_) | Operand::Values(_) => &mut cache,
                Operand::State(_) => &mut states,
                _ => &mut scratch,
            };
            *sum = sum.saturating_add(bytes);
        }
        cache = cache.saturating_add(states);
        let sum = weights.saturating_add(cache).saturating_add(scratch);
        let per_block = (plan.kv_bytes_per_token() * KV_BLOCK) as u64;
        let (spare, positions) = (spare(sum), kv.positions);
        Ok(MemoryNeed { weights, cache, states, scratch, spare, positions, per_block })
    }

    /// All of it.
    pub fn total(&self) -> u64 {
        [self.weights, self.cache, self.scratch, self.spare].iter().fold(0, |sum, n| sum.saturating_add(*n))
    }

    /// How many positions a cache can have in `free` bytes, at most those of this need; `None` if not even one block
    /// fits.
    pub fn positions_within(&self, free: u64) -> Option<usize> {
        let blocks = self.positions / KV_BLOCK;
        let fits = |some: usize| {
            let fewer = self.per_block.saturating_mul((blocks - some.min(blocks)) as u64);
            let cache = self.cache.saturating_sub(fewer);
            let sum = self.weights.saturating_add(self.scratch).saturating_add(cache);
            sum.saturating_add(spare(sum)) <= free
        };
        // Bisects between `fitting` blocks, which fit, and `over`, which do not.
        let (mut fitting, mut over) = (0, blocks + 1);
        while over - fitting > 1 {
            let middle = fitting + (over - fitting) / 2;
            if fits(middle) { fitting = middle } else { over = middle }
        }
        (fitting > 0).then_some(fitting * KV_BLOCK)
    }
}

impl fmt::Display for MemoryNeed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let MemoryNeed { weights, cache, states, positions, .. } = *self;
        let (total, weights, cache) = (size(self.total()), size(weights), size(cache));
        write!(f, "{total} (weights {weights}, cache for {positions} tokens {cache}")?;
        if states > 0 {
            write!(f, " with {} of recurrent states", size(states))?;
        }
        write!(f, ", scratch {})", size(self.scratch.saturating_add(self.spare)))
    }
}

/// Bytes that are lost beside this many: the rest of a partly filled block, and gaps.
fn spare(bytes: u64) -> u64 {
    (bytes / SPARE_SHARE).max(bytes.min(BLOCK))
}

/// Bytes of a weight on the device.
fn weight_bytes(spec: &WeightSpec) -> Result<u64, GpuError> {
    // Vectors are uploaded in f32.
    if spec.shape.rank() < 2 {
        return Ok(4 * spec.shape.elems() as u64);
    }
    let layout = WeightLayout::new(spec.dtype, spec.shape.rows(), spec.shape.row());
    let refused = |error: WeightError| GpuError::Weight { name: spec.name.clone(), error };
    Ok(layout.map_err(refused)?.total_bytes())
}

impl Gpu {
    /// The memory there is now; `None` if the driver does not report it.
    pub fn memory(&self) -> Option<Memory> {
        let reported = self.adapter().memory();
        match self.most_memory {
            None => reported,
            Some(most) => Some(reported.map_or(Memory { total: most, free: most }, |memory| Memory {
                total: memory.total.min(most),
                free: memory.free.min(most),
            })),
        }
    }

    /// Allocated and reserved bytes; `None` if wgpu's backend does not count them.
    pub fn used(&self) -> Option<(u64, u64)> {
        let report = self.device.generate_allocator_report()?;
        Some((report.total_allocated_bytes, report.total_reserved_bytes))
    }

    /// The most positions of a cache: a layer's keys are one buffer.
    pub fn most_positions(&self, plan: &Plan) -> usize {
        let global = plan.kv.iter().filter(|group| group.window.is_none());
        let block = global.map(|group| group.block_bytes(plan.precision)).max().unwrap_or(1).max(1);
        let blocks = usize::try_from(self.largest_buffer() / block as u64).unwrap_or(usize::MAX);
        blocks.saturating_sub(PADDING_BLOCKS).saturating_mul(KV_BLOCK)
    }
}

/// The memory of a device before a plan is loaded.
#[derive(Debug)]
pub(crate) struct MemoryBudget {
    adapter: String,
    memory: Option<Memory>,
    positions: usize,
}

impl MemoryBudget {
    pub(crate) fn of(gpu: &Gpu, plan: &Plan) -> MemoryBudget {
        let adapter = gpu.adapter().name.clone();
        MemoryBudget { adapter, memory: gpu.memory(), positions: gpu.most_positions(plan) }
    }

    /// Whether a plan fits, as far as the driver reports its memory.
    pub(crate) fn check(&self, need: &MemoryNeed) -> Result<(), GpuError> {
        match self.memory {
            _ if need.positions > self.positions => Err(GpuError::Cache {
                adapter: self.adapter.clone(),
                positions: need.positions,
                most: self.positions,
            }),
            Some(memory) if need.total() > memory.free => Err(self.shortage(need)),
            _ => Ok(()),
        }
    }

    /// An error, or if memory ran out, one that says what the whole plan needs.
    pub(crate) fn explain(&self, need: &MemoryNeed, error: GpuError) -> GpuError {
        match error {
            GpuError::OutOfMemory { .. } => self.shortage(need),
            other => other,
        }
    }

    /// The error that says what is needed and what there is.
    fn shortage(&self, need: &MemoryNeed) -> GpuError {
        let MemoryBudget { adapter, memory, .. } = self;
        // If an allocation failed although the plan should fit, the driver's figure is no help.
        let fitting = memory
            .filter(|memory| need.total() > memory.free)
            .and_then(|memory| need.positions_within(memory.free));
        GpuError::InsufficientMemory { adapter: adapter.clone(), need: *need, memory: *memory, fitting }
    }
}

/// The end of the message of [`GpuError::InsufficientMemory`].
pub(crate) fn verdict(need: &MemoryNeed, memory: Option<Memory>, fitting: Option<usize>) -> String {
    let there = match memory {
        None => "but memory ran out; the driver does not report how much there is".to_owned(),
        Some(memory) if need.total() <= memory.free => {
            format!(
                "but memory ran out, although {} of {} seemed free",
                size(memory.free),
                size(memory.total)
            )
        }
        Some(memory) if memory.free == memory.total => format!("which has {}", size(memory.total)),
        Some(memory) => format!("which has {} of {} free", size(memory.free), size(memory.total)),
    };
    match (fitting, memory) {
        (Some(positions), _) => format!("{there}; a cache for {positions} tokens would fit"),
        (None, Some(memory)) if need.total() - need.cache > memory.free => {
            format!("{there}; the model does not fit with any cache")
        }
        _ => there,
    }
}

/// `9.1 GiB`.
pub(crate) fn size(bytes: u64) -> String {
    let mib = bytes as f64 / f64::from(1 << 20);
    if mib < 1024.0 { format!("{mib:.1} MiB") } else { format!("{:.1} GiB", mib / 1024.0) }
}

impl Adapter {
    /// The memory there is now; `None` if the driver does not report it. wgpu has no query for it, so this asks each API.
    pub fn memory(&self) -> Option<Memory> {
        query::memory(&self.inner)
    }
}

/// Queries of the APIs behind wgpu.
#[allow(unsafe_code)]
mod query {
    use super::Memory;

    pub(super) fn memory(adapter: &wgpu::Adapter) -> Option<Memory> {
        #[cfg(any(windows, target_os = "linux", target_os = "android", target_os = "freebsd"))]
        if let Some(memory) = vulkan(adapter) {
            return Some(memory);
        }
        #[cfg(windows)]
        if let Some(memory) = dx12(adapter) {
            return Some(memory);
        }
        #[cfg(target_vendor = "apple")]
        if let Some(memory) = metal(adapter) {
            return Some(memory);
        }
        let _ = adapter;
        None
    }

    /// The largest device-local heap, and what is left of this process's budget for it.
    #[cfg(any(windows, target_os = "linux", target_os = "android", target_os = "freebsd"))]
    fn vulkan(adapter: &wgpu::Adapter) -> Option<Memory> {
        use ash::{ext, vk};

        // SAFETY: the handles are used for queries only, and live as long as the guard.
        let adapter = unsafe { adapter.as_hal::<wgpu::hal::api::Vulkan>() }?;
        let (shared, device) = (adapter.shared_instance(), adapter.raw_physical_device());
        let capabilities = adapter.physical_device_capabilities();
        let mut budget = vk::PhysicalDeviceMemoryBudgetPropertiesEXT::default();
        let version = shared.instance_api_version().min(capabilities.properties().api_version);
        let has_budget =
            version >= vk::API_VERSION_1_1 && capabilities.supports_extension(ext::memory_budget::NAME);
        let heaps = if has_budget {
            let mut properties = vk::PhysicalDeviceMemoryProperties2::default().push_next(&mut budget);
            // SAFETY: instance and device have version 1.1, which has the call, and the device has the extension of the
            // chained structure.
            unsafe { shared.raw_instance().get_physical_device_memory_properties2(device, &mut properties) };
            properties.memory_properties
        } else {
            // SAFETY: the device belongs to the instance.
            unsafe { shared.raw_instance().get_physical_device_memory_properties(device) }
        };
        let own = |heap: &vk::MemoryHeap| heap.flags.contains(vk::MemoryHeapFlags::DEVICE_LOCAL);
        let count = (heaps.memory_heap_count as usize).min(heaps.memory_heaps.len());
        let (index, heap) = heaps.memory_heaps[..count]
            .iter()
            .enumerate()
            .filter(|(_, heap)| own(heap))
            .max_by_key(|(_, heap)| heap.size)?;
        let free = if has_budget && budget.heap_budget[index] > 0 {
            budget.heap_budget[index].saturating_sub(budget.heap_usage[index]).min(heap.size)
        } else {
            heap.size
        };
        Some(Memory { total: heap.size, free })
    }

    /// The local segment: this process's budget, and what is left of it.
    #[cfg(windows)]
    fn dx12(adapter: &wgpu::Adapter) -> Option<Memory> {
        // SAFETY: the handle is used for a query only, and lives as long as the guard.
        let adapter = unsafe { adapter.as_hal::<wgpu::hal::api::Dx12>() }?;
        // The default group is the local one.
        let info = adapter.raw_adapter().query_video_memory_info(Default::default()).ok()?;
        Some(Memory { total: info.Budget, free: info.Budget.saturating_sub(info.CurrentUsage) })
    }

    /// The working set that the system recommends for this device, and what is left of it.
    #[cfg(target_vendor = "apple")]
    fn metal(adapter: &wgpu::Adapter) -> Option<Memory> {
        use objc2_metal::MTLDevice;

        // SAFETY: the handle is used for a query only, and lives as long as the guard.
        let adapter = unsafe { adapter.as_hal::<wgpu::hal::api::Metal>() }?;
        let device = adapter.raw_device();
        let total = device.recommendedMaxWorkingSetSize();
        let free = total.saturating_sub(device.currentAllocatedSize() as u64);
        (total > 0).then_some(Memory { total, free })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn need() -> MemoryNeed {
        // 32 positions take a mebibyte.
        MemoryNeed {
            weights: 600 * MIB,
            cache: 64 * MIB,
            states: 0,
            scratch: 30 * MIB,
            spare: BLOCK,
            positions: 2048,
            per_block: MIB,
        }
    }

    #[test]
    fn a_shorter_cache_is_found() {
        let need = need();
        assert_eq!(need.total(), 950 * MIB);
        assert_eq!(need.positions_within(950 * MIB), Some(2048));
        assert_eq!(need.positions_within(1 << 40), Some(2048));
        assert_eq!(need.positions_within(896 * MIB), Some(320));
        assert_eq!(need.positions_within(887 * MIB), Some(32));
        assert_eq!(need.positions_within(887 * MIB - 1), None);
        assert_eq!(need.positions_within(1), None);
        // For large plans the spare memory grows with the cache.
        let large = MemoryNeed {
            weights: 32 << 30,
            cache: 2 << 30,
            states: 0,
            scratch: 0,
            spare: 0,
            positions: 1 << 16,
            per_block: 1 << 20,
        };
        assert_eq!(large.positions_within(34 << 30), Some(31744));
    }

    #[test]
    fn a_failed_allocation_is_explained_by_the_whole_need() {
        let message = |memory: Option<Memory>| {
            let budget = MemoryBudget { adapter: "Voodoo 2".to_owned(), memory, positions: 4096 };
            budget.check(&need()).unwrap();
            budget.explain(&need(), GpuError::OutOfMemory { bytes: Some(64) }).to_string()
        };
        assert!(
            message(None)
                .ends_with("on Voodoo 2, but memory ran out; the driver does not report how much there is")
        );
        let memory = Memory { total: 2 << 30, free: 1 << 30 };
        assert!(
            message(Some(memory)).ends_with("but memory ran out, although 1.0 GiB of 2.0 GiB seemed free")
        );
        let budget = MemoryBudget { adapter: "Voodoo 2".to_owned(), memory: None, positions: 1024 };
        assert_eq!(
            budget.check(&need()).unwrap_err().to_string(),
            "a cache for 2048 tokens is more than Voodoo 2 can address; one for 1024 would do"
        );
        let other = GpuError::Lost { reason: "unplugged".to_owned() };
        assert_eq!(budget.explain(&need(), other.clone()), other);
    }

    #[test]
    fn the_error_names_need_memory_and_a_cache_that_fits() {
        let error = |free: u64, total: u64| {
            let memory = Some(Memory { total: total * MIB, free: free * MIB });
            let fitting = need().positions_within(free * MIB).filter(|_| need().total() > free * MIB);
            GpuError::InsufficientMemory { adapter: "Voodoo 2".to_owned(), need: need(), memory, fitting }
                .to_string()
        };
        let needs = "the model needs 950.0 MiB (weights 600.0 MiB, cache for 2048 tokens 64.0 MiB, scratch 286.0 MiB) on Voodoo 2";
        assert_eq!(
            error(896, 8192),
            format!("{needs}, which has 896.0 MiB of 8.0 GiB free; a cache for 320 tokens would fit")
        );
        assert_eq!(
            error(12, 12),
            format!("{needs}, which has 12.0 MiB; the model does not fit with any cache")
        );
        assert_eq!(
            error(1000, 1024),
            format!("{needs}, but memory ran out, although 1000.0 MiB of 1.0 GiB seemed free")
        );
    }
}
