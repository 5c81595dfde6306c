//! Ops to kernel calls: which ops become one kernel depends on the kind of batch.
//!
//! A norm, and attention that was divided into splits, need no kernel of their own: the matrix product that reads them
//! can finish them in its prologue. So they stay *pending* until an op reads them, and the reader decides how they are
//! finished.

mod attention;
mod elementwise;
mod encoder;
mod experts;
mod matmul;

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use gyrus_kernels::call::engine::{AddCall, Paged};
use gyrus_kernels::call::{DeltaCall, EmbedCall, FlashCall};
use gyrus_kernels::{BufferId, DeltaLayer, Op, Plan, Precision, Span, WeightId};

use self::encoder::TileEpilogue;
use self::experts::ExpertProduct;
use super::call::{Call, Gathered, Ids, Kernel, MatrixPart, RowsSeen};
use super::{BatchKind, Capabilities, effective};
use crate::error::GpuError;
use crate::profile::DeviceProfile;
use crate::tuning::Tuning;
use crate::weight::{WeightLayouts, biases};

/// What fusing depends on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FuseContext<'a> {
    pub(crate) plan: &'a Plan,
    pub(crate) capabilities: Capabilities,
    pub(crate) weights: &'a WeightLayouts,
    pub(crate) tuning: &'a Tuning,
    /// The cache of a layer of each KV group and the size of block tables; rows are not used.
    pub(crate) caches: &'a [Paged],
    /// Records of states.
    pub(crate) records: u32,
    /// The most rows of a batch.
    pub(crate) rows: u32,
}

impl FuseContext<'_> {
    /// The sizes of the device.
    fn profile(&self) -> DeviceProfile {
        self.tuning.profile(self.capabilities.rungs)
    }
}

/// The contents of a buffer for which no kernel was called yet; `op` is the index of the op that it is the result of.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Pending {
    /// The RMS norm of a buffer, which may be the same one.
    Norm { x: BufferId, weight: WeightId, eps: f32, op: usize },
    /// Attention whose splits are not merged. From some number of rows on the kernel gathers them: it has merged and
    /// quantised them to int8.
    Splits { head_dim: u32, window: u32, seen: RowsSeen, gathered: Option<Gathered>, op: usize },
    /// Nothing is pending: the buffer is written. For the row counts of int8 cooperative matrices its int8 rows are, too.
    Int8,
}

/// A list of calls in the making.
struct Fuser<'a> {
    on: &'a FuseContext<'a>,
    kind: BatchKind,
    /// Whether every row wants logits, so that a gather is no more than another name for its input.
    all_rows: bool,
    /// Ordered, so that the calls do not depend on a hash.
    pending: BTreeMap<BufferId, Pending>,
    /// The route whose slots are sorted by expert.
    sorted: Option<BufferId>,
    /// The buffer of which the normed int8 rows were written by an epilogue, with this norm's weight.
    normed: Option<(BufferId, WeightId)>,
    /// Buffers that are other names of others.
    aliases: HashMap<BufferId, BufferId>,
    /// The ops after those that are being fused.
    later: &'a [Op],
    /// The indices of the ops that are being fused.
    current: Range<usize>,
    calls: Vec<Call>,
}

