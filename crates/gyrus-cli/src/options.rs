//! Options that several commands share.

use std::ffi::OsString;
use std::path::Path;

use anyhow::Result;
use clap::{Args, ValueEnum};
use gyrus::{Access, DType, Device, Options, Precision, Sampler, Sampling};
use gyrus_tensor::can_quantize;

use crate::cache;
use crate::environment::Environment;
use crate::samplers::{MoreSamplerArgs, number};
use crate::source::Source;
use crate::synthetic::Synthetic;

/// How a model is loaded.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Model options")]
pub(crate) struct ModelArgs {
    /// Context length in tokens [default: the model's own, if memory allows]
    #[arg(long, value_name = "TOKENS", value_parser = at_least_one)]
    pub(crate) ctx: Option<usize>,

    /// CPU threads [default: one per core]
    #[arg(long, env = "GYRUS_THREADS", value_name = "N", value_parser = clap::value_parser!(u16).range(1..=512))]
    pub(crate) threads: Option<u16>,

    /// Device: auto (the best GPU that the model fits on, else the CPU), cpu, gpu, or gpu:NAME with a part of a GPU's
    /// name
    #[arg(long, env = "GYRUS_DEVICE", value_name = "DEVICE", default_value_t = Device::Auto)]
    pub(crate) device: Device,

    /// Arithmetic
    #[arg(long, value_enum)]
    pub(crate) precision: Option<PrecisionArg>,

    /// Read model files into memory instead of mapping them: if another program truncates a mapped file, this process
    /// dies with SIGBUS
    #[arg(long)]
    pub(crate) no_mmap: bool,

    /// Quantise weights of type F32, F16 or BF16 while loading: q8_0, q4_0, q4_1, q5_0, q5_1, q4_k or q6_k. Vectors stay
    /// as they are
    #[arg(long, value_name = "TYPE", value_parser = block_format)]
    pub(crate) quantize: Option<DType>,

    /// Memory of the KV cache, which all sequences share, such as 2GiB or 512MiB [default: enough for each sequence at
    /// its full context, but at most half of what the weights leave free]
    #[arg(long, value_name = "SIZE", value_parser = crate::size::parse)]
    pub(crate) kv_memory: Option<u64>,

    /// Do not share the KV cache of common prefixes between sequences
    #[arg(long)]
    pub(crate) no_prefix_cache: bool,

    /// Use a cached prefix only if it has the bits that the sequence would compute itself: on a GPU in fast precision
    /// generated tokens differ in rounding from tokens of a prompt
    #[arg(long, conflicts_with = "no_prefix_cache")]
    pub(crate) strict_prefixes: bool,
}

/// A type that weights can be quantised to.
fn block_format(text: &str) -> Result<DType, String> {
    let can = |dtype: &DType| dtype.is_quantized() && can_quantize(*dtype);
    text.parse().ok().filter(can).ok_or_else(|| {
        let names: Vec<&str> =
            DType::ALL.iter().filter(|dtype| can(dtype)).map(|dtype| dtype.name()).collect();
        format!("weights can be quantised to {}", names.join(", "))
    })
}

fn at_least_one(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) | Err(_) => Err("a number from 1 on is needed".to_owned()),
        Ok(n) => Ok(n),
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum PrecisionArg {
    /// f32 activations and f32 KV cache: the reference
    Exact,
    /// int8 activations and f16 KV cache: several times faster, nearly the same logits
    Fast,
}

impl ModelArgs {
    /// Options for loading, with the precision a command uses unless it is told otherwise.
    pub(crate) fn options(&self, precision: Precision) -> Options {
        Options {
            precision: match self.precision {
                Some(PrecisionArg::Exact) => Precision::Exact,
                Some(PrecisionArg::Fast) => Precision::Fast,
                None => precision,
            },
            device: self.device.clone(),
            context: self.ctx,
            threads: self.threads.map(usize::from),
            pipelines: cache::pipelines(&Environment::of_process()),
            quantize: self.quantize,
            kv_memory: self.kv_memory,
            prefix_cache: !self.no_prefix_cache,
            strict_prefixes: self.strict_prefixes,
            access: if self.no_mmap { Access::Read } else { Access::Map },
            ..Options::default()
        }
    }
}

