//! Kernel calls: which kernel, on which operands, and how it depends on the batch.

use std::ops::RangeInclusive;

use gyrus_kernels::call::engine::{self, AddCall, Heads, Paged};
use gyrus_kernels::call::{
    AttendCall, Columns, DeltaCall, EmbedCall, F16RowsCall, FlashCall, FlashTuning, MatMulCall, MatVecCall,
    Norm, NormCall, QuantizeCall, Results, Source, SplitMode, Target, TileCall, UnfoldCall,
};
use gyrus_kernels::params::AttendParams;
use gyrus_kernels::shader::Rungs;
use gyrus_kernels::{
    Activation, BufferId, DeltaLayer, KvGroup, KvLayer, KvShape, Launch, LaunchError, RopeId, Span, WeightId,
    WeightLayout,
};

use super::expert_call::ExpertKernel;
use super::operand::{Int8Rows, Operand};
use crate::step::{BatchShape, Work};
use crate::tuning::MatShape;

/// A kernel that computes an op of a plan, or several.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Call {
    /// What it computes, the same in all layers: the name in profiles.
    pub(crate) name: String,
    pub(crate) kernel: Kernel,
    /// Rows that it computes for each row of the batch. Kernels of experts count their slots themselves.
    pub(crate) slots: u32,
    /// The ops that it computes, or parts of which, ascending, as indices into the ops that were fused. Its results are
    /// those of the last.
    pub(crate) ops: Vec<usize>,
}

/// The kernels of a forward pass. Rows of their calls are those of the batch, whatever the structs say.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Kernel {
    /// Entries of a table, from a part of it: token embeddings; or learned positions and types, which are added.
    Embed { call: EmbedCall, ids: Ids, table: MatrixPart, out: BufferId },
    /// The inputs of a convolution over rows, side by side.
    Unfold { call: UnfoldCall, x: BufferId, out: BufferId },
    /// Layer norm of rows in f32.
    LayerNorm { x: BufferId, weight: WeightId, bias: Option<WeightId>, eps: f32, width: u32, out: BufferId },
    /// An activation in place.
    Activate { x: BufferId, activation: Activation, width: u32 },
    /// RMS norm of parts of rows in f32, all as long as the weight.
    Norm { x: BufferId, weight: WeightId, eps: f32, dim: u32, parts: u32, out: BufferId },
    /// RMS norm of rows in f32, which is added to a buffer.
    NormAdd { x: BufferId, weight: WeightId, eps: f32, width: u32, scale: f32, out: BufferId },
    /// RMS norm of columns in place, in parts as long as the weight.
    NormColumns { x: BufferId, weight: WeightId, eps: f32, dim: u32, columns: Columns },
    /// Adds a buffer to another.
    Add { call: AddCall, x: BufferId, out: BufferId },
    /// Adds biases to neighbouring columns of a buffer.
    Bias { call: AddCall, biases: Vec<WeightId>, out: BufferId },
    /// A factor, and a soft cap if there is one.
    Scale { x: BufferId, width: u32, factor: f32, cap: Option<f32> },
    /// An activation times columns of another buffer.
    GateBy { x: BufferId, activation: Activation, width: u32, by: BufferId, columns: (u32, u32) },
    /// A buffer times the activation of columns of another.
    MulBy { x: BufferId, activation: Activation, width: u32, by: BufferId, columns: (u32, u32) },
    /// The convolution, norms and gates of Gated DeltaNet.
    DeltaConv { call: DeltaCall, layer: DeltaLayer, x: BufferId, weights: [WeightId; 3], out: BufferId },
    /// The delta rule, which writes the state.
    DeltaRule { call: DeltaCall, layer: DeltaLayer, x: BufferId, prepared: BufferId, out: BufferId },
    /// Quantises rows to int8.
    Quantize(Quantize),
    /// Merges splits of attention to f32.
    Merge { head_dim: u32, window: u32, seen: RowsSeen, width: u32, out: BufferId },
    /// Converts rows to f16, of which it may compute the RMS norm first.
    F16Rows { call: F16RowsCall, x: BufferId, norm: Option<WeightId> },
    /// Mat-vec of one row, which it quantises in its prologue.
    MatVec { call: MatVecCall, input: RowInput, matrix: MatrixPart, out: BufferId },
    /// Mat-vec of up to 16 rows of int8 activations.
    Int8MatVec(Int8MatVec),
    /// Matrix product of f16 rows in tiles, with biases from some columns on.
    Tiles { call: TileCall, matrix: MatrixPart, biases: Vec<(u32, WeightId)>, out: BufferId },
    /// Matrix product in f32.
    MatMul { call: MatMulCall, x: BufferId, matrix: MatrixPart, out: BufferId },
    /// Rotates Q and K, and writes K and V to the cache if rows have them.
    RopeWrite { on: AttentionOperands, params: AttendParams, heads: Heads, paged: Paged },
    /// Attention over splits of the KV cache; it may rotate and write its own keys first.
    Attend { on: AttentionOperands, call: AttendCall, gathered: Option<Gathered> },
    /// Attention of tiles of rows.
    Flash { on: AttentionOperands, call: FlashCall, tuning: FlashTuning, out: BufferId },
    /// Attention of one head of one row a workgroup, for caches and heads that the others do not take.
    Attention { on: AttentionOperands, params: AttendParams, paged: Paged, out: BufferId },
    /// The gated activation of a feed-forward.
    Gate { x: BufferId, activation: Activation, width: u32, out: BufferId },
    /// A kernel of a mixture of experts.
    Expert(ExpertKernel),
    /// Copies rows that want logits, of up to `rows`, to the front.
    Gather { x: BufferId, rows: u32, width: u32, out: BufferId },
}

