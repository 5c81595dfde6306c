//! Model architectures: descriptions, hyperparameters, tensor names and the forward pass.

mod config;
mod config_defaults;
mod delta_plan;
mod delta_reader;
mod description;
pub(crate) mod encoder;
mod expert_names;
mod expert_reader;
mod expert_weights;
mod fields;
mod pairings;
mod plan;
mod plan_experts;
mod quantization;
mod reader;
mod rope_config;
mod rope_gguf;
mod ropes;
mod source;
mod tensor_names;
mod weights;
pub(crate) mod whisper;
#[cfg(test)]
mod whole_texts_tests;

pub use config::{Attention, Config, Experts, FeedForward, Layer, Mixer, QkNorm, Skipped, SkippedPart};
pub(crate) use plan::{Head, build, build_with};
pub use ropes::{LayerRope, ModelRopes};
