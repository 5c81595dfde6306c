//! The ops of mixtures of experts.

use gyrus_kernels::{Batch, BufferId, Op, WeightId};

use super::{Prepared, State, Weight};
use crate::experts::{add_gated, expert_sum, ids, route};
use crate::matmul::experts::expert_matmul;
use crate::matrix::Matrix;

/// The most weights that an expert multiplies side by side: gate and up.
const SIDE_BY_SIDE: usize = 2;

impl Prepared {
    fn experts(&self, id: WeightId) -> &[Matrix] {
        match &self.weights[id.0 as usize] {
            Weight::Experts(experts) => experts,
            _ => unreachable!("the weight of experts is stacked"),
        }
    }

    /// Runs an op of a mixture of experts.
    pub(super) fn run_experts(&self, op: &Op, batch: &Batch<'_>, state: &mut State) {
        match op {
            Op::Route { logits, used, weights, scale, out } => {
                let experts = self.plan.buffer(*logits).width;
                let scale = scale.map(|id| self.vector(id));
                self.between(state, *logits, *out, batch, |logits, out, _| {
                    route(&self.pool, logits, experts, usize::from(*used), *weights, scale, out);
                });
            }
            Op::ExpertMatMul { x, route, weights, biases, out } => {
                assert!(weights.len() <= SIDE_BY_SIDE, "{} weights of an expert", weights.len());
                let mut several: [&[Matrix]; SIDE_BY_SIDE] = [&[]; SIDE_BY_SIDE];
                let mut added: [&[f32]; SIDE_BY_SIDE] = [&[]; SIDE_BY_SIDE];
                several.iter_mut().zip(weights).for_each(|(slot, id)| *slot = self.experts(*id));
                added.iter_mut().zip(biases).for_each(|(slot, id)| *slot = self.vector(*id));
                let used = self.plan.buffer(*route).width / 2;
                self.with_route(state, *route, batch, |model, state, routes| {
                    let (weights, biases) = (&several[..weights.len()], &added[..biases.len()]);
                    model.between(state, *x, *out, batch, |x, out, scratch| {
                        expert_matmul(&model.pool, weights, biases, x, ids(routes, used), out, scratch);
                    });
                });
            }
            Op::ExpertSum { x, route, accumulate, out } => {
                let n = self.plan.buffer(*out).width;
                self.with_route(state, *route, batch, |model, state, routes| {
                    model.between(state, *x, *out, batch, |x, out, _| {
                        expert_sum(&model.pool, x, routes, n, *accumulate, out);
                    });
                });
            }
            Op::AddGated { x, gate, out } => {
                let n = self.plan.buffer(*out).width;
                self.with_route(state, *gate, batch, |model, state, gates| {
                    model.between(state, *x, *out, batch, |x, out, _| {
                        add_gated(&model.pool, x, gates, n, out);
                    });
                });
            }
            _ => unreachable!("not an op of experts"),
        }
    }

    /// Calls `work` with a buffer that the op reads beside its input.
    fn with_route(
        &self,
        state: &mut State,
        id: BufferId,
        batch: &Batch<'_>,
        work: impl FnOnce(&Prepared, &mut State, &[f32]),
    ) {
        let size = self.rows(id, batch) * self.plan.buffer(id).width;
        let buffer = std::mem::take(&mut state.buffers[usize::from(id.0)]);
        work(self, state, &buffer[..size]);
        state.buffers[usize::from(id.0)] = buffer;
    }
}
