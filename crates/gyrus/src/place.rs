//! Where a model comes to compute: the device it asks for, or the best that holds it.

use std::cell::Cell;
use std::fmt;
use std::sync::Arc;

use gyrus_cpu::{CpuBackend, Pool};
use gyrus_formats::Checkpoint;
use gyrus_kernels::{Backend, KV_BLOCK, Plan, WeightSpec};

use crate::Error;
use crate::context::{Budget, ContextChoice, available_memory};
use crate::device::Device;
use crate::model::Options;
use crate::weights::TensorBytes;

/// Where a model computes.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Place {
    /// This machine's processor.
    Cpu {
        /// Threads it computes with.
        threads: usize,
        /// Why it is no GPU, where [`Device::Auto`] had the choice.
        instead: Option<String>,
    },
    /// A GPU.
    Gpu {
        /// Its name.
        name: String,
        /// The API it is reached by, such as Vulkan.
        api: String,
        /// Bytes of its memory that were free before, where the driver says.
        memory: Option<u64>,
    },
}

impl fmt::Display for Place {
    /// `NVIDIA H200 (Vulkan)`, `the CPU`, `the CPU: no GPU was found`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Cpu { instead: None, .. } => f.write_str("the CPU"),
            Place::Cpu { instead: Some(why), .. } => write!(f, "the CPU: {why}"),
            Place::Gpu { name, api, .. } => write!(f, "{name} ({api})"),
        }
    }
}

/// A backend, what it is and how much it holds.
pub(crate) struct Placed {
    pub(crate) backend: Box<dyn Backend>,
    pub(crate) place: Place,
    pub(crate) context: ContextChoice,
}

/// A model on its way to a device.
pub(crate) struct Loading<'a> {
    pub(crate) checkpoint: &'a Arc<Checkpoint>,
    pub(crate) plan: &'a Plan,
    /// The longest context the model was made for.
    pub(crate) longest: usize,
    pub(crate) options: &'a Options,
    /// Hears how many bytes of the file's weights are done, of how many.
    pub(crate) progress: &'a dyn Fn(u64, u64),
}

impl Loading<'_> {
    /// Puts the model where its options say.
    pub(crate) fn place(&self) -> Result<Placed, Error> {
        match &self.options.device {
            Device::Cpu => self.on_cpu(None),
            #[cfg(not(feature = "gpu"))]
            Device::Auto => self.on_cpu(Some("this build has no GPUs".to_owned())),
            #[cfg(feature = "gpu")]
            Device::Auto if !gyrus_gpu::may_have_gpu() => self.on_cpu(Some("no GPU was found".to_owned())),
            #[cfg(feature = "gpu")]
            Device::Auto => self.on_gpu_or_cpu(None),
            #[cfg(feature = "gpu")]
            Device::Gpu(adapter) => self.on_gpu(adapter.as_deref()),
        }
    }

    fn weights(&self) -> u64 {
        self.plan.weights.iter().map(file_bytes).sum()
    }

    fn choose(
        &self,
        weights: u64,
        most: usize,
        memory: Option<u64>,
    ) -> Result<(ContextChoice, usize), Error> {
        let sessions = self.options.sessions.max(1);
        let budget = Budget { per_token: self.plan.kv_bytes_per_token(), weights, sessions, most };
        let context = ContextChoice::within(self.options.context, self.longest, budget, memory)?;
        Ok((context, context.tokens.div_ceil(KV_BLOCK).saturating_mul(sessions)))
    }

    fn bytes(&self, spec: &WeightSpec) -> Option<TensorBytes> {
        self.checkpoint.tensor(&spec.name).map(|tensor| TensorBytes::new(self.checkpoint, &tensor))
    }

    fn on_cpu(&self, instead: Option<String>) -> Result<Placed, Error> {
        let (context, blocks) = self.choose(self.weights(), usize::MAX, available_memory())?;
        let threads = self.options.threads.unwrap_or_else(Pool::available_threads);
        let (done, total) = (Cell::new(0), self.weights());
        // Asked for one weight after the other, each when those before are done.
        let backend = CpuBackend::new(self.plan.clone(), blocks, threads, |spec| {
            (self.progress)(done.replace(done.get() + file_bytes(spec)), total);
            match self.bytes(spec) {
                Some(bytes) => Arc::new(bytes),
                None => Arc::new([]),
            }
        })?;
        Ok(Placed { backend: Box::new(backend), place: Place::Cpu { threads, instead }, context })
    }

    #[cfg(feature = "gpu")]
    fn on_gpu(&self, adapter: Option<&str>) -> Result<Placed, Error> {
        let options = gyrus_gpu::Options {
            adapter: adapter.map(str::to_owned),
            memory: self.options.gpu_memory,
            pipelines: self.options.pipelines.clone(),
            ..Default::default()
        };
        let gpu = gyrus_gpu::Gpu::open(&options)?;
        // All that is no cache counts as weights here.
        let need = gyrus_gpu::MemoryNeed::new(self.plan, 0)?;
        let memory = gpu.memory().map(|memory| memory.free);
        let (context, blocks) = self.choose(need.total(), gpu.most_positions(self.plan), memory)?;
        let adapter = gpu.adapter();
        let place = Place::Gpu { name: adapter.name.clone(), api: adapter.api().to_owned(), memory };
        let (done, total) = (Cell::new(0), self.weights());
        let uploaded = |bytes| {
            done.set(done.get() + bytes);
            (self.progress)(done.get(), total);
        };
        let backend =
            gyrus_gpu::GpuBackend::new(gpu, self.plan.clone(), blocks, |spec| self.bytes(spec), uploaded)?;
        Ok(Placed { backend: Box::new(backend), place, context })
    }

    /// A GPU that is not there, too small or broken is no reason not to run.
    #[cfg(feature = "gpu")]
    fn on_gpu_or_cpu(&self, adapter: Option<&str>) -> Result<Placed, Error> {
        match self.on_gpu(adapter) {
            Err(Error::Gpu(error)) => self.on_cpu(Some(error.in_short())),
            placed => placed,
        }
    }
}

