//! Matrix products: int8 mat-vecs for up to 16 rows, f16 tiles for more, f32 where that is asked for.

use gyrus_kernels::call::{
    F16RowsCall, Input, MatMulCall, MatVecCall, MatVecSizes, MatVecTuning, Results, TileCall, TileTuning,
};
use gyrus_kernels::{Activation, BufferId, Op, WeightId, WeightLayout};
use gyrus_tensor::DType;

use super::encoder::TileEpilogue;
use super::{Fuser, Pending};
use crate::buffers::{MATVEC_ROWS, is_encoder};
use crate::error::GpuError;
use crate::lower::BatchKind;
use crate::lower::call::{
    Call, Epilogue, Int8MatVec, Int8Matrix, Kernel, MatrixPart, Quantize, QuantizeSource, RowInput, RowsSeen,
    for_rows,
};
use crate::lower::operand::Int8Rows;
use crate::tuning::MatShape;
use crate::weight::groups;

/// Int8 rows that the parts of one product share.
struct SharedInt8 {
    rows: Int8Rows,
    /// Whether int8 cooperative matrices compute 1 / rms from sums of squares.
    square_sums: bool,
}

impl Fuser<'_> {
    /// Whether a kernel can compute the gated activation of this product in its epilogue: the weights of gate and up must
    /// be one matrix.
    pub(super) fn can_gate(&self, x: BufferId, weights: &[WeightId]) -> bool {
        let plan = self.on.plan;
        let [gate, up] = weights else { return false };
        (self.takes_int8(weights) || self.takes_f16(weights))
            && plan.weight(*gate).shape == plan.weight(*up).shape
            && groups(plan, weights).count() == 1
            && self.on.weights.matrix(weights).len() == 1
            && self.width(x).is_multiple_of(32)
    }

    /// Whether all these weights are multiplied by int8 activations.
    pub(super) fn takes_int8(&self, weights: &[WeightId]) -> bool {
        let quantized = |id: &WeightId| self.on.plan.weight(*id).dtype.is_quantized();
        self.fast() && self.kind != BatchKind::Prefill && weights.iter().all(quantized)
    }

    /// Whether all these weights are multiplied in f16 tiles. Weights beyond the range of f16 are multiplied in f32, and so
    /// are those in f32 unless they are an encoder's, whose files often have no other type.
    pub(super) fn takes_f16(&self, weights: &[WeightId]) -> bool {
        let dtype = |id: &WeightId| self.on.plan.weight(*id).dtype;
        let mut parts = groups(self.on.plan, weights).flat_map(|group| self.on.weights.matrix(group));
        self.fast()
            && self.kind == BatchKind::Prefill
            && (is_encoder(self.on.plan) || weights.iter().all(|id| dtype(id) != DType::F32))
            && parts.all(|part| part.fits_f16)
    }

    /// The product of a buffer's rows and weights that write their outputs side by side.
    pub(super) fn mat_mul(
        &mut self,
        x: BufferId,
        weights: &[WeightId],
        accumulate: bool,
        epilogue: TileEpilogue,
        out: BufferId,
    ) -> Result<(), GpuError> {
        let TileEpilogue { gate, biases, activation } = epilogue;
        // Which experts a row has must not depend on the rounding of its activations to f16 or int8.
        let is_router = self.is_router(out);
        let f16 = self.takes_f16(weights) && !is_router;
        if !f16 && (is_router || !self.takes_int8(weights)) {
            self.finish(x)?;
        }
        self.before_write(out)?;
        if f16 {
            self.convert_to_f16(x)?;
        }
        let square_sums = self.takes_square_sums(weights, gate);
        let mut int8 = None;
        let (y_stride, to) = (self.width(out), self.id(out));
        let mut y_offset = 0;
        for group in groups(self.on.plan, weights) {
            let name = self.name_of(group);
            let mut rows = 0;
            for (matrix, first) in self.parts(group) {
                let layout = matrix.layout;
                let y_offset = y_offset + first;
                rows += layout.rows();
                if f16 {
                    let workgroups = Some(self.on.profile().tile_workgroups);
                    let memory = u32::try_from(self.on.capabilities.workgroup_memory).ok();
                    let tuning = TileTuning { workgroups, memory, ..TileTuning::default() };
                    let bias = !biases.is_empty();
                    let call = TileCall {
                        y_stride,
                        y_offset,
                        accumulate,
                        gate,
                        bias,
                        activation,
                        tuning,
                        ..TileCall::new(layout, 1)
                    };
                    let biases = biases.clone();
                    self.push_rows(out, &name, Kernel::Tiles { call, matrix, biases, out: to });
                } else if self.fast()
                    && self.kind != BatchKind::Prefill
                    && layout.dtype().is_quantized()
                    && !is_router
                {
                    let (tuning, sizes) = self.tuning(layout, gate);
                    let call = MatVecCall {
                        gate,
                        y_stride,
                        y_offset,
                        accumulate,
                        tuning,
                        sizes,
                        ..MatVecCall::new(layout, 1)
                    };
                    self.mat_vec(&name, x, matrix, call, square_sums, out, &mut int8)?;
                } else {
                    let call = MatMulCall {
                        x_stride: self.width(x),
                        y_stride,
                        y_offset,
                        accumulate,
                        ..MatMulCall::new(layout, 1)
                    };
                    self.push_rows(out, &name, Kernel::MatMul { call, x: self.id(x), matrix, out: to });
                }
            }
            y_offset += rows;
        }
        Ok(())
    }

    /// The names of weights without the number of their layer, so that they are the same in all layers.
    pub(super) fn name_of(&self, weights: &[WeightId]) -> String {
        let short = |id: &WeightId| {
            let name = &self.on.plan.weight(*id).name;
            let name = name.strip_suffix(".weight").unwrap_or(name);
            let is_number = |part: &str| part.parse::<u32>().is_ok();
            let parts: Vec<&str> = name.split('.').collect();
            let first = parts.iter().position(|part| is_number(part)).map_or(0, |at| at + 1);
            parts[first..].join(".")
        };
        weights.iter().map(short).collect::<Vec<_>>().join(" ")
    }

    /// How a mat-vec divides its work: as `gyrus tune` found, or else by a rule.
    fn tuning(&self, layout: WeightLayout, gate: Option<Activation>) -> (MatVecTuning, MatVecSizes) {
        let sizes = self.on.profile().mat_vec;
        let shape = MatShape::of(layout, gate.is_some());
        (self.on.tuning.of(shape, self.on.capabilities.most_invocations, &sizes), sizes)
    }

    /// Converts a buffer's rows, or what is pending for it, to f16.
    pub(super) fn convert_to_f16(&mut self, x: BufferId) -> Result<(), GpuError> {
        let mut ops = self.current.clone();
        let (source, norm) = match self.pending.get(&self.id(x)).copied() {
            Some(Pending::Norm { x, weight, eps, op }) => {
                ops = op..op + 1;
                (x, Some((weight, eps)))
            }
            Some(Pending::Splits { .. }) => {
                self.finish(x)?;
                (self.id(x), None)
            }
            None | Some(Pending::Int8) => (self.id(x), None),
        };
        let cols = self.width(x);
        let eps = norm.map(|(_, eps)| eps);
        let call = F16RowsCall { rows: self.on.rows, cols, x_stride: cols, norm: eps };
        let name = if norm.is_some() { "norm · f16" } else { "f16" };
        let kernel = Kernel::F16Rows { call, x: source, norm: norm.map(|(weight, _)| weight) };
        let slots = self.slots_of(x);
        self.calls.push(Call { name: name.to_owned(), kernel, slots, ops: ops.collect() });
        Ok(())
    }

    /// A product of int8 activations. One row is quantised in the kernel's prologue; several rows once, for all parts of
    /// the product.
    #[allow(clippy::too_many_arguments, reason = "what a product is made of")]
    fn mat_vec(
        &mut self,
        name: &str,
        x: BufferId,
        matrix: MatrixPart,
        call: MatVecCall,
        square_sums: bool,
        out: BufferId,
        shared: &mut Option<SharedInt8>,
    ) -> Result<(), GpuError> {
        let pending = self.pending.get(&self.id(x)).copied();
        if self.kind == BatchKind::Decode {
            let mut ops: Vec<usize> = self.current.clone().collect();
            let (input, prologue, from, source) = match pending {
                None | Some(Pending::Int8) => (Input::F32, "", RowInput::F32(self.id(x)), self.id(x)),
                Some(Pending::Norm { x, weight, eps, op }) => {
                    ops.insert(0, op);
                    (Input::Norm { eps }, "norm · ", RowInput::Norm { x, weight }, x)
                }
                Some(Pending::Splits { head_dim, window, seen, .. }) => {
                    let immediate = self.has_position_immediate() && seen == RowsSeen::Causal;
                    let input = Input::Merge { head_dim, window, position: immediate.then_some(0) };
                    (input, "merge · ", RowInput::Splits(seen), self.id(x))
                }
            };
            let call = MatVecCall { input, ..call };
            if self.on.capabilities.can_fuse_input(&call) && source != self.id(out) {
                let out = self.id(out);
                self.push_for(
                    ops,
                    format!("{prologue}{name}"),
                    Kernel::MatVec { call, input: from, matrix, out },
                );
                return Ok(());
            }
        }
        let shared = match shared {
            Some(shared) => shared,
            None => shared.insert(SharedInt8 { rows: self.quantize(x, square_sums), square_sums }),
        };
        let norm = matches!(pending, Some(Pending::Norm { .. }));
        let call = MatVecCall { input: Input::Int8 { norm }, ..call };
        let by_matrix = match pending {
            Some(Pending::Norm { eps, .. }) if shared.square_sums => {
                MatVecCall { input: Input::Int8Squares { eps }, ..call }
            }
            _ => call,
        };
        let rows = shared.rows;
        self.int8_mat_vec(name, x, rows, matrix, call, by_matrix, out)
    }

    /// A product of int8 rows, by int8 cooperative matrices where a device has them and rows are enough.
    #[allow(clippy::too_many_arguments, reason = "what a product is made of")]
    fn int8_mat_vec(
        &mut self,
        name: &str,
        x: BufferId,
        rows: Int8Rows,
        matrix: MatrixPart,
        call: MatVecCall,
        by_matrix: MatVecCall,
        out: BufferId,
    ) -> Result<(), GpuError> {
        let epilogue = match self.norm_epilogue(x, by_matrix, out) {
            Some(weight) => Epilogue::NormedInt8(self.int8_rows(out, true), weight),
            None if self.can_gate_to_int8(x, by_matrix, out) => Epilogue::Int8(self.int8_rows(out, false)),
            None => Epilogue::None,
        };
        let int8_matrix = self
            .can_use_int8_matrix(by_matrix, epilogue.results())
            .then_some(Int8Matrix { call: by_matrix, epilogue });
        if !matches!(by_matrix.input, Input::Int8 { .. }) && int8_matrix.is_none() {
            let fault =
                format!("{name}: only int8 cooperative matrices compute 1 / rms from sums of squares");
            return Err(GpuError::internal(fault));
        }
        let out = self.id(out);
        match epilogue {
            Epilogue::None => {}
            Epilogue::Int8(_) => _ = self.pending.insert(out, Pending::Int8),
            Epilogue::NormedInt8(_, weight) => self.normed = Some((out, weight)),
        }
        self.push(name, Kernel::Int8MatVec(Int8MatVec { x: rows, call, int8_matrix, matrix, out }));
        Ok(())
    }

    /// Whether an epilogue would write int8 rows to the buffers that the kernel reads its own from.
    fn overwrites_input(&self, x: BufferId, call: MatVecCall, out: BufferId, normed: bool) -> bool {
        let x_normed = !matches!(call.input, Input::Int8 { norm: false });
        self.width(x) == self.width(out) && x_normed == normed
    }

    /// Whether the epilogue of an int8 matrix kernel quantises its gated output for the one product that reads it.
    fn can_gate_to_int8(&self, x: BufferId, call: MatVecCall, out: BufferId) -> bool {
        call.gate.is_some()
            && !self.overwrites_input(x, call, out, false)
            && self.only_read_by_next(out).is_some()
            && self.can_use_int8_matrix(call, Results::Int8)
    }

    /// The weight of the norm for which the epilogue of an int8 matrix kernel quantises its output: the next norm, if int8
    /// matrix kernels compute the products that read it. Should such a product be unable to use these int8 rows after all,
    /// they are written again.
    fn norm_epilogue(&self, x: BufferId, call: MatVecCall, out: BufferId) -> Option<WeightId> {
        let [Op::RmsNorm { x: of, weight, out: normed, .. }, Op::MatMul { x: read, weights, .. }, ..] =
            self.later
        else {
            return None;
        };
        let is_next = self.id(*of) == self.id(out) && self.id(*read) == self.id(*normed);
        let can = is_next
            && call.gate.is_none()
            && !self.overwrites_input(x, call, out, true)
            && self.takes_square_sums(weights, None)
            && self.can_use_int8_matrix(call, Results::NormedInt8);
        can.then_some(*weight)
    }

    /// Whether int8 cooperative matrices multiply by all these weights, so that they can compute 1 / rms themselves.
    fn takes_square_sums(&self, weights: &[WeightId], gate: Option<Activation>) -> bool {
        let takes = |layout: WeightLayout| {
            let (input, (tuning, sizes)) = (Input::Int8Squares { eps: 0.0 }, self.tuning(layout, gate));
            let call = MatVecCall { input, tuning, sizes, gate, ..MatVecCall::new(layout, 1) };
            self.can_use_int8_matrix(call, Results::F32)
        };
        let mut parts = groups(self.on.plan, weights).flat_map(|group| self.on.weights.matrix(group));
        self.takes_int8(weights) && parts.all(|part| takes(part.layout))
    }

    /// Whether this device can compute a product by int8 cooperative matrices.
    fn can_use_int8_matrix(&self, call: MatVecCall, results: Results) -> bool {
        let rows = call.sizes.int8_matrix_from_rows;
        self.on.capabilities.can_use_int8_matrix(&for_rows(call, rows), results)
    }

    fn int8_rows(&self, id: BufferId, normed: bool) -> Int8Rows {
        Int8Rows { width: self.width(id), normed }
    }

    /// Quantises a buffer's rows, or what is pending for it, unless an epilogue has. `square_sums`: int8 cooperative
    /// matrices compute 1 / rms.
    fn quantize(&mut self, x: BufferId, square_sums: bool) -> Int8Rows {
        let pending = self.pending.get(&self.id(x)).copied();
        let out = self.int8_rows(x, matches!(pending, Some(Pending::Norm { .. })));
        let int8_matrix_rows = self.on.profile().mat_vec.int8_matrix_rows();
        let (mut skipped, mut ops) = (None, self.current.clone());
        let (name, source) = match pending {
            None => ("quantise", QuantizeSource::F32(self.id(x))),
            Some(Pending::Int8) => {
                skipped = Some(int8_matrix_rows.clone());
                ("quantise", QuantizeSource::F32(self.id(x)))
            }
            Some(Pending::Norm { x, weight, eps, op }) => {
                ops = op..op + 1;
                if square_sums && self.normed == Some((x, weight)) {
                    skipped = Some(int8_matrix_rows.clone());
                } else {
                    // These int8 rows are overwritten.
                    self.normed = None;
                }
                ("norm · quantise", QuantizeSource::Norm { x, weight, eps })
            }
            Some(Pending::Splits { head_dim, window, seen, gathered, .. }) => {
                skipped = gathered.map(|gathered| gathered.from_rows..=MATVEC_ROWS as u32);
                ("merge · quantise", QuantizeSource::Splits { head_dim, window, seen })
            }
        };
        let square_sums = square_sums.then_some(int8_matrix_rows);
        self.push_for(ops, name, Kernel::Quantize(Quantize { source, out, square_sums, skipped }));
        out
    }
}
