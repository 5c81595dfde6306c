//! Traces: the result of each op of a forward pass, alone or against another run of the same ops.

mod lockstep;
mod measure;
mod tolerance;

use std::ops::{ControlFlow, Range};

use gyrus_cpu::MAX_ROWS;
use gyrus_kernels::observe::{Observer, OpResult, Seen};
use gyrus_kernels::{Backend, Batch, Plan, RowKind, Rows};

use crate::Error;
use crate::model::Model;
use crate::serving::{Scheduler, SequenceKv, SequenceState};
use tolerance::Tolerances;

/// How [`Model::trace`] runs.
#[derive(Clone, Copy)]
pub struct Trace<'a> {
    /// Rows of each batch; the last number repeats until the tokens end. Backends choose kernels by the number of rows:
    /// 512 is a prefill, 1 a decode step.
    pub chunks: &'a [usize],
    /// The model to compare with: the same file on another device or in another precision.
    pub against: Option<&'a Model>,
    /// The largest relative difference that is not a divergence. The default depends on
    /// precision, op and rows: docs/trace.md lists it.
    pub tolerance: Option<f32>,
    /// Whether each run continues with its own results, so that differences accumulate. By default, where one run is not
    /// on a GPU, it continues with the results of the other: each op has the same inputs in both runs.
    pub accumulate: bool,
}

impl Default for Trace<'_> {
    fn default() -> Self {
        Trace { chunks: &[MAX_ROWS], against: None, tolerance: None, accumulate: false }
    }
}

/// A traced batch.
#[derive(Debug, Clone, PartialEq)]
pub struct TracedChunk {
    /// The positions of its rows.
    pub positions: Range<usize>,
    /// The results of all ops, in order.
    pub results: Vec<TracedResult>,
}

impl TracedChunk {
    /// The first result that diverges.
    pub fn first_divergence(&self) -> Option<&TracedResult> {
        self.results.iter().find(|result| result.diverges())
    }
}

/// A result of an op.
#[derive(Debug, Clone, PartialEq)]
pub struct TracedResult {
    /// The op, an index into [`Plan::forward`](crate::Plan::forward).
    pub op: usize,
    /// Which of its results.
    pub result: OpResult,
    /// As this model computed it.
    pub ours: TraceSide,
    /// As the other model computed it.
    pub theirs: Option<TraceSide>,
    /// The difference, if both can be observed.
    pub difference: Option<Difference>,
}

impl TracedResult {
    /// Whether the two runs differ by more than the tolerance.
    pub fn diverges(&self) -> bool {
        self.difference.is_some_and(|difference| difference.diverges())
    }
}

/// A result as one run has it.
#[derive(Debug, Clone, PartialEq)]
pub enum TraceSide {
    /// Its values, in short.
    Values(Summary),
    /// It cannot be observed, for this reason: kernels are fused.
    Hidden(String),
}

/// Values in short.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Summary {
    /// FNV-1a of 64 bits over the values as little-endian f32.
    pub checksum: u64,
    /// The largest magnitude; NaN if any value is.
    pub largest: f32,
}

/// The difference between two results of the same shape.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Difference {
    /// The largest absolute difference; infinite where one value is finite and the other is not.
    pub absolute: f32,
    /// The largest difference relative to the largest magnitude in its row.
    pub relative: f32,
    /// The row of the largest relative difference.
    pub row: usize,
    /// Its column.
    pub column: usize,
    /// The position of the row in the sequence.
    pub position: usize,
    /// The largest relative difference that is not a divergence.
    pub tolerance: f32,
}

impl Difference {
    /// Whether the relative difference exceeds the tolerance.
    pub fn diverges(&self) -> bool {
        self.relative > self.tolerance
    }
}

impl Model {
    /// Runs the forward pass over token ids, batch by batch, and visits the result of each op, compared with another
    /// model's if [`Trace::against`] names one. Each batch computes the logits of its last row. The trace ends when
    /// `visit` returns [`ControlFlow::Break`].
    ///
    /// It uses free blocks of the KV cache and free records of states, so that sessions are not disturbed.
    pub fn trace(
        &self,
        ids: &[u32],
        trace: &Trace<'_>,
        mut visit: impl FnMut(&TracedChunk) -> ControlFlow<()>,
    ) -> Result<(), Error> {
        self.check_trace(ids, trace)?;
        let isolated = trace.isolates(self);
        let mut ours = Traced::new(self, ids.len());
        let mut theirs = trace.against.map(|other| Traced::new(other, ids.len()));
        let last = trace.chunks.last().copied().unwrap_or(MAX_ROWS);
        let mut sizes = trace.chunks.iter().copied().chain(std::iter::repeat(last));
        let mut first = 0;
        while first < ids.len() {
            let end = ids.len().min(first + sizes.next().unwrap_or(last));
            let tokens = &ids[first..end];
            let results = match &mut theirs {
                None => ours.run(tokens)?,
                Some(theirs) => {
                    let tolerances = Tolerances::new(trace, self, theirs.model, tokens.len());
                    lockstep::run(&mut ours, theirs, tokens, tolerances, isolated)?
                }
            };
            if visit(&TracedChunk { positions: first..end, results }).is_break() {
                break;
            }
            first = end;
        }
        Ok(())
    }

