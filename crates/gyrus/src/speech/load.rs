//! Loads a speech model onto its device.

use std::sync::Arc;

use gyrus_formats::Checkpoint;
use gyrus_kernels::{Backend, KV_BLOCK, KvSize, Plan, Precision};
use gyrus_tensor::DType;

use super::engine::kv_size;
use super::transcriber::{MOST_HYPOTHESES, SpeechOptions};
use crate::Error;
use crate::arch::whisper::{self, CROSS_GROUP, ENCODER_GROUP, WhisperConfig, WhisperPlan};
use crate::device::{Device, DeviceInfo};
use crate::loader::{LoadedBackend, Loader};
use crate::model::Options;

/// The most windows at once.
const MOST_WINDOWS: usize = 64;
/// Windows at once on the host by default, in at most this many bytes of the encoder's keys and values in f32, unless one
/// window takes more.
const HOST_WINDOWS: usize = 8;
const MOST_CROSS_BYTES: usize = 1 << 30;
/// Windows at once on a GPU by default, and those that it encodes in one pass. A CPU is busy with one.
#[cfg(feature = "gpu")]
const GPU_WINDOWS: usize = 16;
#[cfg(feature = "gpu")]
const GPU_PASS_WINDOWS: usize = 8;

/// A model on its device.
pub(super) struct Loaded {
    pub(super) backend: Box<dyn Backend>,
    pub(super) device: DeviceInfo,
    pub(super) plan: WhisperPlan,
    pub(super) kv: KvSize,
    pub(super) at_once: usize,
    pub(super) windows: usize,
}

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
        let sizes = self.cache_sizes(config, &plan.plan, options.windows);
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
            fixed: &sizes,
        };
        let LoadedBackend { backend, mut device, kv, .. } = loader.load()?;
        if let DeviceInfo::Cpu { fallback_reason, .. } = &mut device {
            *fallback_reason = reason;
        }
        let of_window = config.audio_context.div_ceil(KV_BLOCK).max(1);
        let most = backend.batch_rows() / config.audio_context.max(1);
        let at_once = (kv.blocks[ENCODER_GROUP] / of_window).min(most).max(1);
        let windows = kv.blocks[CROSS_GROUP] / of_window;
        Ok(Loaded { backend, device, plan, kv, at_once, windows })
    }

    /// The sizes that the KV cache may have for at most this many windows, largest first.
    fn cache_sizes(&self, config: &WhisperConfig, plan: &Plan, windows: Option<usize>) -> Vec<KvSize> {
        let most = |default: usize| windows.unwrap_or(default).clamp(1, MOST_WINDOWS);
        let size = |at_once: usize, windows| kv_size(config, at_once.min(windows), windows, MOST_HYPOTHESES);
        match self {
            // How many fit depends on its memory.
            #[cfg(feature = "gpu")]
            Place::Gpu(_) => {
                (1..=most(GPU_WINDOWS)).rev().map(|windows| size(GPU_PASS_WINDOWS, windows)).collect()
            }
            _ => {
                let blocks = config.audio_context.div_ceil(KV_BLOCK);
                let of_window = plan.kv[CROSS_GROUP].bytes_per_block(Precision::Exact) * blocks;
                vec![size(1, most(HOST_WINDOWS).min((MOST_CROSS_BYTES / of_window.max(1)).max(1)))]
            }
        }
    }
}

#[cfg(all(test, feature = "gpu"))]
mod tests {
    use super::*;
    use gyrus_kernels::KvGroup;

    const GIB: u64 = 1 << 30;

    /// Windows of large-v3, and those of a pass of its encoder, with 3 GiB of weights and scratch buffers.
    fn windows(
        precision: Precision,
        wanted: Option<usize>,
        positions: usize,
        memory: Option<u64>,
    ) -> [usize; 2] {
        let path = gyrus_testkit::repository().join("tests/data/whisper");
        let checkpoint = Arc::new(Checkpoint::open(&path).unwrap());
        let config = WhisperConfig::read(&checkpoint).unwrap();
        let mut plan = whisper::build(&checkpoint, &config, precision, None).unwrap().plan;
        let config = WhisperConfig { audio_context: 1500, text_context: 448, ..config };
        let group = |layers| KvGroup { layers, kv_heads: 20, head_dim: 64, window: None };
        plan.kv = vec![group(1), group(32), group(32)];
        let sizes = Place::Gpu(None).cache_sizes(&config, &plan, wanted);
        let loader = Loader {
            checkpoint: &checkpoint,
            plan: &plan,
            max_context: config.text_context,
            options: &Options::default(),
            progress: &|_, _| {},
            fixed: &sizes,
        };
        let bytes = |size: &KvSize| -> u64 {
            let groups = plan.kv.iter().zip(&size.blocks);
            groups.map(|(group, blocks)| (group.bytes_per_block(precision) * blocks) as u64).sum()
        };
        let need = |size: &KvSize| 3 * GIB + bytes(size);
        let (_, size) =
            loader.choose_fixed(&sizes[sizes.len() - 1], 3 * GIB, positions, memory, need).unwrap();
        let of_window = 1500usize.div_ceil(KV_BLOCK);
        let found = [size.blocks[CROSS_GROUP] / of_window, size.blocks[ENCODER_GROUP] / of_window];
        // One window more would take more than half of what the weights leave.
        if let Some(memory) = memory {
            let half = (memory - 3 * GIB) / 2;
            assert!(bytes(&size) <= half || found[0] == 1, "{found:?}");
            let larger =
                sizes.iter().rev().find(|larger| larger.blocks[CROSS_GROUP] > size.blocks[CROSS_GROUP]);
            let blocks = |size: &KvSize| size.blocks.iter().copied().max().unwrap() * KV_BLOCK;
            assert!(
                larger.is_none_or(|larger| bytes(larger) > half || blocks(larger) > positions),
                "{found:?}"
            );
        }
        found
    }

    #[test]
    fn a_gpu_has_as_many_windows_as_its_memory() {
        let any = usize::MAX;
        let (fast, exact) = (Precision::Fast, Precision::Exact);
        assert_eq!(windows(fast, None, any, Some(139 * GIB)), [16, 8]);
        assert_eq!(windows(exact, None, any, Some(139 * GIB)), [16, 8]);
        assert_eq!(windows(fast, Some(3), any, Some(139 * GIB)), [3, 3]);
        assert_eq!(windows(fast, Some(usize::MAX), any, Some(139 * GIB)), [64, 8]);
        let [of_fast, of_exact] = [fast, exact].map(|of| windows(of, None, any, Some(16 * GIB))[0]);
        assert!((5..16).contains(&of_fast) && of_fast / 2 == of_exact, "{of_fast}, {of_exact}");
        assert_eq!(windows(fast, None, any, Some(4 * GIB)), [1, 1]);
        // The keys of a layer are one buffer.
        assert_eq!(windows(fast, None, 4 * 448 * MOST_HYPOTHESES, Some(139 * GIB)), [4, 4]);
        assert_eq!(windows(fast, None, any, None), [2, 2]);
    }
}
