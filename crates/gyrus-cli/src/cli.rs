mod measure;

use std::ffi::OsString;
use std::path::PathBuf;

use clap::builder::{OsStringValueParser, Resettable, TypedValueParser};
use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::options::{ModelArgs, SamplerArgs};
use crate::rope::settings::{Changes, ScalingFlag};
pub(crate) use measure::{BenchArgs, Ids, LogitsArgs, PerplexityArgs, ProfileArgs, TuneArgs};

const EXAMPLES: &str = "\
Examples:
  gyrus run \"Why is the sky blue?\"          ask the default model, which is fetched on first use
  gyrus chat                                talk to it
  gyrus run model.gguf < question.txt       your own model, a prompt from a pipe
  gyrus complete tales-7m \"Once upon\"       the storyteller inside this program
  gyrus inspect model.gguf                  what is in a file";

/// Runs language models on your own machine.
#[derive(Debug, Parser)]
#[command(name = "gyrus", version, propagate_version = true, max_term_width = 100, after_help = EXAMPLES)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Answer a prompt
    Run(RunArgs),
    /// Continue a text as it stands: run with --raw
    Complete(RunArgs),
    /// Have a conversation
    Chat(ChatArgs),
    /// Measure speed
    Bench(BenchArgs),
    /// Show where a GPU's time goes, kernel by kernel
    Profile(ProfileArgs),
    /// Find the quickest kernels for a model on a GPU, and keep them
    Tune(TuneArgs),
    /// Measure how well a model predicts a text
    Perplexity(PerplexityArgs),
    /// Write the logits of every position to a NumPy file
    Logits(LogitsArgs),
    /// Show what is in a model file: metadata, tensors, types, memory
    Inspect(InspectArgs),
    /// Show how a model encodes positions: rotary wavelengths and how they are scaled
    Rope(RopeArgs),
    /// Turn text into a model's token ids
    Tokenize(TokenizeArgs),
    /// Turn token ids back into text
    Detokenize(DetokenizeArgs),
    /// Show the prompt that a conversation becomes
    Template(TemplateArgs),
    /// Get a model into the cache and print its path
    Pull(PullArgs),
    /// List the models that Gyrus knows or has
    Models(ModelsArgs),
    /// Show what Gyrus finds on this machine
    Doctor(DoctorArgs),
    /// Print a completion script for a shell
    Completions(CompletionsArgs),
}

impl Command {
    /// Whether it may look for GPUs.
    #[cfg(target_os = "linux")]
    pub(crate) fn lists_gpus(&self) -> bool {
        let model = match self {
            Command::Run(args) | Command::Complete(args) => &args.model_options,
            Command::Chat(args) => &args.model_options,
            #[cfg(feature = "gpu")]
            Command::Bench(BenchArgs { kernels: Some(_), .. }) => return true,
            Command::Bench(args) => &args.model_options,
            Command::Profile(args) => &args.model_options,
            Command::Tune(args) => &args.model_options,
            Command::Perplexity(args) => &args.model_options,
            Command::Logits(args) => &args.model_options,
            Command::Doctor(_) => return cfg!(feature = "gpu"),
            _ => return false,
        };
        model.may_use_gpu()
    }
}

/// Takes back the environment variables that are empty, which is how a shell takes a setting back.
pub(crate) fn without_empty_variables(command: clap::Command) -> clap::Command {
    let is_empty = |name: &std::ffi::OsStr| std::env::var_os(name).is_some_and(|value| value.is_empty());
    let command = command.mut_args(|arg| match arg.get_env() {
        Some(name) if is_empty(name) => arg.env(Resettable::<clap::builder::OsStr>::Reset),
        _ => arg,
    });
    command.mut_subcommands(without_empty_variables)
}

#[derive(Debug, Args)]
pub(crate) struct CompletionsArgs {
    /// The shell to write it for
    pub(crate) shell: clap_complete::Shell,
}

#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// A model file, folder or catalogue name [default: smollm2-135m]
    #[arg(value_name = "MODEL")]
    pub(crate) first: Option<OsString>,

    /// What to say; read from stdin if absent
    #[arg(value_name = "PROMPT")]
    pub(crate) second: Option<String>,

    /// Continue the text as it stands, without the model's chat template
    #[arg(long)]
    pub(crate) raw: bool,

    /// Instructions for the model
    #[arg(long, value_name = "TEXT")]
    pub(crate) system: Option<String>,

    /// Stop after this many tokens
    #[arg(short = 'n', long, value_name = "N")]
    pub(crate) max_tokens: Option<usize>,

    /// Stop before this text; may be given several times
    #[arg(long, value_name = "TEXT")]
    pub(crate) stop: Vec<String>,

    /// What to print
    #[arg(long, value_enum, default_value_t = Output::Text)]
    pub(crate) output: Output,

    /// Compare fast with exact on this prompt instead of answering it
    #[arg(long)]
    pub(crate) verify: bool,

    /// Print nothing but the answer
    #[arg(short, long)]
    pub(crate) quiet: bool,

    #[command(flatten)]
    pub(crate) sampler: SamplerArgs,

    #[command(flatten)]
    pub(crate) model_options: ModelArgs,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Output {
    /// The answer as it comes
    Text,
    /// Token ids
    Ids,
    /// One JSON object at the end
    Json,
}

