//! From a plan's ops to kernels, in two steps.
//!
//! [`fuse`] makes a list of kernel [calls](Call) from ops: data that can be printed, compared and tested without a GPU.
//! It depends on the plan, on what the device can do, and on what kind of batch the list is for. `Lowering::bind`
//! then finds the buffers of each call's operands; pipelines are bound when a number of rows first comes up
//! (`step.rs`).

mod call;
mod capabilities;
mod display;
mod expert_call;
mod fuse;
mod operand;
mod slots;

use gyrus_kernels::{KvSize, Op, Plan, Precision};

pub(crate) use self::call::{Call, Kernel, RowsSeen};
pub use self::capabilities::Capabilities;
pub use self::display::Fused;
pub(crate) use self::fuse::FuseContext;
pub(crate) use self::operand::{F16Plane, Int8Plane, Int8Rows, Operand};
use crate::buffer::Buffer;
use crate::buffers::{Buffers, most_rows, paged, records};
use crate::device::Gpu;
use crate::error::GpuError;
use crate::step::Step;
use crate::tuning::Tuning;
use crate::weight::{WeightLayouts, Weights};

/// Which batches a list of calls is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BatchKind {
    /// One row that wants logits: decoding one sequence. Its mat-vecs finish norms and attention in their prologues,
    /// and attention rotates and writes its own key.
    Decode,
    /// Up to 16 rows of different sequences: decoding several. Attention rotates and writes each row's key. Sums have
    /// the order that they have for one row.
    Sequences,
    /// Up to 16 rows, of which some may be of one sequence, so that all keys are written before any row attends. Sums
    /// have the order that they have for one row.
    ShortChunk,
    /// Up to [`MAX_ROWS`](crate::MAX_ROWS) rows.
    Prefill,
}

/// The ops of a forward pass: its layers compute all rows; the rest, from the gather on, computes logits of the rows that
/// want them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Segments<'p> {
    pub(crate) all: &'p [Op],
    pub(crate) layers: &'p [Op],
    pub(crate) logits: &'p [Op],
}

impl<'p> Segments<'p> {
    pub(crate) fn of(plan: &'p Plan) -> Segments<'p> {
        Segments::split(&plan.forward)
    }

    /// The segments of a pass.
    pub(crate) fn split(all: &'p [Op]) -> Segments<'p> {
        let gather = all.iter().position(|op| matches!(op, Op::Gather { .. })).unwrap_or(all.len());
        let (layers, logits) = all.split_at(gather);
        Segments { all, layers, logits }
    }
}

/// The kernels that compute a batch of this kind, with a cache of this size on a device with these capabilities,
/// from its tokens to logits: those of every row in [`BatchKind::Decode`] and [`BatchKind::Sequences`], else those of
/// one row.
///
/// It assumes the default tuning, and that all weights are in the range of f16. The result prints as one call a line.
pub fn fused<'p>(
    plan: &'p Plan,
    kv: &KvSize,
    capabilities: &Capabilities,
    kind: BatchKind,
) -> Result<Fused<'p>, GpuError> {
    let weights = WeightLayouts::of(plan, capabilities.largest_buffer)?;
    let context = FuseContext {
        plan,
        capabilities: *capabilities,
        weights: &weights,
        tuning: &Tuning::default(),
        caches: &paged(plan, kv),
        records: records(kv),
        rows: most_rows(plan, kv) as u32,
    };
    let segments = Segments::of(plan);
    let mut calls;
    match kind {
        BatchKind::Decode => calls = context.fuse(segments.all, kind, true)?,
        BatchKind::Sequences => {
            calls = context.fuse(segments.layers, kind, false)?;
            calls.extend(context.fuse(segments.logits, BatchKind::ShortChunk, true)?);
        }
        BatchKind::ShortChunk | BatchKind::Prefill => {
            calls = context.fuse(segments.layers, kind, false)?;
            calls.extend(context.fuse(segments.logits, BatchKind::Decode, false)?);
        }
    }
    Ok(Fused { plan, kind, calls })
}

/// All that lists of steps are made from.
pub(crate) struct Lowering<'a> {
    pub(crate) gpu: &'a Gpu,
    pub(crate) plan: &'a Plan,
    pub(crate) weights: &'a Weights,
    pub(crate) buffers: &'a Buffers,
    pub(crate) tuning: &'a Tuning,
    /// Buffers that some operands have instead of those of `buffers`.
    pub(crate) replaced: &'a [(Operand, Buffer)],
}

impl<'a> Lowering<'a> {
    pub(crate) fn context(&self) -> FuseContext<'a> {
        FuseContext {
            plan: self.plan,
            capabilities: self.gpu.capabilities(),
            weights: self.weights.layouts(),
            tuning: self.tuning,
            caches: self.buffers.paged(),
            records: self.buffers.records(),
            rows: self.buffers.most_rows() as u32,
        }
    }

    /// Fuses ops and binds the calls. `all_rows`: every row wants logits.
    pub(crate) fn steps(&self, ops: &[Op], kind: BatchKind, all_rows: bool) -> Result<Vec<Step>, GpuError> {
        self.context().fuse(ops, kind, all_rows)?.into_iter().map(|call| self.bind(call)).collect()
    }

    /// The same with other buffers for some operands.
    pub(crate) fn with<'b>(&self, replaced: &'b [(Operand, Buffer)]) -> Lowering<'b>
    where
        'a: 'b,
    {
        Lowering { replaced, ..*self }
    }

    /// Finds the buffers of a call's operands.
    pub(crate) fn bind(&self, call: Call) -> Result<Step, GpuError> {
        let replaced = |operand: &Operand| self.replaced.iter().find(|(of, _)| of == operand);
        let buffer = |operand: &Operand| match operand {
            other if replaced(other).is_some() => replaced(other).map(|(_, buffer)| buffer),
            Operand::Matrix { weights, part, plane } => self.weights.plane(weights, *part, *plane),
            Operand::Vectors(weights) => self.weights.vectors(weights),
            Operand::Columns(biases, width) => self.weights.columns(biases, *width),
            other => self.buffers.get(other).ok(),
        };
        let mut buffers = Vec::new();
        for (slot, operand) in call.slots() {
            let missing = || GpuError::internal(format!("{}: {operand:?} was never allocated", call.name));
            buffers.push((slot, buffer(&operand).cloned().ok_or_else(missing)?));
        }
        Ok(Step::new(call, buffers))
    }
}

/// In single precision nothing is fused: it is what the fused kernels are compared with.
fn effective(kind: BatchKind, precision: Precision) -> BatchKind {
    if precision == Precision::Exact { BatchKind::Prefill } else { kind }
}

#[cfg(test)]
mod tests;
