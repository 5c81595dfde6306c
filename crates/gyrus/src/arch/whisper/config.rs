use std::collections::HashSet;

use gyrus_formats::Checkpoint;
use gyrus_formats::ggml::WhisperHeader;

use super::{alignment_heads, gguf};
use crate::Error;
use crate::arch::fields::Fields;

/// Limits of a file's numbers, which are beyond every model: they keep products within range.
pub(super) const MOST_LAYERS: u64 = 256;
const MOST_WIDTH: u64 = 1 << 14;
/// Models have 1,500 positions of the encoder and 448 of the decoder.
const MOST_POSITIONS: u64 = 1 << 12;
const MOST_TOKENS: u64 = 1 << 20;

/// Tokens of the models that know English only.
const ENGLISH_VOCAB: usize = 51_864;

/// The hyperparameters of a Whisper model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct WhisperConfig {
    /// Tokens of text and special tokens.
    pub(crate) vocab: usize,
    /// Bands of the spectrogram.
    pub(crate) mels: usize,
    /// Positions of the encoder, each of two frames.
    pub(crate) audio_context: usize,
    /// Width of the stream of encoder and decoder.
    pub(crate) width: usize,
    pub(crate) audio_heads: usize,
    pub(crate) audio_layers: usize,
    pub(crate) audio_hidden: usize,
    /// Positions of the decoder.
    pub(crate) text_context: usize,
    pub(crate) text_heads: usize,
    pub(crate) text_layers: usize,
    pub(crate) text_hidden: usize,
    /// Layers and heads of the decoder whose attention follows the speech.
    pub(crate) alignment_heads: Vec<(usize, usize)>,
    /// Whether tensors have the names of transformers instead of OpenAI's.
    pub(crate) hugging_face: bool,
}

impl WhisperConfig {
    /// Reads the header of a GGML file, shapes and metadata of a GGUF file, or `config.json`.
    pub(crate) fn read(checkpoint: &Checkpoint) -> Result<WhisperConfig, Error> {
        let mut config = match (checkpoint.ggml(), checkpoint.gguf(), checkpoint.config()) {
            (Some(file), ..) => WhisperConfig::of_header(file.header()),
            (_, Some(metadata), _) if gguf::is_whisper(metadata) => gguf::read(checkpoint, metadata)?,
            (_, None, Some(config)) => WhisperConfig::of_json(Fields(config))?,
            _ => return Err(not_speech(checkpoint)),
        };
        config.check()?;
        let listed = checkpoint.generation_config().map(|file| Fields(file).list("alignment_heads", pair));
        let listed = listed.transpose()?.flatten();
        config.alignment_heads = match listed {
            Some(heads) => heads,
            None => alignment_heads::of_model(&config, config.vocab == ENGLISH_VOCAB),
        };
        config.check_alignment_heads().map(|()| config)
    }

    /// Each head exists and is listed once, so that there are at most as many as the decoder has.
    fn check_alignment_heads(&self) -> Result<(), Error> {
        let mut known = HashSet::new();
        for &(layer, head) in &self.alignment_heads {
            let problem = if layer >= self.text_layers || head >= self.text_heads {
                "does not exist"
            } else if !known.insert((layer, head)) {
                "is listed twice"
            } else {
                continue;
            };
            return Err(Error::Setting(format!(
                "generation_config.json: alignment head {head} of layer {layer} {problem}"
            )));
        }
        Ok(())
    }

    fn of_header(header: &WhisperHeader) -> WhisperConfig {
        let hidden = |width: u32| width as usize * 4;
        WhisperConfig {
            vocab: header.n_vocab as usize,
            mels: header.n_mels as usize,
            audio_context: header.n_audio_ctx as usize,
            width: header.n_audio_state as usize,
            audio_heads: header.n_audio_head as usize,
            audio_layers: header.n_audio_layer as usize,
            audio_hidden: hidden(header.n_audio_state),
            text_context: header.n_text_ctx as usize,
            text_heads: header.n_text_head as usize,
            text_layers: header.n_text_layer as usize,
            text_hidden: hidden(header.n_text_state),
            alignment_heads: Vec::new(),
            hugging_face: false,
        }
    }

