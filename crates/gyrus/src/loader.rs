//! Loads a model's weights onto the requested device, or onto the best device that they fit.

use std::cell::{Cell, RefCell};
use std::sync::Arc;

use gyrus_cpu::{CpuBackend, MAX_ROWS, Pool};
use gyrus_formats::Checkpoint;
use gyrus_kernels::scalar::Reference;
use gyrus_kernels::{Backend, KV_BLOCK, KvSize, Plan, WeightSpec};

use gyrus_tensor::check_scales;

use crate::Error;
use crate::context::{Budget, ContextChoice, ContextLimit, MEMORY_DIVISOR, available_memory};
use crate::device::{Device, DeviceInfo};
use crate::model::Options;
use crate::quantized::Quantizer;
use crate::serving::WINDOW_SLACK;
use crate::weights::WeightBytes;

/// The most sequences for which groups with a window have blocks.
const MOST_WINDOWS: usize = gyrus_kernels::MAX_SLOTS;

/// Records of a hybrid's state for each sequence: two that its steps alternate between, and two for checkpoints.
const RECORDS: usize = 4;

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

    /// The size of the KV cache for this many sequences of a context. In groups with a window a sequence needs what one
    /// chunk computes beside the window.
    fn kv_size(&self, context: usize, sequences: usize) -> KvSize {
        let ahead = self.options.chunk.min(MAX_ROWS) + WINDOW_SLACK;
        let size = KvSize::windowed(&self.plan.kv, sequences, context, ahead);
        let records = if self.plan.delta.is_empty() { 0 } else { sequences.saturating_mul(RECORDS) };
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

    /// The context in tokens, and the size of the KV cache for all sessions.
    fn choose_context(
        &self,
        weight_bytes: u64,
        max_tokens: usize,
        memory: Option<u64>,
    ) -> Result<(ContextChoice, KvSize), Error> {
        let sessions = self.options.sessions.max(1);
        let bytes_per_token = self.plan.kv_bytes_per_token();
        let longest = self.options.context.unwrap_or(self.max_context).min(self.max_context);
        let one = self.kv_size(longest, 1);
        // Neither grows with the context.
        let window_bytes = one.window_bytes(&self.plan.kv, self.plan.precision);
        let state_bytes = self.record_bytes(&one);
        let budget =
            Budget { bytes_per_token, window_bytes, state_bytes, weight_bytes, sessions, max_tokens };
        if let Some(bytes) = self.options.kv_memory {
            return self.within_kv_memory(bytes, longest, max_tokens);
        }
        let (mut tokens, limit) =
            ContextChoice::within(self.options.context, self.max_context, budget, memory)?;
        if limit == ContextLimit::Memory && tokens > KV_BLOCK {
            // Whole blocks, of which none is beyond the memory.
            tokens -= tokens % KV_BLOCK;
        }
        let mut size = self.kv_size(tokens, sessions);
        let total_tokens = tokens.saturating_mul(sessions);
        if limit == ContextLimit::Memory {
            // Blocks belong to no session: one that is long may use what others leave.
            tokens = total_tokens.min(self.max_context);
            size.positions = tokens.div_ceil(KV_BLOCK) * KV_BLOCK;
        }
        let context = ContextChoice {
            tokens,
            model: self.max_context,
            total_tokens,
            cache_bytes: self.cache_bytes(&size),
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
        let most = memory.map_or(CAUTIOUS_CACHE, |free| free.saturating_sub(empty) / MEMORY_DIVISOR);
        let fits = |size: &&KvSize| {
            let blocks = size.blocks.iter().copied().max().unwrap_or(0);
            blocks.saturating_mul(KV_BLOCK) <= max_tokens && need(size).saturating_sub(empty) <= most
        };
        let size = self.fixed.iter().find(fits).unwrap_or(smallest);
        let cache_bytes = self.cache_bytes(size);
        // It cannot be made smaller.
        if let Some(available) = memory.filter(|available| cache_bytes > *available) {
            return Err(Error::CacheMemory { bytes: cache_bytes, available });
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

    /// The largest KV cache of at most this many bytes. Groups with a window have blocks for as many sequences as have
    /// their full context in the others, and at least for one.
    fn within_kv_memory(
        &self,
        bytes: u64,
        longest: usize,
        max_tokens: usize,
    ) -> Result<(ContextChoice, KvSize), Error> {
        let size = |tokens: usize| {
            let context = longest.min(tokens);
            let sequences = tokens.div_ceil(context.max(1)).clamp(1, MOST_WINDOWS);
            let mut size = self.kv_size(context, sequences);
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
        let tokens = fits * KV_BLOCK;
        let requested = self.options.context.unwrap_or(1);
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
        let (size, model) = (size(tokens), self.max_context);
        let (cache_bytes, state_bytes) = (self.cache_bytes(&size), self.record_bytes(&size));
        let (tokens, total_tokens) = (longest.min(tokens), tokens);
        let choice = ContextChoice { tokens, model, total_tokens, cache_bytes, state_bytes, limit };
        Ok((choice, size))
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

#[cfg(all(test, feature = "gpu"))]
mod tests {
    use super::*;
    use crate::arch;
    use gyrus_gpu::MemoryNeed;
    use gyrus_kernels::{DeltaShape, KvGroup, Precision};

    /// 16 sequences of a hybrid of nine billion parameters at 8,192 tokens: what is predicted is what is allocated.
    #[test]
    fn records_of_states_and_their_checkpoints_are_counted_to_the_byte() {
        let Some(path) = gyrus_testkit::data("tiny/qwen35") else { return };
        let checkpoint = Arc::new(Checkpoint::open(&path).unwrap());
        let (_, mut plan) = arch::build(&checkpoint, Precision::Fast, None).unwrap();
        let shape = DeltaShape { key_heads: 16, value_heads: 32, key_dim: 128, value_dim: 128, tiled: true };
        plan.delta = vec![shape; 24];
        plan.kv = vec![KvGroup { layers: 8, kv_heads: 4, head_dim: 256, window: None }];
        let record = 24 * 4 * (3 * 8192 + 32 * 128 * 128);
        assert_eq!(plan.record_bytes(), record);
        // A record is 50.3 MB of matrices, as llama.cpp has, and 2.4 MB of inputs of convolutions.
        assert_eq!(record, 50_331_648 + 2_359_296);
        let tokens = 8192 * 8 * 2 * 4 * 256 * 2;
        let sized = |options: &Options, memory| {
            let progress = &|_: u64, _: u64| {};
            let (checkpoint, plan) = (&checkpoint, &plan);
            let loader = Loader { checkpoint, plan, max_context: 262_144, options, progress, fixed: &[] };
            loader.choose_context(5 << 30, usize::MAX, memory).unwrap()
        };
        let options = Options { sessions: 16, context: Some(8192), ..Options::default() };
        let (choice, size) = sized(&options, None);
        assert_eq!(choice.state_bytes, 16 * 4 * record as u64);
        assert_eq!(choice.cache_bytes, 16 * (tokens + 4 * record) as u64);
        // The device has a block and a record more, which no sequence uses.
        let need = MemoryNeed::new(&plan, &size).unwrap();
        assert_eq!(need.states, choice.state_bytes + record as u64);
        assert_eq!(need.cache, choice.cache_bytes + record as u64 + (tokens / 256) as u64);
        assert!(need.to_string().contains("with 3.2 GiB of recurrent states"), "{need}");
        // A budget of these bytes has the same size.
        let budget = Options { kv_memory: Some(choice.cache_bytes), ..options.clone() };
        let (within, size_within) = sized(&budget, None);
        assert_eq!((within.total_tokens, within.cache_bytes), (choice.total_tokens, choice.cache_bytes));
        assert_eq!(size_within, size);
        // The default context leaves the records out of what it divides into tokens.
        let (_, memory) =
            sized(&Options { context: None, ..options }, Some((5 << 30) + 2 * choice.cache_bytes));
        assert_eq!((memory.positions, memory.records), (16 * 8192, 64));
        assert_eq!(memory.blocks, size.blocks, "a long sequence uses the blocks of the others");
    }

    /// What the table says of a cache is what the CPU maps, records and their checkpoints included.
    #[test]
    fn the_cpu_maps_the_bytes_of_the_table() {
        for (name, has_states) in
            [("qwen35", true), ("qwen35moe", true), ("qwen3next", true), ("gemma3", false)]
        {
            let Some(path) = gyrus_testkit::data(&format!("tiny/{name}")) else { return };
            let checkpoint = Arc::new(Checkpoint::open(&path).unwrap());
            for (precision, sessions, context) in [
                (Precision::Exact, 1, Some(100)),
                (Precision::Fast, 16, Some(256)),
                (Precision::Fast, 3, Some(33)),
                (Precision::Exact, 2, None),
            ] {
                let (config, plan) = arch::build(&checkpoint, precision, None).unwrap();
                let options = Options { sessions, context, ..Options::default() };
                let (max_context, progress) = (config.context, &|_: u64, _: u64| {});
                let loader = Loader {
                    checkpoint: &checkpoint,
                    plan: &plan,
                    max_context,
                    options: &options,
                    progress,
                    fixed: &[],
                };
                // Memory for about a quarter of the model's context.
                let memory = 2 * (sessions * (max_context / 4) * plan.kv_bytes_per_token()) as u64;
                let (table, size) = loader.choose_context(0, usize::MAX, Some(memory)).unwrap();
                let bytes = |spec: &WeightSpec| spec.data(|name| Some(checkpoint.tensor(name)?.data));
                let backend = CpuBackend::new(plan.clone(), &size, 1, |spec| {
                    Arc::new(bytes(spec).map_or(Vec::new(), |bytes| bytes.into_owned()))
                });
                let mapped = backend.unwrap().cache_bytes() as u64;
                assert_eq!(mapped, table.cache_bytes, "{name}, {options:?}");
                let records = if has_states { 4 * sessions * plan.record_bytes() } else { 0 };
                assert_eq!((table.state_bytes, has_states), (records as u64, records > 0), "{name}");
            }
        }
    }

    /// The fallback of [`Device::Auto`]. A software adapter stands in for a GPU.
    #[test]
    fn a_model_that_does_not_fit_the_gpu_falls_back_to_the_cpu() {
        let Some(path) = gyrus_testkit::data("tales/tales-7m-q8_0.gguf") else { return };
        let Some(adapter) = gyrus_gpu::adapters().into_iter().next() else { return };
        let checkpoint = Arc::new(Checkpoint::open(&path).unwrap());
        let (config, plan) = arch::build(&checkpoint, Precision::Fast, None).unwrap();
        let load_fixed = |name: &str, gpu_memory: Option<u64>, context: Option<usize>, fixed: &[KvSize]| {
            let options = Options { gpu_memory, context, ..Options::default() };
            let loader = Loader {
                checkpoint: &checkpoint,
                plan: &plan,
                max_context: config.context,
                options: &options,
                progress: &|_, _| {},
                fixed,
            };
            loader.on_gpu_or_cpu(Some(name)).unwrap()
        };
        let load = |name: &str, gpu_memory, context| load_fixed(name, gpu_memory, context, &[]);
        let gpu = load(&adapter.name, None, Some(64)).device;
        assert!(matches!(&gpu, DeviceInfo::Gpu { name, .. } if *name == adapter.name), "{gpu}");
        assert_eq!(gpu.to_string(), format!("{} ({})", adapter.name, adapter.api()));
        let device = load(&adapter.name, Some(5 << 20), None).device.to_string();
        assert!(device.starts_with("the CPU: the model needs "), "{device}");
        assert!(device.ends_with(&format!("{} has 5.0 MiB", adapter.name)), "{device}");
        let device = load("Voodoo 2", None, None).device.to_string();
        assert!(device.starts_with("the CPU: no GPU is called 'Voodoo 2'"), "{device}");
        // With less memory the default context shrinks before the fallback to the CPU.
        let all = gyrus_gpu::MemoryNeed::new(&plan, &KvSize::full(&plan.kv, config.context)).unwrap();
        let loaded = load(&adapter.name, Some(all.total() - all.cache / 4), None);
        assert!(matches!(loaded.device, DeviceInfo::Gpu { .. }), "{}", loaded.device);
        assert!(loaded.context.tokens < config.context, "{:?}", loaded.context);
        // A cache that cannot shrink, such as that of an encoder.
        let fixed = KvSize::full(&plan.kv, 64 * config.context);
        let device = load_fixed(&adapter.name, Some(64 << 20), None, &[fixed]).device.to_string();
        assert!(device.starts_with("the CPU: the model needs "), "{device}");
        assert!(device.ends_with("bytes of memory are free"), "{device}");
    }
}