impl FuseContext<'_> {
    /// The kernel calls of some ops. `all_rows`: every row wants logits.
    pub(crate) fn fuse(&self, ops: &[Op], kind: BatchKind, all_rows: bool) -> Result<Vec<Call>, GpuError> {
        let mut fuser = Fuser {
            on: self,
            kind: effective(kind, self.plan.precision),
            all_rows,
            pending: BTreeMap::new(),
            sorted: None,
            normed: None,
            aliases: HashMap::new(),
            later: &[],
            current: 0..0,
            calls: Vec::new(),
        };
        let mut first = 0;
        while first < ops.len() {
            fuser.take(ops, first..first + 1);
            fuser.fuse_next(ops)?;
            first = fuser.current.end;
        }
        // The host reads outputs.
        for output in &self.plan.outputs {
            fuser.finish(output.buffer)?;
        }
        Ok(fuser.calls)
    }

    /// Flash attention, where its kernel takes this op.
    fn flash(&self, op: &Op) -> Option<FlashCall> {
        let Op::Attention { qkv, heads, kv, span, scale, soft_cap, sinks, .. } = *op else { return None };
        let group = self.plan.kv_group(kv);
        let call = FlashCall {
            n_heads: heads.into(),
            q_stride: self.plan.buffer(qkv).width as u32,
            scale,
            window: RowsSeen::window(span, group),
            soft_cap: soft_cap.unwrap_or(0.0),
            causal: span == Span::Causal,
            tree: false,
            sinks: sinks.is_some(),
            paged: Paged { rows: self.rows, ..self.caches[usize::from(kv.group)] },
            tiles: 1,
        };
        (self.plan.precision == Precision::Fast && self.capabilities.can_flash(&call)).then_some(call)
    }

    /// The most rows of a tile of flash attention: tiles are the same for all layers.
    pub(crate) fn tile_rows(&self) -> u32 {
        let ops = self.plan.encode.iter().chain(&self.plan.forward);
        let calls = ops.filter_map(|op| self.flash(op));
        let rows = calls.filter_map(|call| call.tile_rows(self.capabilities.flash_tuning()).ok());
        rows.min().unwrap_or(1)
    }
}

impl<'a> Fuser<'a> {
    fn fast(&self) -> bool {
        self.on.plan.precision == Precision::Fast
    }

    /// A buffer by its first name.
    fn id(&self, id: BufferId) -> BufferId {
        *self.aliases.get(&id).unwrap_or(&id)
    }

    fn width(&self, id: BufferId) -> u32 {
        self.on.plan.buffer(id).width as u32
    }

    /// Calls a kernel that computes the ops that are being fused.
    fn push(&mut self, name: impl Into<String>, kernel: Kernel) {
        self.push_for(self.current.clone(), name, kernel);
    }

    /// Calls a kernel that computes these ops.
    fn push_for(&mut self, ops: impl IntoIterator<Item = usize>, name: impl Into<String>, kernel: Kernel) {
        self.calls.push(Call { name: name.into(), kernel, slots: 1, ops: ops.into_iter().collect() });
    }

    /// Calls a kernel that computes the ops that are being fused, for all rows of a buffer: some have several for each row
    /// of the batch.
    fn push_rows(&mut self, of: BufferId, name: impl Into<String>, kernel: Kernel) {
        let (slots, ops) = (self.slots_of(of), self.current.clone().collect());
        self.calls.push(Call { name: name.into(), kernel, slots, ops });
    }

    /// Sets which ops are being fused.
    fn take(&mut self, ops: &'a [Op], current: Range<usize>) {
        self.later = &ops[current.end..];
        self.current = current;
    }

