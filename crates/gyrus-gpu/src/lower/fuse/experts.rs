//! Mixtures of experts.
//!
//! Generated rows: one mat-vec computes gate, up and activation of all slots, another the down projections and their
//! weighted sum. Each workgroup reads the expert of its slot on the device. Rows of prompts: a kernel sorts the slots by
//! expert into tiles, which the tile kernels multiply; their results are added by a kernel of their own. In single
//! precision, and where the weights are not quantised, every op is a kernel.

use gyrus_kernels::call::{
    ExpertSumCall, ExpertTilesCall, Experts, Input, MatMulCall, MatVecCall, MatVecTuning, RouteCall, TileCall,
};
use gyrus_kernels::{Activation, BufferId, Op, RouteWeights, Rows, WeightId};

use super::{Fuser, Pending};
use crate::error::GpuError;
use crate::lower::call::{Kernel, MatrixPart, RowInput};
use crate::lower::expert_call::{ExpertKernel, ExpertOperands};
use crate::weight::groups;

/// What [`Op::ExpertMatMul`] says.
#[derive(Clone, Copy)]
pub(super) struct ExpertProduct<'a> {
    pub(super) x: BufferId,
    pub(super) route: BufferId,
    pub(super) weights: &'a [WeightId],
    pub(super) biases: &'a [WeightId],
    pub(super) out: BufferId,
}

impl<'a> Fuser<'a> {
    pub(super) fn route(
        &mut self,
        logits: BufferId,
        used: u16,
        weights: RouteWeights,
        scale: Option<WeightId>,
        out: BufferId,
    ) -> Result<(), GpuError> {
        self.finish(logits)?;
        self.before_write(out)?;
        self.sorted = None;
        let count = self.width(logits);
        let call = RouteCall { rows: 1, count, used: used.into(), weights, scale: scale.is_some() };
        let (logits, out) = (self.id(logits), self.id(out));
        self.push("route", Kernel::Expert(ExpertKernel::Route { call, logits, scale, out }));
        Ok(())
    }

    /// Whether the next ops choose experts by what is written to this buffer.
    pub(super) fn is_router(&self, out: BufferId) -> bool {
        let mut later = self.later.iter().skip_while(|op| matches!(op, Op::Bias { x, .. } if *x == out));
        matches!(later.next(), Some(Op::Route { logits, .. }) if *logits == out)
    }

    /// The experts of a product, whose weights are all stacked.
    fn experts(&self, product: &ExpertProduct<'_>) -> Result<Experts, GpuError> {
        let plan = self.on.plan;
        let count = product.weights.first().and_then(|id| plan.weight(*id).experts()).unwrap_or(0);
        Ok(Experts {
            count: count as u32,
            used: self.used(product.route),
            shared: plan.buffer(product.x).rows == Rows::Batch,
            bias: !product.biases.is_empty(),
            parts: 1,
            sum: false,
        })
    }

    /// Experts of a row.
    fn used(&self, route: BufferId) -> u32 {
        self.width(route) / 2
    }

