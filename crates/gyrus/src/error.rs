use gyrus_formats::FormatError;
use gyrus_formats::gguf::MetadataError;
use gyrus_kernels::{BackendError, Precision, RopeError, SamplerError};
use gyrus_tensor::{DType, TensorError};
use gyrus_text::TokenizerError;
use gyrus_text::template::TemplateError;

/// Why a model could not be loaded or could not answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The file could not be opened or is malformed.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// A GGUF metadata key is missing or has the wrong type.
    #[error(transparent)]
    Metadata(#[from] MetadataError),
    /// A field of `config.json` is missing or has the wrong type.
    #[error("config.json: {0}")]
    Config(String),
    /// A setting in one of the model's files has the wrong type.
    #[error("{0}")]
    Setting(String),
    /// A sampling parameter in the model's files is out of range.
    #[error("{place}: {source}")]
    Sampling {
        /// The file or the key prefix.
        place: &'static str,
        /// The parameter and its range.
        source: SamplerError,
    },
    /// The architecture is not supported.
    #[error("architecture '{found}' is not supported, only {known}")]
    Architecture {
        /// The architecture in the file.
        found: String,
        /// The supported architectures.
        known: String,
    },
    /// The model has a feature that is not supported.
    #[error("{0} is not supported")]
    Unsupported(String),
    /// A hyperparameter is out of range.
    #[error("{name} is {value}, {expected}")]
    Dimension {
        /// The hyperparameter.
        name: &'static str,
        /// Its value.
        value: u64,
        /// The condition that it violates.
        expected: String,
    },
    /// The parameters of the rotary embedding are invalid.
    #[error(transparent)]
    Rope(#[from] RopeError),
    /// A required tensor is missing.
    #[error("tensor '{0}' is missing")]
    MissingTensor(String),
    /// The forward pass does not use a tensor, so the model differs from its architecture.
    #[error("tensor '{0}' is not used by this architecture: the model has a feature that is not supported")]
    UnusedTensor(String),
    /// The shape of a tensor contradicts the hyperparameters.
    #[error("tensor '{name}' has shape {found}, expected {expected}")]
    TensorShape {
        /// The tensor.
        name: String,
        /// Its shape.
        found: String,
        /// The shape that the hyperparameters imply.
        expected: String,
    },
    /// A tensor cannot be dequantised.
    #[error("tensor '{name}': {source}")]
    Tensor {
        /// The tensor.
        name: String,
        /// The reason.
        source: TensorError,
    },
    /// The type of a tensor is not supported.
    #[error("tensor '{name}' has type {dtype}, which is not supported")]
    TensorType {
        /// The tensor.
        name: String,
        /// Its type.
        dtype: DType,
    },
    /// The tokenizer's data is malformed or its type is not supported.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// The chat template is malformed or rejects the conversation.
    #[error("chat template: {0}")]
    Template(#[from] TemplateError),
    /// The model has no supported tokenizer.
    #[error("the model has no supported tokenizer: pass token ids instead of text")]
    NoTokenizer,
    /// The requested context exceeds the model's maximum context.
    #[error("a context of {requested} tokens is more than the {max} the model was made for")]
    Context {
        /// The requested context.
        requested: usize,
        /// The model's maximum context.
        max: usize,
    },
    /// The sequence would exceed the context.
    #[error("the prompt has {tokens} tokens, which does not fit into the context of {context}")]
    PromptTooLong {
        /// Tokens of the sequence.
        tokens: usize,
        /// The context of the session.
        context: usize,
    },
    /// [`Session::decode_together`](crate::Session::decode_together) got too many sessions.
    #[error("{sessions} sessions cannot decode in one batch, the limit is {max}: split them into batches")]
    TooManySessions {
        /// The number of sessions.
        sessions: usize,
        /// The most sessions in one batch.
        max: usize,
    },
    /// [`Session::decode_together`](crate::Session::decode_together) got too few or too many samplers.
    #[error(
        "{sessions} sessions need {sessions} samplers, but there are {samplers}: pass one for each session"
    )]
    SamplerCount {
        /// The number of sessions.
        sessions: usize,
        /// The number of samplers.
        samplers: usize,
    },
    /// [`Session::decode_together`](crate::Session::decode_together) got sessions of different models.
    #[error("session {session} belongs to another model than session 0: decode each model's sessions apart")]
    DifferentModels {
        /// The index of the first session with another model.
        session: usize,
    },
    /// The prompt and the session are empty.
    #[error("the prompt is empty")]
    EmptyPrompt,
    /// A token id is not in the vocabulary.
    #[error("token id {id} is beyond the vocabulary of {vocab}")]
    TokenId {
        /// The token id.
        id: u32,
        /// Size of the vocabulary.
        vocab: usize,
    },
    /// Other sessions use all blocks of the KV cache.
    #[error(
        "the KV cache is full: {needed} more blocks needed, {free} free; close a session or load the model for more"
    )]
    CacheFull {
        /// Blocks needed.
        needed: usize,
        /// Free blocks.
        free: usize,
    },
    /// A trace cannot run with these options.
    #[error("{0}")]
    Trace(String),
    /// A sampling parameter of the request is out of range.
    #[error(transparent)]
    Sampler(#[from] SamplerError),
    /// A logit is NaN or infinite, so no token can be sampled.
    #[error("the model computed NaN or infinity at position {position} {}", not_finite(*.precision))]
    NotFinite {
        /// The position of the token whose logits were computed.
        position: usize,
        /// The precision of the computation.
        precision: Precision,
    },
    /// The device failed.
    #[error(transparent)]
    Backend(#[from] BackendError),
    /// The GPU is missing or failed, or the model does not fit its memory.
    #[cfg(feature = "gpu")]
    #[error(transparent)]
    Gpu(#[from] gyrus_gpu::GpuError),
}

/// The likely cause of logits that are not finite.
fn not_finite(precision: Precision) -> &'static str {
    match precision {
        Precision::Fast => "in fast precision",
        Precision::Exact => "in exact precision: a weight may be damaged",
    }
}
