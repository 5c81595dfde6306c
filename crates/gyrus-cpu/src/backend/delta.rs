//! The ops of Gated DeltaNet in a forward pass.

use gyrus_kernels::{Batch, Op};

use super::{Prepared, State};
use crate::delta::{ConvWeights, DeltaContext, StateStore, delta_conv, delta_rule};

impl Prepared {
    /// Runs an op with a state.
    pub(super) fn run_delta(&self, op: &Op, batch: &Batch<'_>, states: &mut StateStore, state: &mut State) {
        let (Op::DeltaConv { x, layer, .. } | Op::DeltaRule { x, layer, .. }) = op else { return };
        let (out, shape) = (op.writes(), *self.plan.delta_shape(*layer));
        let layer = usize::from(layer.0);
        let mut target = std::mem::take(&mut state.buffers[usize::from(out.0)]);
        let on = DeltaContext {
            pool: &self.pool,
            shape,
            layer,
            batch,
            rows: &state.sequence_rows,
            x: &state.buffers[usize::from(x.0)],
        };
        let len = batch.rows() * self.plan.buffer(out).width;
        match op {
            Op::DeltaConv { a, bias, a_is_log, .. } => {
                let (a, bias) = (self.vector(*a), self.vector(*bias));
                let weights = ConvWeights { taps: &self.taps[layer], a, bias, a_is_log: *a_is_log };
                delta_conv(&on, &weights, states, &mut target[..len]);
            }
            Op::DeltaRule { prepared, .. } => {
                let prepared = &state.buffers[usize::from(prepared.0)];
                delta_rule(&on, prepared, states, &mut target[..len]);
            }
            _ => {}
        }
        state.buffers[usize::from(out.0)] = target;
    }
}
