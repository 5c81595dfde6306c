//! What the metadata of a GGUF file says of a model's embeddings.

use gyrus_formats::gguf::Metadata;

use super::pooling::Pooling;
use super::settings::Settings;
use crate::Error;

/// The value of `pooling_type` of a classifier.
pub(super) const RANK: u32 = 4;

/// The pooling type, if the file has one.
pub(super) fn pooling_type(metadata: Metadata<'_>) -> Result<Option<u32>, Error> {
    let architecture: &str = metadata.require("general.architecture")?;
    Ok(metadata.get::<u32>(&format!("{architecture}.pooling_type"))?)
}

pub(super) fn read(metadata: Metadata<'_>) -> Result<Settings, Error> {
    let pooling = match pooling_type(metadata)? {
        Some(1) => Some(Pooling::Mean),
        Some(2) => Some(Pooling::First),
        Some(3) => Some(Pooling::Last),
        None | Some(0 | RANK) => None,
        Some(other) => return Err(Error::Unsupported(format!("a pooling type of {other}"))),
    };
    // Programs that read these files scale embeddings to length 1.
    Ok(Settings { pooling, normalize: true, include_prompt: true, ..Settings::default() })
}