    fn of_json(fields: Fields<'_>) -> Result<WhisperConfig, Error> {
        let kind = fields.optional_text("model_type")?.unwrap_or("none");
        if kind != "whisper" {
            return Err(wrong_kind(kind));
        }
        if let Some(other) = fields.optional_text("activation_function")?.filter(|name| *name != "gelu") {
            return Err(Error::Unsupported(format!("activation function '{other}' of Whisper")));
        }
        if fields.flag("scale_embedding")? == Some(true) {
            return Err(Error::Unsupported("scale_embedding of Whisper".to_owned()));
        }
        // A number beyond `usize` is beyond every limit, too.
        let number = |name| fields.number(name).map(|number| usize::try_from(number).unwrap_or(usize::MAX));
        Ok(WhisperConfig {
            vocab: number("vocab_size")?,
            mels: number("num_mel_bins")?,
            audio_context: number("max_source_positions")?,
            width: number("d_model")?,
            audio_heads: number("encoder_attention_heads")?,
            audio_layers: number("encoder_layers")?,
            audio_hidden: number("encoder_ffn_dim")?,
            text_context: number("max_target_positions")?,
            text_heads: number("decoder_attention_heads")?,
            text_layers: number("decoder_layers")?,
            text_hidden: number("decoder_ffn_dim")?,
            alignment_heads: Vec::new(),
            hugging_face: true,
        })
    }

    fn check(&self) -> Result<(), Error> {
        let limits = [
            ("vocabulary size", self.vocab, MOST_TOKENS),
            ("number of mel bands", self.mels, 1024),
            ("encoder positions", self.audio_context, MOST_POSITIONS),
            ("width", self.width, MOST_WIDTH),
            ("encoder heads", self.audio_heads, 256),
            ("encoder layers", self.audio_layers, MOST_LAYERS),
            ("encoder feed-forward width", self.audio_hidden, 8 * MOST_WIDTH),
            ("decoder positions", self.text_context, MOST_POSITIONS),
            ("decoder heads", self.text_heads, 256),
            ("decoder layers", self.text_layers, MOST_LAYERS),
            ("decoder feed-forward width", self.text_hidden, 8 * MOST_WIDTH),
        ];
        for (name, value, most) in limits {
            let value = value as u64;
            if value == 0 || value > most {
                let expected = format!("which must be from 1 to {most}");
                return Err(Error::Dimension { name, value, expected });
            }
        }
        for (name, heads) in [("encoder heads", self.audio_heads), ("decoder heads", self.text_heads)] {
            if !self.width.is_multiple_of(heads) {
                let expected = format!("which does not divide the width of {}", self.width);
                return Err(Error::Dimension { name, value: heads as u64, expected });
            }
        }
        Ok(())
    }

    /// Frames of a window.
    pub(crate) fn window_frames(&self) -> usize {
        2 * self.audio_context
    }
}

/// A checkpoint that is no speech model.
fn not_speech(checkpoint: &Checkpoint) -> Error {
    let architecture =
        checkpoint.gguf().and_then(|all| all.get::<&str>("general.architecture").ok().flatten());
    wrong_kind(architecture.unwrap_or("unknown"))
}

fn wrong_kind(found: &str) -> Error {
    let instead = "a Whisper model in a GGML or GGUF file or a SafeTensors folder is needed";
    Error::WrongKind { found: found.to_owned(), what: "no speech model that can be read", instead }
}

fn pair(value: &serde_json::Value) -> Option<(usize, usize)> {
    match value.as_array()?.as_slice() {
        [layer, head] => Some((layer.as_u64()? as usize, head.as_u64()? as usize)),
        _ => None,
    }
}