/// Where the ids of entries of a table come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ids {
    Tokens,
    Positions,
    Types,
}

/// Which positions rows see.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RowsSeen {
    /// Those up to their own.
    Causal,
    /// All of the extent in a KV group.
    Whole(u8),
    /// Those of the extent that are near.
    Around(u8),
}

impl RowsSeen {
    pub(crate) fn of(span: Span, group: u8) -> RowsSeen {
        match span {
            Span::Causal => RowsSeen::Causal,
            Span::Whole => RowsSeen::Whole(group),
            Span::Around(_) => RowsSeen::Around(group),
        }
    }

    /// The window of kernels: positions up to a row's own, and as many ahead for those around it; 0 for all.
    pub(crate) fn window(span: Span, group: &KvGroup) -> u32 {
        match span {
            Span::Causal => group.window.unwrap_or(0),
            Span::Whole => 0,
            Span::Around(reach) => reach.saturating_add(1),
        }
    }

    /// The last position of each row. A row that sees the whole extent is to kernels the last row of it.
    pub(crate) fn rows(self) -> Operand {
        match self {
            RowsSeen::Whole(group) => Operand::SpanRows(group),
            RowsSeen::Causal | RowsSeen::Around(_) => Operand::Rows,
        }
    }

    pub(super) fn tiles(self) -> Operand {
        match self {
            RowsSeen::Causal => Operand::Tiles,
            RowsSeen::Whole(group) | RowsSeen::Around(group) => Operand::SpanTiles(group),
        }
    }
}

/// A part of the matrix that weights of one type form, one below the other: all of it unless it is larger than a
/// buffer.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct MatrixPart {
    pub(crate) weights: Vec<WeightId>,
    pub(crate) index: usize,
    pub(crate) layout: WeightLayout,
}

/// What the prologue of a one-row mat-vec reads.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum RowInput {
    F32(BufferId),
    Norm { x: BufferId, weight: WeightId },
    Splits(RowsSeen),
}

/// Quantisation of rows to int8.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Quantize {
    pub(crate) source: QuantizeSource,
    pub(crate) out: Int8Rows,
    /// Row counts for which the consumer computes 1 / rms of normed rows from sums of squares, so that this kernel writes
    /// those.
    pub(crate) square_sums: Option<RangeInclusive<u32>>,
    /// Row counts for which an earlier kernel has written the int8 rows in its epilogue.
    pub(crate) skipped: Option<RangeInclusive<u32>>,
}

/// What is quantised.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum QuantizeSource {
    F32(BufferId),
    Norm { x: BufferId, weight: WeightId, eps: f32 },
    Splits { head_dim: u32, window: u32, seen: RowsSeen },
}

/// A mat-vec of int8 activations.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Int8MatVec {
    pub(crate) x: Int8Rows,
    pub(crate) call: MatVecCall,
    /// For [`int8_matrix_rows`](gyrus_kernels::call::MatVecSizes::int8_matrix_rows).
    pub(crate) int8_matrix: Option<Int8Matrix>,
    pub(crate) matrix: MatrixPart,
    pub(crate) out: BufferId,
}