    /// The product of each slot, and what follows it: a gate, or a sum over slots.
    pub(super) fn expert_mat_mul(
        &mut self,
        all: &'a [Op],
        product: ExpertProduct<'a>,
    ) -> Result<(), GpuError> {
        let first = self.current.start;
        let experts = self.experts(&product)?;
        let is_vector = self.takes_int8(product.weights) && self.can_expert_mat_vec(&product, experts);
        let is_tiled = self.takes_f16(product.weights);
        let can_gate = self.can_gate_experts(product.weights);
        let (mut to, mut gate, mut sum) = (product.out, None, None);
        match all[first..] {
            [_, Op::Gate { x, activation, out }, ..]
                if x == product.out && (is_vector || is_tiled) && can_gate =>
            {
                (to, gate) = (out, Some(activation));
            }
            [_, Op::ExpertSum { x, accumulate, out, .. }, ..]
                if x == product.out && is_vector && !experts.shared && product.weights.len() == 1 =>
            {
                (to, sum) = (out, Some(accumulate));
            }
            _ => {}
        }
        if gate.is_some() || sum.is_some() {
            self.take(all, first..first + 2);
        }
        let experts = Experts { sum: sum.is_some(), ..experts };
        if is_tiled {
            self.before_write(to)?;
            self.sort(product.route, experts);
            self.convert_to_f16(product.x)?;
        } else if !is_vector {
            self.finish(product.x)?;
            self.before_write(to)?;
        } else {
            self.before_write(to)?;
        }
        let mut first_column = 0;
        let mut biases = product.biases;
        for group in groups(self.on.plan, product.weights) {
            let matrix = self.whole_matrix(group)?;
            let (own, others) = biases.split_at(group.len().min(biases.len()));
            biases = others;
            let columns = matrix.layout.rows() / experts.count.max(1);
            let experts = Experts { parts: group.len() as u32, ..experts };
            let on = ExpertOperands { route: self.id(product.route), matrix, biases: own.to_vec() };
            let name = self.name_of(group);
            if is_vector {
                self.expert_mat_vec(&name, &product, on, experts, (gate, sum), (first_column, to))?;
            } else if is_tiled {
                let call = TileCall {
                    y_stride: self.width(to),
                    y_offset: first_column,
                    gate,
                    experts: Some(experts),
                    ..TileCall::new(on.matrix.layout, 1)
                };
                let out = self.id(to);
                self.push(name, Kernel::Expert(ExpertKernel::Tiles { call, on, out }));
            } else {
                let call = MatMulCall {
                    x_stride: self.width(product.x),
                    y_stride: self.width(to),
                    y_offset: first_column,
                    experts: Some(experts),
                    ..MatMulCall::new(on.matrix.layout, 1)
                };
                let (x, out) = (self.id(product.x), self.id(to));
                self.push(name, Kernel::Expert(ExpertKernel::MatMul { call, x, on, out }));
            }
            first_column += columns;
        }
        Ok(())
    }

    /// Whether a kernel can gate products of these weights: gate and up projections must be one matrix.
    fn can_gate_experts(&self, weights: &[WeightId]) -> bool {
        let plan = self.on.plan;
        let same_shape = |pair: &[WeightId]| plan.weight(pair[0]).shape == plan.weight(pair[1]).shape;
        weights.len() <= 2 && weights.windows(2).all(same_shape) && groups(plan, weights).count() == 1
    }

    /// Whether the workgroup memory suffices for the input of a mat-vec. The largest is that of a sum over slots.
    fn can_expert_mat_vec(&self, product: &ExpertProduct<'_>, experts: Experts) -> bool {
        let mut parts = groups(self.on.plan, product.weights).flat_map(|group| self.on.weights.matrix(group));
        parts.all(|part| {
            let experts = Experts { sum: !experts.shared, ..experts };
            let call = MatVecCall { experts: Some(experts), ..MatVecCall::new(part.layout, 1) };
            let tuning = self.expert_tuning(&call);
            self.on.capabilities.can_fuse_input(&MatVecCall {
                input: Input::Norm { eps: 0.0 },
                tuning,
                ..call
            })
        })
    }

    /// How a mat-vec divides its work: as one of a matrix with the rows of all experts of a row. It does not depend on
    /// the number of rows, so neither does the order of sums.
    fn expert_tuning(&self, call: &MatVecCall) -> MatVecTuning {
        let sizes = self.on.profile().mat_vec;
        let experts = call.experts.unwrap_or(Experts {
            count: 1,
            used: 1,
            shared: true,
            bias: false,
            parts: 1,
            sum: false,
        });
        let rows = call.weight.rows() / experts.count.max(1);
        let outputs = if experts.sum { rows } else { rows.saturating_mul(experts.used) };
        MatVecTuning::of(outputs, call.cols(), self.on.capabilities.most_invocations, &sizes)
    }

