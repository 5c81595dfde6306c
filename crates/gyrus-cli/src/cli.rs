use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

/// Runs language models on your own machine.
#[derive(Debug, Parser)]
#[command(name = "gyrus", version, propagate_version = true, max_term_width = 100)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Show what is in a model file: metadata, tensors, types, memory
    Inspect(InspectArgs),
    /// Turn text into a model's token ids
    Tokenize(TokenizeArgs),
    /// Turn token ids back into text
    Detokenize(DetokenizeArgs),
    /// Show the prompt that a conversation becomes
    Template(TemplateArgs),
    /// Show what Gyrus finds on this machine
    Doctor(DoctorArgs),
}

#[derive(Debug, Args)]
pub(crate) struct TokenizeArgs {
    /// A model; its vocabulary is all that is needed
    pub(crate) model: String,

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
    /// A model; its vocabulary is all that is needed
    pub(crate) model: String,

    /// Show special tokens as they are written
    #[arg(long)]
    pub(crate) special: bool,

    /// Read the ids from a file instead of stdin
    #[arg(long, value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct TemplateArgs {
    /// A model; its vocabulary and chat template are all that is needed
    pub(crate) model: String,

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
    /// A GGUF or SafeTensors file, any part of a split model, or a model's folder
    #[arg(value_name = "FILE|DIR")]
    pub(crate) path: PathBuf,

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
pub(crate) struct DoctorArgs {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}
