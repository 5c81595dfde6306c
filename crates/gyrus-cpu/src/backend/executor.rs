//! Runs the ops of a batch, all at once or in parts.

use std::time::Instant;

use gyrus_kernels::observe::{Observer, show};
use gyrus_kernels::{
    BackendError, Batch, BufferId, Demands, ENCODED, HOST_LIMITS, MAX_KV_GROUPS, Op, PartEnd, Phases, Plan,
};

use super::fused_bias::Fused;
use super::observe::Observable;
use super::parts::{Mark, Parts};
use super::{MAX_ROWS, Prepared};
use crate::delta::{SequenceRows, StateStore};
use crate::kv::{KvRow, KvStore};
use crate::scratch::{Scratch, grow};

/// The most rows of one batch.
pub const MAX_BATCH_ROWS: usize = 1 << 16;

/// The most rows of a decoder's batch, with a decoded row of each slot. The rows' block tables and positions are collected
/// on the stack. Encoders have more, and allocate.
const BATCH_ROWS: usize = MAX_ROWS + HOST_LIMITS.slots;

/// Rows of a batch for which smaller arrays are collected: those of decoding.
const FEW_ROWS: usize = 16;

/// Which ops of a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pass {
    Encode,
    Forward,
}

impl Pass {
    /// Its ops.
    fn ops(self, plan: &Plan) -> &[Op] {
        match self {
            Pass::Encode => &plan.encode,
            Pass::Forward => &plan.forward,
        }
    }

    /// The buffer of its result.
    fn result(self, plan: &Plan) -> Option<BufferId> {
        match self {
            Pass::Encode => plan.output(ENCODED),
            Pass::Forward => Some(plan.result()),
        }
    }
}

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
    /// What the encoder and the forward pass demand of a batch.
    pub(super) demands: [Demands; 2],
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
        for op in plan.encode.iter().chain(&plan.forward) {
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

    /// The result of a pass, once all its ops have run.
    pub(super) fn result(&self, pass: Pass, plan: &Plan, batch: &Batch<'_>) -> &[f32] {
        let Some(id) = pass.result(plan) else { return &[] };
        &self.buffers[usize::from(id.0)][..batch.logits.len() * plan.buffer(id).width]
    }
}

impl Executor {
    fn check(&self, pass: Pass, batch: &Batch<'_>) -> Result<(), BackendError> {
        if batch.rows() > MAX_BATCH_ROWS {
            return Err(BackendError::TooManyRows { rows: batch.rows(), most: MAX_BATCH_ROWS });
        }
        let plan = &self.model.plan;
        let demands = match pass {
            Pass::Encode => &self.demands[0],
            Pass::Forward => &self.demands[1],
        };
        let sound = batch.is_sound(plan.vocab, &self.blocks, demands)
            && batch.has_sound_records(!plan.delta.is_empty(), self.states.records());
        if sound { Ok(()) } else { Err(BackendError::UnsoundBatch) }
    }

    /// Runs all ops of a pass and returns its result. An observer is shown the results of each op.
    pub(super) fn execute(
        &mut self,
        pass: Pass,
        batch: &Batch<'_>,
        observer: Option<&mut Observer<'_>>,
    ) -> Result<&[f32], BackendError> {
        self.check(pass, batch)?;
        let Executor { model, caches, states, state, .. } = self;
        let stores = (&mut caches[..], states);
        state.begin(model, batch);
        let ops = pass.ops(&model.plan);
        let fused = &model.fused[pass as usize][..];
        let all = Pieces { ops, fused, from: Mark::default(), slices: &|_| 1 };
        // An observer is shown the result of each op.
        let each = Pieces { fused: &[], ..all };
        match observer {
            None => model.run_ops(all, batch, stores, state, &mut |_, _| true),
            Some(observer) => model.run_ops(each, batch, stores, state, &mut |mark, mut state| {
                show(&model.plan, mark.op, batch.rows(), &mut state, observer);
                true
            }),
        }
        Ok(state.result(pass, &model.plan, batch))
    }

