//! Runs the ops of a batch, all at once or in parts.

use std::time::Instant;

use gyrus_kernels::observe::{Observer, show};
use gyrus_kernels::{BackendError, Batch, BufferId, HOST_LIMITS, MAX_KV_GROUPS, Op, Phases, Plan};

use super::observe::Observable;
use super::parts::{Mark, Parts};
use super::{MAX_ROWS, Prepared};
use crate::delta::{SequenceRows, StateStore};
use crate::kv::{KvRow, KvStore};
use crate::scratch::{Scratch, grow};

/// The most rows of one batch, with a decoded row of each slot. The rows' block tables and positions are collected on the
/// stack.
const BATCH_ROWS: usize = MAX_ROWS + HOST_LIMITS.slots;

/// Rows of a batch for which smaller arrays are collected: those of decoding.
const FEW_ROWS: usize = 16;

/// All but the slots.
pub(super) struct Executor {
    pub(super) model: Prepared,
    /// One per KV group.
    pub(super) caches: Vec<KvStore>,
    /// Blocks of each.
    pub(super) blocks: Vec<usize>,
    /// Records of layers with a state.
    pub(super) states: StateStore,
    pub(super) state: State,
    /// That of a batch that is computed in parts, so that others can be computed between them.
    pub(super) of_parts: State,
    pub(super) parts: Parts,
}

/// What stays from batch to batch: keys and values of each KV group, and records.
type Stores<'a> = (&'a mut [KvStore], &'a mut StateStore);

/// The mutable state of a forward pass, separate from the weights so both can be borrowed.
pub(super) struct State {
    pub(super) buffers: Vec<Vec<f32>>,
    pub(super) phases: Vec<Phases>,
    /// The rows of each sequence, for layers with a state.
    pub(super) sequence_rows: SequenceRows,
    pub(super) scratch: Scratch,
}

impl State {
    pub(super) fn new(plan: &Plan, blocks: &[usize]) -> State {
        let mut scratch = Scratch::new();
        for op in &plan.forward {
            if let Op::Attention { heads, kv, .. } = op {
                let blocks = blocks[usize::from(kv.group)];
                scratch.reserve_attention(usize::from(*heads), plan.kv_group(*kv).head_dim, blocks);
            }
        }
        State {
            buffers: plan.buffers.iter().map(|_| Vec::new()).collect(),
            phases: plan.ropes.iter().map(|_| Phases::default()).collect(),
            sequence_rows: SequenceRows::default(),
            scratch,
        }
    }

    /// Prepares for a batch.
    fn begin(&mut self, model: &Prepared, batch: &Batch<'_>) {
        for (i, buffer) in self.buffers.iter_mut().enumerate() {
            let id = BufferId(i as u16);
            grow(buffer, model.rows(id, batch) * model.plan.buffer(id).width);
        }
        for (phases, rope) in self.phases.iter_mut().zip(&model.plan.ropes) {
            phases.compute(rope, batch);
        }
        if !model.plan.delta.is_empty() {
            self.sequence_rows.collect(batch);
        }
    }

    /// The logits, once all ops have run.
    pub(super) fn logits(&self, plan: &Plan, batch: &Batch<'_>) -> &[f32] {
        &self.buffers[usize::from(plan.logits().0)][..batch.logits.len() * plan.vocab]
    }
}

impl Executor {
    fn check(&self, batch: &Batch<'_>) -> Result<(), BackendError> {
        if batch.rows() > BATCH_ROWS {
            return Err(BackendError::TooManyRows { rows: batch.rows(), most: BATCH_ROWS });
        }
        let plan = &self.model.plan;
        let sound = batch.is_sound(plan.vocab, &self.blocks)
            && batch.has_sound_records(!plan.delta.is_empty(), self.states.records());
        if sound { Ok(()) } else { Err(BackendError::UnsoundBatch) }
    }

