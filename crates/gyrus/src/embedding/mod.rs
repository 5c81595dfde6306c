//! Embeddings of texts, and relevance of documents to a query.
//!
//! An [`Embedder`] computes the rows of many texts in one pass, without padding; each row attends to its own text. What a
//! text's embedding is made of, pooling, norm and prompts, is in the model's files.

mod embedder;
mod engine;
mod gguf_settings;
mod kind;
mod pooling;
mod prompts;
mod reranker;
mod sentence_transformers;
mod settings;

pub use embedder::{EmbedOptions, Embedder, Embeddings, Prompt};
pub use kind::ModelKind;
pub use pooling::Pooling;
pub use reranker::{Ranked, RerankOptions, Reranker};