/// The same product by int8 cooperative matrices.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Int8Matrix {
    pub(crate) call: MatVecCall,
    pub(crate) epilogue: Epilogue,
}

/// What a kernel with int8 cooperative matrices writes beside its f32 results.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Epilogue {
    None,
    /// The results in int8.
    Int8(Int8Rows),
    /// The results times a norm's weight in int8, and sums of squares.
    NormedInt8(Int8Rows, WeightId),
}

impl Epilogue {
    pub(crate) fn results(&self) -> Results {
        match self {
            Epilogue::None => Results::F32,
            Epilogue::Int8(_) => Results::Int8,
            Epilogue::NormedInt8(..) => Results::NormedInt8,
        }
    }
}

/// Attention that merges the splits of a row in one workgroup and writes the result in int8, from some number of rows on.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Gathered {
    pub(crate) mode: SplitMode,
    pub(crate) from_rows: u32,
    pub(crate) out: Int8Rows,
}

/// What all kernels of attention bind.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct AttentionOperands {
    pub(crate) qkv: BufferId,
    pub(crate) layer: KvLayer,
    /// Heads of this many elements are not rotated if there is none.
    pub(crate) rope: Result<RopeId, u32>,
    /// Norm weights of the heads of Q and K.
    pub(crate) head_norms: Option<[WeightId; 2]>,
    /// Scores of heads that join their softmax.
    pub(crate) sinks: Option<WeightId>,
    /// What rows attend to.
    pub(crate) seen: RowsSeen,
}

impl MatrixPart {
    /// The product with rows of which each element takes `quarters` quarters of a byte. Sums are added to what they are
    /// written to with `accumulate`.
    fn work(&self, quarters: u32, gated: bool, accumulate: bool) -> Work {
        let (rows, cols) = (self.layout.rows(), self.layout.cols());
        let width = u64::from(if gated { rows / 2 } else { rows });
        let row_bytes = u64::from(quarters) * u64::from(cols) / 4 + if accumulate { 8 } else { 4 } * width;
        Work::Matrix { bytes: self.layout.total_bytes(), row_bytes, rows, cols }
    }
}

impl Call {
    /// Whether there is anything to compute for this many rows.
    pub(crate) fn runs_for(&self, rows: u32) -> bool {
        match &self.kernel {
            Kernel::Quantize(Quantize { skipped: Some(skipped), .. }) => !skipped.contains(&rows),
            _ => true,
        }
    }

