use gyrus_tensor::{TensorError, dequantize};

use super::{
    DeltaConvWeights, KvCache, Query, activate, add_gated, attention, delta_conv, delta_rule, expert_sum,
    gate, gated, matmul, norm, push_input, rms_norm, route, routed, soft_cap, unfold,
};
use crate::backend::{Backend, BackendError};
use crate::batch::{Batch, Demands};
use crate::call::{Norm, Storage};
use crate::delta::{CONV_TAPS, DeltaShape};
use crate::host_slots::{DecodeRow, HostBackend, HostForward, HostSlots};
use crate::kv::{KvLayer, KvSize};
use crate::log_softmax::LogSoftmax;
use crate::observe::{HostState, Observer, show};
use crate::op::{BufferId, Op, WeightId};
use crate::plan::{ENCODED, Plan, WeightSpec};
use crate::rope::Phases;
use crate::slots::Slots;

/// Runs a plan with the scalar twins: slow and simple.
///
/// It computes in `f32` with `f64` sums whatever the plan's precision, so it is the reference for both.
#[derive(Debug)]
pub struct Reference {
    model: ScalarModel,
    slots: HostSlots,
}

/// Plan, weights and cache.
#[derive(Debug)]
struct ScalarModel {
    plan: Plan,
    weights: Vec<Vec<f32>>,
    /// One per KV group.
    caches: Vec<KvCache>,
    blocks: Vec<usize>,
    /// Records of the state: for each layer its last inputs and its matrices.
    records: Vec<Vec<Vec<f32>>>,
    /// What the encoder and the forward pass demand of a batch.
    demands: [Demands; 2],
    /// The result of the last pass.
    result: Vec<f32>,
}

/// Which ops of a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pass {
    Encode,
    Forward,
}

impl Backend for Reference {
    fn plan(&self) -> &Plan {
        &self.model.plan
    }

    fn kv_blocks(&self) -> &[usize] {
        &self.model.blocks
    }

    fn batch_rows(&self) -> usize {
        usize::MAX
    }

    fn records(&self) -> usize {
        self.model.records.len()
    }

    fn forward(&mut self, batch: &Batch<'_>) -> Result<&[f32], BackendError> {
        self.model.compute(Pass::Forward, batch, None)?;
        let width = self.model.plan.buffer(self.model.plan.result()).width;
        batch.check_logits(&self.model.result, width)?;
        Ok(&self.model.result)
    }

    fn encode(&mut self, batch: &Batch<'_>) -> Result<&[f32], BackendError> {
        if self.model.plan.encode.is_empty() {
            return Err(BackendError::NoEncoder);
        }
        self.model.compute(Pass::Encode, batch, None)?;
        if let Some(output) = self.model.plan.output(ENCODED) {
            batch.check_logits(&self.model.result, self.model.plan.buffer(output).width)?;
        }
        Ok(&self.model.result)
    }

    fn observe(&mut self, batch: &Batch<'_>, observer: &mut Observer<'_>) -> Result<(), BackendError> {
        self.model.compute(Pass::Forward, batch, Some(observer))
    }

    fn slots(&mut self) -> &mut dyn Slots {
        self
    }
}

impl HostBackend for Reference {
    fn host_slots(&mut self) -> (&mut HostSlots, &mut dyn HostForward) {
        (&mut self.slots, &mut self.model)
    }
}

impl HostForward for ScalarModel {
    fn compute(&mut self, batch: &Batch<'_>, rows: &mut [DecodeRow]) -> Result<&[f32], BackendError> {
        self.compute(Pass::Forward, batch, None)?;
        rows.iter_mut().for_each(|row| row.sample(&self.result, self.plan.vocab, LogSoftmax::with_top));
        Ok(&self.result)
    }

    fn copy_record(&mut self, from: Option<usize>, to: usize) {
        match from {
            Some(from) => self.records[to] = self.records[from].clone(),
            None => self.records[to].iter_mut().for_each(|layer| layer.fill(0.0)),
        }
    }
}

