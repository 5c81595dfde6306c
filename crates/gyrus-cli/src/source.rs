//! From what the user typed to an opened model.

use anyhow::Result;
use gyrus_formats::Checkpoint;

/// Opens the model that an argument names.
pub(crate) fn open(model: &str) -> Result<Checkpoint> {
    Ok(Checkpoint::open(model.as_ref())?)
}