    /// The launch for this many rows.
    pub(crate) fn launch(&self, rungs: Rungs, rows: u32) -> Result<Launch, LaunchError> {
        // Kernels of experts are given the rows of the batch.
        let rows = rows.saturating_mul(self.slots);
        match &self.kernel {
            Kernel::Embed { call, .. } => EmbedCall { tokens: rows, ..*call }.launch(rungs),
            Kernel::Unfold { call, .. } => UnfoldCall { rows, ..*call }.launch(rungs),
            Kernel::LayerNorm { x, bias, eps, width, out, .. } => {
                let norm = Norm::Layer { bias: bias.is_some() };
                NormCall { in_place: x == out, ..NormCall::new(norm, rows, *width, *eps) }.launch(rungs)
            }
            Kernel::Activate { activation, width, .. } => engine::activate(rungs, rows, *width, *activation),
            Kernel::Norm { x, eps, dim, parts, out, .. } => {
                engine::rms_norm(rungs, rows * parts, *dim, *eps, x == out)
            }
            Kernel::NormAdd { eps, width, scale, .. } => {
                NormCall { add: Some(*scale), ..NormCall::new(Norm::Rms, rows, *width, *eps) }.launch(rungs)
            }
            Kernel::NormColumns { eps, dim, columns, .. } => {
                let norm = NormCall::new(Norm::Rms, rows, *dim, *eps);
                NormCall { in_place: true, columns: Some(*columns), ..norm }.launch(rungs)
            }
            Kernel::Add { call, .. } | Kernel::Bias { call, .. } => AddCall { rows, ..*call }.launch(rungs),
            Kernel::Scale { width, factor, cap, .. } => engine::scale(rungs, rows, *width, *factor, *cap),
            Kernel::GateBy { activation, width, columns, .. } => {
                engine::gate_by(rungs, rows, *width, *activation, *columns)
            }
            Kernel::MulBy { activation, width, columns, .. } => {
                engine::mul_by(rungs, rows, *width, *activation, *columns)
            }
            Kernel::DeltaConv { call, .. } => DeltaCall { rows, ..*call }.conv(rungs),
            Kernel::DeltaRule { call, .. } => DeltaCall { rows, ..*call }.rule(rungs),
            Kernel::Quantize(quantize) => quantize.call(rows).launch(rungs),
            Kernel::Merge { head_dim, window, width, .. } => {
                let source = Source::Merge { head_dim: *head_dim, window: *window };
                QuantizeCall { rows, cols: *width, source, target: Target::F32 }.launch(rungs)
            }
            Kernel::F16Rows { call, .. } => F16RowsCall { rows, ..*call }.launch(rungs),
            Kernel::MatVec { call, .. } => call.launch(rungs),
            Kernel::Int8MatVec(Int8MatVec { int8_matrix: Some(Int8Matrix { call, epilogue }), .. })
                if call.sizes.int8_matrix_rows().contains(&rows) =>
            {
                for_rows(*call, rows).launch_int8_matrix(rungs, epilogue.results())
            }
            Kernel::Int8MatVec(Int8MatVec { call, .. }) => for_rows(*call, rows).launch(rungs),
            Kernel::Tiles { call, .. } => TileCall { rows, ..*call }.launch(rungs),
            Kernel::MatMul { call, .. } => MatMulCall { rows, ..*call }.launch(rungs, Default::default()),
            Kernel::RopeWrite { params, heads, paged, .. } => {
                engine::rope_write(rungs, *params, *heads, Paged { rows, ..*paged })
            }
            Kernel::Attend { call, gathered, .. } => {
                let mode = gathered.filter(|g| rows >= g.from_rows).map_or(call.mode, |g| g.mode);
                AttendCall { mode, paged: Paged { rows, ..call.paged }, ..*call }.launch(rungs)
            }
            Kernel::Flash { call, tuning, .. } => {
                FlashCall { paged: Paged { rows, ..call.paged }, ..*call }.launch(rungs, *tuning)
            }
            Kernel::Attention { on, params, paged, .. } => {
                let around = matches!(on.seen, RowsSeen::Around(_));
                engine::attention(rungs, *params, on.sinks.is_some(), around, Paged { rows, ..*paged })
            }
            Kernel::Gate { activation, width, .. } => engine::gate(rungs, rows, *width, *activation),
            Kernel::Expert(kernel) => kernel.launch(rungs, rows),
            Kernel::Gather { rows: all, width, .. } => engine::gather(rungs, *all, rows, *width),
        }
    }

    /// Adapts a launch's grid to what depends on the batch beside the number of rows.
    pub(crate) fn adapt_grid(&self, batch: BatchShape<'_>, groups: &mut [u32; 3]) {
        match &self.kernel {
            Kernel::Attend { gathered: Some(gathered), .. } if batch.rows >= gathered.from_rows => {}
            Kernel::Attend { on: AttentionOperands { seen: RowsSeen::Whole(group), .. }, .. } => {
                groups[0] = batch.span_splits(*group);
            }
            Kernel::Attend { call, .. } => groups[0] = batch.splits(call.params.window),
            Kernel::Flash { .. } => groups[1] = batch.tiles,
            Kernel::DeltaRule { .. } => groups[1] = batch.runs,
            _ => {}
        }
    }

    /// Where the parameters have the position of the only row, if they are to have it. They are immediates then.
    pub(crate) fn position_offset(&self) -> Option<usize> {
        match &self.kernel {
            Kernel::MatVec { call, .. } => call.position_at(),
            Kernel::Attend { call, .. } => call.position_at(),
            _ => None,
        }
    }

    /// What it must read, write and compute.
    pub(crate) fn work(&self) -> Work {
        match self.row_work() {
            Work::Row { bytes } => Work::Row { bytes: bytes * u64::from(self.slots) },
            Work::Matrix { bytes, row_bytes, rows, cols } => {
                let row_bytes = row_bytes * u64::from(self.slots);
                Work::Matrix { bytes, row_bytes, rows: rows.saturating_mul(self.slots), cols }
            }
            other => other,
        }
    }

