//! Rows that are computed ahead of the step that samples from them.
//!
//! A masked row waits for its mask only when it is sampled. So the rows of the next step are submitted at once after the
//! kernels that sampled their tokens, in commands of their own: the tokens land while the rows are computed. The next
//! submission then begins with sampling. Slots that were started since take part from the step after it, since their rows
//! have no logits yet.

use gyrus_kernels::Work;

use super::record::Tape;
use super::submit::{Lane, unbound};
use super::{GROUPS, SlotPool};
use crate::backend::GpuBackend;
use crate::buffers::MATVEC_ROWS;
use crate::error::GpuError;

impl SlotPool {
    /// The logits of rows that were computed ahead are no longer valid.
    pub(super) fn forget_computed(&mut self) {
        self.groups.iter_mut().flatten().for_each(|group| group.computed = 0);
    }
}

impl GpuBackend {
    /// Submits the rows of the next step, if one of them is masked. Returns whether there are any. Rows of groups in which
    /// the host samples are not computed: their tokens are not known.
    pub(super) fn compute_rows_ahead(&mut self) -> Result<bool, GpuError> {
        let mut lanes = self.lanes(1, self.slots.submissions);
        if !lanes.iter().flatten().any(|lane| lane.call.masks) {
            return Ok(false);
        }
        for lane in &mut lanes {
            *lane = lane.filter(|lane| lane.hosted == 0);
        }
        if lanes.iter().all(Option::is_none) {
            return Ok(false);
        }
        self.bind_all(&lanes, &[])?;
        let GpuBackend { gpu, tuning, slots: pool, .. } = self;
        let is_idle = pool.flights.are_done(gpu, &mut pool.recorder)?;
        pool.begin(gpu)?;
        let SlotPool { recorder: Some(recorder), flights, groups, slots, splits, .. } = pool else {
            return Err(unbound());
        };
        let first = tuning.profile(gpu.rungs()).first_submission as usize;
        let early = if is_idle { first } else { usize::MAX };
        let mut tape = Tape { gpu, recorder, flights, first, early, recorded: 0 };
        for lane in lanes.iter().flatten() {
            let Some(group) = &mut groups[lane.group] else { continue };
            tape.rows(lane, group, &slots[lane.group * MATVEC_ROWS..][..MATVEC_ROWS], splits)?;
            group.computed = lane.decoding;
        }
        let submission = recorder.submit(gpu, &[])?;
        flights.push(submission, None, Vec::new());
        Ok(true)
    }

    /// The groups that take part in the steps after the chunks of a submission. One whose rows were computed ahead takes
    /// part without the slots that were started since, so that the other rows need not be computed again.
    pub(super) fn lanes_of_steps(&self, work: &Work<'_>, number: u64) -> [Option<Lane>; GROUPS] {
        let mut lanes = self.lanes(work.steps, number);
        if work.between > 0 || work.steps != 1 {
            return lanes;
        }
        let before = self.lanes(1, number - 1);
        for lane in lanes.iter_mut().flatten() {
            let computed = self.slots.groups[lane.group].as_ref().map_or(0, |group| group.computed);
            let own = before.iter().flatten().find(|before| before.group == lane.group);
            if let Some(own) = own.filter(|own| computed != 0 && own.decoding & !computed == 0) {
                *lane = Lane { is_computed: true, ..*own };
            }
        }
        lanes
    }

    /// Records the sampling of groups whose rows were computed ahead.
    pub(super) fn sample_computed(
        &mut self,
        lanes: &[Option<Lane>; GROUPS],
        submission: u64,
    ) -> Result<(), GpuError> {
        if !lanes.iter().flatten().any(|lane| lane.is_computed) {
            return Ok(());
        }
        let SlotPool { recorder: Some(recorder), flights, groups, slots, .. } = &mut self.slots else {
            return Err(unbound());
        };
        let gpu = &self.gpu;
        let mut tape = Tape { gpu, recorder, flights, first: 0, early: usize::MAX, recorded: 0 };
        for lane in lanes.iter().flatten().filter(|lane| lane.is_computed) {
            let Some(group) = &mut groups[lane.group] else { continue };
            let of_group = &mut slots[lane.group * MATVEC_ROWS..][..MATVEC_ROWS];
            tape.select(lane, group, of_group, submission)?;
        }
        if self.slots.late.is_empty() { Ok(()) } else { self.cut_for_writes() }
    }
}
