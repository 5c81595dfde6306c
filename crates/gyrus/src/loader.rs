//! Loads a model's weights onto the requested device, or onto the best device that they fit.

use std::cell::{Cell, RefCell};
use std::sync::Arc;

use gyrus_cpu::{CpuBackend, MAX_ROWS, Pool};
use gyrus_formats::Checkpoint;
use gyrus_kernels::scalar::Reference;
use gyrus_kernels::{Backend, KV_BLOCK, KvSize, Plan, WeightSpec};

use gyrus_tensor::check_scales;

use crate::Error;
use crate::context::{Budget, ContextChoice, ContextLimit, MEMORY_DIVISOR, MIN_DEFAULT, available_memory};
use crate::device::{Device, DeviceInfo};
use crate::model::Options;
use crate::quantized::Quantizer;
use crate::serving::WINDOW_SLACK;
use crate::weights::WeightBytes;

/// The most sequences for which groups with a window have blocks.
const MOST_WINDOWS: usize = gyrus_kernels::MAX_SLOTS;

/// Records of a hybrid's state for each sequence: two that its steps alternate between, and two for checkpoints.
const RECORDS: usize = 4;
/// The same without those for checkpoints.
const FEWEST_RECORDS: usize = 2;

/// How many sequences run at once: groups with a window have blocks for them, and a hybrid has records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Layout {
    sequences: usize,
    /// Records of each sequence.
    records: usize,
}

impl Layout {
    /// The one that takes the least memory.
    const LEAST: Layout = Layout { sequences: 1, records: FEWEST_RECORDS };
}

/// The most bytes of a cache that need not be larger, where the free memory is unknown.
const CAUTIOUS_CACHE: u64 = 2 << 30;

/// A backend with the model's weights, its device, and the context that its KV cache holds.
pub(crate) struct LoadedBackend {
    pub(crate) backend: Box<dyn Backend>,
    pub(crate) device: DeviceInfo,
    pub(crate) context: ContextChoice,
    pub(crate) kv: KvSize,
}

/// Loads one model.
pub(crate) struct Loader<'a> {
    pub(crate) checkpoint: &'a Arc<Checkpoint>,
    pub(crate) plan: &'a Plan,
    /// The model's maximum context.
    pub(crate) max_context: usize,
    pub(crate) options: &'a Options,
    /// Called with the bytes of weights loaded so far and in total.
    pub(crate) progress: &'a dyn Fn(u64, u64),
    /// The sizes that the KV cache may have, largest first, if it does not grow with a context: those of texts that are
    /// computed whole. Empty for others.
    pub(crate) fixed: &'a [KvSize],
}