impl Reference {
    /// Dequantises all weights; `bytes` gives each one's data, `kv` the sizes of the pools. The error names the weight
    /// that could not be dequantised.
    pub fn new<D: AsRef<[u8]>>(
        plan: Plan,
        kv: &KvSize,
        bytes: impl Fn(&WeightSpec) -> D,
    ) -> Result<Reference, (WeightId, TensorError)> {
        let mut weights = Vec::with_capacity(plan.weights.len());
        for (id, spec) in (0..).map(WeightId).zip(&plan.weights) {
            let mut values = vec![0.0; spec.shape.elems()];
            let one = values.len() / spec.experts().unwrap_or(1).max(1);
            for (expert, values) in values.chunks_exact_mut(one.max(1)).enumerate() {
                let spec = spec.expert(expert).unwrap_or_else(|| spec.clone());
                dequantize(spec.dtype, bytes(&spec).as_ref(), values).map_err(|error| (id, error))?;
            }
            values.iter_mut().for_each(|v| *v += spec.plus);
            weights.push(values);
        }
        let caches =
            plan.kv.iter().zip(&kv.blocks).map(|(group, blocks)| KvCache::new(*group, *blocks)).collect();
        let has_state = !plan.delta.is_empty();
        let slots = HostSlots::new(plan.vocab, &kv.blocks, has_state.then_some(kv.records));
        let record: Vec<Vec<f32>> = plan.delta.iter().map(|shape| vec![0.0; shape.state_elems()]).collect();
        let demands = [plan.demands(&plan.encode), plan.demands(&plan.forward)];
        let model = ScalarModel {
            caches,
            demands,
            plan,
            weights,
            blocks: kv.blocks.clone(),
            records: vec![record; kv.records],
            result: Vec::new(),
        };
        Ok(Reference { model, slots })
    }
}

impl ScalarModel {
    fn compute(
        &mut self,
        pass: Pass,
        batch: &Batch<'_>,
        mut observer: Option<&mut Observer<'_>>,
    ) -> Result<(), BackendError> {
        let (ops, demands) = match pass {
            Pass::Encode => (&self.plan.encode, &self.demands[0]),
            Pass::Forward => (&self.plan.forward, &self.demands[1]),
        };
        if !batch.is_sound(self.plan.vocab, &self.blocks, demands)
            || !batch.has_sound_records(!self.plan.delta.is_empty(), self.records.len())
        {
            return Err(BackendError::UnsoundBatch);
        }
        let mut buffers: Vec<Vec<f32>> =
            self.plan.buffers.iter().map(|b| vec![0.0; b.rows.count(batch) * b.width]).collect();
        let mut phases: Vec<Phases> = Vec::new();
        for rope in &self.plan.ropes {
            let mut of_rope = Phases::default();
            of_rope.compute(rope, batch);
            phases.push(of_rope);
        }
        for (i, op) in ops.iter().enumerate() {
            match op {
                Op::DeltaConv { .. } | Op::DeltaRule { .. } => {
                    run_delta(&self.plan, &self.weights, &mut self.records, batch, op, &mut buffers);
                }
                op => run(&self.plan, &self.weights, &mut self.caches, &phases, batch, op, &mut buffers),
            }
            if let Some(observer) = observer.as_deref_mut() {
                let mut state = Observable { batch, caches: &mut self.caches, buffers: &mut buffers };
                show(&self.plan, i, batch.rows(), &mut state, observer);
            }
        }
        let result = match pass {
            Pass::Encode => self.plan.output(ENCODED),
            Pass::Forward => Some(self.plan.result()),
        };
        self.result = result.map_or(Vec::new(), |id| buffers.swap_remove(usize::from(id.0)));
        Ok(())
    }
}

/// An op with a state, sequence by sequence.
fn run_delta(
    plan: &Plan,
    weights: &[Vec<f32>],
    all_records: &mut [Vec<Vec<f32>>],
    batch: &Batch<'_>,
    op: &Op,
    buffers: &mut [Vec<f32>],
) {
    let (Op::DeltaConv { x, layer, .. } | Op::DeltaRule { x, layer, .. }) = op else { return };
    let shape: DeltaShape = *plan.delta_shape(*layer);
    let out = op.writes();
    let (in_width, out_width) = (plan.buffer(*x).width, plan.buffer(out).width);
    let (inputs, at) = (buffers[usize::from(x.0)].clone(), usize::from(out.0));
    for (sequence, records) in batch.records.iter().enumerate() {
        let mut state = match records.from {
            Some(from) => all_records[from as usize][usize::from(layer.0)].clone(),
            None => vec![0.0; shape.state_elems()],
        };
        let (conv, matrices) = state.split_at_mut(shape.conv_elems());
        for row in (0..batch.rows()).filter(|row| batch.sequences[*row] as usize == sequence) {
            let input = &inputs[row * in_width..][..in_width];
            match op {
                Op::DeltaConv { taps, a, bias, a_is_log, .. } => {
                    let [taps, a, bias] = [taps, a, bias].map(|id| &weights[id.0 as usize][..]);
                    let given = DeltaConvWeights { taps, a, bias, a_is_log: *a_is_log };
                    let mut rows = [input; CONV_TAPS];
                    rows.iter_mut().zip(conv.chunks_exact(shape.channels())).for_each(|(r, c)| *r = c);
                    let gates = &input[shape.channels() + shape.value_width()..];
                    let out = &mut buffers[at][row * out_width..][..out_width];
                    delta_conv(&shape, given, rows, gates, out);
                }
                Op::DeltaRule { prepared, .. } => {
                    let width = plan.buffer(*prepared).width;
                    let prepared = buffers[usize::from(prepared.0)][row * width..][..width].to_vec();
                    let out = &mut buffers[at][row * out_width..][..out_width];
                    delta_rule(&shape, matrices, &prepared, out);
                }
                _ => {}
            }
            push_input(&shape, conv, input);
        }
        if matches!(op, Op::DeltaRule { .. }) {
            all_records[records.to as usize][usize::from(layer.0)] = state;
        }
    }
}

