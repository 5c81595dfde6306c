//! `gyrus doctor`: the CPU, memory and GPUs of this machine, and how a model is loaded on it.

use std::ffi::OsStr;
use std::io::Write;

use anyhow::Result;
use gyrus::Precision;
use serde::Serialize;

use crate::cli::DoctorArgs;
use crate::load::{self, KvCache};
use crate::options::ModelArgs;
use crate::source::Source;
use crate::text::{self, HEADING, NAME};
use crate::{foreign, json};

#[derive(Debug, Serialize)]
struct Report {
    version: &'static str,
    target: String,
    cpu: Cpu,
    /// Bytes of memory, if known.
    memory: Option<u64>,
    #[cfg(feature = "gpu")]
    gpus: Vec<Gpu>,
    /// The model that was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    model: Option<LoadedModel>,
}

/// A model as it is loaded on this machine.
#[derive(Debug, Serialize)]
struct LoadedModel {
    name: String,
    architecture: String,
    /// The device that runs it, and why if the best one does not.
    device: String,
    kv_cache: KvCache,
    /// The same in words.
    #[serde(skip)]
    line: String,
}

impl LoadedModel {
    fn load(name: &OsStr, options: &ModelArgs) -> Result<LoadedModel> {
        let source = Source::resolve(Some(name))?;
        let options = options.options(Precision::Fast);
        let model = load::load(&source, &options, true)?;
        let context = model.context();
        Ok(LoadedModel {
            name: source.name().to_owned(),
            architecture: model.config().architecture.clone(),
            device: model.device().to_string(),
            kv_cache: KvCache::new(&context),
            line: load::kv_cache(&context, options.kv_memory.is_some()),
        })
    }
}

#[cfg(feature = "gpu")]
#[derive(Debug, Serialize)]
struct Gpu {
    name: String,
    kind: String,
    backend: String,
    driver: String,
    /// Bytes of memory, total and free, if the driver reports them.
    memory: Option<u64>,
    free_memory: Option<u64>,
    /// Features that kernels are selected by, present ones only.
    features: Vec<String>,
    limits: std::collections::BTreeMap<&'static str, u64>,
}

#[cfg(feature = "gpu")]
impl Gpu {
    fn new(adapter: &gyrus_gpu::Adapter) -> Gpu {
        let (least, most) = adapter.subgroup_sizes;
        let subgroups = if least == most {
            format!("subgroups of {least}")
        } else {
            format!("subgroups of {least} to {most}")
        };
        let features = [
            (adapter.rungs.f16, "f16".to_owned()),
            (adapter.rungs.subgroups, subgroups),
            (adapter.rungs.immediates, "immediates".to_owned()),
            (adapter.rungs.cooperative, "cooperative matrices".to_owned()),
            (adapter.rungs.int8_matrix, "int8 cooperative matrices".to_owned()),
            (adapter.timestamps, "timestamps".to_owned()),
            (adapter.pipeline_cache, "pipeline cache".to_owned()),
        ];
        let memory = adapter.memory();
        let matrices = adapter.cooperative.iter().map(|shape| format!("cooperative {shape}"));
        Gpu {
            name: adapter.name.clone(),
            kind: adapter.kind.to_string(),
            backend: adapter.backend.clone(),
            driver: adapter.driver.clone(),
            memory: memory.map(|memory| memory.total),
            free_memory: memory.map(|memory| memory.free),
            features: features
                .into_iter()
                .filter(|(has, _)| *has)
                .map(|(_, name)| name)
                .chain(matrices)
                .collect(),
            limits: adapter.limits.iter().copied().collect(),
        }
    }
}

#[derive(Debug, Serialize)]
struct Cpu {
    name: Option<String>,
    /// Threads available to this process; fewer than the machine has if a container or affinity limits them.
    threads: Option<usize>,
    /// Instruction sets that kernels are selected by, present ones only.
    features: Vec<&'static str>,
}

