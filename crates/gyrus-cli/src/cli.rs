mod embed;
mod measure;
mod serve;
#[cfg(feature = "serve")]
mod server;
mod trace;
mod transcribe;

use std::ffi::OsString;
use std::path::PathBuf;

use clap::builder::{OsStringValueParser, Resettable, TypedValueParser};
use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::cache::contents::Kind;
use crate::decoding::DecodingArgs;
use crate::options::{ModelArgs, SamplerArgs};
use crate::rope::settings::{Changes, ScalingFlag};
pub(crate) use embed::{EmbedArgs, RerankArgs, VectorFormat};
pub(crate) use measure::{AskedArgs, BenchArgs, Ids, LogitsArgs, PerplexityArgs, ProfileArgs, TuneArgs};
pub(crate) use serve::ServeArgs;
#[cfg(feature = "serve")]
pub(crate) use server::{LogArg, ServerArgs};
pub(crate) use trace::TraceArgs;
pub(crate) use transcribe::{FormatArg, TimestampsArg, TranscribeArgs};

const EXAMPLES: &str = "\
Examples:
  gyrus run \"Why is the sky blue?\"          ask the default model, downloaded on first use
  gyrus chat                                talk to it
  gyrus run model.gguf < question.txt       your own model, the prompt from stdin
  gyrus serve smollm2-135m                  serve it at http://127.0.0.1:8080/v1
  gyrus transcribe talk.mp3                 write what is said
  gyrus embed all-MiniLM-L6-v2 \"a cat\"      a vector of a text
  gyrus complete tales-7m \"Once upon\"       the built-in story model
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
    /// Complete a prompt without a chat template: run with --raw
    Complete(RunArgs),
    /// Chat with a model
    Chat(ChatArgs),
    /// Serve models over HTTP: the APIs of OpenAI, Anthropic, Ollama and llama.cpp
    #[cfg(feature = "serve")]
    Serve(Box<ServerArgs>),
    /// Write what is said in audio files
    Transcribe(Box<TranscribeArgs>),
    /// Compute vectors of texts
    Embed(EmbedArgs),
    /// Order documents by their relevance to a query
    Rerank(RerankArgs),
    /// Measure prefill and decode speed in tokens per second, or a load of many requests
    Bench(Box<BenchArgs>),
    /// Time each GPU kernel of a step
    Profile(ProfileArgs),
    /// Find the fastest kernel variants for a model on a GPU, and save them in the cache
    Tune(TuneArgs),
    /// Compute the perplexity of a model on a text file
    Perplexity(PerplexityArgs),
    /// Write the logits of every position to a NumPy file
    Logits(LogitsArgs),
    /// Print the result of each op of a forward pass, and find where two backends part
    Trace(TraceArgs),
    /// Show what is in a model file: metadata, tensors, types, memory
    Inspect(InspectArgs),
    /// Show how a model encodes positions: rotary wavelengths and how they are scaled
    Rope(RopeArgs),
    /// Encode text as token ids
    Tokenize(TokenizeArgs),
    /// Decode token ids to text
    Detokenize(DetokenizeArgs),
    /// Apply the chat template to a conversation and print the prompt
    Template(TemplateArgs),
    /// Download a model into the cache and print its path
    Pull(PullArgs),
    /// List known and downloaded models
    Models(ModelsArgs),
    /// List or remove the files in the cache folder: models, pipelines, tunings, self-tests, history
    Cache(CacheArgs),
    /// Show the CPU, memory and GPUs of this machine, and the KV cache of a model on it
    Doctor(DoctorArgs),
    /// Print a shell completion script
    Completions(CompletionsArgs),
}

impl Command {
    /// Whether it may look for GPUs.
    #[cfg(target_os = "linux")]
    pub(crate) fn lists_gpus(&self) -> bool {
        let model = match self {
            Command::Run(args) | Command::Complete(args) => &args.model_options,
            Command::Chat(args) => &args.model_options,
            #[cfg(feature = "serve")]
            Command::Serve(args) => &args.model_options,
            #[cfg(feature = "gpu")]
            Command::Bench(args) if args.kernels.is_some() => return true,
            Command::Bench(args) => &args.model_options,
            Command::Profile(args) => &args.model_options,
            Command::Tune(args) => &args.model_options,
            Command::Perplexity(args) => &args.model_options,
            Command::Logits(args) => &args.model_options,
            Command::Trace(args) => return args.may_use_gpu(),
            Command::Transcribe(args) => return crate::options::may_use_gpu(&args.device),
            Command::Embed(args) => &args.model_options,
            Command::Rerank(args) => &args.model_options,
            Command::Doctor(_) => return cfg!(feature = "gpu"),
            _ => return false,
        };
        model.may_use_gpu()
    }
}

/// Ignores environment variables that are empty: a shell unsets a setting that way.
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
    /// The shell
    pub(crate) shell: clap_complete::Shell,
}

