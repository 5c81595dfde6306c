//! Arguments of the commands that measure a model.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;

use super::ServeArgs;
use crate::decoding::ConstraintArgs;
use crate::options::{ModelArgs, ReportArgs, SubjectArgs};

#[derive(Debug, Args)]
pub(crate) struct BenchArgs {
    #[command(flatten)]
    pub(crate) subject: SubjectArgs,

    /// Write the synthetic model to a GGUF file and measure nothing
    #[arg(long, value_name = "FILE", requires = "synthetic")]
    pub(crate) write: Option<PathBuf>,

    /// Prompt lengths for prefill; 0 for none
    #[arg(short = 'p', long, value_name = "N,…", value_delimiter = ',', default_value = "512")]
    pub(crate) prompt_tokens: Vec<usize>,

    /// Tokens to decode; 0 for none
    #[arg(short = 'n', long, value_name = "N,…", value_delimiter = ',', default_value = "128")]
    pub(crate) gen_tokens: Vec<usize>,

    /// Depth: tokens in the KV cache before the test
    #[arg(short = 'd', long, value_name = "N,…", value_delimiter = ',', default_value = "0")]
    pub(crate) depth: Vec<usize>,

    /// Sequences decoded at once
    #[arg(short = 's', long, value_name = "N,…", value_delimiter = ',', default_value = "1", value_parser = clap::value_parser!(u8).range(1..=128))]
    pub(crate) sequences: Vec<u8>,

    /// Sample tokens (temperature 0.8, top-k 40, top-p 0.95) instead of greedy decoding
    #[arg(long)]
    pub(crate) sampled: bool,

    /// Repetitions of each test
    #[arg(short = 'r', long, value_name = "N", default_value_t = 5, value_parser = repetitions)]
    pub(crate) repetitions: usize,

    /// Count the first run too; by default it is a warm-up
    #[arg(long)]
    pub(crate) no_warmup: bool,

    /// Time single GPU kernels instead of a model: those whose names contain PART, or all
    #[cfg(feature = "gpu")]
    #[arg(long, value_name = "PART", num_args = 0..=1, default_missing_value = "", conflicts_with_all = ["model", "serve"])]
    pub(crate) kernels: Option<String>,

    /// The GPU to time kernels on, by a part of its name [default: the best]
    #[cfg(feature = "gpu")]
    #[arg(long, value_name = "NAME", requires = "kernels")]
    pub(crate) adapter: Option<String>,

    /// Tokens in the large tensors
    #[cfg(feature = "gpu")]
    #[arg(long, value_name = "N", requires = "kernels", value_parser = clap::value_parser!(u32).range(2..=100_000))]
    pub(crate) tokens: Option<u32>,

    /// Invocations per workgroup
    #[cfg(feature = "gpu")]
    #[arg(long, value_name = "N", requires = "kernels", hide = true)]
    pub(crate) workgroup: Option<u32>,

    /// Time sampling also up to each of its launches
    #[cfg(feature = "gpu")]
    #[arg(long, requires = "kernels", hide = true)]
    pub(crate) by_launch: bool,

    /// Heads of a token that different invocations process
    #[cfg(feature = "gpu")]
    #[arg(long, value_name = "N", requires = "kernels", hide = true)]
    pub(crate) lanes: Option<u32>,

    /// Run real prompts: time to first token and time per output token
    #[arg(long)]
    pub(crate) prompts: bool,

    #[command(flatten)]
    pub(crate) asked: AskedArgs,

    #[command(flatten)]
    pub(crate) speculation: SpeculationArgs,

    #[command(flatten)]
    pub(crate) load: ServeArgs,

    #[command(flatten)]
    pub(crate) report: ReportArgs,

    #[command(flatten)]
    pub(crate) model_options: ModelArgs,
}

/// A measurement of what requests ask for, against requests that do not.
#[derive(Debug, Args)]
#[command(next_help_heading = "Constraints and log-probabilities")]
pub(crate) struct AskedArgs {
    #[command(flatten)]
    pub(crate) constraint: ConstraintArgs,

    /// Decode with and without log-probabilities of each token and the N most likely ones
    #[arg(long, value_name = "N", conflicts_with_all = ["prompts", "serve", "speculate"], value_parser = clap::value_parser!(u8).range(0..=20))]
    pub(crate) logprobs: Option<u8>,