pub(crate) fn run(args: &DoctorArgs) -> Result<()> {
    let report = Report {
        version: env!("CARGO_PKG_VERSION"),
        target: format!("{}-{}", std::env::consts::ARCH, std::env::consts::OS),
        cpu: Cpu {
            name: proc_field("/proc/cpuinfo", "model name"),
            threads: std::thread::available_parallelism().ok().map(usize::from),
            features: cpu_features(),
        },
        memory: memory(),
        #[cfg(feature = "gpu")]
        gpus: gyrus_gpu::adapters().iter().map(Gpu::new).collect(),
        model: args.model.as_ref().map(|name| LoadedModel::load(name, &args.model_options)).transpose()?,
    };
    let mut out = anstream::stdout().lock();
    if args.json {
        json::pretty(&mut out, &report)?;
        return Ok(());
    }
    writeln!(out, "{}Gyrus {}{}", HEADING.render(), report.version, HEADING.render_reset())?;
    let unknown = || "unknown".to_owned();
    let rows = [
        ("platform", report.target.clone()),
        ("CPU", report.cpu.name.unwrap_or_else(unknown)),
        ("threads", report.cpu.threads.map_or_else(unknown, |n| n.to_string())),
        ("features", report.cpu.features.join(" ")),
        ("memory", report.memory.map_or_else(unknown, text::bytes)),
    ];
    for (name, value) in rows {
        line(&mut out, name, &value)?;
    }
    #[cfg(feature = "gpu")]
    for gpu in &report.gpus {
        let limits: Vec<String> = gpu.limits.iter().map(|(name, value)| format!("{name} {value}")).collect();
        line(&mut out, "GPU", &gpu.name)?;
        line(&mut out, "", &format!("{}, {}, {}", gpu.kind, gpu.backend, gpu.driver))?;
        if let (Some(total), Some(free)) = (gpu.memory, gpu.free_memory) {
            line(&mut out, "", &format!("memory {}, {} free", text::bytes(total), text::bytes(free)))?;
        }
        line(&mut out, "", &gpu.features.join(", "))?;
        line(&mut out, "", &limits.join(", "))?;
    }
    #[cfg(feature = "gpu")]
    if report.gpus.is_empty() {
        line(&mut out, "GPU", "none: no Vulkan, Metal or DX12 driver found")?;
    }
    if let Some(model) = &report.model {
        line(&mut out, "model", &format!("{}, {}", model.name, model.architecture))?;
        line(&mut out, "", &format!("runs on {}", model.device))?;
        line(&mut out, "", &model.line)?;
    }
    Ok(())
}

fn line(out: &mut impl Write, name: &str, value: &str) -> std::io::Result<()> {
    writeln!(out, "  {}{name:<10}{}{}", NAME.render(), NAME.render_reset(), foreign::one_line(value, 240))
}

fn cpu_features() -> Vec<&'static str> {
    let mut present = Vec::new();
    #[cfg(target_arch = "x86_64")]
    {
        macro_rules! detect {
            ($($name:tt)*) => {$(if std::arch::is_x86_feature_detected!($name) { present.push($name); })*};
        }
        detect!("sse4.2" "avx" "avx2" "fma" "f16c" "avxvnni" "avx512f" "avx512bw" "avx512vl" "avx512vnni" "avx512bf16");
    }
    #[cfg(target_arch = "aarch64")]
    {
        macro_rules! detect {
            ($($name:tt)*) => {$(if std::arch::is_aarch64_feature_detected!($name) { present.push($name); })*};
        }
        detect!("neon" "fp16" "dotprod" "i8mm" "bf16" "sve");
    }
    present
}

/// Total memory; known on Linux.
fn memory() -> Option<u64> {
    let text = proc_field("/proc/meminfo", "MemTotal")?;
    text.strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// The first `name : value` line of a file under /proc.
fn proc_field(path: &str, name: &str) -> Option<String> {
    let text = std::fs::read_to_string(path).ok()?;
    let line = text.lines().find(|line| line.split(':').next().is_some_and(|key| key.trim() == name))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}