    /// Runs the ops of a part. Returns the logits if it was the last one.
    pub(super) fn execute_part(
        &mut self,
        batch: &Batch<'_>,
        first: bool,
        end: PartEnd,
    ) -> Result<Option<&[f32]>, BackendError> {
        self.check(Pass::Forward, batch)?;
        let Executor { model, caches, states, of_parts: state, parts, .. } = self;
        if first {
            state.begin(model, batch);
            parts.begin(batch.rows());
        }
        let from = parts.begin_part(end);
        let (plan, rows) = (&model.plan, batch.rows());
        let (ops, fused) = (&plan.forward[..], &model.fused[Pass::Forward as usize][..]);
        let pieces = Pieces { ops, fused, from, slices: &|op| Parts::slices(&ops[op], rows) };
        let mut last = Instant::now();
        model.run_ops(pieces, batch, (caches, states), state, &mut |mark, _| {
            let now = Instant::now();
            let goes_on = parts.took(mark, now.duration_since(last).as_secs_f64());
            last = now;
            goes_on
        });
        Ok(parts.is_complete().then(|| state.result(Pass::Forward, &model.plan, batch)))
    }
}

/// Ops, and slices of ops, to run.
#[derive(Clone, Copy)]
struct Pieces<'a> {
    ops: &'a [Op],
    /// What is fused with each; nothing with those that are missing.
    fused: &'a [Fused],
    from: Mark,
    /// Into how many slices an op is divided.
    slices: &'a dyn Fn(usize) -> usize,
}

impl Prepared {
    /// Runs ops of a sound batch, and calls `after` with each op or slice that has run and the state after it, until it
    /// returns `false` or all have run.
    fn run_ops(
        &self,
        pieces: Pieces<'_>,
        batch: &Batch<'_>,
        (caches, states): Stores<'_>,
        state: &mut State,
        after: &mut dyn FnMut(Mark, Observable<'_>) -> bool,
    ) {
        // Filling arrays for the longest chunk would take a few microseconds of every decoded token.
        let count = batch.rows();
        if count <= FEW_ROWS {
            return self.run_ops_of::<FEW_ROWS>(pieces, batch, (caches, states), state, after);
        }
        if count <= BATCH_ROWS {
            return self.run_ops_of::<BATCH_ROWS>(pieces, batch, (caches, states), state, after);
        }
        let of_group = |group| (0..count).map(|row| kv_row(batch, row, group)).collect::<Vec<_>>();
        let rows: Vec<Vec<KvRow<'_>>> = (0..self.plan.kv.len()).map(of_group).collect();
        let rows: Vec<&[KvRow<'_>]> = rows.iter().map(Vec::as_slice).collect();
        self.run_ops_with(&rows, pieces, batch, (caches, states), state, after);
    }

    /// The same for a batch of at most `ROWS` rows.
    fn run_ops_of<const ROWS: usize>(
        &self,
        pieces: Pieces<'_>,
        batch: &Batch<'_>,
        stores: Stores<'_>,
        state: &mut State,
        after: &mut dyn FnMut(Mark, Observable<'_>) -> bool,
    ) {
        let mut rows = [[KvRow { table: &[], position: 0, extent: 0 }; ROWS]; MAX_KV_GROUPS];
        for (group, rows) in rows[..self.plan.kv.len()].iter_mut().enumerate() {
            for (i, row) in rows[..batch.rows()].iter_mut().enumerate() {
                *row = kv_row(batch, i, group);
            }
        }
        let rows = rows.each_ref().map(|rows| &rows[..batch.rows()]);
        self.run_ops_with(&rows, pieces, batch, stores, state, after);
    }

    /// Runs some ops of a sound batch whose rows have these places in each KV group.
    fn run_ops_with(
        &self,
        rows: &[&[KvRow<'_>]],
        pieces: Pieces<'_>,
        batch: &Batch<'_>,
        (caches, states): Stores<'_>,
        state: &mut State,
        after: &mut dyn FnMut(Mark, Observable<'_>) -> bool,
    ) {
        let Pieces { ops, fused, from: mut mark, slices } = pieces;
        while mark < Mark::end(ops) {
            let slices = slices(mark.op);
            let slice = mark.rows(slices, batch.rows());
            let op = &ops[mark.op];
            match fused.get(mark.op) {
                Some(Fused::Adds(bias)) => self.multiply(op, Some(bias), batch, state),
                Some(Fused::Added) => {}
                Some(Fused::No) | None => self.run(op, batch, slice, rows, caches, states, state),
            }
            if !after(mark, Observable { model: self, batch, rows, caches, state }) {
                return;
            }
            mark = mark.next(slices);
        }
    }
}

/// The place of a batch's row in a KV group.
fn kv_row<'a>(batch: &'a Batch<'_>, row: usize, group: usize) -> KvRow<'a> {
    let group = group as u8;
    KvRow { table: batch.table(row, group), position: batch.positions[row], extent: batch.extent(row, group) }
}
