//! Opens the model that an argument names.

use std::cell::RefCell;
use std::ffi::OsStr;

use anyhow::{Context, Result};
use gyrus_formats::{Access, Bytes, Checkpoint};

use crate::environment::Environment;
use crate::foreign;
use crate::resolve::{ModelSource, resolve};
use crate::synthetic::Synthetic;

/// A model that can be opened.
pub(crate) struct Source {
    name: String,
    place: Place,
}

enum Place {
    Found(ModelSource),
    /// Synthetic, to be opened once.
    Memory(RefCell<Option<Checkpoint>>),
}

impl Source {
    /// The model that an argument names, or the default one; pulled if it is not here yet.
    pub(crate) fn resolve(model: Option<&OsStr>) -> Result<Source> {
        let found = resolve(model, &Environment::of_process())?;
        let name = match &found {
            ModelSource::BuiltIn { name, .. } => (*name).to_owned(),
            ModelSource::File(path) => match path.file_name() {
                Some(name) => name.to_string_lossy().into_owned(),
                None => path.display().to_string(),
            },
        };
        Ok(Source { name, place: Place::Found(found) })
    }

    /// Random weights.
    pub(crate) fn synthetic(model: &Synthetic) -> Result<Source> {
        let made = model.model()?;
        Ok(Source { name: model.name().to_owned(), place: Place::Memory(RefCell::new(Some(made))) })
    }

    /// The name to show.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Opens it; `access` says how its files are read.
    pub(crate) fn open(&self, access: Access) -> Result<Checkpoint> {
        match &self.place {
            Place::Found(ModelSource::File(path)) => Ok(Checkpoint::open_with(path, access)?),
            Place::Found(ModelSource::BuiltIn { name, bytes }) => {
                Ok(Checkpoint::from_gguf(name, Bytes::Static(bytes))?)
            }
            Place::Memory(made) => made.take().context("the model in memory was taken already"),
        }
    }
}

/// Opens the model that an argument names for its metadata alone.
pub(crate) fn open(model: &OsStr) -> Result<Checkpoint> {
    Source::resolve(Some(model))?.open(Access::Map)
}

/// The error text for a model without a tokenizer.
pub(crate) fn no_tokenizer(model: &OsStr) -> String {
    format!("{}: no tokenizer in this model", foreign::one_line(&model.to_string_lossy(), 200))
}
