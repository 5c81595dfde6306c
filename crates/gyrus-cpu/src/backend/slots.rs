//! Slots on the CPU: their rows are sampled on the thread pool, one row per task.

use gyrus_kernels::{BackendError, Batch, DecodeRow, HostBackend, HostForward, HostSlots, PartEnd};

use super::CpuBackend;
use super::executor::{Executor, Pass};
use crate::log_softmax::log_softmax;
use crate::storage::Disjoint;

impl HostBackend for CpuBackend {
    fn host_slots(&mut self) -> (&mut HostSlots, &mut dyn HostForward) {
        (&mut self.slots, &mut self.executor)
    }
}

impl HostForward for Executor {
    fn compute(&mut self, batch: &Batch<'_>, rows: &mut [DecodeRow]) -> Result<&[f32], BackendError> {
        self.execute(Pass::Forward, batch, None)?;
        let (plan, pool) = (&self.model.plan, &self.model.pool);
        let logits = self.state.result(Pass::Forward, plan, batch);
        let sample = |row: &mut DecodeRow| {
            row.sample(logits, plan.vocab, |logits, top| log_softmax(pool.isa(), logits, top));
        };
        // One row is sampled here: its buffers are those of this thread, so that no later step allocates them.
        if rows.iter().filter(|row| row.is_computed()).count() <= 1 {
            rows.iter_mut().for_each(sample);
            return Ok(logits);
        }
        let count = rows.len();
        let rows = Disjoint::new(rows);
        pool.run(count, &|row| {
            // SAFETY: each task accesses its own row only.
            let row = unsafe { rows.part(row..row + 1) };
            row.iter_mut().for_each(sample);
        });
        Ok(logits)
    }

    fn copy_record(&mut self, from: Option<usize>, to: usize) {
        self.states.copy(from, to);
    }

    fn compute_part(
        &mut self,
        batch: &Batch<'_>,
        first: bool,
        end: PartEnd,
    ) -> Result<Option<&[f32]>, BackendError> {
        self.execute_part(batch, first, end)
    }
}
