//! How much results may differ. docs/trace.md states what was measured.

use gyrus_kernels::{Op, Precision};

use super::Trace;
use crate::device::DeviceInfo;
use crate::model::Model;

/// f32 with the same inputs: only the order of sums differs.
const SAME_INPUTS: f32 = 1e-4;
/// Products of int8 activations with the same inputs: some may round to neighbours.
const INT8_PRODUCTS: f32 = 1e-2;
/// Products of int8 activations against f16 or f32. Kernels may fuse a product and the ops around it.
const ROUNDED_PRODUCTS: f32 = 0.2;
/// f32, and differences accumulate over layers.
const ACCUMULATED: f32 = 1e-2;
/// A run is `fast`, and its rounding accumulates over layers, so that correct runs differ by more than a row's largest
/// value. It is the largest relative difference of finite values.
const ACCUMULATED_FAST: f32 = 2.0;

/// The most rows that a GPU multiplies in int8.
const INT8_ROWS: usize = 16;

/// How much the results of one batch may differ.
#[derive(Debug, Clone, Copy)]
pub(super) struct Tolerances {
    products: f32,
    others: f32,
    /// Whether the rounding of results is allowed for, too.
    plus_rounding: bool,
}

impl Tolerances {
    /// Of a batch of this many rows that two models run.
    pub(super) fn new(trace: &Trace<'_>, ours: &Model, theirs: &Model, rows: usize) -> Tolerances {
        let all = |tolerance| Tolerances { products: tolerance, others: tolerance, plus_rounding: false };
        let all_f32 = is_f32(ours) && is_f32(theirs);
        match (trace.tolerance, trace.isolates(ours)) {
            (Some(tolerance), _) => all(tolerance),
            (None, false) => all(if all_f32 { ACCUMULATED } else { ACCUMULATED_FAST }),
            (None, true) if all_f32 => all(SAME_INPUTS),
            (None, true) => {
                let all_int8 = !is_f32(ours) && !is_f32(theirs) && rows <= INT8_ROWS;
                let products = if all_int8 { INT8_PRODUCTS } else { ROUNDED_PRODUCTS };
                Tolerances { products, others: SAME_INPUTS, plus_rounding: true }
            }
        }
    }

    /// That of a result of an op, which a run holds with this rounding.
    pub(super) fn of(&self, op: &Op, rounding: f32) -> f32 {
        match op {
            Op::MatMul { .. } | Op::ExpertMatMul { .. } | Op::Gate { .. } => self.products,
            // A value may be rounded up in one run and down in the other.
            _ if self.plus_rounding => self.others + 2.0 * rounding,
            _ => self.others,
        }
    }
}

impl Trace<'_> {
    /// Whether a trace of `model` gives each op the same inputs in both runs.
    pub fn isolates(&self, model: &Model) -> bool {
        !self.accumulate && self.against.is_some_and(|other| is_on_host(model) || is_on_host(other))
    }
}

fn is_f32(model: &Model) -> bool {
    model.plan().precision == Precision::Exact || *model.device() == DeviceInfo::Reference
}

/// Whether it can continue with results that are not its own.
pub(super) fn is_on_host(model: &Model) -> bool {
    !matches!(model.device(), DeviceInfo::Gpu { .. })
}
