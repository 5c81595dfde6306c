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
    /// Get a model into the cache and print its path
    Pull(PullArgs),
    /// List the models that Gyrus knows or has
    Models(ModelsArgs),
    /// Show what Gyrus finds on this machine
    Doctor(DoctorArgs),
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
