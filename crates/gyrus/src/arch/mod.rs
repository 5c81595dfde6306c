//! Model architectures: descriptions, hyperparameters, tensor names and the forward pass.

mod config;
mod config_defaults;
mod delta_plan;
mod delta_reader;
mod description;
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

pub use config::{Attention, Config, Experts, FeedForward, Layer, Mixer, QkNorm};
pub(crate) use plan::build;
pub use ropes::{LayerRope, ModelRopes};
