use std::sync::Arc;

use gyrus::{Embedder, Model, Reranker, Transcriber};

/// A model that a server has loaded, of any kind.
#[derive(Clone)]
pub enum Served {
    /// It generates text.
    Language(Model),
    /// It computes embeddings.
    Embedder(Arc<Embedder>),
    /// It computes the relevance of documents.
    Reranker(Arc<Reranker>),
    /// It writes what is said.
    Transcriber(Transcriber),
}

/// What a model does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// It generates text.
    Text,
    /// It computes embeddings.
    Embeddings,
    /// It computes the relevance of documents.
    Ranks,
    /// It writes what is said.
    Transcripts,
}

impl Purpose {
    /// In words, for descriptions and errors.
    pub(crate) fn does(self) -> &'static str {
        match self {
            Purpose::Text => "generates text",
            Purpose::Embeddings => "computes embeddings",
            Purpose::Ranks => "ranks documents",
            Purpose::Transcripts => "transcribes speech",
        }
    }
}

impl Served {
    pub(crate) fn purpose(&self) -> Purpose {
        match self {
            Served::Language(_) => Purpose::Text,
            Served::Embedder(_) => Purpose::Embeddings,
            Served::Reranker(_) => Purpose::Ranks,
            Served::Transcriber(_) => Purpose::Transcripts,
        }
    }

    /// What it does, for errors.
    pub(crate) fn does(&self) -> &'static str {
        self.purpose().does()
    }

    /// The routes that take it.
    pub(crate) fn routes(&self) -> &'static str {
        match self {
            Served::Language(_) => "/v1/chat/completions",
            Served::Embedder(_) => "/v1/embeddings",
            Served::Reranker(_) => "/v1/rerank",
            Served::Transcriber(_) => "/v1/audio/transcriptions",
        }
    }

    /// The language model, if it is one.
    pub(crate) fn model(&self) -> Option<&Model> {
        match self {
            Served::Language(model) => Some(model),
            Served::Embedder(_) | Served::Reranker(_) | Served::Transcriber(_) => None,
        }
    }

    /// Bytes of memory that it takes.
    pub(crate) fn bytes(&self) -> u64 {
        match self {
            Served::Language(model) => model.weight_bytes() + model.context().cache_bytes,
            Served::Embedder(embedder) => embedder.bytes(),
            Served::Reranker(reranker) => reranker.bytes(),
            Served::Transcriber(transcriber) => transcriber.bytes(),
        }
    }

    /// The architecture's name in its file.
    pub(crate) fn architecture(&self) -> &str {
        match self {
            Served::Language(model) => &model.config().architecture,
            Served::Embedder(embedder) => embedder.architecture(),
            Served::Reranker(reranker) => reranker.architecture(),
            Served::Transcriber(_) => "whisper",
        }
    }

    /// The most tokens of a sequence or text.
    pub(crate) fn tokens(&self) -> usize {
        match self {
            Served::Language(model) => model.context().tokens,
            Served::Embedder(embedder) => embedder.max_tokens(),
            Served::Reranker(reranker) => reranker.max_tokens(),
            Served::Transcriber(transcriber) => transcriber.max_tokens(),
        }
    }

    /// The device that it runs on.
    pub(crate) fn device(&self) -> &gyrus::DeviceInfo {
        match self {
            Served::Language(model) => model.device(),
            Served::Embedder(embedder) => embedder.device(),
            Served::Reranker(reranker) => reranker.device(),
            Served::Transcriber(transcriber) => transcriber.device(),
        }
    }
}

impl From<Model> for Served {
    fn from(model: Model) -> Served {
        Served::Language(model)
    }
}
