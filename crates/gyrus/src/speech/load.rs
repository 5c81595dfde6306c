//! Loads a speech model onto its device.

use std::sync::Arc;

use gyrus_formats::Checkpoint;
use gyrus_kernels::{Backend, KvSize, Precision};
use gyrus_tensor::DType;

use super::engine::kv_size;
use super::transcriber::{MOST_HYPOTHESES, SpeechOptions};
use crate::Error;
use crate::arch::whisper::{self, WhisperConfig, WhisperPlan};
use crate::device::{Device, DeviceInfo};
use crate::loader::{LoadedBackend, Loader};
use crate::model::Options;

/// The most bytes of keys and values of windows, unless one window takes more.
const MOST_CROSS_BYTES: usize = 1 << 30;

/// A model on its device.
pub(super) struct Loaded {
    pub(super) backend: Box<dyn Backend>,
    pub(super) device: DeviceInfo,
    pub(super) plan: WhisperPlan,
    pub(super) kv: KvSize,
    pub(super) at_once: usize,
    pub(super) windows: usize,
}

/// Windows that a GPU encodes in one pass. A CPU is busy with one.
#[cfg(feature = "gpu")]
const GPU_WINDOWS: usize = 8;

pub(super) fn load(
    checkpoint: &Arc<Checkpoint>,
    config: &WhisperConfig,
    options: &SpeechOptions,
    progress: &dyn Fn(u64, u64),
) -> Result<Loaded, Error> {
    let place = |place: Place| place.load(checkpoint, config, options, progress);
    match &options.device {
        Device::Cpu => place(Place::Cpu(None)),
        Device::Reference => place(Place::Reference),
        #[cfg(not(feature = "gpu"))]
        Device::Auto => place(Place::Cpu(Some("this build has no GPU support".to_owned()))),
        #[cfg(feature = "gpu")]
        Device::Auto if !gyrus_gpu::may_have_gpu() => place(Place::Cpu(Some("no GPU was found".to_owned()))),
        #[cfg(feature = "gpu")]
        Device::Auto => match place(Place::Gpu(None)).map_err(Error::gpu_reason) {
            Ok(loaded) => Ok(loaded),
            Err(Ok(reason)) => place(Place::Cpu(Some(reason))),
            Err(Err(error)) => Err(error),
        },
        #[cfg(feature = "gpu")]
        Device::Gpu(adapter) => place(Place::Gpu(adapter.clone())),
    }
}

enum Place {
    /// With the reason why it is not a GPU.
    Cpu(Option<String>),
    Reference,
    #[cfg(feature = "gpu")]
    Gpu(Option<String>),
}

impl Place {
    fn load(
        self,
        checkpoint: &Arc<Checkpoint>,
        config: &WhisperConfig,
        options: &SpeechOptions,
        progress: &dyn Fn(u64, u64),
    ) -> Result<Loaded, Error> {
        let fast_cpu = matches!(self, Place::Cpu(_)) && options.precision == Precision::Fast;
        let quantize = options.quantize.or(fast_cpu.then_some(DType::Q8_0));
        quantize.map_or(Ok(()), crate::quantized::check)?;
        let plan = whisper::build(checkpoint, config, options.precision, quantize)?;
        let positions = config.audio_context.next_multiple_of(gyrus_kernels::KV_BLOCK);
        let of_window = positions * 2 * config.text_layers * config.width * 4;
        let windows = options.windows.clamp(1, (MOST_CROSS_BYTES / of_window).max(1));
        let at_once = match self {
            #[cfg(feature = "gpu")]
            Place::Gpu(_) => GPU_WINDOWS.min(windows),
            _ => 1,
        };
        let kv = kv_size(config, at_once, windows, MOST_HYPOTHESES);
        let (device, reason) = match self {
            Place::Cpu(reason) => (Device::Cpu, reason),
            Place::Reference => (Device::Reference, None),
            #[cfg(feature = "gpu")]
            Place::Gpu(adapter) => (Device::Gpu(adapter), None),
        };
        let model_options = Options {
            device,
            precision: options.precision,
            threads: options.threads,
            quantize,
            gpu_memory: options.gpu_memory,
            pipelines: options.pipelines.clone(),
            ..Options::default()
        };
        let loader = Loader {
            checkpoint,
            plan: &plan.plan,
            max_context: config.text_context,
            options: &model_options,
            progress,
            fixed: Some(kv.clone()),
        };
        let LoadedBackend { backend, mut device, .. } = loader.load()?;
        if let DeviceInfo::Cpu { fallback_reason, .. } = &mut device {
            *fallback_reason = reason;
        }
        Ok(Loaded { backend, device, plan, kv, at_once, windows })
    }
}
