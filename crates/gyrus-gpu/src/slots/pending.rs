//! Chunks with steps among them, which are recorded part by part.
//!
//! To record all parts at once would take the host several milliseconds, in which it returns no results. So a submission
//! records the first part, and each [poll](gyrus_kernels::Slots::poll) as many more as keep the device busy. Calls that
//! depend on what was submitted record the rest first.

use gyrus_kernels::{BackendError, RowKind};

use super::chunks::ChunkBatch;
use super::flight::Landing;
use super::submit::{Lane, unbound};
use super::{GROUPS, SlotPool};
use crate::backend::GpuBackend;
use crate::error::GpuError;

/// Submissions that the device has when a part is recorded: one runs, another one follows.
const AHEAD: usize = 2;

/// A submission that is not recorded to its end.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) number: u64,
    pub(super) chunks: Vec<ChunkBatch>,
    /// Whether chunks land: they may have been computed before.
    pub(super) has_chunks: bool,
    /// Steps among the chunks that were not recorded yet, and who decodes in them.
    pub(super) between: usize,
    pub(super) early: [Option<Lane>; GROUPS],
    /// Steps after the chunks, and who decodes in them.
    pub(super) steps: usize,
    pub(super) lanes: [Option<Lane>; GROUPS],
    /// Logits of chunks that were computed before.
    pub(super) logits: Vec<f32>,
    /// Whether the device had nothing to do.
    pub(super) idle: bool,
    next: Next,
}

/// Where recording goes on.
#[derive(Debug, Default)]
struct Next {
    batch: usize,
    /// The part of the batch, and how many it has, once it was begun.
    part: usize,
    parts: usize,
    /// Tiles of the batch.
    tiles: u32,
    /// Whether the recorder has begun.
    is_begun: bool,
}

impl Pending {
    /// A submission whose recording has begun.
    pub(super) fn new(
        number: u64,
        chunks: Vec<ChunkBatch>,
        (between, early): (usize, [Option<Lane>; GROUPS]),
        (steps, lanes): (usize, [Option<Lane>; GROUPS]),
    ) -> Pending {
        let next = Next { is_begun: true, ..Next::default() };
        let (has_chunks, logits, idle) = (false, Vec::new(), false);
        Pending { number, chunks, has_chunks, between, early, steps, lanes, logits, idle, next }
    }
}

impl GpuBackend {
    /// Whether parts of a submission are not recorded yet.
    pub(super) fn has_pending(&self) -> bool {
        self.slots.pending.is_some()
    }

    /// Records parts until the device has enough to do.
    pub(super) fn record_ahead(&mut self) -> Result<(), BackendError> {
        if let Some(error) = self.slots.failed.take() {
            return Err(error.into());
        }
        while self.has_pending() && self.slots.flights.landings() < AHEAD {
            self.record_next()?;
        }
        Ok(())
    }

    /// Records what is left.
    pub(crate) fn record_rest(&mut self) -> Result<(), GpuError> {
        while self.has_pending() {
            self.record_next()?;
        }
        Ok(())
    }

    /// The same for calls that cannot fail: the next poll returns the error.
    pub(super) fn record_rest_or_fail_later(&mut self) {
        if let Err(error) = self.record_rest() {
            self.slots.failed = Some(error);
        }
    }

    /// Records and submits the next part and the step after it, or what comes after the chunks.
    pub(super) fn record_next(&mut self) -> Result<(), GpuError> {
        let Some(mut pending) = self.slots.pending.take() else { return Ok(()) };
        if !self.record_part(&mut pending)? {
            self.slots.pending = Some(pending);
        }
        Ok(())
    }

    /// Returns whether everything was recorded.
    fn record_part(&mut self, pending: &mut Pending) -> Result<bool, GpuError> {
        if !std::mem::replace(&mut pending.next.is_begun, true) {
            let SlotPool { recorder: Some(recorder), after_wgpu, .. } = &mut self.slots else {
                return Err(unbound());
            };
            recorder.begin(&self.gpu, std::mem::take(after_wgpu))?;
        }
        while let Some(batch) = pending.chunks.get(pending.next.batch) {
            let next = &mut pending.next;
            if next.parts == 0 {
                if next.batch > 0 {
                    self.cut_for_writes()?;
                }
                // The first batch of a prompt has all steps.
                next.parts = if batch.kind == RowKind::Prompt { pending.between + 1 } else { 1 };
                next.tiles = self.send_chunk(batch)?;
            }
            let kernels = self.slots.chunk_tables()?.of_batch(batch.kind, 0).0.len();
            let range = next.part * kernels / next.parts..(next.part + 1) * kernels / next.parts;
            let idle = pending.idle && next.batch + next.part == 0;
            next.part += 1;
            self.record_chunk(batch, next.tiles, range, idle)?;
            if next.part < next.parts {
                return self.step_between(pending).map(|()| false);
            }
            *next = Next { batch: next.batch + 1, is_begun: true, ..Next::default() };
        }
        if pending.between > 0 {
            return self.step_between(pending).map(|()| false);
        }
        self.record_after_chunks(pending)?;
        Ok(true)
    }

    /// Records one step and submits it; more of the same submission follows.
    fn step_between(&mut self, pending: &mut Pending) -> Result<(), GpuError> {
        let mut landing = Landing::new(pending.number, false, 1);
        self.place_results(&pending.early, &mut landing);
        self.record_steps(&pending.early, 1, false, pending.number)?;
        self.submit_recorded(&pending.early, (None, None), landing, Vec::new())?;
        pending.between -= 1;
        pending.next.is_begun = false;
        Ok(())
    }

    /// Records and submits the steps after chunks.
    fn record_after_chunks(&mut self, pending: &mut Pending) -> Result<(), GpuError> {
        self.cut_for_writes()?;
        self.slots.record_late(&self.gpu, pending.number)?;
        let mut landing = Landing::new(pending.number, pending.has_chunks, pending.steps);
        self.place_results(&pending.lanes, &mut landing);
        self.record_steps(&pending.lanes, pending.steps, false, pending.number)?;
        self.submit_recorded(&pending.lanes, (None, None), landing, std::mem::take(&mut pending.logits))
    }
}
