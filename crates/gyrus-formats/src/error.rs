use std::io;
use std::path::{Path, PathBuf};

use crate::ggml::GgmlError;
use crate::gguf::GgufError;
use crate::safetensors::SafeTensorsError;

/// Why a model could not be opened, and the file at fault.
#[derive(Debug, thiserror::Error)]
#[error("{}: {problem}", path.display())]
pub struct FormatError {
    /// The file or folder at fault.
    pub path: PathBuf,
    /// What is wrong with it.
    pub problem: Problem,
}

impl FormatError {
    pub(crate) fn new(path: &Path, problem: impl Into<Problem>) -> FormatError {
        FormatError { path: path.to_owned(), problem: problem.into() }
    }
}

/// What can be wrong with a model file or folder.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Problem {
    /// The file could not be read.
    #[error("{}", plain(.0))]
    Io(#[from] io::Error),
    /// The file is empty.
    #[error("the file is empty")]
    Empty,
    /// The file is of no format that is known.
    #[error("not a GGUF, SafeTensors or Whisper GGML file (it begins with {begins})")]
    Unrecognised {
        /// Its first bytes, or the format they identify.
        begins: String,
    },
    /// The folder contains no model.
    #[error("no model in this folder (looked for model.safetensors.index.json, *.safetensors, *.gguf)")]
    NoModel,
    /// The folder contains several models.
    #[error("several models in this folder, name one of them: {}", .names.join(", "))]
    Ambiguous {
        /// File names, at most five.
        names: Vec<String>,
    },
    /// A malformed GGUF file.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// A malformed GGML file.
    #[error(transparent)]
    Ggml(#[from] GgmlError),
    /// A malformed SafeTensors file.
    #[error(transparent)]
    SafeTensors(#[from] SafeTensorsError),
    /// The parts of a split model are inconsistent.
    #[error("{0}")]
    Split(String),
    /// An index or configuration file that is not valid.
    #[error("{0}")]
    Json(String),
}

/// The system's message without its error number.
fn plain(error: &io::Error) -> String {
    let text = error.to_string();
    let text = text.split(" (os error").next().unwrap_or(&text);
    let mut chars = text.chars();
    chars.next().map(|c| c.to_lowercase().chain(chars).collect()).unwrap_or_default()
}
