use crate::batch::Batch;
use crate::contents::CacheContents;
use crate::observe::Observer;
use crate::plan::Plan;
use crate::profile::Instruments;
use crate::slots::Slots;

/// A backend runs a plan. It holds the weights, the scratch buffers and the KV cache.
pub trait Backend: Send {
    /// The plan it runs.
    fn plan(&self) -> &Plan;

    /// Blocks of each KV group in its cache.
    fn kv_blocks(&self) -> &[usize];

    /// The most rows of a batch of whole texts.
    fn batch_rows(&self) -> usize;

    /// The most sequences of a batch of a decoder with logits, and so the most rows of one that are generated: each has a
    /// sequence of its own.
    fn batch_sequences(&self) -> usize {
        usize::MAX
    }

    /// Records of the states of layers that have one.
    fn records(&self) -> usize {
        0
    }

    /// Runs the forward pass and returns its [result](Plan::result), `[batch.logits, width]`, all values finite: logits, or
    /// the hidden rows or scores of an encoder.
    fn forward(&mut self, batch: &Batch<'_>) -> Result<&[f32], BackendError>;

    /// Runs [`Plan::encode`], whose keys and values later forward passes attend to. Returns the output
    /// [`ENCODED`](crate::ENCODED) of the rows that `batch.logits` names, all values finite; nothing if the plan has no such
    /// output.
    fn encode(&mut self, _batch: &Batch<'_>) -> Result<&[f32], BackendError> {
        Err(BackendError::NoEncoder)
    }

    /// Runs the forward pass as [`Backend::forward`] does, with the same kernels, and shows every result to the
    /// observer. Values that are not finite are no error here. More rows of logits than
    /// [`Backend::batch_sequences`] are refused.
    fn observe(&mut self, batch: &Batch<'_>, observer: &mut Observer<'_>) -> Result<(), BackendError>;

    /// Slots: chunks of prompts and decode steps in flight.
    fn slots(&mut self) -> &mut dyn Slots;

    /// The contents of its cache, if the backend can give and take them.
    fn contents(&mut self) -> Option<&mut dyn CacheContents> {
        None
    }

    /// Profiling and tuning, if the backend has that.
    fn instruments(&mut self) -> Option<&mut dyn Instruments> {
        None
    }
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
    /// The plan has no encoder, or the backend runs none.
    #[error("the plan has no encoder that this device runs")]
    NoEncoder,
    /// The device has not completed its work in this time.
    #[error("the device has not completed its work in {seconds} s")]
    TimedOut {
        /// Seconds.
        seconds: u64,
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