#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// A model file, folder or catalogue name [default: qwen2.5-coder-0.5b]
    #[arg(value_name = "MODEL")]
    pub(crate) first: Option<OsString>,

    /// The prompt; read from stdin if absent
    #[arg(value_name = "PROMPT")]
    pub(crate) second: Option<String>,

    /// Complete the prompt as it is, without the model's chat template
    #[arg(long)]
    pub(crate) raw: bool,

    /// System prompt
    #[arg(long, value_name = "TEXT")]
    pub(crate) system: Option<String>,

    /// Tokens to generate at most
    #[arg(short = 'n', long, value_name = "N")]
    pub(crate) max_tokens: Option<usize>,

    /// What to print
    #[arg(long, value_enum, default_value_t = Output::Text)]
    pub(crate) output: Output,

    /// Answers to generate, with the seeds from --seed on
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=128))]
    pub(crate) choices: u16,

    /// Log-probabilities of each token and of the N most likely ones, in the output of --output json
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(0..=20))]
    pub(crate) logprobs: Option<u16>,

    /// Go on with the session in this file, if it exists, and save the session to it at the end: the conversation and its
    /// KV cache, so that no token is computed twice. The model's files are hashed, to recognise the model
    #[arg(long, value_name = "FILE", conflicts_with = "verify")]
    pub(crate) session: Option<PathBuf>,

    /// When an answer fills the context, drop the older half of it behind the system prompt and go on. The keys that remain
    /// are rotated to their new positions; what they have seen of dropped tokens stays in them
    #[arg(long)]
    pub(crate) context_shift: bool,

    /// Compare the logits of fast and exact precision on this prompt, and generate nothing
    #[arg(long)]
    pub(crate) verify: bool,

    /// Print nothing but the answer
    #[arg(short, long)]
    pub(crate) quiet: bool,

    #[command(flatten)]
    pub(crate) decoding: DecodingArgs,

    #[command(flatten)]
    pub(crate) sampler: SamplerArgs,

    #[command(flatten)]
    pub(crate) model_options: ModelArgs,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Output {
    /// The answer, streamed
    Text,
    /// Token ids
    Ids,
    /// One JSON object at the end
    Json,
}

#[derive(Debug, Args)]
pub(crate) struct ChatArgs {
    /// A model file, folder or catalogue name [default: qwen2.5-coder-0.5b]
    pub(crate) model: Option<OsString>,

    /// System prompt
    #[arg(long, value_name = "TEXT")]
    pub(crate) system: Option<String>,

    /// Tokens to generate at most, for each answer
    #[arg(short = 'n', long, value_name = "N")]
    pub(crate) max_tokens: Option<usize>,

    /// What to do when the conversation no longer fits the context
    #[arg(long, value_enum, default_value_t = OnFull::Drop)]
    pub(crate) on_full: OnFull,

    /// Go on with the session in this file, if it exists, and save the session to it at the end: the conversation and its
    /// KV cache, so that no token is computed twice. The model's files are hashed, to recognise the model
    #[arg(long, value_name = "FILE")]
    pub(crate) session: Option<PathBuf>,

    /// When an answer fills the context, drop the older half of it behind the system prompt and go on. The keys that remain
    /// are rotated to their new positions; what they have seen of dropped tokens stays in them
    #[arg(long)]
    pub(crate) context_shift: bool,

    /// Do not keep what is typed for the next chat, and do not offer what was typed before
    #[arg(long)]
    pub(crate) no_history: bool,

    /// Print nothing but the answers, and errors
    #[arg(short, long)]
    pub(crate) quiet: bool,

    #[command(flatten)]
    pub(crate) decoding: DecodingArgs,

    #[command(flatten)]
    pub(crate) sampler: SamplerArgs,

    #[command(flatten)]
    pub(crate) model_options: ModelArgs,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnFull {
    /// Drop the oldest messages from the prompt, but never the system prompt
    Drop,
    /// Stop with an error
    Stop,
}

#[derive(Debug, Args)]
pub(crate) struct TokenizeArgs {
    /// A model file, folder or catalogue name; only its tokenizer is used
    pub(crate) model: OsString,

    /// Parse special tokens in the text, and add the begin and end tokens that the model uses
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
    /// A model file, folder or catalogue name; only its tokenizer is used
    pub(crate) model: OsString,

    /// Print special tokens too
    #[arg(long)]
    pub(crate) special: bool,

    /// Read the ids from a file instead of stdin
    #[arg(long, value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct TemplateArgs {
    /// A model file, folder or catalogue name; only its tokenizer and chat template are used
    pub(crate) model: OsString,

    /// The conversation: a JSON list of messages
    #[arg(long, value_name = "FILE")]
    pub(crate) messages: PathBuf,

    /// Tools the model may call: a JSON list
    #[arg(long, value_name = "FILE")]
    pub(crate) tools: Option<PathBuf>,

    /// Leave out the generation prompt (the header of the next answer)
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

