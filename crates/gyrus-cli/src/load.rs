//! Loads a model and reports device, context and load time on stderr.

use std::time::Instant;

use anyhow::{Result, anyhow};
use gyrus::{ContextLimit, Device, DeviceInfo, Error, Model, Options};
use gyrus_formats::Checkpoint;

use crate::progress::Progress;
use crate::source::Source;
use crate::{diagnostics, foreign, text};

/// Loads a model. Unless quiet, prints a line with its name, architecture, device and context, another with the device's
/// name unless the CPU was asked for, and one with the parts of a multimodal model that are not loaded.
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
    let context = model.context();
    let why = match context.limit {
        ContextLimit::Memory => format!(" (limited by free memory; the model has {})", context.model),
        ContextLimit::Unknown => {
            format!(" (free memory unknown, --ctx sets more; the model has {})", context.model)
        }
        _ => String::new(),
    };
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
        "{} · {} · {device} · context {}{why} · KV cache {} · loaded in {:.2} s",
        foreign::one_line(name, 80),
        model.config().architecture,
        context.tokens,
        text::bytes(context.cache_bytes),
        start.elapsed().as_secs_f64(),
    ));
    let skipped = &model.config().skipped;
    if !skipped.is_empty() {
        diagnostics::aside(format!(
            "text only: {} of this multimodal model {} not loaded",
            foreign::one_line(&skipped.join(", "), 240),
            if skipped.len() == 1 { "is" } else { "are" }
        ));
    }
    Ok(model)
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
