//! Loads a model's weights onto the requested device, or onto the best device that they fit.

use std::cell::{Cell, RefCell};
use std::sync::Arc;

use gyrus_cpu::{CpuBackend, MAX_ROWS, Pool};
use gyrus_formats::Checkpoint;
use gyrus_kernels::scalar::Reference;
use gyrus_kernels::{Backend, KvSize, Plan, WeightSpec};

use crate::Error;
use crate::context::{Budget, ContextChoice, available_memory};
use crate::device::{Device, DeviceInfo};
use crate::engine::WINDOW_SLACK;
use crate::model::Options;
use crate::quantized::Quantizer;
use crate::weights::WeightBytes;

/// A backend with the model's weights, its device, and the context that its KV cache holds.
pub(crate) struct LoadedBackend {
    pub(crate) backend: Box<dyn Backend>,
    pub(crate) device: DeviceInfo,
    pub(crate) context: ContextChoice,
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

    /// The size of the KV cache for all sessions, with this context each. In groups with a window a session needs what one
    /// chunk computes beside the window.
    fn kv_size(&self, context: usize) -> KvSize {
        let sessions = self.options.sessions.max(1);
        KvSize::windowed(&self.plan.kv, sessions, context, self.options.chunk.min(MAX_ROWS) + WINDOW_SLACK)
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
        let whole = self.kv_size(self.options.context.unwrap_or(self.max_context).min(self.max_context));
        let window_bytes = whole.window_bytes(&self.plan.kv, self.plan.precision) / sessions as u64;
        let budget = Budget { bytes_per_token, window_bytes, weight_bytes, sessions, max_tokens };
        let context = ContextChoice::within(self.options.context, self.max_context, budget, memory)?;
        Ok((context, self.kv_size(context.tokens)))
    }

    /// CPU threads, to compute with and to quantise with.
    fn threads(&self) -> usize {
        self.options.threads.unwrap_or_else(Pool::available_threads)
    }

    fn on_cpu(&self, fallback_reason: Option<String>) -> Result<LoadedBackend, Error> {
        let (context, kv) = self.choose_context(self.weight_bytes(), usize::MAX, available_memory())?;
        let threads = self.threads();
        let (done, total) = (Cell::new(0), self.weight_bytes());
        let source = WeightSource::new(self);
        // The backend requests one weight after the other, each when the earlier ones are loaded.
        let backend = CpuBackend::new(self.plan.clone(), &kv.blocks, threads, |spec| {
            (self.progress)(done.replace(done.get() + weight_bytes(spec)), total);
            match source.bytes(spec) {
                Some(bytes) => Arc::new(bytes),
                None => Arc::new([]),
            }
        });
        let backend = source.check(backend)?;
        let device = DeviceInfo::Cpu { threads, fallback_reason };
        Ok(LoadedBackend { backend: Box::new(backend), device, context })
    }

    fn on_reference(&self) -> Result<LoadedBackend, Error> {
        let elems = self.plan.weights.iter().map(|spec| spec.shape.elems() as u64);
        let (context, kv) = self.choose_context(4 * elems.sum::<u64>(), usize::MAX, available_memory())?;
        let source = WeightSource::new(self);
        let bytes = |spec: &WeightSpec| source.bytes(spec).unwrap_or(WeightBytes::Memory(Vec::new()));
        let backend = Reference::new(self.plan.clone(), &kv.blocks, bytes)
            .map_err(|(id, source)| Error::Tensor { name: self.plan.weight(id).name.clone(), source });
        let backend = source.check(backend)?;
        Ok(LoadedBackend { backend: Box::new(backend), device: DeviceInfo::Reference, context })
    }

    #[cfg(feature = "gpu")]
    fn on_gpu(&self, adapter: Option<&str>) -> Result<LoadedBackend, Error> {
        let options = gyrus_gpu::Options {
            adapter: adapter.map(str::to_owned),
            memory: self.options.gpu_memory,
            pipelines: self.options.pipelines.clone(),
            ..Default::default()
        };
        let gpu = gyrus_gpu::Gpu::open(&options)?;
        // Without KV-cache blocks: weights and scratch buffers.
        let need = gyrus_gpu::MemoryNeed::new(self.plan, &KvSize::full(&self.plan.kv, 0))?;
        let memory = gpu.memory().map(|memory| memory.free);
        let (context, kv) = self.choose_context(need.total(), gpu.most_positions(self.plan), memory)?;
        let adapter = gpu.adapter();
        let device = DeviceInfo::Gpu { name: adapter.name.clone(), api: adapter.api().to_owned(), memory };
        let (done, total) = (Cell::new(0), self.weight_bytes());
        let uploaded = |bytes| {
            done.set(done.get() + bytes);
            (self.progress)(done.get(), total);
        };
        let source = WeightSource::new(self);
        let backend =
            gyrus_gpu::GpuBackend::new(gpu, self.plan.clone(), kv, |spec| source.bytes(spec), uploaded);
        let backend = source.check(backend)?;
        Ok(LoadedBackend { backend: Box::new(backend), device, context })
    }

    /// Falls back to the CPU when the GPU is missing, too small or fails.
    #[cfg(feature = "gpu")]
    fn on_gpu_or_cpu(&self, adapter: Option<&str>) -> Result<LoadedBackend, Error> {
        match self.on_gpu(adapter) {
            Err(Error::Gpu(error)) => self.on_cpu(Some(error.in_short())),
            loaded => loaded,
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
        bytes.unwrap_or_else(|error| {
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
    use gyrus_kernels::Precision;

    /// The fallback of [`Device::Auto`]. A software adapter stands in for a GPU.
    #[test]
    fn a_model_that_does_not_fit_the_gpu_falls_back_to_the_cpu() {
        let Some(path) = gyrus_testkit::data("tales/tales-7m-q8_0.gguf") else { return };
        let Some(adapter) = gyrus_gpu::adapters().into_iter().next() else { return };
        let checkpoint = Arc::new(Checkpoint::open(&path).unwrap());
        let (config, plan) = arch::build(&checkpoint, Precision::Fast, None).unwrap();
        let load = |name: &str, gpu_memory: Option<u64>, context: Option<usize>| {
            let options = Options { gpu_memory, context, ..Options::default() };
            let loader = Loader {
                checkpoint: &checkpoint,
                plan: &plan,
                max_context: config.context,
                options: &options,
                progress: &|_, _| {},
            };
            loader.on_gpu_or_cpu(Some(name)).unwrap()
        };
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
    }
}