    fn expert_mat_vec(
        &mut self,
        name: &str,
        product: &ExpertProduct<'_>,
        on: ExpertOperands,
        experts: Experts,
        (gate, sum): (Option<Activation>, Option<bool>),
        (y_offset, to): (u32, BufferId),
    ) -> Result<(), GpuError> {
        let mut ops: Vec<usize> = self.current.clone().collect();
        let norm = match self.pending.get(&self.id(product.x)).copied() {
            Some(Pending::Norm { x, weight, eps, op }) if experts.shared && x != self.id(to) => {
                ops.insert(0, op);
                Some((x, weight, eps))
            }
            _ => {
                self.finish(product.x)?;
                None
            }
        };
        let (input, from, prologue) = match norm {
            Some((x, weight, eps)) => (Input::Norm { eps }, RowInput::Norm { x, weight }, "norm · "),
            None => (Input::F32, RowInput::F32(self.id(product.x)), ""),
        };
        let call = MatVecCall {
            input,
            gate,
            y_stride: self.width(to),
            y_offset,
            accumulate: sum == Some(true),
            experts: Some(experts),
            sizes: self.on.profile().mat_vec,
            ..MatVecCall::new(on.matrix.layout, 1)
        };
        let call = MatVecCall { tuning: self.expert_tuning(&call), ..call };
        let out = self.id(to);
        let kernel = Kernel::Expert(ExpertKernel::MatVec { call, input: from, on, out });
        self.push_for(ops, format!("{prologue}{name}"), kernel);
        Ok(())
    }

    /// The matrix of all experts of some weights, which must be one buffer.
    fn whole_matrix(&self, weights: &[WeightId]) -> Result<MatrixPart, GpuError> {
        let shape = |id: &WeightId| self.on.plan.weight(*id).shape;
        if weights.len() > 2 || weights.windows(2).any(|pair| shape(&pair[0]) != shape(&pair[1])) {
            return Err(GpuError::internal("a product of experts has weights of different shapes"));
        }
        let mut parts = self.parts(weights);
        match (parts.next(), parts.next()) {
            (Some((part, _)), None) => Ok(part),
            (first, _) => {
                let name = weights.first().map_or("", |id| self.on.plan.weight(*id).name.as_str());
                let rows = weights.iter().map(|id| self.on.plan.weight(*id).shape.rows() as u32).sum();
                Err(GpuError::Limit {
                    what: format!("the experts of '{name}'"),
                    wanted: first.map_or(0, |(part, _)| part.layout.with_rows(rows).total_bytes()),
                    most: self.on.capabilities.largest_buffer,
                })
            }
        }
    }

    /// Sorts the slots of a route, unless that was done.
    fn sort(&mut self, route: BufferId, experts: Experts) {
        let route = self.id(route);
        if self.sorted != Some(route) {
            self.sorted = Some(route);
            let call = ExpertTilesCall { rows: 1, experts };
            self.push("sort", Kernel::Expert(ExpertKernel::Sort { call, route }));
        }
    }

    pub(super) fn expert_sum(
        &mut self,
        x: BufferId,
        route: BufferId,
        accumulate: bool,
        out: BufferId,
    ) -> Result<(), GpuError> {
        self.finish(x)?;
        self.before_write(out)?;
        let used = self.used(route);
        let experts = Experts { count: used, used, shared: false, bias: false, parts: 1, sum: false };
        let call = ExpertSumCall { rows: 1, count: self.width(out), experts, accumulate };
        let (x, route, out) = (self.id(x), self.id(route), self.id(out));
        self.push("sum", Kernel::Expert(ExpertKernel::Sum { call, x, route, out }));
        Ok(())
    }

    pub(super) fn add_gated(&mut self, x: BufferId, gate: BufferId, out: BufferId) -> Result<(), GpuError> {
        self.finish(x)?;
        self.finish(gate)?;
        self.before_write(out)?;
        let (width, x, gate, out) = (self.width(out), self.id(x), self.id(gate), self.id(out));
        self.push("add gated", Kernel::Expert(ExpertKernel::AddGated { x, gate, width, out }));
        Ok(())
    }

    /// Rows of a buffer for each row of the batch.
    pub(super) fn slots_of(&self, id: BufferId) -> u32 {
        match self.on.plan.buffer(id).rows {
            Rows::Slots(used) => used.into(),
            Rows::Batch | Rows::Logits => 1,
        }
    }
}
