//! From a plan's ops to kernels: which ops become one kernel depends on how many rows there are.
//!
//! A norm, and attention that was divided into splits, need not be finished by a kernel of their own: the mat-mul
//! that reads them can. So they stay *pending* until somebody reads them, and who reads says how they are finished.

mod attention;
mod products;

use std::collections::HashMap;

use gyrus_kernels::call::engine;
use gyrus_kernels::call::{EmbedCall, QuantizeCall, Source, Target};
use gyrus_kernels::{BufferId, Op, Plan, Precision, WeightId};

use self::attention::Attention;
use crate::buffer::Buffer;
use crate::buffers::{Buffers, MAX_ROWS};
use crate::device::Gpu;
use crate::error::GpuError;
use crate::step::{Step, Work};
use crate::tuning::Tuning;
use crate::weight::{Part, Weights};

/// How many rows a table of steps is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Class {
    /// One row: its mat-muls finish norms and attention for themselves, and attention turns and writes its own keys.
    One,
    /// At most [`FEW`](crate::buffers::FEW) of different sequences: attention turns and writes each row's keys. Sums have the order that
    /// they have for one.
    Each,
    /// At most [`FEW`](crate::buffers::FEW), some perhaps of one sequence, so that keys are written before any are attended to.
    Few,
    /// As many as there may be.
    Many,
}

/// What a buffer is to hold, as long as nobody has finished it.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Pending {
    /// The norm of a buffer, which may be the one it is for.
    Norm { x: BufferId, weight: WeightId, eps: f32 },
    /// Unmerged splits of attention; for `gathered` rows and more, merged and quantised to int8 already.
    Splits { window: u32, gathered: u32 },
    /// Nothing. Where an int8 cooperative matrix wrote the buffer, its int8 form exists already.
    Int8,
}

/// Makes tables of steps.
pub(crate) struct Lowering<'a> {
    pub(crate) gpu: &'a Gpu,
    pub(crate) plan: &'a Plan,
    pub(crate) weights: &'a Weights,
    pub(crate) buffers: &'a Buffers,
    pub(crate) tuning: &'a Tuning,
}

/// A table in the making.
struct Table<'a> {
    on: &'a Lowering<'a>,
    class: Class,
    /// Whether rows that want logits are all rows there are, so that they need not be gathered.
    all: bool,
    pending: HashMap<BufferId, Pending>,
    /// The buffer whose rows matrices made bytes as the norm of this weight wants them.
    normed: Option<(BufferId, WeightId)>,
    /// Buffers that others stand for.
    same: HashMap<BufferId, BufferId>,
    /// What comes after the ops that are being lowered.
    later: &'a [Op],
    steps: Vec<Step>,
}

impl Lowering<'_> {
    /// The steps of some ops of a plan.
    pub(crate) fn table(&self, ops: &[Op], class: Class, all: bool) -> Result<Vec<Step>, GpuError> {
        let mut table = Table {
            on: self,
            class,
            all,
            pending: HashMap::new(),
            normed: None,
            same: HashMap::new(),
            later: &[],
            steps: Vec::new(),
        };
        let mut rest = ops;
        while !rest.is_empty() {
            let taken = table.take(rest)?;
            rest = &rest[taken..];
        }
        Ok(table.steps)
    }
}

impl<'a> Table<'a> {
    fn fast(&self) -> bool {
        self.on.plan.precision == Precision::Fast
    }

    /// The buffer that stands for this one.
    fn id(&self, id: BufferId) -> BufferId {
        *self.same.get(&id).unwrap_or(&id)
    }

    fn buffer(&self, id: BufferId) -> Buffer {
        self.on.buffers.scratch(self.id(id)).clone()
    }

    fn width(&self, id: BufferId) -> u32 {
        self.on.plan.buffer(id).width as u32
    }

    fn vector(&self, ids: &[WeightId]) -> Result<Buffer, GpuError> {
        let missing = || GpuError::Refused { reason: "a norm's weight was not uploaded".to_owned() };
        self.on.weights.vector(ids).cloned().ok_or_else(missing)
    }

    /// Lowers the first op, or the first few, and says how many those were.
    fn take(&mut self, ops: &'a [Op]) -> Result<usize, GpuError> {
        let rungs = self.on.gpu.rungs();
        self.later = &ops[1..];
        match ops[0] {
            Op::Embed { table, scale, out } => self.embed(table, scale, out)?,
            Op::RmsNorm { x, weight, eps, out } => {
                self.finish(x)?;
                self.pending.insert(self.id(out), Pending::Norm { x: self.id(x), weight, eps });
            }
            Op::MatMul { x, ref weights, accumulate, out } => {
                if let [_, Op::Gate { x: gated, activation, out: to }, ..] = *ops
                    && gated == out
                    && !accumulate
                    && self.can_gate(x, weights)
                {
                    self.later = &ops[2..];
                    self.mat_mul(x, weights, false, Some(activation), to)?;
                    return Ok(2);
                }
                self.mat_mul(x, weights, accumulate, None, out)?;
            }
            Op::RopeWrite { qkv, layer, head_norm, rope } => {
                if let [_, Op::Attention { qkv: same, layer: of, scale, window, out }, ..] = *ops
                    && (same, of) == (qkv, layer)
                {
                    self.later = &ops[2..];
                    self.attention(Attention { qkv, layer, head_norm, rope, scale, window, out })?;
                    return Ok(2);
                }
                return Err(GpuError::Refused {
                    reason: "keys are written that nobody attends to".to_owned(),
                });
            }
            Op::Attention { .. } => {
                return Err(GpuError::Refused { reason: "attention without keys of its own".to_owned() });
            }
            Op::Gate { x, activation, out } => {
                self.finish(x)?;
                self.written(out)?;
                let count = self.width(out);
                let buffers = vec![("x", self.buffer(x)), ("out", self.buffer(out))];
                let work = Work::Row { bytes: 12 * u64::from(count) };
                self.steps.push(Step::new("gate", work, buffers, move |rows| {
                    engine::gate(rungs, rows, count, activation)
                }));
            }
            Op::Gather { x, out } if self.all => {
                self.finish(x)?;
                self.same.insert(out, self.id(x));
            }
            Op::Gather { x, out } => {
                self.finish(x)?;
                let count = self.width(x);
                let buffers = vec![
                    ("x", self.buffer(x)),
                    ("indices", self.on.buffers.indices.clone()),
                    ("out", self.buffer(out)),
                ];
                let all = MAX_ROWS as u32;
                let work = Work::Row { bytes: 8 * u64::from(count) };
                self.steps.push(Step::new("gather", work, buffers, move |rows| {
                    engine::gather(rungs, all, rows, count)
                }));
            }
            // Tokens are drawn by the caller, or by the chain.
            Op::Select { .. } => {}
        }
        Ok(1)
    }

