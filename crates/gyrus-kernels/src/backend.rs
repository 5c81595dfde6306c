use crate::batch::Batch;
use crate::plan::Plan;

/// What runs a plan: it holds the weights, the scratch buffers and the KV cache.
pub trait Backend: Send {
    /// The plan it runs.
    fn plan(&self) -> &Plan;

    /// Blocks in its KV cache.
    fn kv_blocks(&self) -> usize;

    /// Runs the forward segment and returns the logits, `[batch.logits, vocab]`.
    fn forward(&mut self, batch: &Batch<'_>) -> Result<&[f32], BackendError>;
}

/// Why a backend could not run a batch.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BackendError {
    /// The batch contradicts itself, the vocabulary or the cache: a mistake of the caller.
    #[error("the batch names a token, row or cache block that does not exist")]
    UnsoundBatch,
    /// More rows than the backend takes at once.
    #[error("a batch of {rows} rows, at most {most} are possible")]
    TooManyRows {
        /// Rows of the batch.
        rows: usize,
        /// The most there may be.
        most: usize,
    },
    /// The device is out of memory, was lost, or refused.
    #[error("{0}")]
    Device(String),
}
