//! Rows that are computed ahead of the step that samples from them.
//!
//! A masked row waits for its mask only when it is sampled. So the rows of the next step are submitted at once after the
//! kernels that sampled their tokens: the tokens land while the rows are computed, behind a mark where a recorder has them,
//! otherwise because the rows are a submission of their own. The next
//! submission then begins with sampling. Slots that were started since take part from the step after it, since their rows
//! have no logits yet.

use gyrus_kernels::Work;

use super::record::Tape;
use super::submit::{Lane, unbound};
use super::{GROUPS, SlotPool};
use crate::backend::GpuBackend;
use crate::buffers::MATVEC_ROWS;
use crate::error::GpuError;
use crate::recorder::Recorder;

impl SlotPool {
    /// The logits of rows that were computed ahead are no longer valid.
    pub(super) fn forget_computed(&mut self) {
        self.groups.iter_mut().flatten().for_each(|group| group.computed = 0);
    }
}

impl GpuBackend {
    /// Submits the rows of the next step, if one of them is masked and they were not submitted with the last step. Returns
    /// whether there are any.
    pub(super) fn compute_rows_ahead(&mut self) -> Result<bool, GpuError> {
        let Some(lanes) = self.lanes_ahead(self.slots.submissions) else { return Ok(false) };
        let SlotPool { groups, .. } = &self.slots;
        let computed = |lane: &Lane| groups[lane.group].as_ref().map_or(0, |group| group.computed);
        if lanes.iter().flatten().all(|lane| lane.decoding & !computed(lane) == 0) {
            return Ok(true);
        }
        self.bind_all(&lanes, &[])?;
        let GpuBackend { gpu, slots: pool, .. } = self;
        let is_idle = pool.flights.are_done(gpu, &mut pool.recorder)?;
        pool.begin(gpu)?;
        self.record_rows_ahead(&lanes, is_idle)?;
        let SlotPool { recorder: Some(recorder), flights, .. } = &mut self.slots else {
            return Err(unbound());
        };
        flights.push(recorder.submit(&self.gpu, &[])?, None, Vec::new());
        Ok(true)
    }

    /// The rows of the step after a submission, if one of them is masked. Rows of groups in which the host samples are not
    /// among them: their tokens are not known.
    pub(super) fn lanes_ahead(&self, submission: u64) -> Option<[Option<Lane>; GROUPS]> {
        let mut lanes = self.lanes(1, submission);
        if !lanes.iter().flatten().any(|lane| lane.call.masks) {
            return None;
        }
        for lane in &mut lanes {
            *lane = lane.filter(|lane| lane.hosted == 0);
        }
        lanes.iter().any(Option::is_some).then_some(lanes)
    }

    /// The same if they can follow the steps of a submission in its own commands, which the host does not wait for: then the
    /// device does not pause between two submissions. A device that has nothing to do is given the steps by themselves.
    pub(super) fn lanes_that_follow(
        &mut self,
        work: &Work<'_>,
        number: u64,
    ) -> Result<Option<[Option<Lane>; GROUPS]>, GpuError> {
        let SlotPool { recorder, flights, ahead, .. } = &mut self.slots;
        let can_mark = recorder.as_ref().is_some_and(Recorder::is_vulkan);
        let is_asked = std::mem::take(ahead) && can_mark && work.between == 0 && work.steps > 0;
        if !is_asked || flights.are_done(&self.gpu, recorder)? {
            return Ok(None);
        }
        Ok(self.lanes_ahead(number))
    }

    /// Records the rows of the next step.
    pub(super) fn record_rows_ahead(
        &mut self,
        lanes: &[Option<Lane>; GROUPS],
        is_idle: bool,
    ) -> Result<(), GpuError> {
        let GpuBackend { gpu, tuning, slots: pool, .. } = self;
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
        Ok(())
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
