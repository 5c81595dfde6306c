//! Arguments of `gyrus embed` and `gyrus rerank`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use gyrus::Pooling;

use crate::options::ModelArgs;

#[derive(Debug, Args)]
pub(crate) struct EmbedArgs {
    /// A model file or folder
    pub(crate) model: OsString,

    /// Texts; without any, each line of stdin is one
    #[arg(value_name = "TEXT")]
    pub(crate) texts: Vec<String>,

    /// Each text file of a folder is a text; their paths are printed in the order of the vectors
    #[arg(long, value_name = "DIR", conflicts_with = "texts", requires = "out")]
    pub(crate) files: Option<PathBuf>,

    /// Write the vectors to a file instead of stdout
    #[arg(long, value_name = "FILE")]
    pub(crate) out: Option<PathBuf>,

    /// What to write [default: npy for a file that ends with .npy, else json]
    #[arg(long, value_enum)]
    pub(crate) format: Option<VectorFormat>,

    /// The model's prompt of this name before each text, such as query or document
    #[arg(long, value_name = "NAME", conflicts_with = "prompt_text")]
    pub(crate) prompt: Option<String>,

    /// This before each text
    #[arg(long, value_name = "TEXT")]
    pub(crate) prompt_text: Option<String>,

    /// Keep the first N elements of each vector, for models that were trained for it
    #[arg(long, value_name = "N")]
    pub(crate) dimensions: Option<usize>,

    /// How rows become a vector, instead of what the model's files say: mean, cls or last
    #[arg(long, value_name = "POOLING")]
    pub(crate) pooling: Option<Pooling>,

    /// Scale vectors to length 1 or not, instead of what the model's files say
    #[arg(long, value_name = "BOOL")]
    pub(crate) normalize: Option<bool>,

    /// Shorten texts that are too long, which are an error otherwise
    #[arg(long)]
    pub(crate) truncate: bool,

    /// Print nothing but the results
    #[arg(short, long)]
    pub(crate) quiet: bool,

    #[command(flatten)]
    pub(crate) model_options: ModelArgs,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum VectorFormat {
    /// A list of vectors
    Json,
    /// A line of numbers for each vector
    Text,
    /// An array of f32 as NumPy reads it
    Npy,
}

#[derive(Debug, Args)]
pub(crate) struct RerankArgs {
    /// A model file or folder
    pub(crate) model: OsString,

    /// What documents are compared with
    pub(crate) query: String,

    /// A file with a document on each line; stdin if it is absent
    #[arg(long, value_name = "FILE")]
    pub(crate) documents: Option<PathBuf>,

    /// Print the N most relevant documents
    #[arg(long, value_name = "N")]
    pub(crate) top: Option<usize>,

    /// What a language model is told to look for, instead of its default; a cross-encoder takes none
    #[arg(long, value_name = "TEXT")]
    pub(crate) instruction: Option<String>,

    /// Shorten documents that are too long, which are an error otherwise
    #[arg(long)]
    pub(crate) truncate: bool,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,

    /// Print nothing but the results
    #[arg(short, long)]
    pub(crate) quiet: bool,

    #[command(flatten)]
    pub(crate) model_options: ModelArgs,
}