    /// The same of one row of the kernel.
    fn row_work(&self) -> Work {
        let row = |bytes: u32, width: u32| Work::Row { bytes: u64::from(bytes) * u64::from(width) };
        let cache = |heads: u32, KvShape { kv, n_kv_heads, head_dim, .. }: KvShape, window| Work::Cache {
            window,
            bytes: 2 * u64::from(n_kv_heads) * u64::from(head_dim) * kv.bytes(),
            flops: 4 * u64::from(heads) * u64::from(head_dim),
        };
        match &self.kernel {
            Kernel::Embed { call, table, .. } => row(if call.add { 9 } else { 5 }, table.layout.cols()),
            Kernel::Unfold { call, .. } => {
                let (read, written) = (call.x_slots, call.out_slots * call.taps);
                row(4 * (read + written), call.channels)
            }
            Kernel::LayerNorm { width, .. } | Kernel::Activate { width, .. } => row(8, *width),
            Kernel::Norm { dim, parts, .. } => row(8, dim * parts),
            Kernel::NormColumns { dim, columns, .. } => row(8, dim * columns.parts),
            Kernel::Merge { width, .. } | Kernel::Gather { width, .. } | Kernel::Scale { width, .. } => {
                row(8, *width)
            }
            Kernel::NormAdd { width, .. } | Kernel::GateBy { width, .. } | Kernel::MulBy { width, .. } => {
                row(12, *width)
            }
            Kernel::DeltaConv { call, .. } => {
                row(4, (call.shape.projected_width() + call.shape.prepared_width()) as u32)
            }
            Kernel::DeltaRule { call, .. } => {
                Work::State { bytes: 8 * call.shape.state_elems() as u64, flops: call.shape.flops() }
            }
            Kernel::Add { call, .. } | Kernel::Bias { call, .. } => row(12, call.count),
            Kernel::Quantize(quantize) => row(5, quantize.out.width),
            Kernel::F16Rows { call, .. } => row(6, call.cols),
            Kernel::MatVec { matrix, call, .. } => matrix.work(16, call.gate.is_some(), call.accumulate),
            // int8 and two f32 for each 32 of them.
            Kernel::Int8MatVec(Int8MatVec { matrix, call, .. }) => {
                matrix.work(5, call.gate.is_some(), call.accumulate)
            }
            Kernel::Tiles { matrix, call, .. } => matrix.work(8, call.gate.is_some(), call.accumulate),
            Kernel::MatMul { matrix, call, .. } => matrix.work(16, false, call.accumulate),
            Kernel::RopeWrite { params, .. } => row(8, params.stride),
            Kernel::Attend { call: AttendCall { params, paged, .. }, .. }
            | Kernel::Attention { params, paged, .. } => cache(params.n_heads, paged.cache, params.window),
            Kernel::Flash { call, .. } => cache(call.n_heads, call.paged.cache, call.window),
            Kernel::Gate { width, .. } => row(12, *width),
            Kernel::Expert(kernel) => kernel.work(),
        }
    }

    /// The matrix, if it is one for which a mat-vec can be tuned.
    pub(crate) fn tunable(&self) -> Option<MatShape> {
        match &self.kernel {
            Kernel::MatVec { call, matrix, .. } => Some(MatShape::of(matrix.layout, call.gate.is_some())),
            _ => None,
        }
    }
}

impl Quantize {
    fn call(&self, rows: u32) -> QuantizeCall {
        let cols = self.out.width;
        let source = match self.source {
            QuantizeSource::F32(_) => Source::F32 { x_stride: cols },
            QuantizeSource::Norm { .. }
                if self.square_sums.as_ref().is_some_and(|counts| counts.contains(&rows)) =>
            {
                Source::Squares { x_stride: cols }
            }
            QuantizeSource::Norm { eps, .. } => Source::Norm { x_stride: cols, eps },
            QuantizeSource::Splits { head_dim, window, .. } => Source::Merge { head_dim, window },
        };
        QuantizeCall { rows, cols, source, target: Target::Int8 }
    }
}

/// A mat-vec of this many rows.
pub(crate) fn for_rows(call: MatVecCall, rows: u32) -> MatVecCall {
    MatVecCall { rows, tuning: call.tuning.for_rows(rows, call.weight.cols(), &call.sizes), ..call }
}