    /// Whether a trace can run.
    fn check_trace(&self, ids: &[u32], trace: &Trace<'_>) -> Result<(), Error> {
        if let Some(size) = trace.chunks.iter().find(|size| !(1..=MAX_ROWS).contains(*size)) {
            return Err(Error::Trace(format!("a chunk of {size} rows: 1 to {MAX_ROWS} are possible")));
        }
        if ids.is_empty() {
            return Err(Error::EmptyPrompt);
        }
        for model in [Some(self), trace.against].into_iter().flatten() {
            let (vocab, context) = (model.plan().vocab, model.context().tokens);
            if let Some(&id) = ids.iter().find(|&&id| id as usize >= vocab) {
                return Err(Error::TokenId { id, vocab });
            }
            if ids.len() > context {
                return Err(Error::PromptTooLong { tokens: ids.len(), context });
            }
        }
        let Some(other) = trace.against else { return Ok(()) };
        if self.is(other) {
            let fault = "a model cannot be traced against itself: load it a second time";
            return Err(Error::Trace(fault.to_owned()));
        }
        same_results(self.plan(), other.plan())
    }
}

/// Whether two plans have the same results of the same shapes.
fn same_results(ours: &Plan, theirs: &Plan) -> Result<(), Error> {
    let shape = |plan: &Plan, (op, result)| {
        let rows = if let OpResult::Buffer(id) = result { plan.buffer(id).rows } else { Rows::Batch };
        (op, result, rows, plan.result_width(&plan.forward[op], result))
    };
    let (a, b) = (ours.results(), theirs.results());
    let different = a.zip(b).find(|(a, b)| shape(ours, *a) != shape(theirs, *b)).map(|((op, _), _)| op);
    let first = different.or((ours.forward.len() != theirs.forward.len()).then_some(ours.forward.len()));
    match first {
        None => Ok(()),
        Some(op) => Err(Error::Trace(format!("the two models are not of the same shape: op {op} differs"))),
    }
}

/// The most rows of a batch that decode kernels compute in a trace.
const DECODE_ROWS: usize = 16;

/// A model that is traced, its own part of the KV cache, and its own records.
struct Traced<'m> {
    model: &'m Model,
    kv: SequenceKv,
    state: SequenceState,
    max_len: u32,
}

impl<'m> Traced<'m> {
    fn new(model: &'m Model, tokens: usize) -> Traced<'m> {
        let kv = SequenceKv::new(model.plan().kv.len(), tokens, []);
        let max_len = u32::try_from(tokens).unwrap_or(u32::MAX);
        Traced { model, kv, state: SequenceState::default(), max_len }
    }

    /// Runs a chunk by itself.
    fn run(&mut self, tokens: &[u32]) -> Result<Vec<TracedResult>, Error> {
        let mut results = Vec::new();
        self.observe(tokens, &mut |observation| {
            let ours = side(&observation.seen);
            let (op, result) = (observation.op, observation.result);
            results.push(TracedResult { op, result, ours, theirs: None, difference: None });
            false
        })?;
        Ok(results)
    }

    /// Runs a chunk with the logits of its last row, and shows the results of all ops. On an error the sequence has not
    /// grown.
    fn observe(&mut self, tokens: &[u32], observer: &mut Observer<'_>) -> Result<(), Error> {
        let Traced { model, kv, state, max_len } = self;
        model.exclusively(|backend, scheduler| {
            let records = scheduler.reserve(kv, state, kv.len() + tokens.len())?;
            let first = kv.len() as u32;
            let positions: Vec<u32> = (first..).take(tokens.len()).collect();
            let (tables, groups) = kv.tables();
            let kind = if tokens.len() > DECODE_ROWS { RowKind::Prompt } else { RowKind::Generated };
            let batch = Batch {
                tokens,
                positions: &positions,
                sequences: &vec![0; tokens.len()],
                kind,
                logits: &[tokens.len().saturating_sub(1) as u32],
                tables: &tables[..groups],
                lengths: &[*max_len],
                records: records.as_slice(),
                inputs: Default::default(),
            };
            backend.observe(&batch, observer)?;
            kv.computed(tokens.len(), kind);
            Ok(())
        })
    }
}

impl Drop for Traced<'_> {
    fn drop(&mut self) {
        let release = |_: &mut dyn Backend, scheduler: &mut Scheduler| {
            scheduler.release(&mut self.kv, &mut self.state);
            Ok(())
        };
        // If the device is lost, so are the blocks.
        let _ = self.model.exclusively(release);
    }
}

fn side(seen: &Seen<'_>) -> TraceSide {
    match seen {
        Seen::Values(values) => TraceSide::Values(Summary::of(values)),
        Seen::Hidden(why) => TraceSide::Hidden((*why).to_owned()),
    }
}
