//! An inference engine for language models on your own machine.
//!
//! [`Model::open`] loads a GGUF or SafeTensors model, [`Model::session`] creates a sequence with its KV cache, and
//! [`Session::generate`] generates a completion as a stream of [`Event`]s:
//!
//! ```no_run
//! use gyrus::{Event, Model, Options, Request};
//!
//! let model = Model::open("model.gguf".as_ref(), &Options::default())?;
//! let mut session = model.session();
//! let mut generation = session.generate(Request::text("Once upon a time").max_tokens(64))?;
//! while let Some(event) = generation.next()? {
//!     if let Event::Text { text, .. } = event {
//!         print!("{text}");
//!     }
//! }
//! # Ok::<(), gyrus::Error>(())
//! ```
//!
//! The library knows nothing of terminals or HTTP. It prints nothing and never exits the process: a malformed file,
//! prompt or parameter is an [`Error`].

#![forbid(unsafe_code)]

mod affine;
mod answer;
mod arch;
mod breakers;
mod cancel;
mod chat;
mod choice;
mod constraints;
mod context;
mod device;
mod embedding;
mod error;
mod event;
mod generation;
mod loader;
mod message;
mod model;
mod output;
mod prompt;
mod quantized;
mod repetition;
mod request;
mod sampling;
mod saved;
mod serving;
mod session;
mod speculation;
pub mod speech;
mod stop_strings;
pub mod tokenizer;
mod trace;
mod weights;

/// What a request's text must look like, and its errors.
pub mod constrain {
    pub use gyrus_constrain::{Error, Source};
}

/// Tools of a request, and calls of them.
pub mod tools {
    pub use gyrus_dialog::{Call, Error, Tool, ToolChoice, Tools, knows_tools};
}

/// Audio files as samples.
pub mod audio {
    pub use gyrus_audio::{AudioError, Limits, Pcm, PcmFormat, SAMPLE_RATE, Waveform};
}

/// Rotary embeddings, as in [`ModelRopes`].
pub mod rope {
    pub use gyrus_kernels::{
        Direction, LongRope, Magnitude, Pairing, Rope, RopeError, RopeSpec, Scaling, Sections, Spectrum, Yarn,
    };
}

pub use answer::Answer;
pub use arch::{
    Attention, Config, Experts, FeedForward, Layer, LayerRope, Mixer, ModelRopes, QkNorm, Skipped,
    SkippedPart,
};
pub use cancel::Cancel;
pub use chat::ChatFormat;
pub use context::{ContextChoice, ContextLimit};
pub use device::{Device, DeviceInfo, UnknownDevice};
pub use embedding::{
    EmbedOptions, Embedder, Embeddings, ModelKind, Pooling, Prompt as EmbedPrompt, Ranked, RerankOptions,
    Reranker,
};
pub use error::Error;
pub use event::{Event, StopReason, Usage};
pub use generation::Generation;
pub use gyrus_cpu::{limit_heap, release_free_memory};
pub use gyrus_formats::Access;
/// The most sequences that a model computes at once, on every device.
pub use gyrus_kernels::MAX_SLOTS as MAX_SEQUENCES;
pub use gyrus_kernels::observe::OpResult;
pub use gyrus_kernels::{
    Bandwidth, Breakers, Dry, DynamicTemperature, KvLayer, Level, Mirostat, Order, Plan, Precision, Profile,
    ProfileEntry, Sampler, SamplerError, Stage, Traffic, Trial, WeightSpec, Workload, Xtc, argmax,
    log_softmax_at,
};
pub use gyrus_tensor::DType;
pub use gyrus_text as text;
pub use message::Message;
pub use model::{Model, Options};
pub use request::{Prompt, Request};
pub use sampling::Sampling;
pub use saved::{SessionFileError, check_session_file, seal_session_file};
pub use serving::{Driver, Statistics};
pub use session::Session;
pub use speculation::{Drafter, Lookup, MODEL_EVIDENCE, NewDrafter, Speculation};
pub use speech::Transcriber;
pub use trace::{Difference, Summary, Trace, TraceSide, TracedChunk, TracedResult};
