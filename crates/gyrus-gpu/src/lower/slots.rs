//! The buffers of a call by the names that its kernel has for them.

use gyrus_kernels::{BufferId, WeightId};

use super::call::{
    AttentionOperands, Call, Epilogue, Gathered, Ids, Int8MatVec, Kernel, MatrixPart, Quantize,
    QuantizeSource, RowInput, RowsSeen,
};
use super::operand::{F16Plane, Int8Plane, Operand};

/// A buffer by the name that the kernel has for it.
pub(super) type Slot = (&'static str, Operand);

impl Call {
    /// Buffers by the names of the launch's slots. A launch for some number of rows may not have all of them.
    pub(crate) fn slots(&self) -> Vec<Slot> {
        let scratch = |id: &BufferId| Operand::Scratch(*id);
        let vector = |id: &WeightId| Operand::Vectors(vec![*id]);
        match &self.kernel {
            Kernel::Embed { ids, table, out, .. } => {
                let ids = match ids {
                    Ids::Tokens => Operand::Tokens,
                    Ids::Positions => Operand::Rows,
                    Ids::Types => Operand::Types,
                };
                with(table.slots(), [("tokens", ids), ("y", scratch(out))])
            }
            Kernel::Unfold { x, out, .. } => {
                vec![("x", scratch(x)), ("rows", Operand::Rows), ("out", scratch(out))]
            }
            Kernel::LayerNorm { x, weight, bias, out, .. } => {
                let mut slots = vec![("x", scratch(x)), ("weight", vector(weight)), ("out", scratch(out))];
                slots.extend(bias.iter().map(|bias| ("bias", vector(bias))));
                slots
            }
            Kernel::Activate { x, .. } => vec![("x", scratch(x))],
            Kernel::Norm { x, weight, out, .. } | Kernel::NormAdd { x, weight, out, .. } => {
                vec![("x", scratch(x)), ("weight", vector(weight)), ("out", scratch(out))]
            }
            Kernel::NormColumns { x, weight, .. } => vec![("x", scratch(x)), ("weight", vector(weight))],
            Kernel::Add { x, out, .. } => vec![("x", scratch(x)), ("out", scratch(out))],
            Kernel::Bias { biases, out, .. } => {
                vec![("x", Operand::Vectors(biases.clone())), ("out", scratch(out))]
            }
            Kernel::Scale { x, .. } => vec![("x", scratch(x))],
            Kernel::GateBy { x, by, .. } | Kernel::MulBy { x, by, .. } => {
                vec![("x", scratch(x)), ("by", scratch(by))]
            }
            Kernel::DeltaConv { layer, x, weights, out, .. } => vec![
                ("x", scratch(x)),
                ("state", Operand::State(*layer)),
                ("weights", Operand::Vectors(weights.to_vec())),
                ("runs", Operand::Runs),
                ("row_runs", Operand::RowRuns),
                ("rows", Operand::Rows),
                ("out", scratch(out)),
            ],
            Kernel::DeltaRule { layer, x, prepared, out, .. } => vec![
                ("x", scratch(x)),
                ("state", Operand::State(*layer)),
                ("prepared", scratch(prepared)),
                ("runs", Operand::Runs),
                ("rows", Operand::Rows),
                ("out", scratch(out)),
            ],
            Kernel::Quantize(quantize) => quantize.slots(),
            Kernel::Merge { seen, out, .. } => {
                vec![("partials", Operand::Partials), ("rows", seen.rows()), ("q", scratch(out))]
            }
            Kernel::F16Rows { call, x, norm, .. } => {
                let mut slots = vec![
                    ("x", scratch(x)),
                    ("h", Operand::F16(call.cols, F16Plane::Values)),
                    ("h_scales", Operand::F16(call.cols, F16Plane::Scales)),
                ];
                slots.extend(norm.iter().map(|weight| ("norm", vector(weight))));
                slots
            }
            Kernel::MatVec { input, matrix, out, .. } => {
                let slots = with(matrix.slots(), [("y", scratch(out))]);
                match input {
                    RowInput::F32(x) => with(slots, [("x", scratch(x))]),
                    RowInput::Norm { x, weight } => {
                        with(slots, [("x", scratch(x)), ("norm_weight", vector(weight))])
                    }
                    RowInput::Splits(seen) => {
                        with(slots, [("partials", Operand::Partials), ("rows", seen.rows())])
                    }
                }
            }
            Kernel::Int8MatVec(mat_vec) => mat_vec.slots(),
            Kernel::Tiles { call, matrix, biases, out } => {
                let width = call.weight.cols();
                let x = [
                    ("x", Operand::F16(width, F16Plane::Values)),
                    ("x_scales", Operand::F16(width, F16Plane::Scales)),
                ];
                let mut slots = with(with(matrix.slots(), x), [("y", scratch(out))]);
                if !biases.is_empty() {
                    let columns = Operand::Columns(biases.clone(), call.weight.rows());
                    slots.push(("biases", columns));
                }
                slots
            }
            Kernel::MatMul { x, matrix, out, .. } => {
                with(matrix.slots(), [("x", scratch(x)), ("y", scratch(out))])
            }
            Kernel::RopeWrite { on, .. } => on.slots(Operand::Rows),
            Kernel::Attend { on, gathered, .. } => {
                let mut slots = with(on.slots(on.seen.rows()), [("partials", Operand::Partials)]);
                if let Some(Gathered { out, .. }) = gathered {
                    slots.push(("q", Operand::Int8(*out, Int8Plane::Values)));
                    slots.push(("q_scales", Operand::Int8(*out, Int8Plane::Scales)));
                }
                slots
            }
            Kernel::Flash { on, out, .. } => {
                with(on.slots(Operand::Rows), [("out", scratch(out)), ("tiles", on.seen.tiles())])
            }
            Kernel::Attention { on, out, .. } => {
                let mut slots = with(on.slots(on.seen.rows()), [("out", scratch(out))]);
                if let RowsSeen::Around(group) = on.seen {
                    slots.push(("ends", Operand::SpanRows(group)));
                }
                slots
            }
            Kernel::Gate { x, out, .. } => vec![("x", scratch(x)), ("out", scratch(out))],
            Kernel::Expert(kernel) => kernel.slots(),
            Kernel::Gather { x, out, .. } => {
                vec![("x", scratch(x)), ("indices", Operand::LogitRows), ("out", scratch(out))]
            }
        }
    }
}
impl AttentionOperands {
    /// `rows`: positions of rows and their block tables.
    fn slots(&self, rows: Operand) -> Vec<Slot> {
        let mut slots = vec![
            ("qkv", Operand::Scratch(self.qkv)),
            ("k_cache", Operand::Keys(self.layer)),
            ("v_cache", Operand::Values(self.layer)),
            ("rows", rows),
            ("block_table", Operand::BlockTables(self.layer.group)),
            ("turns", self.rope.map_or_else(Operand::NoRope, Operand::RopeTable)),
        ];
        if let Some(weights) = self.head_norms {
            slots.push(("head_norms", Operand::Vectors(weights.to_vec())));
        }
        slots.extend(self.sinks.map(|sinks| ("sinks", Operand::Vectors(vec![sinks]))));
        slots
    }
}

impl MatrixPart {
    pub(super) fn slots(&self) -> Vec<Slot> {
        let operand = |plane| Operand::Matrix { weights: self.weights.clone(), part: self.index, plane };
        self.layout.planes().map(|plane| (plane.name(), operand(plane))).collect()
    }
}

impl Quantize {
    fn slots(&self) -> Vec<Slot> {
        let int8 = |plane| Operand::Int8(self.out, plane);
        let slots = vec![("q", int8(Int8Plane::Values)), ("q_scales", int8(Int8Plane::Scales))];
        match self.source {
            QuantizeSource::F32(x) => with(slots, [("x", Operand::Scratch(x))]),
            QuantizeSource::Norm { x, weight, .. } => with(
                slots,
                [
                    ("x", Operand::Scratch(x)),
                    ("weight", Operand::Vectors(vec![weight])),
                    ("factors", int8(Int8Plane::InverseRms)),
                    ("squares", int8(Int8Plane::SquareSums)),
                ],
            ),
            QuantizeSource::Splits { seen, .. } => {
                with(slots, [("partials", Operand::Partials), ("rows", seen.rows())])
            }
        }
    }
}

impl Int8MatVec {
    fn slots(&self) -> Vec<Slot> {
        let x = [
            ("x", Operand::Int8(self.x, Int8Plane::Values)),
            ("x_scales", Operand::Int8(self.x, Int8Plane::Scales)),
            ("factors", Operand::Int8(self.x, Int8Plane::InverseRms)),
            ("squares", Operand::Int8(self.x, Int8Plane::SquareSums)),
        ];
        let slots = with(with(self.matrix.slots(), x), [("y", Operand::Scratch(self.out))]);
        let int8 = |out| {
            [
                ("q", Operand::Int8(out, Int8Plane::Values)),
                ("q_scales", Operand::Int8(out, Int8Plane::Scales)),
            ]
        };
        match self.int8_matrix.map_or(Epilogue::None, |matrix| matrix.epilogue) {
            Epilogue::None => slots,
            Epilogue::Int8(out) => with(slots, int8(out)),
            Epilogue::NormedInt8(out, weight) => {
                let norm = [
                    ("made", Operand::Int8(out, Int8Plane::SquareSums)),
                    ("weight", Operand::Vectors(vec![weight])),
                ];
                with(with(slots, int8(out)), norm)
            }
        }
    }
}

pub(super) fn with<const N: usize>(mut slots: Vec<Slot>, more: [Slot; N]) -> Vec<Slot> {
    slots.extend(more);
    slots
}
