use crate::batch::Batch;
use crate::observe::Observer;
use crate::plan::Plan;
use crate::profile::Instruments;
use crate::select::Sampler;

/// A backend runs a plan. It holds the weights, the scratch buffers and the KV cache.
pub trait Backend: Send {
    /// The plan it runs.
    fn plan(&self) -> &Plan;

    /// Blocks of each KV group in its cache.
    fn kv_blocks(&self) -> &[usize];

    /// Runs the forward pass and returns the logits, `[batch.logits, vocab]`, all of them finite.
    fn forward(&mut self, batch: &Batch<'_>) -> Result<&[f32], BackendError>;

    /// Runs the forward pass as [`Backend::forward`] does, with the same kernels, and shows every result to the
    /// observer. Values that are not finite are no error here. A GPU refuses more than 16 rows of logits.
    fn observe(&mut self, batch: &Batch<'_>, observer: &mut Observer<'_>) -> Result<(), BackendError>;

    /// Decode steps in flight, if the backend supports that.
    fn chain(&mut self) -> Option<&mut dyn Chain> {
        None
    }

    /// Profiling and tuning, if the backend has that.
    fn instruments(&mut self) -> Option<&mut dyn Instruments> {
        None
    }
}

/// Decode steps in flight: forward and select one after the other, each with the tokens of the one before, while the
/// caller reads tokens later.
///
/// Steps give the tokens that as many calls of [`Backend::forward`] and [`Sampler::draw`] would give, up to rounding at
/// the boundary of a draw. A call of forward ends the chain.
pub trait Chain {
    /// The most steps that can be in flight.
    fn most(&self) -> usize;

    /// Begins with a batch of one row per sequence, with logits of all rows, and for each a sampler and its tokens so
    /// far, this one included. `false` if the backend cannot draw with such samplers.
    fn begin(
        &mut self,
        batch: &Batch<'_>,
        samplers: &[&Sampler],
        texts: &[&[u32]],
    ) -> Result<bool, BackendError>;

    /// Submits steps. `tables` are the sequences' cache blocks, which must cover the position of every step in flight.
    fn submit(&mut self, steps: usize, tables: &[&[u32]]) -> Result<(), BackendError>;

    /// Steps in flight: submitted and not yet read.
    fn in_flight(&self) -> usize;

    /// Waits for the next step and returns its tokens, one per row.
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
