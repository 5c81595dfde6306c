use std::sync::Arc;

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
    /// The model is of another kind than what was asked for.
    #[error("'{}' is {what}: {instead}", .found.escape_debug())]
    WrongKind {
        /// The architecture in the file.
        found: String,
        /// What it is.
        what: &'static str,
        /// What it can be used for, or what could be used instead.
        instead: &'static str,
    },
    /// A text has more tokens than the model takes.
    #[error("text {} has {tokens} tokens, at most {most} are possible; shorten it, or ask for truncation", .index + 1)]
    TextTooLong {
        /// The index of the text.
        index: usize,
        /// Its tokens, special ones included.
        tokens: usize,
        /// The most there may be.
        most: usize,
    },
    /// A text has no tokens to compute anything from.
    #[error("text {} has no tokens", .index + 1)]
    NoTokens {
        /// The index of the text.
        index: usize,
    },
    /// What the model computed for a text is NaN or infinite.
    #[error("the model computed NaN or infinity in text {} {}", .index + 1, not_finite(*.precision))]
    TextNotFinite {
        /// The index of the text.
        index: usize,
        /// The precision of the computation.
        precision: Precision,
    },
    /// The caller of the work has stopped it.
    #[error("the work was stopped before its end")]
    Stopped,
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
    /// The memory for the KV cache does not hold the requested context.
    #[error("{bytes} bytes of KV cache hold {tokens} tokens, but a context of {requested} was requested")]
    KvMemory {
        /// Bytes for the KV cache.
        bytes: u64,
        /// Tokens that they hold.
        tokens: usize,
        /// The requested context.
        requested: usize,
    },
    /// The KV cache that the model always needs is larger than the free memory.
    #[error("the model needs {bytes} bytes of KV cache, but {available} bytes of memory are free")]
    CacheMemory {
        /// Bytes of the KV cache.
        bytes: u64,
        /// Bytes of free memory.
        available: u64,
    },
    /// The sequence would exceed the context.
    #[error("the prompt has {tokens} tokens, which does not fit into the context of {context}")]
    PromptTooLong {
        /// Tokens of the sequence.
        tokens: usize,
        /// The context of the session.
        context: usize,
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
    /// The KV cache has too few blocks for the request, even if no other request runs.
    #[error(
        "the KV cache is too small: {needed} blocks needed, {free} there are; load the model with more memory for it"
    )]
    CacheFull {
        /// Blocks needed.
        needed: usize,
        /// Blocks of the cache.
        free: usize,
    },
    /// Too many requests wait.
    #[error("{waiting} requests wait already, at most {most} may: try again later")]
    QueueFull {
        /// Requests that wait.
        waiting: usize,
        /// The most that may wait.
        most: usize,
    },
    /// The scheduler's thread could not be started.
    #[error("the scheduler's thread could not be started: {0}")]
    Thread(#[source] std::io::Error),
    /// The scheduler panicked while the request ran.
    #[error("a mistake in the engine ended the request: {0}")]
    Panicked(String),
    /// The device was lost and could not be opened again.
    #[error("the device was lost and cannot be opened again: {0}")]
    DeviceGone(String),
    /// The constraint of a request is malformed, is not supported, or exceeds a limit.
    #[error(transparent)]
    Constraint(#[from] gyrus_constrain::Error),
    /// A constraint failed while the request ran.
    #[error("the {constraint} constraint ended the answer: {source}")]
    Constrained {
        /// The language of the constraint.
        constraint: &'static str,
        /// Why.
        source: gyrus_constrain::Error,
    },
    /// The tools of a request are malformed, or cannot be called as the request asks.
    #[error(transparent)]
    Tools(#[from] gyrus_dialog::Error),
    /// Parts of a request exclude each other or are out of range.
    #[error("{0}")]
    Request(String),
    /// A session could not be saved or loaded.
    #[error("the session: {0}")]
    SessionFile(#[from] crate::saved::SessionFileError),
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
    /// A recording cannot be transcribed: its samples are at fault.
    #[error("recording {} at {seconds:.2} s: {problem}", .index + 1)]
    Recording {
        /// The index of the recording.
        index: usize,
        /// Where in it.
        seconds: f64,
        /// What is wrong.
        problem: String,
    },
    /// What the model computed for a recording is NaN or infinite.
    #[error("recording {} at {seconds:.2} s: the model computed NaN or infinity {}", .index + 1, not_finite(*.precision))]
    RecordingNotFinite {
        /// The index of the recording.
        index: usize,
        /// Where in it.
        seconds: f64,
        /// The precision of the computation.
        precision: Precision,
    },
    /// The device failed. All requests that ran share the error.
    #[error(transparent)]
    Backend(Arc<BackendError>),
    /// The GPU is missing or failed, or the model does not fit its memory.
    #[cfg(feature = "gpu")]
    #[error(transparent)]
    Gpu(#[from] gyrus_gpu::GpuError),
}

impl From<BackendError> for Error {
    fn from(error: BackendError) -> Error {
        Error::Backend(Arc::new(error))
    }
}

#[cfg(feature = "gpu")]
impl Error {
    /// Why a model cannot run on a GPU where it may run on the CPU; otherwise the error itself.
    pub(crate) fn gpu_reason(self) -> Result<String, Error> {
        match self {
            Error::Gpu(error) => Ok(error.in_short()),
            Error::CacheMemory { .. } => Ok(self.to_string()),
            error => Err(error),
        }
    }
}

/// The likely cause of logits that are not finite.
pub(crate) fn not_finite(precision: Precision) -> &'static str {
    match precision {
        Precision::Fast => "in fast precision",
        Precision::Exact => "in exact precision: a weight may be damaged",
    }
}