    /// The vocabulary of the synthetic model: that of a GGUF file
    #[arg(long, value_name = "FILE", requires = "synthetic")]
    pub(crate) vocabulary: Option<PathBuf>,
}

/// A measurement of speculation.
#[derive(Debug, Args)]
#[command(next_help_heading = "Speculation")]
pub(crate) struct SpeculationArgs {
    /// Decode prompts that edit code and prompts for novel text with and without speculation
    #[arg(long, conflicts_with_all = ["prompts", "serve"])]
    pub(crate) speculate: bool,

    /// Write how often guesses were right, token by token
    #[arg(long, value_name = "FILE", requires = "speculate", conflicts_with = "replay")]
    pub(crate) record: Option<PathBuf>,

    /// Instead of prompts: guesses that are right as often as those of a recording. Any model will do
    #[arg(long, value_name = "FILE", requires = "speculate")]
    pub(crate) replay: Option<PathBuf>,
}

fn repetitions(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(n @ 1..=1000) => Ok(n),
        _ => Err("a number from 1 to 1000 is needed".to_owned()),
    }
}

#[derive(Debug, Args)]
pub(crate) struct ProfileArgs {
    #[command(flatten)]
    pub(crate) subject: SubjectArgs,

    /// Prompt lengths, at depth 0 and in chunks of 512 tokens; 0 for none
    #[arg(short = 'p', long, value_name = "N,…", value_delimiter = ',', default_value = "512")]
    pub(crate) prompt_tokens: Vec<usize>,

    /// Sequences decoded at once; 0 for none
    #[arg(short = 's', long, value_name = "N,…", value_delimiter = ',', default_value = "1", value_parser = clap::value_parser!(u8).range(0..=16))]
    pub(crate) sequences: Vec<u8>,

    /// Depth: tokens in the KV cache before the decoded token
    #[arg(short = 'd', long, value_name = "N", default_value_t = 512)]
    pub(crate) depth: usize,

    /// Draw the kernel times into an SVG file
    #[arg(long, value_name = "FILE")]
    pub(crate) picture: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) report: ReportArgs,

    #[command(flatten)]
    pub(crate) model_options: ModelArgs,
}

#[derive(Debug, Args)]
pub(crate) struct TuneArgs {
    #[command(flatten)]
    pub(crate) subject: SubjectArgs,

    #[command(flatten)]
    pub(crate) report: ReportArgs,

    #[command(flatten)]
    pub(crate) model_options: ModelArgs,
}

#[derive(Debug, Args)]
pub(crate) struct PerplexityArgs {
    /// A model file, folder or catalogue name
    pub(crate) model: OsString,

    /// The text file
    #[arg(long, value_name = "FILE")]
    pub(crate) file: PathBuf,

    /// Score as llama-perplexity does: only whole windows, and only the second half of each
    #[arg(long)]
    pub(crate) llama: bool,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,

    /// Print nothing but the result
    #[arg(short, long)]
    pub(crate) quiet: bool,

    #[command(flatten)]
    pub(crate) model_options: ModelArgs,
}

#[derive(Debug, Args)]
pub(crate) struct LogitsArgs {
    /// A model file, folder or catalogue name
    pub(crate) model: OsString,

    /// Token ids, separated by spaces or commas
    #[arg(long, value_name = "IDS", value_parser = ids)]
    pub(crate) ids: Ids,

    /// Output file: f32, shape [tokens, vocabulary]
    #[arg(long, value_name = "FILE.npy")]
    pub(crate) out: PathBuf,

    /// Print nothing
    #[arg(short, long)]
    pub(crate) quiet: bool,

    #[command(flatten)]
    pub(crate) model_options: ModelArgs,
}

/// Token ids, one at least.
#[derive(Debug, Clone)]
pub(crate) struct Ids(pub(crate) Vec<u32>);

pub(super) fn ids(text: &str) -> Result<Ids, String> {
    match crate::tokenize::parse_ids(text) {
        Ok(ids) if ids.is_empty() => Err("at least one token id is needed".to_owned()),
        Ok(ids) => Ok(Ids(ids)),
        Err(error) => Err(format!("{error:#}")),
    }
}