    /// Fuses the current op of `all`, or more of those that follow, which become current, too.
    fn fuse_next(&mut self, all: &'a [Op]) -> Result<(), GpuError> {
        let first = self.current.start;
        let ops = &all[first..];
        match ops[0] {
            Op::Embed { table, scale, out } => self.embed(table, scale, out),
            Op::RmsNorm { x, weight, eps, out } if self.dim_of(weight) < self.width(x) => {
                self.finish(x)?;
                self.before_write(out)?;
                self.norm(first, self.id(x), weight, eps, self.id(out));
            }
            Op::RmsNorm { x, weight, eps, out } => {
                self.finish(x)?;
                self.pending.insert(self.id(out), Pending::Norm { x: self.id(x), weight, eps, op: first });
            }
            Op::MatMul { x, ref weights, accumulate, out } => {
                if let [_, Op::Gate { x: gated, activation, out: to }, ..] = *ops
                    && gated == out
                    && !accumulate
                    && self.can_gate(x, weights)
                {
                    self.take(all, first..first + 2);
                    self.mat_mul(x, weights, false, TileEpilogue::gate(activation), to)?;
                } else {
                    let (epilogue, fused) = self.tile_epilogue(ops);
                    self.take(all, first..first + 1 + fused);
                    self.mat_mul(x, weights, accumulate, epilogue, out)?;
                }
            }
            Op::NormColumns { x, first: column, weight, eps } => {
                self.finish(x)?;
                self.before_write(x)?;
                self.norm_columns(first, x, column, 1, weight, eps);
            }
            Op::Bias { x, first: column, .. } => {
                let biases = biases(self.on.plan, ops);
                self.take(all, first..first + biases.len());
                self.finish(x)?;
                self.before_write(x)?;
                let count = biases.iter().map(|bias| self.dim_of(*bias)).sum();
                let (out_stride, out) = (self.width(x), self.id(x));
                let call = AddCall { rows: 1, count, bias: true, out_stride, first: column, scale: 1.0 };
                self.push_rows(x, "bias", Kernel::Bias { call, biases, out });
            }
            Op::Add { x, scale, out } => self.add(x, scale, out)?,
            Op::Scale { x, factor } => self.scale(x, factor, None)?,
            Op::SoftCap { x, cap } => self.scale(x, 1.0, Some(cap))?,
            Op::RopeWrite { qkv, kv, .. } => {
                if let [write, attend @ Op::Attention { qkv: same, kv: of, .. }, ..] = ops
                    && (*same, *of) == (qkv, kv)
                {
                    self.take(all, first..first + 2);
                    self.attention(Some(write), attend)?;
                } else if let Op::RopeWrite { heads: 0, .. } = ops[0] {
                    self.write_keys(&ops[0])?;
                } else {
                    let fault = format!("the plan writes keys of {kv} and does not attend to them next");
                    return Err(GpuError::internal(fault));
                }
            }
            // The host writes them to the buffer.
            Op::Features { out } => self.before_write(out)?,
            Op::AddPositions { table, offset, out } => {
                self.add_entries(table, Ids::Positions, offset, out)?;
            }
            Op::AddTypes { table, out } => self.add_entries(table, Ids::Types, 0, out)?,
            Op::Unfold { x, taps, out } => self.unfold(x, taps, out)?,
            Op::LayerNorm { x, weight, bias, eps, out } => self.layer_norm(x, weight, bias, eps, out)?,
            Op::Activate { x, activation } => self.activate(x, activation)?,
            ref attend @ Op::Attention { span, .. } if span != Span::Causal => {
                self.attention(None, attend)?
            }
            Op::Attention { kv, .. } => {
                let fault = format!("the plan attends to {kv} without having rotated its queries");
                return Err(GpuError::internal(fault));
            }
            Op::Gate { x, activation, out } => {
                self.finish(x)?;
                self.before_write(out)?;
                let (of, width) = (x, self.width(out));
                let (x, out) = (self.id(x), self.id(out));
                self.push_rows(of, "gate", Kernel::Gate { x, activation, width, out });
            }
            Op::GateBy { x, activation, by, first } => {
                self.finish(x)?;
                self.finish(by)?;
                self.before_write(x)?;
                let (width, columns) = (self.width(x), (self.width(by), first));
                let (x, by) = (self.id(x), self.id(by));
                self.push("gate", Kernel::GateBy { x, activation, width, by, columns });
            }
            Op::Route { logits, used, weights, scale, out } => {
                self.route(logits, used, weights, scale, out)?;
            }
            Op::ExpertMatMul { x, route, ref weights, ref biases, out } => {
                self.expert_mat_mul(all, ExpertProduct { x, route, weights, biases, out })?;
            }
            Op::ExpertSum { x, route, accumulate, out } => self.expert_sum(x, route, accumulate, out)?,
            Op::AddGated { x, gate, out } => self.add_gated(x, gate, out)?,
            Op::MulBy { x, activation, by, first } => {
                self.finish(x)?;
                self.finish(by)?;
                self.before_write(x)?;
                let (width, columns) = (self.width(x), (self.width(by), first));
                let (x, by) = (self.id(x), self.id(by));
                self.push("gate", Kernel::MulBy { x, activation, width, by, columns });
            }
            Op::DeltaConv { x, layer, taps, a, bias, a_is_log, out } => {
                self.finish(x)?;
                self.before_write(out)?;
                let call = self.delta(layer, a_is_log);
                let (x, out, weights) = (self.id(x), self.id(out), [taps, a, bias]);
                self.push("delta · conv", Kernel::DeltaConv { call, layer, x, weights, out });
            }
            Op::DeltaRule { x, prepared, layer, out } => {
                self.finish(x)?;
                self.finish(prepared)?;
                self.before_write(out)?;
                let call = self.delta(layer, false);
                let (x, prepared, out) = (self.id(x), self.id(prepared), self.id(out));
                self.push("delta · rule", Kernel::DeltaRule { call, layer, x, prepared, out });
            }
            Op::Gather { x, out } if self.all_rows => {
                self.finish(x)?;
                self.aliases.insert(out, self.id(x));
            }
            Op::Gather { x, out } => {
                self.finish(x)?;
                let (x, width, out) = (self.id(x), self.width(x), self.id(out));
                self.push("gather", Kernel::Gather { x, rows: self.on.rows, width, out });
            }
        }
        Ok(())
    }