/// The state after an op.
struct Observable<'a> {
    batch: &'a Batch<'a>,
    caches: &'a mut [KvCache],
    buffers: &'a mut [Vec<f32>],
}

impl HostState for Observable<'_> {
    fn buffer(&mut self, id: BufferId) -> &mut [f32] {
        &mut self.buffers[id.0 as usize]
    }

    fn read_cache(&self, KvLayer { group, index }: KvLayer, keys: &mut [f32], values: &mut [f32]) {
        let (cache, layer) = (&self.caches[usize::from(group)], usize::from(index));
        let (row, n) = (cache.group().row(), cache.group().head_dim);
        for i in 0..self.batch.rows() {
            let (table, position) = (self.batch.table(i, group), self.batch.positions[i] as usize);
            for head in 0..cache.group().kv_heads {
                let at = i * row + head * n;
                keys[at..at + n].copy_from_slice(cache.k(layer, table, position, head));
                values[at..at + n].copy_from_slice(cache.v(layer, table, position, head));
            }
        }
    }

    fn cache_storage(&self) -> Storage {
        Storage::F32
    }

    fn write_cache(&mut self, KvLayer { group, index }: KvLayer, keys: &[f32], values: &[f32]) {
        let cache = &mut self.caches[usize::from(group)];
        let row = cache.group().row();
        for (i, (k, v)) in keys.chunks_exact(row).zip(values.chunks_exact(row)).enumerate() {
            let position = self.batch.positions[i] as usize;
            cache.write(index.into(), self.batch.table(i, group), position, k, v);
        }
    }
}

