//! Mat-muls: bytes for few rows, halves in tiles for many, single precision where that is asked for.

use gyrus_kernels::call::{
    F16RowsCall, INT8_MATRIX_INVOCATIONS, INT8_MATRIX_ROWS, Input, MatMulCall, MatVecCall, MatVecTuning,
    QuantizeCall, Results, Source, Target, TileCall,
};
use gyrus_kernels::{Activation, BufferId, Op, WeightId};
use gyrus_tensor::DType;

use super::{Class, Pending, Table, planes};
use crate::buffer::Buffer;
use crate::buffers::{F16RowsBuffers, FEW, Int8Rows, MAX_ROWS};
use crate::error::GpuError;
use crate::step::{Step, Work};
use crate::tuning::MatShape;
use crate::weight::{Part, groups};

impl Table<'_> {
    /// Whether gate and up projection lie one below the other, for a mat-vec that gates its own results.
    pub(super) fn can_gate(&self, x: BufferId, weights: &[WeightId]) -> bool {
        let plan = self.on.plan;
        let [gate, up] = weights else { return false };
        (self.takes_int8(weights) || self.takes_f16(weights))
            && plan.weight(*gate).shape == plan.weight(*up).shape
            && groups(plan, weights).count() == 1
            && self.on.weights.matrix(weights).len() == 1
            && self.width(x).is_multiple_of(32)
    }

    /// Whether all these weights are multiplied by int8 activations, few rows at a time.
    pub(super) fn takes_int8(&self, weights: &[WeightId]) -> bool {
        let quantized = |id: &WeightId| self.on.plan.weight(*id).dtype.is_quantized();
        self.fast() && self.class != Class::Many && weights.iter().all(quantized)
    }

    /// Whether all these weights are multiplied in f16, many rows at a time. Weights in f32, and those beyond the range of
    /// f16, are multiplied in f32.
    fn takes_f16(&self, weights: &[WeightId]) -> bool {
        let dtype = |id: &WeightId| self.on.plan.weight(*id).dtype;
        let mut parts = groups(self.on.plan, weights).flat_map(|group| self.on.weights.matrix(group));
        self.fast()
            && self.class == Class::Many
            && weights.iter().all(|id| dtype(id) != DType::F32)
            && parts.all(|part| part.fits_f16)
    }

    /// Several weights write their outputs side by side.
    pub(super) fn mat_mul(
        &mut self,
        x: BufferId,
        weights: &[WeightId],
        accumulate: bool,
        gate: Option<Activation>,
        out: BufferId,
    ) -> Result<(), GpuError> {
        let halves = self.takes_f16(weights);
        if !halves && !self.takes_int8(weights) {
            self.finish(x)?;
        }
        self.written(out)?;
        let halved = if halves { Some(self.halve(x)?) } else { None };
        let squares = self.takes_squares(weights, gate);
        let mut bytes = None;
        let mut y_offset = 0;
        for group in groups(self.on.plan, weights) {
            let parts = self.on.weights.matrix(group);
            let rows: u32 = parts.iter().map(|part| part.layout.rows()).sum();
            let name = self.name_of(group);
            for part in parts {
                let offset = y_offset + part.first;
                if let Some(halved) = &halved {
                    self.tiles(&name, halved, part, accumulate, gate, offset, out);
                    continue;
                }
                let quantized = part.layout.dtype().is_quantized();
                if !self.fast() || self.class == Class::Many || !quantized {
                    self.plain(&name, x, part, accumulate, offset, out);
                    continue;
                }
                let call = MatVecCall {
                    gate,
                    y_stride: self.width(out),
                    y_offset: offset,
                    accumulate,
                    tuning: self.tuning(part, gate),
                    ..MatVecCall::new(part.layout, 1)
                };
                self.mat_vec(&name, x, part, call, squares, out, &mut bytes)?;
            }
            y_offset += rows;
        }
        Ok(())
    }

    /// What weights are called in every layer.
    fn name_of(&self, weights: &[WeightId]) -> String {
        let short = |id: &WeightId| {
            let name = &self.on.plan.weight(*id).name;
            let name = name.strip_suffix(".weight").unwrap_or(name);
            // Whatever stands before the layer's number is the same for all.
            let is_number = |part: &str| part.parse::<u32>().is_ok();
            let parts: Vec<&str> = name.split('.').collect();
            let first = parts.iter().position(|part| is_number(part)).map_or(0, |at| at + 1);
            parts[first..].join(".")
        };
        weights.iter().map(short).collect::<Vec<_>>().join(" ")
    }

    /// How a mat-vec is divided: as it was found to be quickest, or as a rule.
    fn tuning(&self, part: &Part, gate: Option<Activation>) -> MatVecTuning {
        let shape = MatShape::of(part.layout, gate.is_some());
        self.on.tuning.of(shape, self.on.gpu.most_invocations())
    }

    /// Makes halves of a buffer's rows, or of what is pending for it.
    fn halve(&mut self, x: BufferId) -> Result<F16RowsBuffers, GpuError> {
        let rungs = self.on.gpu.rungs();
        let (source, norm) = match self.pending.get(&self.id(x)).copied() {
            Some(Pending::Norm { x, weight, eps }) => (x, Some((weight, eps))),
            Some(Pending::Splits { .. }) => {
                self.finish(x)?;
                (self.id(x), None)
            }
            None | Some(Pending::Int8) => (self.id(x), None),
        };
        let cols = self.width(x);
        let norm_eps = norm.map(|(_, eps)| eps);
        let call = F16RowsCall { rows: MAX_ROWS as u32, cols, x_stride: cols, norm: norm_eps };
        let halves = self.on.buffers.halves(self.on.gpu, cols, call.bytes())?;
        let mut buffers =
            vec![("x", self.buffer(source)), ("h", halves.h.clone()), ("h_scales", halves.scales.clone())];
        if let Some((weight, _)) = norm {
            buffers.push(("norm", self.vector(&[weight])?));
        }
        let work = Work::Row { bytes: 6 * u64::from(cols) };
        let name = if norm.is_some() { "norm · halve" } else { "halve" };
        self.steps
            .push(Step::new(name, work, buffers, move |rows| F16RowsCall { rows, ..call }.launch(rungs)));
        Ok(halves)
    }

    /// A mat-mul of many rows of halves.
    #[allow(clippy::too_many_arguments, reason = "what a product is made of")]
    fn tiles(
        &mut self,
        name: &str,
        x: &F16RowsBuffers,
        part: &Part,
        accumulate: bool,
        gate: Option<Activation>,
        y_offset: u32,
        out: BufferId,
    ) {
        let rungs = self.on.gpu.rungs();
        let mut buffers = planes(part);
        buffers.extend([("x", x.h.clone()), ("x_scales", x.scales.clone()), ("y", self.buffer(out))]);
        let y_stride = self.width(out);
        let call = TileCall { y_stride, y_offset, accumulate, gate, ..TileCall::new(part.layout, 1) };
        self.steps.push(Step::new(name, matrix(part), buffers, move |rows| {
            TileCall { rows, ..call }.launch(rungs)
        }));
    }

    /// A mat-mul in single precision.
    fn plain(
        &mut self,
        name: &str,
        x: BufferId,
        part: &Part,
        accumulate: bool,
        y_offset: u32,
        out: BufferId,
    ) {
        let rungs = self.on.gpu.rungs();
        let mut buffers = planes(part);
        buffers.extend([("x", self.buffer(x)), ("y", self.buffer(out))]);
        let (x_stride, y_stride) = (self.width(x), self.width(out));
        let call = MatMulCall { x_stride, y_stride, y_offset, accumulate, ..MatMulCall::new(part.layout, 1) };
        self.steps.push(Step::new(name, matrix(part), buffers, move |rows| {
            MatMulCall { rows, ..call }.launch(rungs, Default::default())
        }));
    }

    /// A mat-mul of bytes. One row's are made where they are used; those of more rows once for all that use them. With
    /// `squares` matrices normalise them.
    #[allow(clippy::too_many_arguments, reason = "what a product is made of")]
    fn mat_vec(
        &mut self,
        name: &str,
        x: BufferId,
        part: &Part,
        call: MatVecCall,
        squares: bool,
        out: BufferId,
        made: &mut Option<Int8Rows>,
    ) -> Result<(), GpuError> {
        let rungs = self.on.gpu.rungs();
        let mut buffers = planes(part);
        buffers.push(("y", self.buffer(out)));
        let shape = MatShape::of(part.layout, call.gate.is_some());
        let pending = self.pending.get(&self.id(x)).copied();
        let (input, before, inputs) = match pending {
            None | Some(Pending::Int8) => (Input::F32, "", vec![("x", self.buffer(x))]),
            Some(Pending::Norm { x, weight, eps }) => {
                let inputs = vec![("x", self.buffer(x)), ("norm_weight", self.vector(&[weight])?)];
                (Input::Norm { eps }, "norm · ", inputs)
            }
            Some(Pending::Splits { window, .. }) => {
                let buffers = self.on.buffers;
                let inputs = vec![("partials", buffers.partials.clone()), ("rows", buffers.rows.clone())];
                let head_dim = self.on.plan.kv.head_dim as u32;
                let position = self.has_position_immediate().then_some(0);
                (Input::Merge { head_dim, window, position }, "merge · ", inputs)
            }
        };
        if self.class == Class::One {
            let call = MatVecCall { input, ..call };
            let source = match pending {
                Some(Pending::Norm { x, .. }) => x,
                _ => self.id(x),
            };
            if call.workgroup_bytes() <= self.on.gpu.workgroup_memory() && source != self.id(out) {
                buffers.extend(inputs);
                let name = format!("{before}{name}");
                let step = Step::new(name, matrix(part), buffers, move |_| call.launch(rungs));
                self.steps.push(step.tuned(shape).position_immediate(call.position_at()));
                return Ok(());
            }
        }
        let bytes = match made {
            Some(bytes) => bytes.clone(),
            None => made.insert(self.quantize(x, squares)?).clone(),
        };
        buffers.extend([("x", bytes.q), ("x_scales", bytes.scales)]);
        buffers.extend([("factors", bytes.factors), ("squares", bytes.squares)]);
        let norm = matches!(pending, Some(Pending::Norm { .. }));
        let call = MatVecCall { input: Input::Int8 { norm }, ..call };
        let by_int8_matrix = match pending {
            Some(Pending::Norm { eps, .. }) if squares => {
                MatVecCall { input: Input::Int8Squares { eps }, ..call }
            }
            _ => call,
        };
        self.int8_product(name, x, part, call, by_int8_matrix, out, buffers)
    }

    /// A mat-mul of bytes that are there, by matrices of them where a device has such and rows are enough.
    #[allow(clippy::too_many_arguments, reason = "what a product is made of")]
    fn int8_product(
        &mut self,
        name: &str,
        x: BufferId,
        part: &Part,
        call: MatVecCall,
        by_int8_matrix: MatVecCall,
        out: BufferId,
        mut buffers: Vec<(&'static str, Buffer)>,
    ) -> Result<(), GpuError> {
        let rungs = self.on.gpu.rungs();
        let norm = self.fused_norm(x, by_int8_matrix, out);
        let results = match norm {
            Some(_) => Results::NormedInt8,
            None if self.gates_to_int8(x, by_int8_matrix, out) => Results::Int8,
            None => Results::F32,
        };
        let matrices = self.by_int8_matrix(by_int8_matrix, results);
        if !matches!(by_int8_matrix.input, Input::Int8 { .. }) && !matrices {
            return Err(GpuError::Refused { reason: format!("{name}: squares that nobody can sum") });
        }
        if let Some(weight) = norm {
            let bytes = self.bytes(out, true)?;
            buffers.extend([("q", bytes.q), ("q_scales", bytes.scales), ("made", bytes.squares)]);
            buffers.push(("weight", self.vector(&[weight])?));
            self.normed = Some((self.id(out), weight));
        } else if results == Results::Int8 {
            let bytes = self.bytes(out, false)?;
            buffers.extend([("q", bytes.q), ("q_scales", bytes.scales)]);
            self.pending.insert(self.id(out), Pending::Int8);
        }
        self.steps.push(Step::new(name, matrix(part), buffers, move |rows| {
            if matrices && INT8_MATRIX_ROWS.contains(&rows) {
                for_rows(by_int8_matrix, rows).launch_int8_matrix(rungs, results)
            } else {
                for_rows(call, rows).launch(rungs)
            }
        }));
        Ok(())
    }

    /// Whether results are written where the bytes are that they are made of, if they become bytes.
    fn overwrites_input(&self, x: BufferId, call: MatVecCall, out: BufferId, normed: bool) -> bool {
        let x_normed = !matches!(call.input, Input::Int8 { norm: false });
        self.width(x) == self.width(out) && x_normed == normed
    }

    /// Whether matrices make bytes of what they gate, for the one product that reads it.
    fn gates_to_int8(&self, x: BufferId, call: MatVecCall, out: BufferId) -> bool {
        call.gate.is_some()
            && !self.overwrites_input(x, call, out, false)
            && self.read_next_alone(out).is_some()
            && self.by_int8_matrix(call, Results::Int8)
    }

    /// The weight of the norm that matrices make bytes of their results for: the one that these go through next, if
    /// matrices make products of it. Should such a product be unable after all, its bytes are made again.
    fn fused_norm(&self, x: BufferId, call: MatVecCall, out: BufferId) -> Option<WeightId> {
        let [Op::RmsNorm { x: of, weight, out: normed, .. }, Op::MatMul { x: read, weights, .. }, ..] =
            self.later
        else {
            return None;
        };
        let is_next = self.id(*of) == self.id(out) && self.id(*read) == self.id(*normed);
        let can = is_next
            && call.gate.is_none()
            && !self.overwrites_input(x, call, out, true)
            && self.takes_squares(weights, None)
            && self.by_int8_matrix(call, Results::NormedInt8);
        can.then_some(*weight)
    }

    /// Whether matrices multiply by all these weights, so that they normalise what they multiply.
    fn takes_squares(&self, weights: &[WeightId], gate: Option<Activation>) -> bool {
        let can_take = |part: &Part| {
            let (input, tuning) = (Input::Int8Squares { eps: 0.0 }, self.tuning(part, gate));
            let call = MatVecCall { input, tuning, gate, ..MatVecCall::new(part.layout, 1) };
            self.by_int8_matrix(call, Results::F32)
        };
        let mut parts = groups(self.on.plan, weights).flat_map(|group| self.on.weights.matrix(group));
        self.takes_int8(weights) && parts.all(can_take)
    }

    /// Whether matrices of bytes can take a product, on this device.
    fn by_int8_matrix(&self, call: MatVecCall, results: Results) -> bool {
        let call = for_rows(call, *INT8_MATRIX_ROWS.start());
        let launch = call.launch_int8_matrix(self.on.gpu.rungs(), results);
        let bytes = call.int8_matrix_workgroup_bytes();
        launch.is_ok_and(|launch| self.on.gpu.has_room(&launch, INT8_MATRIX_INVOCATIONS, bytes))
    }

    /// Where a buffer's rows go as bytes, or what a norm makes of them.
    pub(super) fn bytes(&self, id: BufferId, normed: bool) -> Result<Int8Rows, GpuError> {
        let rows = if self.class == Class::Many { MAX_ROWS } else { FEW };
        self.on.buffers.bytes(self.on.gpu, self.width(id), normed, rows)
    }

    /// Makes bytes of a buffer's rows, or of what is pending for it, unless they are bytes already. With `squares`
    /// matrices normalise them.
    fn quantize(&mut self, x: BufferId, squares: bool) -> Result<Int8Rows, GpuError> {
        let rungs = self.on.gpu.rungs();
        let cols = self.width(x);
        let pending = self.pending.get(&self.id(x)).copied();
        let bytes = self.bytes(x, matches!(pending, Some(Pending::Norm { .. })))?;
        let mut buffers = vec![("q", bytes.q.clone()), ("q_scales", bytes.scales.clone())];
        // For so many rows they are.
        let mut there = 0..0;
        let by_int8_matrix = *INT8_MATRIX_ROWS.start()..*INT8_MATRIX_ROWS.end() + 1;
        let source = match pending {
            None | Some(Pending::Int8) => {
                if pending.is_some() {
                    there = by_int8_matrix;
                }
                buffers.push(("x", self.buffer(x)));
                Source::F32 { x_stride: cols }
            }
            Some(Pending::Norm { x, weight, eps }) => {
                if squares && self.normed == Some((x, weight)) {
                    there = by_int8_matrix;
                } else {
                    // Written over.
                    self.normed = None;
                }
                buffers.push(("x", self.buffer(x)));
                buffers.push(("weight", self.vector(&[weight])?));
                buffers.extend([("factors", bytes.factors.clone()), ("squares", bytes.squares.clone())]);
                Source::Norm { x_stride: cols, eps }
            }
            Some(Pending::Splits { window, gathered }) => {
                there = gathered..u32::MAX;
                buffers.push(("partials", self.on.buffers.partials.clone()));
                buffers.push(("rows", self.on.buffers.rows.clone()));
                Source::Merge { head_dim: self.on.plan.kv.head_dim as u32, window }
            }
        };
        let name = match source {
            Source::F32 { .. } => "quantise",
            Source::Norm { .. } | Source::Squares { .. } => "norm · quantise",
            Source::Merge { .. } => "merge · quantise",
        };
        let work = Work::Row { bytes: 5 * u64::from(cols) };
        let step = Step::new(name, work, buffers, move |rows| {
            let source = match source {
                Source::Norm { x_stride, .. } if squares && INT8_MATRIX_ROWS.contains(&rows) => {
                    Source::Squares { x_stride }
                }
                _ => source,
            };
            QuantizeCall { rows, cols, source, target: Target::Int8 }.launch(rungs)
        });
        self.steps.push(step.except(there));
        Ok(bytes)
    }
}

/// A product of this many rows.
fn for_rows(call: MatVecCall, rows: u32) -> MatVecCall {
    MatVecCall { rows, tuning: call.tuning.for_rows(rows, call.weight.cols()), ..call }
}

fn matrix(part: &Part) -> Work {
    Work::Matrix { bytes: part.layout.total_bytes(), rows: part.layout.rows(), cols: part.layout.cols() }
}