    /// Runs all ops and returns the logits. An observer is shown the results of each op.
    pub(super) fn execute(
        &mut self,
        batch: &Batch<'_>,
        observer: Option<&mut Observer<'_>>,
    ) -> Result<&[f32], BackendError> {
        self.check(batch)?;
        let Executor { model, caches, states, state, .. } = self;
        let stores = (&mut caches[..], states);
        state.begin(model, batch);
        let all = Pieces { from: Mark::default(), to: Mark::end(&model.plan), slices: &|_| 1 };
        match observer {
            None => model.run_ops(all, batch, stores, state, &mut |_, _| {}),
            Some(observer) => model.run_ops(all, batch, stores, state, &mut |mark, mut state| {
                show(&model.plan, mark.op, batch.rows(), &mut state, observer);
            }),
        }
        Ok(state.logits(&model.plan, batch))
    }

    /// Runs the ops of a part.
    pub(super) fn execute_part(
        &mut self,
        batch: &Batch<'_>,
        part: usize,
        parts: usize,
    ) -> Result<&[f32], BackendError> {
        self.check(batch)?;
        let Executor { model, caches, states, of_parts: state, parts: division, .. } = self;
        if part == 0 {
            state.begin(model, batch);
            division.begin(batch.rows());
        }
        let (from, to) = division.advance(part, parts);
        let (plan, rows) = (&model.plan, batch.rows());
        let pieces = Pieces { from, to, slices: &|op| Parts::slices(&plan.forward[op], rows) };
        let mut last = Instant::now();
        model.run_ops(pieces, batch, (caches, states), state, &mut |mark, _| {
            let now = Instant::now();
            division.took(mark, now.duration_since(last).as_secs_f64());
            last = now;
        });
        Ok(if part + 1 < parts { &[] } else { state.logits(&model.plan, batch) })
    }
}

/// Ops, and slices of ops, to run.
struct Pieces<'a> {
    from: Mark,
    to: Mark,
    /// Into how many slices an op is divided.
    slices: &'a dyn Fn(usize) -> usize,
}

impl Prepared {
    /// Runs some ops of a sound batch, and calls `after` with each op or slice that has run and the state after it.
    fn run_ops(
        &self,
        pieces: Pieces<'_>,
        batch: &Batch<'_>,
        (caches, states): Stores<'_>,
        state: &mut State,
        after: &mut dyn FnMut(Mark, Observable<'_>),
    ) {
        // Filling arrays for the longest chunk would take a few microseconds of every decoded token.
        match batch.rows() {
            ..=FEW_ROWS => self.run_ops_of::<FEW_ROWS>(pieces, batch, (caches, states), state, after),
            _ => self.run_ops_of::<BATCH_ROWS>(pieces, batch, (caches, states), state, after),
        }
    }

    /// Runs some ops of a sound batch of at most `ROWS` rows.
    fn run_ops_of<const ROWS: usize>(
        &self,
        pieces: Pieces<'_>,
        batch: &Batch<'_>,
        (caches, states): Stores<'_>,
        state: &mut State,
        after: &mut dyn FnMut(Mark, Observable<'_>),
    ) {
        let plan = &self.plan;
        let mut rows = [[KvRow { table: &[], position: 0 }; ROWS]; MAX_KV_GROUPS];
        for (group, rows) in rows[..plan.kv.len()].iter_mut().enumerate() {
            for (i, row) in rows[..batch.rows()].iter_mut().enumerate() {
                *row = KvRow { table: batch.table(i, group as u8), position: batch.positions[i] };
            }
        }
        let rows = rows.each_ref().map(|rows| &rows[..batch.rows()]);
        let Pieces { from: mut mark, to, slices } = pieces;
        while mark < to {
            let slices = slices(mark.op);
            let slice = mark.rows(slices, batch.rows());
            self.run(&plan.forward[mark.op], batch, slice, &rows, caches, states, state);
            after(mark, Observable { model: self, batch, rows: &rows, caches, state });
            mark = mark.next(slices);
        }
    }
}
