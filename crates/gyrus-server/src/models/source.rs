use std::time::SystemTime;

use super::served::{Purpose, Served};

/// Where a server's models come from. The server itself knows neither files nor downloads.
///
/// Clients choose among the names of [`Source::list`]; no other string of a client reaches the source.
pub trait Source: Send + Sync + 'static {
    /// All models, the default one first. It is called often and should not read model files.
    fn list(&self) -> Vec<Listed>;

    /// Loads a model of the list. It may take long. `memory`: the bytes that the model should take at most, if the server has
    /// a budget. A model that takes more is not served.
    fn load(&self, name: &str, memory: Option<u64>) -> Result<Served, SourceError>;

    /// The chat template of a model of the list that may not be loaded, if it has one and it is quick to read.
    fn template(&self, _name: &str) -> Option<String> {
        None
    }

    /// What is in a model of the list, as far as it is known without loading it. It may read headers of files.
    fn details(&self, _name: &str) -> Details {
        Details::default()
    }

    /// Downloads a model of the list that is not there. `progress` gets bytes that have come, and bytes in all if they are
    /// known; it returns whether to go on.
    fn pull(&self, name: &str, progress: &mut dyn FnMut(Pulled) -> bool) -> Result<(), SourceError>;
}

/// A model that a server may load.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Listed {
    /// The name that clients use.
    pub name: String,
    /// Bytes of its files.
    pub bytes: u64,
    /// Bytes of memory that it needs once it is loaded, as far as that is known before.
    pub memory: u64,
    /// Whether it can be loaded without a download.
    pub is_present: bool,
    /// When its file was changed.
    pub modified: Option<SystemTime>,
    /// Which model it is, in words.
    pub description: String,
}

/// What is in a model. What is not known is empty.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Details {
    /// The format of its files: `gguf`, `safetensors`.
    pub format: String,
    /// Its architecture, as its files name it.
    pub family: String,
    /// The number of its weights.
    pub parameters: u64,
    /// The type of its weights, or the name of a mix of types: `Q4_0`, `Q4_K_M`.
    pub quantization: String,
    /// The SHA-256 of its file, in hexadecimal digits.
    pub digest: Option<String>,
    /// What it does.
    pub purpose: Option<Purpose>,
}

/// How far a download is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pulled {
    /// Bytes that have come.
    pub done: u64,
    /// Bytes in all, if they are known.
    pub total: Option<u64>,
}

/// Why a model cannot be loaded or downloaded.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{message}")]
pub struct SourceError {
    /// The reason with its causes.
    pub message: String,
}

impl SourceError {
    /// An error with this text.
    pub fn new(message: impl Into<String>) -> SourceError {
        SourceError { message: message.into() }
    }
}