fn run(
    plan: &Plan,
    weights: &[Vec<f32>],
    caches: &mut [KvCache],
    phases: &[Phases],
    batch: &Batch<'_>,
    op: &Op,
    buffers: &mut [Vec<f32>],
) {
    let width = |id: &BufferId| plan.buffer(*id).width;
    let weight = |id: &WeightId| weights[id.0 as usize].as_slice();
    let at = |id: &BufferId| id.0 as usize;
    match op {
        Op::Embed { table, scale, out } => {
            let n = width(out);
            for (row, &token) in batch.tokens.iter().enumerate() {
                let source = &weight(table)[token as usize * n..(token as usize + 1) * n];
                let target = &mut buffers[at(out)][row * n..(row + 1) * n];
                target.iter_mut().zip(source).for_each(|(t, s)| *t = s * scale);
            }
        }
        Op::Features { out } => buffers[at(out)].copy_from_slice(batch.inputs.features),
        Op::AddPositions { table, offset, out } => {
            let n = width(out);
            for (row, out) in buffers[at(out)].chunks_exact_mut(n).enumerate() {
                let entry = (batch.positions[row] + offset) as usize;
                out.iter_mut().zip(&weight(table)[entry * n..]).for_each(|(out, p)| *out += p);
            }
        }
        Op::AddTypes { table, out } => {
            let n = width(out);
            for (row, out) in buffers[at(out)].chunks_exact_mut(n).enumerate() {
                let entry = batch.inputs.types.get(row).copied().unwrap_or(0) as usize;
                out.iter_mut().zip(&weight(table)[entry * n..]).for_each(|(out, t)| *out += t);
            }
        }
        Op::Unfold { x, taps, out } => {
            let (input, channels, n) = (buffers[at(x)].clone(), width(x), width(out));
            let [of_x, of_out] = [x, out].map(|id| plan.buffer(*id).rows.of_each());
            for (first, count, _) in batch.runs() {
                let x = &input[first * of_x * channels..][..count * of_x * channels];
                let out = &mut buffers[at(out)][first * of_out * n..][..count * of_out * n];
                unfold(x, channels, of_x / of_out, usize::from(*taps), out);
            }
        }
        Op::LayerNorm { x, weight: w, bias, eps, out } => {
            let (input, n) = (buffers[at(x)].clone(), width(x));
            let kind = Norm::Layer { bias: bias.is_some() };
            let bias = bias.as_ref().map_or(&[][..], weight);
            for (x, out) in input.chunks_exact(n).zip(buffers[at(out)].chunks_exact_mut(n)) {
                norm(kind, x, weight(w), bias, *eps, out);
            }
        }
        Op::Activate { x, activation } => {
            buffers[at(x)].iter_mut().for_each(|x| *x = activate(*activation, *x));
        }
        Op::RmsNorm { x, weight: w, eps, out } => {
            let input = buffers[at(x)].clone();
            let n = weight(w).len();
            for (x, out) in input.chunks_exact(n).zip(buffers[at(out)].chunks_exact_mut(n)) {
                rms_norm(x, weight(w), *eps, out);
            }
        }
        Op::NormColumns { x, first, weight: w, eps } => {
            let (n, first) = (width(x), *first as usize);
            for row in buffers[at(x)].chunks_exact_mut(n) {
                let columns = &mut row[first..first + weight(w).len()];
                let input = columns.to_vec();
                rms_norm(&input, weight(w), *eps, columns);
            }
        }
        Op::MatMul { x, weights: several, accumulate, out } => {
            let input = buffers[at(x)].clone();
            let (k, n) = (width(x), width(out));
            for (x, out) in input.chunks_exact(k).zip(buffers[at(out)].chunks_exact_mut(n)) {
                let mut done = 0;
                for w in several {
                    let rows = plan.weight(*w).shape.rows();
                    matmul(weight(w), x, *accumulate, &mut out[done..done + rows]);
                    done += rows;
                }
            }
        }
        Op::Bias { x, first, bias } => {
            let n = width(x);
            for row in buffers[at(x)].chunks_exact_mut(n) {
                row[*first as usize..].iter_mut().zip(weight(bias)).for_each(|(x, b)| *x += b);
            }
        }
        Op::Add { x, scale, out } => {
            let input = buffers[at(x)].clone();
            buffers[at(out)].iter_mut().zip(input).for_each(|(out, x)| *out += scale * x);
        }
        Op::Scale { x, factor } => buffers[at(x)].iter_mut().for_each(|x| *x *= factor),
        Op::SoftCap { x, cap } => buffers[at(x)].iter_mut().for_each(|x| *x = soft_cap(*x, *cap)),
        Op::RopeWrite { qkv, heads, kv, write, norms, rope } => {
            let (group, n) = (*plan.kv_group(*kv), width(qkv));
            let (heads, dim) = (usize::from(*heads), group.head_dim);
            for row in 0..batch.rows() {
                let qkv = &mut buffers[at(qkv)][row * n..(row + 1) * n];
                for (i, head) in qkv.chunks_exact_mut(dim).enumerate() {
                    let part = if i < heads { 0 } else { 1 + (i - heads) / group.kv_heads };
                    let norm = norms.and_then(|norms| [Some(norms.q), norms.k, norms.v, None][part.min(3)]);
                    if let Some((norm, norms)) = norm.zip(*norms) {
                        let input = head.to_vec();
                        rms_norm(&input, weight(&norm), norms.eps, head);
                    }
                    if let (Some(rope), 0 | 1) = (rope, part) {
                        plan.ropes[rope.0 as usize].apply(head, phases[rope.0 as usize].row(row));
                    }
                }
                if *write {
                    let (k, v) = qkv[heads * dim..][..2 * group.row()].split_at(group.row());
                    let (table, position) = (batch.table(row, kv.group), batch.positions[row] as usize);
                    caches[usize::from(kv.group)].write(kv.index.into(), table, position, k, v);
                }
            }
        }
        Op::Attention { qkv, heads, kv, span, scale, soft_cap, sinks, out } => {
            let (q_width, n) = (usize::from(*heads) * plan.kv_group(*kv).head_dim, width(qkv));
            for row in 0..batch.rows() {
                let q = buffers[at(qkv)][row * n..row * n + q_width].to_vec();
                let out = &mut buffers[at(out)][row * q_width..(row + 1) * q_width];
                let (table, position) = (batch.table(row, kv.group), batch.positions[row] as usize);
                let sinks = sinks.as_ref().map(weight);
                let extent = batch.extent(row, kv.group);
                let (span, scale, soft_cap) = (*span, *scale, *soft_cap);
                let query = Query { q: &q, table, position, span, extent, scale, soft_cap, sinks };
                attention(&caches[usize::from(kv.group)], kv.index.into(), query, out);
            }
        }
        Op::Gate { x, activation, out } => {
            let input = buffers[at(x)].clone();
            let (wide, n) = (width(x), width(out));
            for (x, out) in input.chunks_exact(wide).zip(buffers[at(out)].chunks_exact_mut(n)) {
                gate(*activation, x, out);
            }
        }
        Op::GateBy { x, activation, by, first } => {
            let (n, wide, first) = (width(x), width(by), *first as usize);
            let factors = buffers[at(by)].clone();
            for (x, by) in buffers[at(x)].chunks_exact_mut(n).zip(factors.chunks_exact(wide)) {
                x.iter_mut().zip(&by[first..]).for_each(|(x, by)| *x = gated(*activation, *x, *by));
            }
        }
        Op::Route { logits, used, weights, scale, out } => {
            let input = buffers[at(logits)].clone();
            let (experts, n) = (width(logits), width(out));
            let scale = scale.as_ref().map(weight);
            for (logits, out) in input.chunks_exact(experts).zip(buffers[at(out)].chunks_exact_mut(n)) {
                route(logits, usize::from(*used), *weights, scale, out);
            }
        }
        Op::ExpertMatMul { x, route, weights: several, biases, out } => {
            let (input, routes) = (buffers[at(x)].clone(), buffers[at(route)].clone());
            let (k, n) = (width(x), width(out));
            let slots = routes.chunks_exact(width(route)).flat_map(routed);
            // Each slot has an input of its own, or all slots of a row have one.
            let sharing = slots.clone().count() / (input.len() / k).max(1);
            for (slot, ((expert, _), out)) in slots.zip(buffers[at(out)].chunks_exact_mut(n)).enumerate() {
                let x = &input[slot / sharing * k..][..k];
                let mut first = 0;
                for (i, w) in several.iter().enumerate() {
                    let rows = plan.weight(*w).shape.dims()[1];
                    let out = &mut out[first..first + rows];
                    matmul(&weight(w)[expert * rows * k..][..rows * k], x, false, out);
                    if let Some(bias) = biases.get(i) {
                        let bias = &weight(bias)[expert * rows..];
                        out.iter_mut().zip(bias).for_each(|(out, bias)| *out += bias);
                    }
                    first += rows;
                }
            }
        }
        Op::ExpertSum { x, route, accumulate, out } => {
            let (input, routes) = (buffers[at(x)].clone(), buffers[at(route)].clone());
            let (n, wide) = (width(out), width(route));
            let rows = input.chunks_exact(wide / 2 * n).zip(routes.chunks_exact(wide));
            for ((x, route), out) in rows.zip(buffers[at(out)].chunks_exact_mut(n)) {
                expert_sum(x, route, *accumulate, out);
            }
        }
        Op::AddGated { x, gate, out } => {
            let (input, gates, n) = (buffers[at(x)].clone(), buffers[at(gate)].clone(), width(x));
            let rows = input.chunks_exact(n).zip(gates);
            for ((x, gate), out) in rows.zip(buffers[at(out)].chunks_exact_mut(n)) {
                add_gated(x, gate, out);
            }
        }
        Op::MulBy { x, activation, by, first } => {
            let (n, wide, first) = (width(x), width(by), *first as usize);
            let factors = buffers[at(by)].clone();
            for (x, by) in buffers[at(x)].chunks_exact_mut(n).zip(factors.chunks_exact(wide)) {
                x.iter_mut().zip(&by[first..]).for_each(|(x, by)| *x *= activate(*activation, *by));
            }
        }
        // They have a state.
        Op::DeltaConv { .. } | Op::DeltaRule { .. } => {}
        Op::Gather { x, out } => {
            let input = buffers[at(x)].clone();
            let n = width(x);
            for (&row, out) in batch.logits.iter().zip(buffers[at(out)].chunks_exact_mut(n)) {
                out.copy_from_slice(&input[row as usize * n..(row as usize + 1) * n]);
            }
        }
    }
}