impl Loader<'_> {
    /// Loads the model onto the device that its options name.
    pub(crate) fn load(&self) -> Result<LoadedBackend, Error> {
        match &self.options.device {
            Device::Cpu => self.on_cpu(None),
            Device::Reference => self.on_reference(),
            #[cfg(not(feature = "gpu"))]
            Device::Auto => self.on_cpu(Some("this build has no GPU support".to_owned())),
            #[cfg(feature = "gpu")]
            Device::Auto if !gyrus_gpu::may_have_gpu() => self.on_cpu(Some("no GPU was found".to_owned())),
            #[cfg(feature = "gpu")]
            Device::Auto => self.on_gpu_or_cpu(None),
            #[cfg(feature = "gpu")]
            Device::Gpu(adapter) => self.on_gpu(adapter.as_deref()),
        }
    }

    /// Bytes of all weights once they are loaded.
    fn weight_bytes(&self) -> u64 {
        self.plan.weights.iter().map(weight_bytes).sum()
    }

    /// Layouts for all sessions, the best one first: those that come later take less memory. Checkpoints are given up
    /// before sequences, since without them only prefixes of hybrids are computed again.
    fn layouts(&self) -> impl Iterator<Item = Layout> {
        let sessions = self.options.sessions.max(1);
        let fewer = std::iter::successors(Some(sessions), |more| (*more > 1).then_some(more / 2));
        let fewer = fewer.map(|sequences| Layout { sequences, records: FEWEST_RECORDS });
        // Checkpoints are for the prefix cache.
        let records = if self.options.prefix_cache { RECORDS } else { FEWEST_RECORDS };
        std::iter::once(Layout { sequences: sessions, records }).chain(fewer)
    }

    /// The size of the KV cache for sequences of a context. In groups with a window a sequence needs what one chunk
    /// computes beside the window.
    fn kv_size(&self, context: usize, layout: Layout) -> KvSize {
        let Layout { sequences, records } = layout;
        let ahead = self.options.chunk.min(MAX_ROWS) + WINDOW_SLACK;
        let size = KvSize::windowed(&self.plan.kv, sequences, context, ahead);
        let records = if self.plan.delta.is_empty() { 0 } else { sequences.saturating_mul(records) };
        // Tables have entries for the longest sequence.
        KvSize { positions: context.div_ceil(KV_BLOCK) * KV_BLOCK, ..size }.with_records(records)
    }

    /// Bytes of all records.
    fn record_bytes(&self, size: &KvSize) -> u64 {
        (self.plan.record_bytes() as u64).saturating_mul(size.records as u64)
    }

    /// Bytes of the KV cache and of all records.
    fn cache_bytes(&self, size: &KvSize) -> u64 {
        let groups = self.plan.kv.iter().zip(&size.blocks);
        let each = groups.map(|(group, blocks)| {
            (group.bytes_per_block(self.plan.precision) as u64).saturating_mul(*blocks as u64)
        });
        each.fold(self.record_bytes(size), u64::saturating_add)
    }

    /// The memory that is free, or what the options allow if that is less.
    fn allowed(&self, free: Option<u64>) -> Option<u64> {
        match (free, self.options.memory) {
            (Some(free), Some(most)) => Some(free.min(most)),
            (free, most) => free.or(most),
        }
    }

    /// Refuses a cache that is larger than the memory; if the options limit that, larger than what weights leave of it.
    fn check_cache(&self, bytes: u64, weight_bytes: u64, memory: u64) -> Result<(), Error> {
        // Weights in a mapped file need no free memory.
        let available = match self.options.memory {
            Some(_) => memory.saturating_sub(weight_bytes),
            None => memory,
        };
        if bytes > available { Err(Error::CacheMemory { bytes, available }) } else { Ok(()) }
    }

    /// The context in tokens, and the size of the KV cache for all sessions.
    fn choose_context(
        &self,
        weight_bytes: u64,
        max_tokens: usize,
        memory: Option<u64>,
    ) -> Result<(ContextChoice, KvSize), Error> {
        let longest = self.options.context.unwrap_or(self.max_context).min(self.max_context);
        if let Some(bytes) = self.options.kv_memory {
            return self.within_kv_memory(bytes, longest, max_tokens);
        }
        let memory = self.allowed(memory);
        let default_memory = memory.filter(|_| self.options.context.is_none());
        let budget_of = |layout: Layout| {
            // Neither windows nor records grow with the context.
            let one = self.kv_size(longest, Layout { sequences: 1, ..layout });
            Budget {
                bytes_per_token: self.plan.kv_bytes_per_token(),
                window_bytes: one.window_bytes(&self.plan.kv, self.plan.precision),
                state_bytes: self.record_bytes(&one),
                weight_bytes,
                sessions: layout.sequences,
                max_tokens,
            }
        };
        let fits = |layout: &Layout| {
            default_memory.is_none_or(|free| budget_of(*layout).fits(self.max_context, free))
        };
        let layout = self.layouts().find(fits).unwrap_or(Layout::LEAST);
        let budget = budget_of(layout);
        let (mut tokens, limit) =
            ContextChoice::within(self.options.context, self.max_context, budget, memory)?;
        if limit == ContextLimit::Memory && tokens > KV_BLOCK {
            // Whole blocks, of which none is beyond the memory.
            tokens -= tokens % KV_BLOCK;
        }
        let mut size = self.kv_size(tokens, layout);
        let cache_bytes = self.cache_bytes(&size);
        if let Some(available) = default_memory {
            self.check_cache(cache_bytes, weight_bytes, available)?;
        }
        let total_tokens = tokens.saturating_mul(layout.sequences);
        if limit == ContextLimit::Memory {
            // Blocks belong to no session: one that is long may use what others leave.
            tokens = total_tokens.min(self.max_context);
            size.positions = tokens.div_ceil(KV_BLOCK) * KV_BLOCK;
        }
        let context = ContextChoice {
            tokens,
            model: self.max_context,
            total_tokens,
            cache_bytes,
            state_bytes: self.record_bytes(&size),
            limit,
        };
        Ok((context, size))
    }

    /// The largest of the fixed sizes whose cache, with the scratch buffers that grow with it, takes at most a share of the
    /// memory beside `empty` bytes, else the smallest. `need` is all that is allocated with a size.
    pub(crate) fn choose_fixed(
        &self,
        smallest: &KvSize,
        empty: u64,
        max_tokens: usize,
        memory: Option<u64>,
        need: impl Fn(&KvSize) -> u64,
    ) -> Result<(ContextChoice, KvSize), Error> {
        let memory = self.allowed(memory);
        let most = memory.map_or(CAUTIOUS_CACHE, |free| free.saturating_sub(empty) / MEMORY_DIVISOR);
        let fits = |size: &&KvSize| {
            let blocks = size.blocks.iter().copied().max().unwrap_or(0);
            blocks.saturating_mul(KV_BLOCK) <= max_tokens && need(size).saturating_sub(empty) <= most
        };
        let size = self.fixed.iter().find(fits).unwrap_or(smallest);
        let cache_bytes = self.cache_bytes(size);
        // It cannot be made smaller.
        if let Some(available) = memory {
            self.check_cache(cache_bytes, empty, available)?;
        }
        let context = ContextChoice {
            tokens: self.max_context,
            model: self.max_context,
            total_tokens: size.positions,
            cache_bytes,
            state_bytes: 0,
            limit: ContextLimit::Model,
        };
        Ok((context, size.clone()))
    }

    /// The largest KV cache of at most this many bytes. It has records and windows for all sessions, and for as many
    /// sequences as have a full context. For fewer, if too few tokens were left for them.
    fn within_kv_memory(
        &self,
        bytes: u64,
        longest: usize,
        max_tokens: usize,
    ) -> Result<(ContextChoice, KvSize), Error> {
        let requested = self.options.context.unwrap_or(1);
        let with = |layout: Layout| {
            let fewest = match layout.sequences {
                1 => requested,
                sequences => longest.min(MIN_DEFAULT).saturating_mul(sequences).max(requested),
            };
            let (tokens, size) = self.largest_kv(bytes, longest, max_tokens, layout);
            (tokens >= fewest.max(1)).then_some((tokens, size))
        };
        let least = || self.largest_kv(bytes, longest, max_tokens, Layout::LEAST);
        let (tokens, size) = self.layouts().find_map(with).unwrap_or_else(least);
        if tokens < requested.max(1) {
            return Err(Error::KvMemory { bytes, tokens, requested: requested.max(1) });
        }
        if let Some(requested) = self.options.context.filter(|requested| *requested > self.max_context) {
            return Err(Error::Context { requested, max: self.max_context });
        }
        let limit = match self.options.context {
            Some(_) => ContextLimit::Requested,
            None if longest <= tokens => ContextLimit::Model,
            None => ContextLimit::Memory,
        };
        let model = self.max_context;
        let (cache_bytes, state_bytes) = (self.cache_bytes(&size), self.record_bytes(&size));
        let (tokens, total_tokens) = (longest.min(tokens), tokens);
        let choice = ContextChoice { tokens, model, total_tokens, cache_bytes, state_bytes, limit };
        Ok((choice, size))
    }

    /// The most tokens that a KV cache of at most this many bytes holds, and its size. Its layout is for this many sequences,
    /// or for as many as have their full context.
    fn largest_kv(&self, bytes: u64, longest: usize, max_tokens: usize, layout: Layout) -> (usize, KvSize) {
        let size = |tokens: usize| {
            let context = longest.min(tokens);
            let full = tokens.div_ceil(context.max(1));
            let sequences = full.max(layout.sequences).clamp(1, MOST_WINDOWS);
            let mut size = self.kv_size(context, Layout { sequences, ..layout });
            for (blocks, group) in size.blocks.iter_mut().zip(&self.plan.kv) {
                if group.window.is_none() {
                    *blocks = tokens / KV_BLOCK;
                }
            }
            size
        };
        // The largest number of blocks that fits, by bisection: more tokens never take fewer bytes.
        let (mut fits, mut too_many) = (0, (max_tokens / KV_BLOCK).min(1 << 32) + 1);
        while fits + 1 < too_many {
            let middle = fits + (too_many - fits) / 2;
            match self.cache_bytes(&size(middle * KV_BLOCK)) <= bytes {
                true => fits = middle,
                false => too_many = middle,
            }
        }
        (fits * KV_BLOCK, size(fits * KV_BLOCK))
    }

    /// CPU threads, to compute with and to quantise with.
    fn threads(&self) -> usize {
        self.options.threads.unwrap_or_else(Pool::available_threads)
    }

    /// The context and the size of the KV cache on the host, beside this many bytes of weights.
    fn choose_on_host(&self, weight_bytes: u64) -> Result<(ContextChoice, KvSize), Error> {
        let memory = available_memory();
        match self.fixed.last() {
            None => self.choose_context(weight_bytes, usize::MAX, memory),
            Some(smallest) => self.choose_fixed(smallest, weight_bytes, usize::MAX, memory, |size| {
                weight_bytes.saturating_add(self.cache_bytes(size))
            }),
        }
    }

    fn on_cpu(&self, fallback_reason: Option<String>) -> Result<LoadedBackend, Error> {
        let (context, kv) = self.choose_on_host(self.weight_bytes())?;
        let threads = self.threads();
        let (done, total) = (Cell::new(0), self.weight_bytes());
        let source = WeightSource::new(self);
        // The backend requests one weight after the other, each when the earlier ones are loaded.
        let backend = CpuBackend::new(self.plan.clone(), &kv, threads, |spec| {
            (self.progress)(done.replace(done.get() + weight_bytes(spec)), total);
            match source.bytes(spec) {
                Some(bytes) => Arc::new(bytes),
                None => Arc::new([]),
            }
        });
        let backend = source.check(backend)?;
        let device = DeviceInfo::Cpu { threads, fallback_reason };
        Ok(LoadedBackend { backend: Box::new(backend), device, context, kv })
    }

    fn on_reference(&self) -> Result<LoadedBackend, Error> {
        let elems = self.plan.weights.iter().map(|spec| spec.shape.elems() as u64);
        let (context, kv) = self.choose_on_host(4 * elems.sum::<u64>())?;
        let source = WeightSource::new(self);
        let bytes = |spec: &WeightSpec| source.bytes(spec).unwrap_or(WeightBytes::Memory(Vec::new()));
        let backend = Reference::new(self.plan.clone(), &kv, bytes)
            .map_err(|(id, source)| Error::Tensor { name: self.plan.weight(id).name.clone(), source });
        let backend = source.check(backend)?;
        Ok(LoadedBackend { backend: Box::new(backend), device: DeviceInfo::Reference, context, kv })
    }

    #[cfg(feature = "gpu")]
    fn open_gpu(&self, adapter: Option<&str>) -> Result<gyrus_gpu::Gpu, Error> {
        let options = gyrus_gpu::Options {
            adapter: adapter.map(str::to_owned),
            memory: self.options.gpu_memory,
            pipelines: self.options.pipelines.clone(),
            ..Default::default()
        };
        Ok(gyrus_gpu::Gpu::open(&options)?)
    }

    /// Loads the model onto the GPU again after it was lost, with a cache of the same size.
    #[cfg(feature = "gpu")]
    pub(crate) fn reload_on_gpu(&self, adapter: Option<&str>, kv: KvSize) -> Result<Box<dyn Backend>, Error> {
        let source = WeightSource::new(self);
        let gpu = self.open_gpu(adapter)?;
        let backend =
            gyrus_gpu::GpuBackend::new(gpu, self.plan.clone(), kv, |spec| source.bytes(spec), |_| {});
        Ok(Box::new(source.check(backend)?))
    }

    #[cfg(feature = "gpu")]
    fn on_gpu(&self, adapter: Option<&str>) -> Result<LoadedBackend, Error> {
        let gpu = self.open_gpu(adapter)?;
        // Without KV-cache blocks: weights, scratch buffers, and block tables for the longest sequence.
        let longest = self.options.context.unwrap_or(self.max_context).min(self.max_context);
        let empty = KvSize { positions: longest, blocks: vec![0; self.plan.kv.len()], records: 0 };
        let need = gyrus_gpu::MemoryNeed::new(self.plan, &empty)?;
        let memory = gpu.memory().map(|memory| memory.free);
        let (empty, most) = (need.total(), gpu.most_positions(self.plan));
        let (context, kv) = match self.fixed.last() {
            None => self.choose_context(empty, most, memory)?,
            Some(smallest) => self.choose_fixed(smallest, empty, most, memory, |size| {
                gyrus_gpu::MemoryNeed::new(self.plan, size).map_or(u64::MAX, |need| need.total())
            })?,
        };
        let adapter = gpu.adapter();
        let device = DeviceInfo::Gpu { name: adapter.name.clone(), api: adapter.api().to_owned(), memory };
        let (done, total) = (Cell::new(0), self.weight_bytes());
        let uploaded = |bytes| {
            done.set(done.get() + bytes);
            (self.progress)(done.get(), total);
        };
        let source = WeightSource::new(self);
        let backend = gyrus_gpu::GpuBackend::new(
            gpu,
            self.plan.clone(),
            kv.clone(),
            |spec| source.bytes(spec),
            uploaded,
        );
        let backend = source.check(backend)?;
        Ok(LoadedBackend { backend: Box::new(backend), device, context, kv })
    }

    /// Falls back to the CPU when the GPU is missing, too small or fails.
    #[cfg(feature = "gpu")]
    fn on_gpu_or_cpu(&self, adapter: Option<&str>) -> Result<LoadedBackend, Error> {
        match self.on_gpu(adapter).map_err(Error::gpu_reason) {
            Ok(loaded) => Ok(loaded),
            Err(Ok(reason)) => self.on_cpu(Some(reason)),
            Err(Err(error)) => Err(error),
        }
    }
}

