//! Architectures as data: what a model is called, how its file names things, and its numbers.

mod config;
mod fields;
mod gguf;
mod hugging_face;
mod names;
mod pairings;
mod plan;
mod rope_config;
mod rope_gguf;
mod ropes;

pub use config::Config;
pub(crate) use plan::build;
pub use ropes::{LayerRope, ModelRopes};

use gyrus_kernels::Pairing;

/// A family of models that share a forward pass.
///
/// What differs between members (head norms, tied embeddings, windows) follows from the tensors and
/// numbers in the file, never from a name.
#[derive(Debug)]
pub(crate) struct Arch {
    /// `general.architecture` in GGUF.
    pub(crate) gguf: &'static str,
    /// `model_type` values in `config.json`.
    pub(crate) hugging_face: &'static [&'static str],
    /// Which elements rotate together in GGUF files; converters reorder Llama's rows, Hugging Face does
    /// not.
    pub(crate) gguf_pairing: Pairing,
}

pub(crate) const ARCHS: &[Arch] = &[
    Arch { gguf: "llama", hugging_face: &["llama", "mistral"], gguf_pairing: Pairing::Adjacent },
    Arch { gguf: "qwen3", hugging_face: &["qwen3"], gguf_pairing: Pairing::Split },
];

fn unknown(found: &str, known: impl Iterator<Item = &'static str>) -> crate::Error {
    let known: Vec<&str> = known.collect();
    crate::Error::Architecture { found: found.to_owned(), known: known.join(", ") }
}