impl ModelArgs {
    /// Whether GPUs may be looked for.
    #[cfg(target_os = "linux")]
    pub(crate) fn may_use_gpu(&self) -> bool {
        may_use_gpu(&self.device)
    }
}

/// Whether GPUs may be looked for if a device is asked for.
#[cfg(target_os = "linux")]
pub(crate) fn may_use_gpu(device: &Device) -> bool {
    match device {
        Device::Cpu | Device::Reference => false,
        #[cfg(feature = "gpu")]
        Device::Gpu(_) => true,
        #[cfg(feature = "gpu")]
        Device::Auto => gyrus_gpu::may_have_gpu(),
        #[cfg(not(feature = "gpu"))]
        Device::Auto => false,
    }
}

/// The model to measure.
#[derive(Debug, Args)]
pub(crate) struct SubjectArgs {
    /// A model file, folder or catalogue name [default: qwen2.5-coder-0.5b]
    pub(crate) model: Option<OsString>,

    /// Random weights in memory instead of a model: a known shape or explicit dimensions, and a quantisation, such as
    /// llama-3.2-1b:q4_0
    #[arg(long, value_name = "SHAPE:QUANT", conflicts_with = "model")]
    pub(crate) synthetic: Option<Synthetic>,
}

impl SubjectArgs {
    /// The model to open.
    pub(crate) fn source(&self) -> Result<Source> {
        match &self.synthetic {
            Some(model) => Source::synthetic(model),
            None => Source::resolve(self.model.as_deref()),
        }
    }

    /// The same, where a synthetic model has the vocabulary of a GGUF file, if one is given.
    pub(crate) fn source_with(&self, vocabulary: Option<&Path>) -> Result<Source> {
        match (&self.synthetic, vocabulary) {
            (Some(model), Some(path)) => Source::synthetic(&model.clone().with_vocabulary(path)?),
            _ => self.source(),
        }
    }
}

/// How results are printed.
#[derive(Debug, Args)]
pub(crate) struct ReportArgs {
    /// What to print
    #[arg(short, long, value_enum, default_value_t = BenchOutput::Md)]
    pub(crate) output: BenchOutput,

    /// Print nothing but the results
    #[arg(short, long)]
    pub(crate) quiet: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum BenchOutput {
    /// A Markdown table
    Md,
    /// JSON
    Json,
    /// Comma-separated values
    Csv,
}

/// How tokens are sampled: by the flags, else the model's own settings, else the defaults below.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Sampling options")]
pub(crate) struct SamplerArgs {
    /// Temperature; 0 is greedy [default: the model's, else 0.5]
    #[arg(long = "temp", value_name = "T", value_parser = number(|s, t| s.temperature = t))]
    pub(crate) temperature: Option<f32>,

    /// Sample from the K most likely tokens; 0 for all [default: the model's, else 40]
    #[arg(long, value_name = "K")]
    pub(crate) top_k: Option<u32>,

    /// Sample from the most likely tokens whose probabilities add up to P [default: the model's, else 0.95]
    #[arg(long, value_name = "P", value_parser = number(|s, p| s.top_p = p))]
    pub(crate) top_p: Option<f32>,

    /// Exclude tokens below P times the probability of the most likely token [default: the model's, else 0.05]
    #[arg(long, value_name = "P", value_parser = number(|s, p| s.min_p = p))]
    pub(crate) min_p: Option<f32>,

    /// Repetition penalty on tokens that occurred; 1 for none [default: the model's; else 1.1, or 1 with --temp 0 or
    /// if the model has other sampling settings]
    #[arg(long, value_name = "F", value_parser = number(|s, f| s.repetition_penalty = f))]
    pub(crate) repeat_penalty: Option<f32>,

    /// Subtract this from the logits of tokens that occurred
    #[arg(long, value_name = "F", default_value_t = 0.0, allow_negative_numbers = true, value_parser = number(|s, f| s.presence_penalty = f))]
    pub(crate) presence_penalty: f32,

