//! From what the user typed to an opened model.

use std::cell::RefCell;
use std::path::PathBuf;

use anyhow::{Context, Result};
use gyrus_formats::Checkpoint;

/// A model that can be opened.
pub(crate) struct Source {
    name: String,
    place: Place,
}

enum Place {
    File(PathBuf),
    /// Made in memory, to be opened once.
    Memory(RefCell<Option<Checkpoint>>),
}

impl Source {
    /// The model that an argument names, or the default one.
    pub(crate) fn resolve(model: Option<&str>) -> Result<Source> {
        let model = model.context("no model")?;
        Ok(Source { name: model.to_owned(), place: Place::File(model.into()) })
    }

    /// A model made in memory.
    pub(crate) fn memory(name: &str, checkpoint: Checkpoint) -> Source {
        Source { name: name.to_owned(), place: Place::Memory(RefCell::new(Some(checkpoint))) }
    }

    /// What to call it.
    pub(crate) fn name(&self) -> String {
        match &self.place {
            Place::File(path) => {
                path.file_name().map_or_else(|| self.name.clone(), |n| n.to_string_lossy().into())
            }
            Place::Memory(_) => self.name.clone(),
        }
    }

    /// Opens the file.
    pub(crate) fn open(&self) -> Result<Checkpoint> {
        match &self.place {
            Place::File(path) => Ok(Checkpoint::open(path)?),
            Place::Memory(made) => made.take().context("the model in memory was taken already"),
        }
    }
}

/// Opens the model that an argument names.
pub(crate) fn open(model: &str) -> Result<Checkpoint> {
    Source::resolve(Some(model))?.open()
}

/// Whether a single argument is a model rather than a prompt.
pub(crate) fn looks_like_model(argument: &str) -> bool {
    argument.contains('/') || argument.ends_with(".gguf") || argument.ends_with(".safetensors")
}
