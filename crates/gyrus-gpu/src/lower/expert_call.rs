//! Kernel calls of mixtures of experts.

use gyrus_kernels::call::{
    ExpertSumCall, ExpertTilesCall, Experts, MatMulCall, MatVecCall, RouteCall, TileCall, add_gated,
};
use gyrus_kernels::shader::Rungs;
use gyrus_kernels::{BufferId, Launch, LaunchError, WeightId};

use super::call::{MatrixPart, RowInput};
use super::operand::{F16Plane, Operand};
use super::slots::{Slot, with};
use crate::step::Work;

/// The kernels of mixtures of experts. Rows of their calls are those of the batch, whatever the structs say.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum ExpertKernel {
    /// The experts of each row and their weights.
    Route { call: RouteCall, logits: BufferId, scale: Option<WeightId>, out: BufferId },
    /// Mat-vec of each slot, or of the sum over the slots of a row. It quantises its input in its prologue.
    MatVec { call: MatVecCall, input: RowInput, on: ExpertOperands, out: BufferId },
    /// Matrix product of each slot in f32.
    MatMul { call: MatMulCall, x: BufferId, on: ExpertOperands, out: BufferId },
    /// Sorts slots by expert into tiles.
    Sort { call: ExpertTilesCall, route: BufferId },
    /// Matrix product of f16 rows in tiles of slots of one expert each.
    Tiles { call: TileCall, on: ExpertOperands, out: BufferId },
    /// The weighted sum of the slots of a row.
    Sum { call: ExpertSumCall, x: BufferId, route: BufferId, out: BufferId },
    /// Adds a buffer times the sigmoid of a gate.
    AddGated { x: BufferId, gate: BufferId, width: u32, out: BufferId },
}

/// What products of experts read beside their input.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ExpertOperands {
    pub(crate) route: BufferId,
    /// The weights of all experts, one below the other.
    pub(crate) matrix: MatrixPart,
    /// Biases of the rows of the matrix, or none.
    pub(crate) biases: Vec<WeightId>,
}

impl ExpertOperands {
    fn slots(&self, more: impl IntoIterator<Item = Slot>) -> Vec<Slot> {
        let mut slots = with(self.matrix.slots(), [("routes", Operand::Scratch(self.route))]);
        if !self.biases.is_empty() {
            slots.push(("biases", Operand::Vectors(self.biases.clone())));
        }
        slots.extend(more);
        slots
    }

    /// The product of a row with the weights of its experts.
    fn work(&self, experts: Option<Experts>) -> Work {
        let layout = self.matrix.layout;
        let (count, used) = experts.map_or((1, 1), |experts| (experts.count.max(1), experts.used));
        let bytes = layout.total_bytes() / u64::from(count) * u64::from(used);
        let row_bytes = 4 * u64::from(used) * (u64::from(layout.cols()) + u64::from(layout.rows() / count));
        Work::Matrix { bytes, row_bytes, rows: layout.rows() / count * used, cols: layout.cols() }
    }
}

impl ExpertKernel {
    pub(crate) fn launch(&self, rungs: Rungs, rows: u32) -> Result<Launch, LaunchError> {
        match self {
            ExpertKernel::Route { call, .. } => RouteCall { rows, ..*call }.launch(rungs),
            ExpertKernel::MatVec { call, .. } => MatVecCall { rows, ..*call }.launch(rungs),
            ExpertKernel::MatMul { call, .. } => {
                MatMulCall { rows, ..*call }.launch(rungs, Default::default())
            }
            ExpertKernel::Sort { call, .. } => ExpertTilesCall { rows, ..*call }.launch(rungs),
            ExpertKernel::Tiles { call, .. } => TileCall { rows, ..*call }.launch(rungs),
            ExpertKernel::Sum { call, .. } => ExpertSumCall { rows, ..*call }.launch(rungs),
            ExpertKernel::AddGated { width, .. } => add_gated(rungs, rows, *width),
        }
    }

    /// What it must read, write and compute.
    pub(crate) fn work(&self) -> Work {
        let row = |bytes: u32, width: u32| Work::Row { bytes: u64::from(bytes) * u64::from(width) };
        match self {
            ExpertKernel::Route { call, .. } => row(4, call.count),
            ExpertKernel::MatVec { call, on, .. } => on.work(call.experts),
            ExpertKernel::MatMul { call, on, .. } => on.work(call.experts),
            ExpertKernel::Tiles { call, on, .. } => on.work(call.experts),
            ExpertKernel::Sort { call, .. } => row(16, call.experts.used),
            ExpertKernel::Sum { call, .. } => row(4 * (call.experts.used + 2), call.count),
            ExpertKernel::AddGated { width, .. } => row(12, *width),
        }
    }

    /// The buffer of the plan that it writes, if it does.
    pub(crate) fn out(&self) -> Option<BufferId> {
        match self {
            ExpertKernel::Route { out, .. }
            | ExpertKernel::MatVec { out, .. }
            | ExpertKernel::MatMul { out, .. }
            | ExpertKernel::Tiles { out, .. }
            | ExpertKernel::Sum { out, .. }
            | ExpertKernel::AddGated { out, .. } => Some(*out),
            ExpertKernel::Sort { .. } => None,
        }
    }

    /// Buffers by the names of the launch's slots.
    pub(crate) fn slots(&self) -> Vec<Slot> {
        let scratch = |id: &BufferId| Operand::Scratch(*id);
        let vector = |id: &WeightId| Operand::Vectors(vec![*id]);
        match self {
            ExpertKernel::Route { logits, scale, out, .. } => {
                let mut slots = vec![("logits", scratch(logits)), ("out", scratch(out))];
                slots.extend(scale.iter().map(|scale| ("scale", vector(scale))));
                slots
            }
            ExpertKernel::MatVec { input, on, out, .. } => {
                let slots = on.slots([("y", scratch(out))]);
                match input {
                    RowInput::F32(x) => with(slots, [("x", scratch(x))]),
                    RowInput::Norm { x, weight } => {
                        with(slots, [("x", scratch(x)), ("norm_weight", vector(weight))])
                    }
                    RowInput::Splits(_) => slots,
                }
            }
            ExpertKernel::MatMul { x, on, out, .. } => on.slots([("x", scratch(x)), ("y", scratch(out))]),
            ExpertKernel::Sort { route, .. } => {
                vec![("routes", scratch(route)), ("order", Operand::ExpertOrder)]
            }
            ExpertKernel::Tiles { call, on, out } => {
                let width = call.weight.cols();
                on.slots([
                    ("x", Operand::F16(width, F16Plane::Values)),
                    ("x_scales", Operand::F16(width, F16Plane::Scales)),
                    ("order", Operand::ExpertOrder),
                    ("y", scratch(out)),
                ])
            }
            ExpertKernel::Sum { x, route, out, .. } => {
                vec![("x", scratch(x)), ("routes", scratch(route)), ("out", scratch(out))]
            }
            ExpertKernel::AddGated { x, gate, out, .. } => {
                vec![("x", scratch(x)), ("gate", scratch(gate)), ("out", scratch(out))]
            }
        }
    }
}
