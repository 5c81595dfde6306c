//! What becomes of jobs when the device or the scheduler fails.

use std::time::Duration;

use gyrus_kernels::{BackendError, Decode, Draft, Landed, Limits, Slots, Work};

use super::job::JobEvent;
use super::scheduler::Scheduler;
use super::sequence::{Phase, Running};
use crate::Error;

/// How often the device may be lost when a job is admitted. Then the job fails, since what it needs may be the reason.
const MOST_LOSSES: usize = 3;

/// Where no backend is: everything is refused, and nothing is in flight.
pub(super) struct NoSlots;

/// What has failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Failure {
    /// The device was lost.
    Device,
    /// The scheduler, or what it asked of the backend.
    Scheduler,
}

impl Scheduler {
    /// Fails all jobs that run. Nothing is in the cache any more. Jobs that wait are not affected, but for one that was
    /// being admitted: if the device was lost, it waits for the next one.
    pub(super) fn fail_running(&mut self, failure: Failure, mut error: impl FnMut() -> Error) {
        self.flights.clear();
        self.losses += 1;
        for at in 0..self.sequences.len() {
            let Some(sequence) = &mut self.sequences[at] else { continue };
            self.kv.release(&mut sequence.kv);
            self.records.release(&mut sequence.state);
            match sequence.phase {
                Phase::Waiting { .. } => {}
                // A panic may have come before its job had begun or was dropped.
                Phase::Idle => sequence.job = None,
                Phase::Running(Running { slot, .. }) => {
                    self.slots[slot] = None;
                    sequence.phase = Phase::Idle;
                    sequence.tell(JobEvent::Failed(error()));
                    (sequence.job, sequence.mask, sequence.speculator) = (None, None, None);
                }
            }
        }
        if let Some(at) = self.admitting.take()
            && let Some(sequence) = &mut self.sequences[at]
        {
            sequence.losses += 1;
            if failure == Failure::Scheduler || sequence.losses >= MOST_LOSSES {
                self.finish(at, JobEvent::Failed(error()), &mut NoSlots);
            }
        }
        for at in 0..self.sequences.len() {
            // A panic has kept it from being removed.
            if self.sequences[at].as_ref().is_some_and(|sequence| sequence.closed) {
                self.finish(at, JobEvent::Failed(error()), &mut NoSlots);
                self.remove(at);
            }
        }
        self.kv.forget();
        // Those of checkpoints in flight, too.
        self.records.forget();
        (self.completed, self.ahead) = (None, false);
    }

    /// Fails all jobs that wait, because there is no device.
    pub(super) fn fail_waiting(&mut self, mut error: impl FnMut() -> Error) {
        for at in 0..self.sequences.len() {
            self.finish(at, JobEvent::Failed(error()), &mut NoSlots);
        }
    }
}

impl Slots for NoSlots {
    fn limits(&self) -> Limits {
        Limits {
            slots: 0,
            rows: 0,
            logit_rows: 0,
            steps: 0,
            draft_rows: 0,
            asynchronous: false,
            kinds_differ: false,
        }
    }

    fn open(&mut self, _: usize, _: u32) -> Result<(), BackendError> {
        Err(BackendError::UnsoundBatch)
    }

    fn extend(&mut self, _: usize, _: &[&[u32]], _: u32) -> Result<(), BackendError> {
        Err(BackendError::UnsoundBatch)
    }

    fn start(&mut self, _: usize, _: &Decode<'_>) -> Result<(), BackendError> {
        Err(BackendError::UnsoundBatch)
    }

    fn mask(&mut self, _: usize, _: u32, _: &[u32]) -> Result<(), BackendError> {
        Err(BackendError::UnsoundBatch)
    }

    fn stop(&mut self, _: usize) -> Result<(), BackendError> {
        Err(BackendError::UnsoundBatch)
    }

    fn draft(&mut self, _: usize, _: &Draft<'_>) -> Result<(), BackendError> {
        Err(BackendError::UnsoundBatch)
    }

    fn copy_state(&mut self, _from: Option<u32>, _to: u32) -> Result<(), BackendError> {
        Err(BackendError::UnsoundBatch)
    }

    fn close(&mut self, _: usize) {}

    fn submit(&mut self, _: &Work<'_>) -> Result<u64, BackendError> {
        Err(BackendError::UnsoundBatch)
    }

    fn poll(&mut self, _: Duration) -> Result<Option<Landed<'_>>, BackendError> {
        Ok(None)
    }

    fn reset(&mut self) {}
}