    /// Calls the kernel for what is pending in a buffer that is about to be read as f32.
    fn finish(&mut self, id: BufferId) -> Result<(), GpuError> {
        let out = self.id(id);
        let width = self.width(out);
        match self.pending.remove(&out) {
            None | Some(Pending::Int8) => {}
            Some(Pending::Norm { x, weight, eps, op }) => self.norm(op, x, weight, eps, out),
            Some(Pending::Splits { head_dim, window, seen, gathered: None, op }) => {
                self.push_for([op], "merge", Kernel::Merge { head_dim, window, seen, width, out });
            }
            Some(Pending::Splits { .. }) => {
                let name = self.on.plan.buffer(out).name;
                let fault = format!("buffer '{name}' is read in f32, and only its int8 rows were written");
                return Err(GpuError::internal(fault));
            }
        }
        Ok(())
    }

    /// The weights of the next op, if it is a matrix product and the only reader of what this buffer holds now.
    fn only_read_by_next(&self, id: BufferId) -> Option<&'a [WeightId]> {
        let [Op::MatMul { x, weights, out, .. }, rest @ ..] = self.later else { return None };
        let id = self.id(id);
        let alone = self.id(*x) == id && self.id(*out) != id && !self.is_read_by(rest, id);
        alone.then_some(weights)
    }

    /// Whether some ops read what a buffer holds before the first of them.
    fn is_read_by(&self, ops: &[Op], id: BufferId) -> bool {
        for op in ops {
            if op.reads().into_iter().flatten().any(|read| self.id(read) == id) {
                return true;
            }
            if self.id(op.writes()) == id {
                return false;
            }
        }
        false
    }

    /// Prepares for a buffer to be overwritten: drops what is pending for it, and finishes pending norms of it that a later
    /// op reads.
    fn before_write(&mut self, id: BufferId) -> Result<(), GpuError> {
        let id = self.id(id);
        self.pending.remove(&id);
        self.normed = self.normed.filter(|(x, _)| *x != id);
        let norm_of_it = |(to, pending): (&BufferId, &Pending)| match pending {
            Pending::Norm { x, .. } if *x == id => Some(*to),
            _ => None,
        };
        let dependent: Vec<BufferId> = self.pending.iter().filter_map(norm_of_it).collect();
        for to in dependent {
            if self.is_read_by(self.later, to) {
                self.finish(to)?;
            } else if to != id {
                self.pending.remove(&to);
            }
        }
        Ok(())
    }

    /// A layer of Gated DeltaNet.
    fn delta(&self, layer: DeltaLayer, a_is_log: bool) -> DeltaCall {
        let shape = *self.on.plan.delta_shape(layer);
        DeltaCall { shape, rows: 1, records: self.on.records, a_is_log }
    }

    fn embed(&mut self, table: WeightId, scale: f32, out: BufferId) {
        let vocab = self.on.plan.weight(table).shape.rows() as u32;
        let out = self.id(out);
        for (part, first) in self.parts(&[table]) {
            let call = EmbedCall { vocab, first, ..EmbedCall::new(part.layout, 1, scale) };
            self.push("embed", Kernel::Embed { call, ids: Ids::Tokens, table: part, out });
        }
    }

    /// The parts of a matrix, with the first row of each.
    fn parts(&self, weights: &[WeightId]) -> impl Iterator<Item = (MatrixPart, u32)> + use<'a> {
        let weights = weights.to_vec();
        let parts = self.on.weights.matrix(&weights).iter().enumerate();
        parts.map(move |(index, part)| {
            (MatrixPart { weights: weights.clone(), index, layout: part.layout }, part.first)
        })
    }
}