    /// Finishes what is pending for a buffer that is to be read as it is.
    fn finish(&mut self, id: BufferId) -> Result<(), GpuError> {
        let id = self.id(id);
        let rungs = self.on.gpu.rungs();
        let cols = self.width(id);
        match self.pending.remove(&id) {
            None | Some(Pending::Int8) => {}
            Some(Pending::Norm { x, weight, eps }) => {
                let in_place = x == id;
                let buffers = vec![
                    ("x", self.buffer(x)),
                    ("weight", self.vector(&[weight])?),
                    ("out", self.buffer(id)),
                ];
                let work = Work::Row { bytes: 8 * u64::from(cols) };
                self.steps.push(Step::new("norm", work, buffers, move |rows| {
                    engine::rms_norm(rungs, rows, cols, eps, in_place)
                }));
            }
            Some(Pending::Splits { window, gathered: u32::MAX }) => {
                let source = Source::Merge { head_dim: self.on.plan.kv.head_dim as u32, window };
                let buffers = vec![
                    ("partials", self.on.buffers.partials.clone()),
                    ("rows", self.on.buffers.rows.clone()),
                    ("q", self.buffer(id)),
                ];
                let work = Work::Row { bytes: 8 * u64::from(cols) };
                self.steps.push(Step::new("merge", work, buffers, move |rows| {
                    QuantizeCall { rows, cols, source, target: Target::F32 }.launch(rungs)
                }));
            }
            Some(Pending::Splits { .. }) => {
                return Err(GpuError::Refused { reason: "rows are read that were made bytes".to_owned() });
            }
        }
        Ok(())
    }

    /// The weights of the next op, if it is a product of this buffer and nobody else reads what that is to hold now.
    fn read_next_alone(&self, id: BufferId) -> Option<&'a [WeightId]> {
        let [Op::MatMul { x, weights, out, .. }, rest @ ..] = self.later else { return None };
        let id = self.id(id);
        let alone = self.id(*x) == id && self.id(*out) != id && !self.is_read_by(rest, id);
        alone.then_some(weights)
    }

    /// Whether a later op reads what a buffer is to hold now.
    fn is_read_later(&self, id: BufferId) -> bool {
        self.is_read_by(self.later, id)
    }

    /// Whether some ops read what a buffer holds before the first of them.
    fn is_read_by(&self, ops: &[Op], id: BufferId) -> bool {
        for op in ops {
            if op.reads().into_iter().flatten().any(|read| self.id(read) == id) {
                return true;
            }
            if op.writes().is_some_and(|written| self.id(written) == id) {
                return false;
            }
        }
        false
    }

    /// A buffer is about to be overwritten: what is pending for it is no longer wanted, what is made of it may be.
    fn written(&mut self, id: BufferId) -> Result<(), GpuError> {
        let id = self.id(id);
        self.pending.remove(&id);
        self.normed = self.normed.filter(|(x, _)| *x != id);
        let made_of_it = |(to, pending): (&BufferId, &Pending)| match pending {
            Pending::Norm { x, .. } if *x == id => Some(*to),
            _ => None,
        };
        let endangered: Vec<BufferId> = self.pending.iter().filter_map(made_of_it).collect();
        for to in endangered {
            if self.is_read_later(to) {
                self.finish(to)?;
            } else if to != id {
                self.pending.remove(&to);
            }
        }
        Ok(())
    }

    fn embed(&mut self, table: WeightId, scale: f32, out: BufferId) -> Result<(), GpuError> {
        let rungs = self.on.gpu.rungs();
        let vocab = self.on.plan.weight(table).shape.rows() as u32;
        for part in self.on.weights.matrix(&[table]) {
            let (layout, first) = (part.layout, part.first);
            let mut buffers = planes(part);
            buffers.extend([("tokens", self.on.buffers.tokens.clone()), ("y", self.buffer(out))]);
            let work = Work::Row { bytes: 5 * u64::from(layout.cols()) };
            self.steps.push(Step::new("embed", work, buffers, move |tokens| {
                EmbedCall { vocab, first, ..EmbedCall::new(layout, tokens, scale) }.launch(rungs)
            }));
        }
        Ok(())
    }
}

/// A part's planes by their names.
fn planes(part: &Part) -> Vec<(&'static str, Buffer)> {
    part.layout.planes().map(|plane| plane.name()).zip(part.planes.iter().cloned()).collect()
}
