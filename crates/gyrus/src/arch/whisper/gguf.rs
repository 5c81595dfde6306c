//! The hyperparameters of a Whisper model in GGUF.
//!
//! Tensors have OpenAI's names, as in whisper.cpp's own files. What their shapes say is read from them; a number that the
//! metadata has, too, must be the same.

use gyrus_formats::gguf::{Metadata, MetadataError};
use gyrus_formats::{Checkpoint, TensorView};

use super::config::{MOST_LAYERS, WhisperConfig};
use crate::Error;

/// The name of the architecture, and the beginning of its keys.
pub(super) const ARCHITECTURE: &str = "whisper";

/// The filters of the spectrogram, `[bands, frequencies]`, which a file may have.
pub(crate) const MEL_FILTERS: &str = "mel_filters";

/// Elements of a head in every published model.
const HEAD_DIM: usize = 64;

/// Whether a GGUF file says that it is a Whisper model.
pub(crate) fn is_whisper(metadata: Metadata<'_>) -> bool {
    matches!(metadata.get("general.architecture"), Ok(Some(ARCHITECTURE)))
}

/// Reads shapes and metadata.
pub(super) fn read(checkpoint: &Checkpoint, metadata: Metadata<'_>) -> Result<WhisperConfig, Error> {
    let file = File { checkpoint, metadata };
    let [width, mels, _] = file.dims("encoder.conv1.weight")?;
    let [audio_context, _] = file.dims("encoder.positional_embedding")?;
    let [vocab, text_width] = file.dims("decoder.token_embedding.weight")?;
    let [text_context, _] = file.dims("decoder.positional_embedding")?;
    let [audio_hidden, _] = file.dims("encoder.blocks.0.mlp.0.weight")?;
    let [text_hidden, _] = file.dims("decoder.blocks.0.mlp.0.weight")?;
    let (audio_layers, text_layers) = (file.layers("encoder"), file.layers("decoder"));
    for (name, value, keys) in [
        ("width", width, &["encoder.embedding_length"][..]),
        ("width of the decoder", text_width, &["embedding_length"]),
        ("number of mel bands", mels, &["encoder.num_mel_bins", "num_mel_bins"]),
        ("encoder positions", audio_context, &["encoder.context_length"]),
        ("encoder layers", audio_layers, &["encoder.block_count"]),
        ("encoder feed-forward width", audio_hidden, &["encoder.feed_forward_length"]),
        ("decoder positions", text_context, &["context_length"]),
        ("decoder layers", text_layers, &["block_count"]),
        ("decoder feed-forward width", text_hidden, &["feed_forward_length"]),
        ("vocabulary size", vocab, &["vocab_size"]),
    ] {
        file.compare(name, value, keys)?;
    }
    if text_width != width {
        let expected = format!("but that of the encoder is {width}");
        return Err(Error::Dimension { name: "width of the decoder", value: text_width as u64, expected });
    }
    Ok(WhisperConfig {
        vocab,
        mels,
        audio_context,
        width,
        audio_heads: file.heads("encoder.attention.head_count", width)?,
        audio_layers,
        audio_hidden,
        text_context,
        text_heads: file.heads("attention.head_count", width)?,
        text_layers,
        text_hidden,
        alignment_heads: Vec::new(),
        hugging_face: false,
    })
}

struct File<'a> {
    checkpoint: &'a Checkpoint,
    metadata: Metadata<'a>,
}

impl File<'_> {
    fn tensor(&self, name: &str) -> Result<TensorView<'_>, Error> {
        self.checkpoint.tensor(name).ok_or_else(|| Error::MissingTensor(name.to_owned()))
    }

    /// The dimensions of a tensor of `N` of them.
    fn dims<const N: usize>(&self, name: &str) -> Result<[usize; N], Error> {
        let tensor = self.tensor(name)?;
        tensor.shape.dims().try_into().map_err(|_| Error::TensorShape {
            name: name.to_owned(),
            found: tensor.shape.to_string(),
            expected: format!("{N} dimensions"),
        })
    }

    /// The blocks of the encoder or the decoder.
    fn layers(&self, part: &str) -> usize {
        let query = |layer: &usize| format!("{part}.blocks.{layer}.attn.query.weight");
        (0..=MOST_LAYERS as usize).take_while(|layer| self.checkpoint.tensor(&query(layer)).is_some()).count()
    }

    /// A number, and the key that has it: the first of these, each with the architecture's name before it, then without.
    fn number(&self, keys: &[&str]) -> Result<Option<(usize, String)>, Error> {
        for key in keys {
            for key in [format!("{ARCHITECTURE}.{key}"), (*key).to_owned()] {
                if let Some(number) = self.metadata.get::<usize>(&key)? {
                    return Ok(Some((number, key)));
                }
            }
        }
        Ok(None)
    }

    /// Compares what a shape says with the metadata.
    fn compare(&self, name: &'static str, value: usize, keys: &[&str]) -> Result<(), Error> {
        match self.number(keys)?.filter(|(number, _)| *number != value) {
            Some((number, key)) => {
                let expected = format!("but '{key}' is {number}");
                Err(Error::Dimension { name, value: value as u64, expected })
            }
            None => Ok(()),
        }
    }

    /// Heads, of which shapes say nothing.
    fn heads(&self, key: &str, width: usize) -> Result<usize, Error> {
        match self.number(&[key])? {
            Some((heads, _)) => Ok(heads),
            None if width.is_multiple_of(HEAD_DIM) => Ok(width / HEAD_DIM),
            None => Err(MetadataError::Missing { key: format!("{ARCHITECTURE}.{key}") }.into()),
        }
    }
}
