use crate::batch::Batch;
use crate::plan::Plan;
use crate::profile::Instruments;
use crate::select::Sampler;

/// What runs a plan: it holds the weights, the scratch buffers and the KV cache.
pub trait Backend: Send {
    /// The plan it runs.
    fn plan(&self) -> &Plan;

    /// Blocks in its KV cache.
    fn kv_blocks(&self) -> usize;

    /// Runs the forward segment and returns the logits, `[batch.logits, vocab]`, all of them finite.
    fn forward(&mut self, batch: &Batch<'_>) -> Result<&[f32], BackendError>;

    /// Steps that run ahead of whoever reads their tokens, where the backend can do that.
    fn chain(&mut self) -> Option<&mut dyn Chain> {
        None
    }

    /// What looks into the backend's speed, where it has that.
    fn instruments(&mut self) -> Option<&mut dyn Instruments> {
        None
    }
}

/// Steps in flight: forward and select one after the other, each taking the tokens of the one before, while the
/// caller reads behind them.
///
/// Steps give the tokens that as many calls of [`Backend::forward`] and [`Sampler::draw`] would give, up to what
/// rounding parts at a draw's boundary. A forward ends the chain.
pub trait Chain {
    /// The most steps that can be in flight.
    fn most(&self) -> usize;

    /// Begins with a batch of one row for each sequence, all of whose logits are wanted, and a sampler and the text so
    /// far, this token included, for each. `false` if the backend cannot draw by such samplers.
    fn begin(
        &mut self,
        batch: &Batch<'_>,
        samplers: &[&Sampler],
        texts: &[&[u32]],
    ) -> Result<bool, BackendError>;

    /// Submits steps. `tables` are the sequences' cache blocks, which must have room for the position of every step
    /// in flight.
    fn submit(&mut self, steps: usize, tables: &[&[u32]]) -> Result<(), BackendError>;

    /// Steps in flight: submitted, and not read.
    fn in_flight(&self) -> usize;

    /// Waits for the next step, and gives its tokens, one for each row.
    fn next(&mut self) -> Result<&[u32], BackendError>;
}

/// Why a backend could not run a batch.
#[derive(Debug, thiserror::Error)]
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
    /// A row's logits are not all finite.
    #[error("the logits of row {row} are not finite")]
    NotFinite {
        /// The row of the batch.
        row: usize,
    },
    /// The device is out of memory, was lost, or refused: the backend's own error.
    #[error(transparent)]
    Device(Box<dyn std::error::Error + Send + Sync>),
}

impl BackendError {
    /// An error of the backend itself.
    pub fn device(error: impl std::error::Error + Send + Sync + 'static) -> BackendError {
        BackendError::Device(Box::new(error))
    }
}