/// The weights of a plan as a backend asks for them.
struct WeightSource<'a> {
    checkpoint: &'a Arc<Checkpoint>,
    quantizer: Option<Quantizer>,
    /// Why a weight could not be quantised. The backend is told that the file does not have it.
    failed: RefCell<Option<Error>>,
}

impl<'a> WeightSource<'a> {
    fn new(loader: &Loader<'a>) -> WeightSource<'a> {
        let quantizer = loader.options.quantize.map(|_| Quantizer::new(loader.threads()));
        WeightSource { checkpoint: loader.checkpoint, quantizer, failed: RefCell::new(None) }
    }

    fn bytes(&self, spec: &WeightSpec) -> Option<WeightBytes> {
        let bytes = WeightBytes::of(self.checkpoint, spec, self.quantizer.as_ref());
        let checked = bytes.and_then(|bytes| {
            let scales = bytes.as_ref().map(|bytes| check_scales(spec.dtype, bytes.as_ref()));
            scales.transpose().map_err(|source| Error::Tensor { name: spec.name.clone(), source })?;
            Ok(bytes)
        });
        checked.unwrap_or_else(|error| {
            self.failed.replace(Some(error));
            None
        })
    }

    /// The backend, or why it could not be made.
    fn check<B, E: Into<Error>>(self, backend: Result<B, E>) -> Result<B, Error> {
        match self.failed.into_inner() {
            Some(error) => Err(error),
            None => backend.map_err(Into::into),
        }
    }
}

/// Bytes of a weight once it is loaded: in affine groups a little more than in its file.
fn weight_bytes(spec: &WeightSpec) -> u64 {
    spec.dtype.bytes_of(&spec.shape).unwrap_or(0) as u64
}

#[cfg(test)]
mod tests;