#[derive(Debug, Args)]
pub(crate) struct ChatArgs {
    /// A model file, folder or catalogue name [default: smollm2-135m]
    pub(crate) model: Option<OsString>,

    /// Instructions for the model
    #[arg(long, value_name = "TEXT")]
    pub(crate) system: Option<String>,

    /// Stop each answer after this many tokens
    #[arg(short = 'n', long, value_name = "N")]
    pub(crate) max_tokens: Option<usize>,

    /// What to do when the conversation no longer fits the context
    #[arg(long, value_enum, default_value_t = OnFull::Drop)]
    pub(crate) on_full: OnFull,

    /// Print nothing but the answers, and errors
    #[arg(short, long)]
    pub(crate) quiet: bool,

    #[command(flatten)]
    pub(crate) sampler: SamplerArgs,

    #[command(flatten)]
    pub(crate) model_options: ModelArgs,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnFull {
    /// Leave the oldest turns out of prompts, but never the instructions
    Drop,
    /// Refuse to go on
    Stop,
}

#[derive(Debug, Args)]
pub(crate) struct TokenizeArgs {
    /// A model file, folder or catalogue name; its vocabulary is all that is needed
    pub(crate) model: OsString,

    /// Recognise special tokens in the text, and add those the model puts around every text
    #[arg(long)]
    pub(crate) special: bool,

    /// Read the text from a file instead of stdin
    #[arg(long, value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct DetokenizeArgs {
    /// A model file, folder or catalogue name; its vocabulary is all that is needed
    pub(crate) model: OsString,

    /// Show special tokens as they are written
    #[arg(long)]
    pub(crate) special: bool,

    /// Read the ids from a file instead of stdin
    #[arg(long, value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct TemplateArgs {
    /// A model file, folder or catalogue name; its vocabulary and chat template are all that is needed
    pub(crate) model: OsString,

    /// The conversation: a JSON list of messages
    #[arg(long, value_name = "FILE")]
    pub(crate) messages: PathBuf,

    /// Tools the model may call: a JSON list
    #[arg(long, value_name = "FILE")]
    pub(crate) tools: Option<PathBuf>,

    /// End with the last message instead of the opening of an answer
    #[arg(long)]
    pub(crate) no_generation_prompt: bool,
}

#[derive(Debug, Args)]
pub(crate) struct InspectArgs {
    /// A GGUF or SafeTensors file, any part of a split model, a model's folder or a catalogue name
    pub(crate) model: OsString,

    /// Context length for the KV cache estimate [default: the model's own]
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) ctx: Option<u64>,

    /// Show arrays and texts in full
    #[arg(long)]
    pub(crate) full: bool,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct RopeArgs {
    /// A model file, folder, config.json or catalogue name; without one, the options below make the rope
    #[arg(required_unless_present = "head_dim")]
    pub(crate) model: Option<OsString>,

    /// Elements of a head
    #[arg(long, value_name = "N")]
    pub(crate) head_dim: Option<usize>,

    /// How many of them are turned [default: all]
    #[arg(long, value_name = "N")]
    pub(crate) rope_dim: Option<usize>,

    /// The first that is turned [default: 0]
    #[arg(long, value_name = "N")]
    pub(crate) offset: Option<usize>,

    /// The base of the frequencies [default: 10000]
    #[arg(long, value_name = "B")]
    pub(crate) base: Option<f64>,

    /// Which elements are turned together [default: split]
    #[arg(long, value_enum)]
    pub(crate) pairing: Option<PairingArg>,

    /// none, linear, ntk, dynamic, yarn, longrope, llama3 or proportional, with parameters such as
    /// yarn:factor=4,original=32768
    #[arg(long, value_name = "KIND:KEY=VALUE,…")]
    pub(crate) scaling: Option<ScalingFlag>,

    /// M-RoPE: how many pairs read each row of positions
    #[arg(long, value_name = "N,…", value_delimiter = ',')]
    pub(crate) sections: Option<Vec<usize>>,

    /// The rows take turns
    #[arg(long, requires = "sections")]
    pub(crate) interleaved: bool,

    /// How long sequences may become, for kinds that depend on it [default: within the original context]
    #[arg(long, value_name = "TOKENS")]
    pub(crate) length: Option<usize>,

    /// Compare with another model, or with these changes, such as "base=1e6 scaling=linear:factor=8"
    #[arg(long, value_name = "MODEL|CHANGES", value_parser = OsStringValueParser::new().try_map(Changes::parse))]
    pub(crate) compare: Option<Changes>,

    /// Draw the spectrum, and a vector turning with position, into an SVG file
    #[arg(long, value_name = "FILE")]
    pub(crate) svg: Option<PathBuf>,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum PairingArg {
    /// Neighbours: (0, 1), (2, 3), …
    Adjacent,
    /// Half a head apart: (0, n/2), (1, n/2 + 1), …
    Split,
}

#[derive(Debug, Args)]
pub(crate) struct DoctorArgs {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct PullArgs {
    /// A name that `gyrus models` lists, or hf:OWNER/REPO/FILE for a file on the Hugging Face hub
    #[arg(value_name = "NAME")]
    pub(crate) name: String,

    /// Pull it again even if it is there
    #[arg(long)]
    pub(crate) force: bool,

    /// Check the file that is there by its SHA-256, not only by its size
    #[arg(long, conflicts_with = "force")]
    pub(crate) verify: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ModelsArgs {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}