    /// Show arrays and strings in full
    #[arg(long)]
    pub(crate) full: bool,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct RopeArgs {
    /// A model file, folder, config.json or catalogue name; without one, the options below define the rotary embedding
    #[arg(required_unless_present = "head_dim")]
    pub(crate) model: Option<OsString>,

    /// Head dimension
    #[arg(long, value_name = "N")]
    pub(crate) head_dim: Option<usize>,

    /// Rotated dimensions of a head [default: all]
    #[arg(long, value_name = "N")]
    pub(crate) rope_dim: Option<usize>,

    /// First rotated dimension [default: 0]
    #[arg(long, value_name = "N")]
    pub(crate) offset: Option<usize>,

    /// Base of the frequencies (rope theta) [default: 10000]
    #[arg(long, value_name = "B")]
    pub(crate) base: Option<f64>,

    /// Which two elements of a head form a rotated pair [default: split]
    #[arg(long, value_enum)]
    pub(crate) pairing: Option<PairingArg>,

    /// none, linear, ntk, dynamic, yarn, longrope, llama3 or proportional, with parameters such as
    /// yarn:factor=4,original=32768
    #[arg(long, value_name = "KIND:KEY=VALUE,…")]
    pub(crate) scaling: Option<ScalingFlag>,

    /// M-RoPE sections: pairs that use each row of positions
    #[arg(long, value_name = "N,…", value_delimiter = ',')]
    pub(crate) sections: Option<Vec<usize>>,

    /// M-RoPE sections are interleaved
    #[arg(long, requires = "sections")]
    pub(crate) interleaved: bool,

    /// Sequence length, for scalings that depend on it [default: within the original context]
    #[arg(long, value_name = "TOKENS")]
    pub(crate) length: Option<usize>,

    /// Compare with another model, or with these changes, such as "base=1e6 scaling=linear:factor=8"
    #[arg(long, value_name = "MODEL|CHANGES", value_parser = OsStringValueParser::new().try_map(Changes::parse))]
    pub(crate) compare: Option<Changes>,

    /// Draw the wavelengths, and one rotating vector, into an SVG file
    #[arg(long, value_name = "FILE")]
    pub(crate) svg: Option<PathBuf>,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum PairingArg {
    /// Adjacent elements, as in GPT-J: (0, 1), (2, 3), …
    Adjacent,
    /// Elements half a head apart, as in GPT-NeoX: (0, n/2), (1, n/2 + 1), …
    Split,
}

#[derive(Debug, Args)]
pub(crate) struct DoctorArgs {
    /// Load this model, a file, folder or catalogue name, and show its device and KV cache
    #[arg(long, value_name = "MODEL")]
    pub(crate) model: Option<OsString>,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) model_options: ModelArgs,
}

#[derive(Debug, Args)]
pub(crate) struct PullArgs {
    /// A name that `gyrus models` lists, hf:OWNER/REPO/FILE for a file on the Hugging Face hub, or hf:OWNER/REPO for a
    /// SafeTensors model there
    #[arg(value_name = "NAME")]
    pub(crate) name: String,

    /// Download it again even if it is in the cache
    #[arg(long)]
    pub(crate) force: bool,

    /// Check the SHA-256 of a file that is in the cache, not only its size
    #[arg(long, conflicts_with = "force")]
    pub(crate) verify: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ModelsArgs {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct CacheArgs {
    #[command(subcommand)]
    pub(crate) action: Option<CacheAction>,

    /// Print JSON
    #[arg(long, global = true)]
    pub(crate) json: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum CacheAction {
    /// Remove files from the cache folder, after confirmation
    Prune(PruneArgs),
}

#[derive(Debug, Args)]
pub(crate) struct PruneArgs {
    /// Remove downloaded models, and what interrupted downloads left
    #[arg(long)]
    pub(crate) models: bool,

    /// Remove compiled GPU pipelines; they are compiled again when needed
    #[arg(long)]
    pub(crate) pipelines: bool,

    /// Remove the results of `gyrus tune`
    #[arg(long)]
    pub(crate) tunings: bool,

    /// Remove the outcomes of the GPU self-test; it runs again when a GPU is next opened
    #[arg(long)]
    pub(crate) self_tests: bool,

    /// Remove the lines typed in `gyrus chat`
    #[arg(long)]
    pub(crate) history: bool,

    /// Remove all of these
    #[arg(long)]
    pub(crate) all: bool,

    /// Do not ask for confirmation
    #[arg(short, long)]
    pub(crate) yes: bool,
}

impl PruneArgs {
    /// The kinds of files to remove.
    pub(crate) fn kinds(&self) -> Vec<Kind> {
        let chosen = [self.models, self.pipelines, self.tunings, self.self_tests, self.history];
        Kind::ALL
            .into_iter()
            .zip(chosen)
            .filter(|(_, chosen)| *chosen || self.all)
            .map(|(kind, _)| kind)
            .collect()
    }
}
