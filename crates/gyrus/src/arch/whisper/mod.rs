//! Whisper: an encoder of spectrograms and a decoder of text that attends to it.

mod alignment_heads;
mod config;
mod gguf;
mod names;
mod plan;

pub(crate) use config::WhisperConfig;
pub(crate) use gguf::{MEL_FILTERS, is_whisper};
pub(crate) use plan::{CROSS_GROUP, ENCODER_GROUP, SELF_GROUP, WhisperPlan, build};
