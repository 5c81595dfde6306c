use gyrus_formats::Checkpoint;
use gyrus_kernels::Precision;

use super::reranker::decoder_kind;
use super::settings::Settings;
use crate::Error;
use crate::arch::encoder::{self, EncoderTask, Quantized};

/// What a model is for, as its file says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ModelKind {
    /// It generates text: [`Model`](crate::Model).
    Language,
    /// It computes embeddings: [`Embedder`](crate::Embedder).
    Embedder,
    /// It computes the relevance of documents: [`Reranker`](crate::Reranker).
    Reranker,
}

impl ModelKind {
    /// The kind of an opened checkpoint. No weight is read.
    pub fn of(model: &Checkpoint) -> Result<ModelKind, Error> {
        if encoder::is_encoder(model) {
            let classifier =
                encoder::build(model, EncoderTask::Classify, Precision::Exact, Quantized::default());
            let is_reranker = classifier.is_ok_and(|(_, plan)| plan.buffer(plan.result()).width == 1);
            return Ok(if is_reranker { ModelKind::Reranker } else { ModelKind::Embedder });
        }
        if decoder_kind(model)?.is_some() {
            return Ok(ModelKind::Reranker);
        }
        // Settings that cannot be read are an error where embeddings are asked for.
        let is_embedder = Settings::read(model).is_ok_and(|settings| settings.pooling.is_some());
        Ok(if is_embedder { ModelKind::Embedder } else { ModelKind::Language })
    }
}
