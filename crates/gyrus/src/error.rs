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
    /// A key of the model's description is missing or of the wrong kind.
    #[error(transparent)]
    Metadata(#[from] MetadataError),
    /// A field of `config.json` is missing or of the wrong kind.
    #[error("config.json: {0}")]
    Config(String),
    /// A setting in a file of the model is of the wrong kind.
    #[error("{0}")]
    Setting(String),
    /// A sampling setting of the model is out of range.
    #[error("{place}: {source}")]
    Sampling {
        /// Where it is.
        place: &'static str,
        /// Which it is.
        source: SamplerError,
    },
    /// A model we have no plan for.
    #[error("architecture '{found}' is not supported, only {known}")]
    Architecture {
        /// What the file says.
        found: String,
        /// What there is.
        known: String,
    },
    /// A feature of the model that the plan does not have.
    #[error("{0} is not supported")]
    Unsupported(String),
    /// A number in the description that cannot be.
    #[error("{name} is {value}, {expected}")]
    Dimension {
        /// Which number.
        name: &'static str,
        /// Its value.
        value: u64,
        /// What is possible.
        expected: String,
    },
    /// The rotary embedding's parameters make none.
    #[error(transparent)]
    Rope(#[from] RopeError),
    /// A tensor that must be there.
    #[error("tensor '{0}' is missing")]
    MissingTensor(String),
    /// A tensor that no part of the plan uses: the model is not what we take it for.
    #[error("tensor '{0}' is not part of this architecture as it is known here")]
    UnusedTensor(String),
    /// A tensor of another shape than the description calls for.
    #[error("tensor '{name}' is {found}, {expected} was expected")]
    TensorShape {
        /// The tensor.
        name: String,
        /// Its shape.
        found: String,
        /// What the description calls for.
        expected: String,
    },
    /// A tensor that cannot be turned into numbers.
    #[error("tensor '{name}': {source}")]
    Tensor {
        /// The tensor.
        name: String,
        /// What is wrong with it.
        source: TensorError,
    },
    /// A tensor of a type that cannot be computed with.
    #[error("tensor '{name}' has type {dtype}, which is not supported")]
    TensorType {
        /// The tensor.
        name: String,
        /// Its type.
        dtype: DType,
    },
    /// The tokenizer's data is malformed or of an unknown kind.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// The chat template is malformed or refused the conversation.
    #[error("chat template: {0}")]
    Template(#[from] TemplateError),
    /// The model carries no tokenizer, so it takes ids only.
    #[error("the model has no tokenizer that can be read here, only token ids can be used")]
    NoTokenizer,
    /// A context that the model was not made for.
    #[error("a context of {asked} tokens is more than the {most} the model was made for")]
    Context {
        /// What was asked for.
        asked: usize,
        /// What the model has.
        most: usize,
    },
    /// A prompt that leaves no room for an answer.
    #[error("the prompt has {tokens} tokens, which does not fit into the context of {context}")]
    PromptTooLong {
        /// Its length.
        tokens: usize,
        /// The context in force.
        context: usize,
    },
    /// Sessions that cannot be continued at once.
    #[error(
        "{sessions} sessions cannot be continued at once: at most {most}, of one model, with a sampler each"
    )]
    Together {
        /// How many there are.
        sessions: usize,
        /// How many there may be.
        most: usize,
    },
    /// Nothing to continue from.
    #[error("the prompt is empty")]
    EmptyPrompt,
    /// A token id beyond the vocabulary.
    #[error("token id {id} is beyond the vocabulary of {vocab}")]
    TokenId {
        /// The id.
        id: u32,
        /// Size of the vocabulary.
        vocab: usize,
    },
    /// All of the cache is in use by other sessions.
    #[error("the cache is full: {needed} more blocks needed, {free} free")]
    CacheFull {
        /// Blocks needed.
        needed: usize,
        /// Blocks free.
        free: usize,
    },
    /// A sampling parameter out of range.
    #[error(transparent)]
    Sampler(#[from] SamplerError),
    /// The model computed something that is not a number, so that there is no next token.
    #[error("the model computed NaN or infinity at position {position} {}", not_finite(*.precision))]
    NotFinite {
        /// The position of the token behind which logits were wanted.
        position: usize,
        /// What it computed with.
        precision: Precision,
    },
    /// The device failed.
    #[error(transparent)]
    Backend(#[from] BackendError),
    /// The GPU cannot be had, or cannot hold the model.
    #[cfg(feature = "gpu")]
    #[error(transparent)]
    Gpu(#[from] gyrus_gpu::GpuError),
}

/// Where logits that are not finite may come from.
fn not_finite(precision: Precision) -> &'static str {
    match precision {
        Precision::Fast => "in fast precision",
        Precision::Exact => "in exact precision: a weight may be damaged",
    }
}
