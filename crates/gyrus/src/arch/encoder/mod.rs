//! Text encoders: BERT and its relatives. Their architectures are descriptions, and their forward pass is one builder.

mod config;
mod description;
mod heads;
mod names;
mod plan;
mod reader;

pub(crate) use description::{find, is_encoder};
pub(crate) use plan::{EncoderTask, Quantized, build};
