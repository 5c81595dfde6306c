//! From a plan's ops to kernels: which ops become one kernel depends on how many rows there are.
//!
//! A norm, and attention that was divided into splits, need not be finished by a kernel of their own: the mat-mul
//! that reads them can. So they stay *pending* until somebody reads them, and who reads says how they are finished.

use std::collections::HashMap;

use gyrus_kernels::call::engine::{self, Heads, Paged};
use gyrus_kernels::call::{
    EmbedCall, FlashCall, FlashTuning, HalveRowsCall, Input, MatMulCall, MatVecCall, MatVecTuning,
    QuantizeCall, Source, Storage, Target, TileCall,
};
use gyrus_kernels::params::AttendParams;
use gyrus_kernels::{Activation, BufferId, Op, Plan, Precision, RopeId, WeightId};
use gyrus_tensor::DType;

use crate::buffer::Buffer;
use crate::device::Gpu;
use crate::error::GpuError;
use crate::rooms::{FEW, MAX_ROWS, Rooms, RowBytes, RowHalves};
use crate::step::{Step, Work};
use crate::tuning::{MatShape, Tuning};
use crate::weight::{Part, Weights, groups};

/// How many rows a table of steps is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Class {
    /// One row: its mat-muls finish norms and attention for themselves, and attention turns and writes its own keys.
    One,
    /// At most [`FEW`] of different sequences: attention turns and writes each row's keys. Sums have the order that
    /// they have for one.
    Each,
    /// At most [`FEW`], some perhaps of one sequence, so that keys are written before any are attended to.
    Few,
    /// As many as there may be.
    Many,
}

/// What a buffer is to hold, as long as nobody has finished it.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Pending {
    /// The norm of a buffer, which may be the one it is for.
    Norm { x: BufferId, weight: WeightId, eps: f32 },
    /// Attention in splits.
    Splits { window: u32 },
}

/// Makes tables of steps.
pub(crate) struct Lowering<'a> {
    pub(crate) gpu: &'a Gpu,
    pub(crate) plan: &'a Plan,
    pub(crate) weights: &'a Weights,
    pub(crate) rooms: &'a Rooms,
    pub(crate) tuning: &'a Tuning,
}

/// A table in the making.
struct Table<'a> {
    on: &'a Lowering<'a>,
    class: Class,
    /// Whether rows that want logits are all rows there are, so that they need not be gathered.
    all: bool,
    pending: HashMap<BufferId, Pending>,
    /// Buffers that others stand for.
    same: HashMap<BufferId, BufferId>,
    /// What comes after the ops that are being lowered.
    later: &'a [Op],
    steps: Vec<Step>,
}