    /// Subtract this from the logit of a token for each time it occurred
    #[arg(long, value_name = "F", default_value_t = 0.0, allow_negative_numbers = true, value_parser = number(|s, f| s.frequency_penalty = f))]
    pub(crate) frequency_penalty: f32,

    /// Number of last tokens that the penalties consider [default: the model's, else 64]
    #[arg(long, value_name = "N")]
    pub(crate) penalty_window: Option<u32>,

    /// Seed of the sampler; the same seed gives the same answer [default: random]
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u64>,

    /// Do not stop an answer that loops. By default it stops when the same few words come 20 times in a row; complete
    /// and --raw never stop for that
    #[arg(long)]
    pub(crate) allow_repetition: bool,

    #[command(flatten)]
    pub(crate) more: MoreSamplerArgs,
}

impl SamplerArgs {
    /// The flags, else the model's settings, else the defaults.
    pub(crate) fn sampler(&self, model: &Sampling) -> Sampler {
        let temperature = self.temperature.or(model.temperature).unwrap_or(0.5);
        // A model with settings of its own was made to run without a penalty unless it names one. Greedy decoding must
        // return the most likely token.
        let penalty = if model.is_empty() && temperature > 0.0 { 1.1 } else { 1.0 };
        let sampler = Sampler {
            temperature,
            top_k: self.top_k.or(model.top_k).unwrap_or(40),
            top_p: self.top_p.or(model.top_p).unwrap_or(0.95),
            min_p: self.min_p.or(model.min_p).unwrap_or(0.05),
            repetition_penalty: self.repeat_penalty.or(model.repetition_penalty).unwrap_or(penalty),
            presence_penalty: self.presence_penalty,
            frequency_penalty: self.frequency_penalty,
            penalty_window: self.penalty_window.or(model.penalty_window).unwrap_or(64),
            seed: self.seed.unwrap_or_else(any_seed),
            ..Sampler::default()
        };
        self.more.add_to(sampler)
    }
}

/// A seed that differs from run to run, short enough to type again.
fn any_seed() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    u64::from(now.subsec_nanos() ^ now.as_secs() as u32) % 1_000_000
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Flags {
        #[command(flatten)]
        sampler: SamplerArgs,
    }

    fn sampler(flags: &[&str], model: &Sampling) -> Sampler {
        let flags = Flags::parse_from([&["gyrus"], flags].concat());
        Sampler { seed: 0, ..flags.sampler.sampler(model) }
    }

    #[test]
    fn flags_beat_the_model_and_the_model_beats_the_defaults() {
        let none = Sampling::default();
        let usual = Sampler {
            temperature: 0.5,
            top_k: 40,
            top_p: 0.95,
            min_p: 0.05,
            repetition_penalty: 1.1,
            penalty_window: 64,
            ..Sampler::default()
        };
        assert_eq!(sampler(&[], &none), usual);
        let mut own = Sampling::default();
        (own.temperature, own.top_k, own.min_p) = (Some(0.7), Some(20), Some(0.0));
        // A model with settings of its own is not penalised unless it says so.
        let models =
            Sampler { temperature: 0.7, top_k: 20, min_p: 0.0, repetition_penalty: 1.0, ..usual.clone() };
        assert_eq!(sampler(&[], &own), models);
        assert_eq!(sampler(&["--top-k", "5"], &own), Sampler { top_k: 5, ..models.clone() });
        own.repetition_penalty = Some(1.05);
        assert_eq!(sampler(&[], &own), Sampler { repetition_penalty: 1.05, ..models });
        assert_eq!(sampler(&["--repeat-penalty", "1"], &none).repetition_penalty, 1.0);
    }

    #[test]
    fn greedy_decoding_has_no_default_penalty() {
        let greedy = sampler(&["--temp", "0"], &Sampling::default());
        assert!(greedy.is_greedy() && !greedy.has_penalties());
        assert!(sampler(&["--temp", "0", "--repeat-penalty", "1.2"], &Sampling::default()).has_penalties());
    }
}
