//! Loads a model and reports device, context and load time on stderr.

use std::fmt;
use std::time::Instant;

use anyhow::{Result, anyhow};
use gyrus::{ContextChoice, ContextLimit, Device, DeviceInfo, Error, Model, Options, Skipped, SkippedPart};
use gyrus_formats::Checkpoint;
use serde::Serialize;

use crate::progress::Progress;
use crate::source::Source;
use crate::{diagnostics, foreign, text};

/// Loads a model. Unless quiet, prints a line with its name, architecture, device and context, another with the device's
/// name unless the CPU was asked for, and others with the parts of the file that are not loaded.
pub(crate) fn load(source: &Source, options: &Options, quiet: bool) -> Result<Model> {
    load_opened(source.open(options.access)?, source.name(), options, quiet)
}

/// As [`load`], of a model that is open already and has this name.
pub(crate) fn load_opened(
    checkpoint: Checkpoint,
    name: &str,
    options: &Options,
    quiet: bool,
) -> Result<Model> {
    let start = Instant::now();
    let loaded = if quiet {
        Model::load(checkpoint, options)
    } else {
        let progress = Progress::new("loading");
        Model::load_with(checkpoint, options, |done, total| progress.set(done, total))
    };
    let model = loaded.map_err(advised)?;
    if quiet {
        return Ok(model);
    }
    if options.device != Device::Cpu {
        let unknown = match model.device() {
            DeviceInfo::Gpu { memory: None, .. } => ", free memory unknown",
            _ => "",
        };
        diagnostics::aside(format!(
            "running on {}{unknown}",
            foreign::one_line(&model.device().to_string(), 240)
        ));
    }
    let device = match model.device() {
        DeviceInfo::Cpu { threads: 1, .. } => "cpu, 1 thread".to_owned(),
        DeviceInfo::Cpu { threads, .. } => format!("cpu, {threads} threads"),
        DeviceInfo::Reference => "scalar reference".to_owned(),
        _ => "gpu".to_owned(),
    };
    diagnostics::aside(format!(
        "{} · {} · {device} · {} · loaded in {:.2} s",
        foreign::one_line(name, 80),
        model.config().architecture,
        kv_cache(&model.context(), options.kv_memory.is_some()),
        start.elapsed().as_secs_f64(),
    ));
    not_loaded(&model.config().skipped).into_iter().for_each(diagnostics::aside);
    Ok(model)
}

/// A line for each kind of part of the file that is not loaded. Heads of other tasks are not missed.
fn not_loaded(skipped: &[Skipped]) -> Vec<String> {
    let names = |part: SkippedPart| -> Vec<&str> {
        skipped.iter().filter(|one| one.part == part).map(|one| one.name.as_str()).collect()
    };
    let line = |names: &[&str]| foreign::one_line(&names.join(", "), 240);
    let (towers, layers) = (names(SkippedPart::Tower), names(SkippedPart::PredictionLayers));
    let are = if towers.len() == 1 { "is" } else { "are" };
    let towers = (!towers.is_empty())
        .then(|| format!("text only: {} of this multimodal model {are} not loaded", line(&towers)));
    let layers = (!layers.is_empty()).then(|| format!("prediction layers {} are not loaded", line(&layers)));
    towers.into_iter().chain(layers).collect()
}

/// The KV cache of a loaded model.
#[derive(Debug, Serialize)]
pub(crate) struct KvCache {
    pub(crate) bytes: u64,
    /// Bytes of them that are records of recurrent states, with their checkpoints.
    pub(crate) state_bytes: u64,
    /// Tokens that it holds for all sequences together.
    pub(crate) total_tokens: usize,
    /// Tokens of the longest sequence.
    pub(crate) longest_sequence: usize,
}

impl KvCache {
    pub(crate) fn new(context: &ContextChoice) -> KvCache {
        let ContextChoice { tokens: longest_sequence, total_tokens, cache_bytes, state_bytes, .. } = *context;
        KvCache { bytes: cache_bytes, state_bytes, total_tokens, longest_sequence }
    }
}

impl fmt::Display for KvCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let KvCache { bytes, state_bytes, total_tokens, longest_sequence } = self;
        write!(f, "KV cache: {}", text::bytes(*bytes))?;
        if *state_bytes > 0 {
            write!(f, " with {} of recurrent states", text::bytes(*state_bytes))?;
        }
        write!(f, ", {total_tokens} tokens in total, longest sequence {longest_sequence}")
    }
}

/// The KV cache in words, with what limits the longest sequence.
pub(crate) fn kv_cache(context: &ContextChoice, has_budget: bool) -> String {
    let model = context.model;
    let why = match context.limit {
        ContextLimit::Memory if has_budget => format!(" (limited by --kv-memory; the model has {model})"),
        ContextLimit::Memory => format!(" (limited by free memory; the model has {model})"),
        ContextLimit::Unknown => format!(" (free memory unknown, --ctx sets more; the model has {model})"),
        _ => String::new(),
    };
    format!("{}{why}", KvCache::new(context))
}

/// `cpu`, or the GPU's name.
pub(crate) fn device(device: &DeviceInfo) -> String {
    match device {
        DeviceInfo::Gpu { name, .. } => name.clone(),
        DeviceInfo::Reference => "reference".to_owned(),
        _ => "cpu".to_owned(),
    }
}

/// Adds the flags that help to an error.
fn advised(error: Error) -> anyhow::Error {
    if let Error::KvMemory { tokens, .. } = &error {
        return match tokens {
            0 => anyhow!("{error}; --kv-memory sets the bytes"),
            tokens => anyhow!("{error}; --kv-memory sets the bytes, --ctx {tokens} fits"),
        };
    }
    #[cfg(feature = "gpu")]
    {
        use gyrus_gpu::GpuError;
        match &error {
            Error::Gpu(
                GpuError::InsufficientMemory { fitting: Some(n), .. } | GpuError::Cache { most: n, .. },
            ) => {
                return anyhow!("{error} (--ctx {n}), or use --device cpu");
            }
            Error::Gpu(GpuError::InsufficientMemory { .. } | GpuError::NoAdapter { .. }) => {
                return anyhow!("{error}; try --device cpu");
            }
            _ => {}
        }
    }
    anyhow!(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_that_are_not_loaded_are_called_what_they_are() {
        let said = |parts: &[(&str, SkippedPart)]| {
            let skipped = |(name, part): &(&str, SkippedPart)| Skipped { name: (*name).into(), part: *part };
            not_loaded(&parts.iter().map(skipped).collect::<Vec<_>>())
        };
        let (mtp, sight) = (("mtp", SkippedPart::PredictionLayers), ("visual", SkippedPart::Tower));
        let head = ("lm_head.weight", SkippedPart::Head);
        assert_eq!(said(&[mtp, head]), ["prediction layers mtp are not loaded"]);
        let one = "text only: visual of this multimodal model is not loaded";
        assert_eq!(said(&[sight, mtp]), [one, "prediction layers mtp are not loaded"]);
        let both = "text only: visual, audio_tower of this multimodal model are not loaded";
        assert_eq!(said(&[sight, ("audio_tower", SkippedPart::Tower)]), [both]);
        assert!(said(&[head]).is_empty() && said(&[]).is_empty());
    }
}