impl Lowering<'_> {
    /// Attention of many rows in tiles, how it is divided, and how many rows a tile has at most; where it can be.
    pub(crate) fn flash(&self, scale: f32, window: u32) -> Option<(FlashCall, FlashTuning, u32)> {
        let kv = self.plan.kv;
        let (n_heads, n_kv_heads, head_dim) = (kv.heads as u32, kv.kv_heads as u32, kv.head_dim as u32);
        let call = FlashCall {
            n_heads,
            n_kv_heads,
            head_dim,
            q_stride: (n_heads + 2 * n_kv_heads) * head_dim,
            scale,
            window,
            soft_cap: 0.0,
            causal: true,
            tree: false,
            paged: self.rooms.paged(MAX_ROWS as u32),
            tiles: 1,
        };
        let memory = u32::try_from(self.gpu.workgroup_memory()).unwrap_or(u32::MAX);
        let tuning = FlashTuning { memory: Some(memory.min(32 << 10)), ..FlashTuning::default() };
        let fast = self.plan.precision == Precision::Fast;
        let possible = fast && call.launch(self.gpu.rungs(), tuning).is_ok();
        let rows = call.tile_rows(tuning).ok().filter(|_| possible)?;
        Some((call, tuning, rows))
    }

    /// The steps of some ops of a plan.
    pub(crate) fn table(&self, ops: &[Op], class: Class, all: bool) -> Result<Vec<Step>, GpuError> {
        let mut table = Table {
            on: self,
            class,
            all,
            pending: HashMap::new(),
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
        self.on.rooms.scratch(self.id(id)).clone()
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
                    ("indices", self.on.rooms.indices.clone()),
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
            None => {}
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
            Some(Pending::Splits { window }) => {
                let source = Source::Merge { head_dim: self.on.plan.kv.head_dim as u32, window };
                let buffers = vec![
                    ("partials", self.on.rooms.partials.clone()),
                    ("rows", self.on.rooms.rows.clone()),
                    ("q", self.buffer(id)),
                ];
                let work = Work::Row { bytes: 8 * u64::from(cols) };
                self.steps.push(Step::new("merge", work, buffers, move |rows| {
                    QuantizeCall { rows, cols, source, target: Target::Rows }.launch(rungs)
                }));
            }
        }
        Ok(())
    }

    /// Whether a later op reads what a buffer is to hold now.
    fn is_read_later(&self, id: BufferId) -> bool {
        for op in self.later {
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
            buffers.extend([("tokens", self.on.rooms.tokens.clone()), ("y", self.buffer(out))]);
            let work = Work::Row { bytes: 5 * u64::from(layout.cols()) };
            self.steps.push(Step::new("embed", work, buffers, move |tokens| {
                EmbedCall { vocab, first, ..EmbedCall::new(layout, tokens, scale) }.launch(rungs)
            }));
        }
        Ok(())
    }

    /// Whether gate and up projection lie one below the other, for a mat-vec that gates its own results.
    fn can_gate(&self, x: BufferId, weights: &[WeightId]) -> bool {
        let plan = self.on.plan;
        let [gate, up] = weights else { return false };
        (self.takes_bytes(weights) || self.takes_halves(weights))
            && plan.weight(*gate).shape == plan.weight(*up).shape
            && groups(plan, weights).count() == 1
            && self.on.weights.matrix(weights).len() == 1
            && self.width(x).is_multiple_of(32)
    }

    /// Whether all these weights are multiplied by bytes.
    fn takes_bytes(&self, weights: &[WeightId]) -> bool {
        self.fast() && weights.iter().all(|id| self.on.plan.weight(*id).dtype.is_quantized())
    }

    /// Whether all these weights are multiplied by halves, many rows at a time. Single precision has a reason.
    fn takes_halves(&self, weights: &[WeightId]) -> bool {
        let dtype = |id: &WeightId| self.on.plan.weight(*id).dtype;
        self.fast() && self.class == Class::Many && weights.iter().all(|id| dtype(id) != DType::F32)
    }

    /// Several weights write their outputs side by side.
    fn mat_mul(
        &mut self,
        x: BufferId,
        weights: &[WeightId],
        accumulate: bool,
        gate: Option<Activation>,
        out: BufferId,
    ) -> Result<(), GpuError> {
        let halves = self.takes_halves(weights);
        if !halves && !self.takes_bytes(weights) {
            self.finish(x)?;
        }
        self.written(out)?;
        let halved = if halves { Some(self.halve(x)?) } else { None };
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
                if !self.fast() || !part.layout.dtype().is_quantized() {
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
                self.mat_vec(&name, x, part, call, out, &mut bytes)?;
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
    fn halve(&mut self, x: BufferId) -> Result<RowHalves, GpuError> {
        let rungs = self.on.gpu.rungs();
        let (source, norm) = match self.pending.get(&self.id(x)).copied() {
            Some(Pending::Norm { x, weight, eps }) => (x, Some((weight, eps))),
            Some(Pending::Splits { .. }) => {
                self.finish(x)?;
                (self.id(x), None)
            }
            None => (self.id(x), None),
        };
        let cols = self.width(x);
        let norm_eps = norm.map(|(_, eps)| eps);
        let call = HalveRowsCall { rows: MAX_ROWS as u32, cols, x_stride: cols, norm: norm_eps };
        let halves = self.on.rooms.halves(self.on.gpu, cols, call.bytes())?;
        let mut buffers =
            vec![("x", self.buffer(source)), ("h", halves.h.clone()), ("h_scales", halves.scales.clone())];
        if let Some((weight, _)) = norm {
            buffers.push(("norm", self.vector(&[weight])?));
        }
        let work = Work::Row { bytes: 6 * u64::from(cols) };
        let name = if norm.is_some() { "norm · halve" } else { "halve" };
        self.steps
            .push(Step::new(name, work, buffers, move |rows| HalveRowsCall { rows, ..call }.launch(rungs)));
        Ok(halves)
    }

    /// A mat-mul of many rows of halves.
    #[allow(clippy::too_many_arguments, reason = "what a product is made of")]
    fn tiles(
        &mut self,
        name: &str,
        x: &RowHalves,
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

    /// A mat-mul of bytes. One row's are made where they are used; those of more rows once for all that use them.
    fn mat_vec(
        &mut self,
        name: &str,
        x: BufferId,
        part: &Part,
        call: MatVecCall,
        out: BufferId,
        made: &mut Option<RowBytes>,
    ) -> Result<(), GpuError> {
        let rungs = self.on.gpu.rungs();
        let mut buffers = planes(part);
        buffers.push(("y", self.buffer(out)));
        let pending = self.pending.get(&self.id(x)).copied();
        if self.class == Class::One {
            let input = match pending {
                None => Input::Rows,
                Some(Pending::Norm { eps, .. }) => Input::Norm { eps },
                Some(Pending::Splits { window }) => {
                    Input::Merge { head_dim: self.on.plan.kv.head_dim as u32, window }
                }
            };
            let call = MatVecCall { input, ..call };
            let source = match pending {
                Some(Pending::Norm { x, .. }) => x,
                _ => self.id(x),
            };
            if call.workgroup_bytes() <= self.on.gpu.workgroup_memory() && source != self.id(out) {
                match pending {
                    None => buffers.push(("x", self.buffer(x))),
                    Some(Pending::Norm { x, weight, .. }) => {
                        buffers.push(("x", self.buffer(x)));
                        buffers.push(("norm_weight", self.vector(&[weight])?));
                    }
                    Some(Pending::Splits { .. }) => {
                        buffers.push(("partials", self.on.rooms.partials.clone()));
                        buffers.push(("rows", self.on.rooms.rows.clone()));
                    }
                }
                let before = match pending {
                    None => "",
                    Some(Pending::Norm { .. }) => "norm · ",
                    Some(Pending::Splits { .. }) => "merge · ",
                };
                let name = format!("{before}{name}");
                let shape = MatShape::of(part.layout, call.gate.is_some());
                let step = Step::new(name, matrix(part), buffers, move |_| call.launch(rungs));
                self.steps.push(step.tuned(shape));
                return Ok(());
            }
        }
        let bytes = match made {
            Some(bytes) => bytes.clone(),
            None => made.insert(self.quantize(x)?).clone(),
        };
        buffers.extend([("x", bytes.q), ("x_scales", bytes.scales), ("squares", bytes.squares)]);
        let norm = match pending {
            Some(Pending::Norm { eps, .. }) => Some(eps),
            _ => None,
        };
        let call = MatVecCall { input: Input::Bytes { norm }, ..call };
        self.steps.push(Step::new(name, matrix(part), buffers, move |rows| {
            let tuning = call.tuning.for_rows(rows);
            MatVecCall { rows, tuning, ..call }.launch(rungs)
        }));
        Ok(())
    }

    /// Makes bytes of a buffer's rows, or of what is pending for it.
    fn quantize(&mut self, x: BufferId) -> Result<RowBytes, GpuError> {
        let rungs = self.on.gpu.rungs();
        let cols = self.width(x);
        let rows = if self.class == Class::Many { MAX_ROWS } else { FEW };
        let bytes = self.on.rooms.bytes(self.on.gpu, cols, rows)?;
        let mut buffers = vec![("q", bytes.q.clone()), ("q_scales", bytes.scales.clone())];
        let source = match self.pending.get(&self.id(x)).copied() {
            None => {
                buffers.push(("x", self.buffer(x)));
                Source::Rows { x_stride: cols }
            }
            Some(Pending::Norm { x, weight, .. }) => {
                buffers.push(("x", self.buffer(x)));
                buffers.push(("weight", self.vector(&[weight])?));
                buffers.push(("squares", bytes.squares.clone()));
                Source::Norm { x_stride: cols }
            }
            Some(Pending::Splits { window }) => {
                buffers.push(("partials", self.on.rooms.partials.clone()));
                buffers.push(("rows", self.on.rooms.rows.clone()));
                Source::Merge { head_dim: self.on.plan.kv.head_dim as u32, window }
            }
        };
        let name = match source {
            Source::Rows { .. } => "quantise",
            Source::Norm { .. } => "norm · quantise",
            Source::Merge { .. } => "merge · quantise",
        };
        let work = Work::Row { bytes: 5 * u64::from(cols) };
        self.steps.push(Step::new(name, work, buffers, move |rows| {
            QuantizeCall { rows, cols, source, target: Target::Bytes }.launch(rungs)
        }));
        Ok(bytes)
    }

    fn attention(&mut self, op: Attention) -> Result<(), GpuError> {
        let rungs = self.on.gpu.rungs();
        let Attention { qkv, layer, head_norm, rope, scale, window, out } = op;
        self.finish(qkv)?;
        self.written(out)?;
        let kv = self.on.plan.kv;
        let (turns, turns_stride) = self.on.rooms.turns(rope.0 as usize);
        let rope = &self.on.plan.ropes[rope.0 as usize];
        let window = window.unwrap_or(0);
        let params = AttendParams {
            n_heads: kv.heads as u32,
            n_kv_heads: kv.kv_heads as u32,
            stride: self.width(qkv),
            window,
            scale,
            soft_cap: 0.0,
            rope_dim: rope.rope_dim() as u32,
            rope_offset: rope.offset() as u32,
            eps: head_norm.map_or(0.0, |(_, _, eps)| eps),
            pass_scale: rope.output_scale() as f32,
            turns_stride,
            _pad0: 0,
        };
        let head_dim = kv.head_dim as u32;
        let heads = Heads { head_dim, pairing: rope.pairing(), norm: head_norm.is_some() };
        let (k, v) = &self.on.rooms.cache[usize::from(layer)];
        let mut buffers = vec![
            ("qkv", self.buffer(qkv)),
            ("k_cache", k.clone()),
            ("v_cache", v.clone()),
            ("rows", self.on.rooms.rows.clone()),
            ("block_table", self.on.rooms.tables.clone()),
            ("partials", self.on.rooms.partials.clone()),
            ("out", self.buffer(out)),
            ("turns", turns.clone()),
        ];
        if let Some((q, k, _)) = head_norm {
            buffers.push(("head_norms", self.vector(&[q, k])?));
        }
        let paged = self.on.rooms.paged(0);
        let memory = engine::attend_workgroup_bytes(params.n_heads, params.n_kv_heads, head_dim);
        let splits = self.class != Class::Many
            && paged.kv == Storage::F16
            && head_dim.is_multiple_of(32)
            && memory <= self.on.gpu.workgroup_memory()
            && self.on.gpu.most_invocations() >= 256;
        let turn = splits && self.class != Class::Few;
        if !turn {
            let work = Work::Row { bytes: 8 * u64::from(params.stride) };
            self.steps.push(Step::new("turn · write", work, buffers.clone(), move |rows| {
                engine::rope_write(rungs, params, heads, Paged { rows, ..paged })
            }));
        }
        let work =
            Work::Cache { bytes: 2 * kv.row() as u64 * paged.kv.bytes(), flops: 4 * kv.q_width() as u64 };
        if splits {
            let name = if turn { "turn · write · attend" } else { "attend" };
            let step = Step::new(name, work, buffers, move |rows| {
                engine::attend(rungs, params, heads, turn, 1, Paged { rows, ..paged })
            });
            self.steps.push(step.split(window));
            self.pending.insert(self.id(out), Pending::Splits { window });
        } else if let Some((call, tuning, _)) = self.on.flash(scale, window) {
            buffers.push(("tiles", self.on.rooms.tiles.clone()));
            let step = Step::new("attend", work, buffers, move |rows| {
                FlashCall { paged: Paged { rows, ..paged }, ..call }.launch(rungs, tuning)
            });
            self.steps.push(step.tiled());
        } else {
            self.steps.push(Step::new("attend", work, buffers, move |rows| {
                engine::attention(rungs, params, head_dim, Paged { rows, ..paged })
            }));
        }
        Ok(())
    }
}

/// What is written to the cache and attended to in one go.
struct Attention {
    qkv: BufferId,
    layer: u16,
    head_norm: Option<(WeightId, WeightId, f32)>,
    rope: RopeId,
    scale: f32,
    window: Option<u32>,
    out: BufferId,
}

fn matrix(part: &Part) -> Work {
    Work::Matrix { bytes: part.layout.total_bytes(), rows: part.layout.rows(), cols: part.layout.cols() }
}

/// A part's planes by their names.
fn planes(part: &Part) -> Vec<(&'static str, Buffer)> {
    part.layout.planes().map(|plane| plane.name()).zip(part.planes.iter().cloned()).collect()
}