/// Bytes a weight takes in its file.
fn file_bytes(spec: &WeightSpec) -> u64 {
    spec.dtype.bytes_of(&spec.shape).unwrap_or(0) as u64
}

#[cfg(all(test, feature = "gpu"))]
mod tests {
    use super::*;
    use crate::arch;
    use gyrus_kernels::Precision;

    /// The choice that [`Device::Auto`] makes, with an adapter in software standing in for a real one.
    #[test]
    fn what_does_not_fit_a_gpu_runs_on_the_cpu() {
        let Some(path) = gyrus_testkit::data("tales/tales-7m-q8_0.gguf") else { return };
        let Some(adapter) = gyrus_gpu::adapters().into_iter().next() else { return };
        let checkpoint = Arc::new(Checkpoint::open(&path).unwrap());
        let (config, plan) = arch::build(&checkpoint, Precision::Fast).unwrap();
        let place = |name: &str, gpu_memory: Option<u64>, context: Option<usize>| {
            let options = Options { gpu_memory, context, ..Options::default() };
            let loading = Loading {
                checkpoint: &checkpoint,
                plan: &plan,
                longest: config.context,
                options: &options,
                progress: &|_, _| {},
            };
            loading.on_gpu_or_cpu(Some(name)).unwrap()
        };
        let there = place(&adapter.name, None, Some(64)).place;
        assert!(matches!(&there, Place::Gpu { name, .. } if *name == adapter.name), "{there}");
        assert_eq!(there.to_string(), format!("{} ({})", adapter.name, adapter.api()));
        let said = place(&adapter.name, Some(5 << 20), None).place.to_string();
        assert!(said.starts_with("the CPU: the model needs "), "{said}");
        assert!(said.ends_with(&format!("{} has 5.0 MiB", adapter.name)), "{said}");
        let said = place("Voodoo 2", None, None).place.to_string();
        assert!(said.starts_with("the CPU: no GPU is called 'Voodoo 2'"), "{said}");
        // With less memory a default context becomes shorter before the GPU is given up.
        let all = gyrus_gpu::MemoryNeed::new(&plan, config.context / KV_BLOCK).unwrap();
        let placed = place(&adapter.name, Some(all.total() - all.cache / 4), None);
        assert!(matches!(placed.place, Place::Gpu { .. }), "{}", placed.place);
        assert!(placed.context.tokens < config.context, "{:?}", placed.context);
    }
}
