//! Model architectures: their names, hyperparameters, tensor names and forward pass.

mod config;
mod fields;
mod gguf;
mod hugging_face;
mod pairings;
mod plan;
mod rope_config;
mod rope_gguf;
mod ropes;
mod tensor_names;

pub use config::Config;
pub(crate) use plan::build;
pub use ropes::{LayerRope, ModelRopes};

use gyrus_kernels::Pairing;

/// A family of models that share a forward pass.
///
/// The differences within a family (QK norms, tied embeddings, sliding windows) follow from the tensors and
/// hyperparameters in the file, not from its name.
#[derive(Debug)]
pub(crate) struct Arch {
    /// `general.architecture` in GGUF.
    pub(crate) gguf: &'static str,
    /// `model_type` values in `config.json`.
    pub(crate) hugging_face: &'static [&'static str],
    /// The pairing of the rotary embedding in GGUF files. Converters permute the rows of Llama's Q and K; in Hugging
    /// Face's layout they are not permuted.
    pub(crate) gguf_pairing: Pairing,
}

pub(crate) const ARCHS: &[Arch] = &[
    Arch { gguf: "llama", hugging_face: &["llama", "mistral"], gguf_pairing: Pairing::Adjacent },
    Arch { gguf: "qwen3", hugging_face: &["qwen3"], gguf_pairing: Pairing::Split },
];

fn unsupported_architecture(found: &str, known: impl Iterator<Item = &'static str>) -> crate::Error {
    let known: Vec<&str> = known.collect();
    crate::Error::Architecture { found: found.to_owned(), known: known.join(", ") }
}
