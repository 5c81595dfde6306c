use std::io;
use std::path::{Path, PathBuf};

use crate::gguf::GgufError;
use crate::safetensors::SafeTensorsError;

/// Why a model could not be opened, and which file is to blame.
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
    /// The system would not let us read it.
    #[error("{}", plain(.0))]
    Io(#[from] io::Error),
    /// Nothing in it.
    #[error("the file is empty")]
    Empty,
    /// A file of some other kind.
    #[error("not a GGUF or SafeTensors file (it begins with {begins})")]
    Unrecognised {
        /// Its first bytes, or what they are known to be.
        begins: String,
    },
    /// A folder in which no model was found.
    #[error("no model in this folder (looked for model.safetensors.index.json, *.safetensors, *.gguf)")]
    NoModel,
    /// A folder in which it is not clear which file is meant.
    #[error("several models in this folder, name one of them: {}", .names.join(", "))]
    Ambiguous {
        /// File names, at most a handful.
        names: Vec<String>,
    },
    /// A malformed GGUF file.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// A malformed SafeTensors file.
    #[error(transparent)]
    SafeTensors(#[from] SafeTensorsError),
    /// The parts of a split model do not fit together.
    #[error("{0}")]
    Split(String),
    /// An index or configuration file that is not what it should be.
    #[error("{0}")]
    Json(String),
}

/// The system's words without its error number, which says nothing to a reader.
fn plain(error: &io::Error) -> String {
    let text = error.to_string();
    let text = text.split(" (os error").next().unwrap_or(&text);
    let mut chars = text.chars();
    chars.next().map(|c| c.to_lowercase().chain(chars).collect()).unwrap_or_default()
}
