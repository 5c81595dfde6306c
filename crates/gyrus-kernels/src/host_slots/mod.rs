//! [`Slots`] of backends that compute at once, when work is submitted.
//!
//! A submission's chunks and its first step are one batch; each further step is another. Slots that hold are not
//! computed. Results wait in a queue for [`Slots::poll`].
//!
//! Chunks with steps between them are computed in [parts](split_chunks), one for each [`Slots::poll`] that waits, so that
//! the caller sees the tokens of each step before the next part begins.

mod batch_rows;
mod decode_row;
mod drafts;
mod landed_queue;
mod penalty_window;
mod split_chunks;
#[cfg(test)]
mod tests;

use std::time::{Duration, Instant};

use batch_rows::{BatchRows, wanted};
pub use decode_row::DecodeRow;
pub(crate) use decode_row::reserved;
use drafts::Drafts;
use landed_queue::LandedQueue;
pub(crate) use penalty_window::PenaltyWindow;
use split_chunks::SplitChunks;

use crate::backend::BackendError;
use crate::batch::{Batch, Demands};
use crate::delta::Records;
use crate::kv::KV_BLOCK;
use crate::slots::{Chunk, Decode, Draft, Landed, Limits, MAX_SLOTS, Slots, Work};

/// What backends on the host can run at once. They compute when work is submitted, so more steps gain nothing.
pub const HOST_LIMITS: Limits = Limits {
    slots: MAX_SLOTS,
    rows: 512,
    logit_rows: 512,
    steps: 32,
    draft_rows: 32,
    asynchronous: false,
    kinds_differ: false,
};

/// The most entries that are reserved in advance.
const RESERVED: usize = 1 << 16;

/// A backend whose slots are [`HostSlots`].
pub trait HostBackend {
    /// Its slots and the forward pass.
    fn host_slots(&mut self) -> (&mut HostSlots, &mut dyn HostForward);
}

/// The forward pass of a backend on the host.
pub trait HostForward {
    /// Computes a batch of at most [`Limits::rows`] and [`Limits::slots`] rows together, calls [`DecodeRow::sample`] of
    /// every row of decode state with the logits, on any threads, and returns the logits. They need not be finite.
    ///
    /// [`BackendError::UnsoundBatch`] leaves everything as it was.
    fn compute(&mut self, batch: &Batch<'_>, rows: &mut [DecodeRow]) -> Result<&[f32], BackendError>;

    /// Copies a record of the state, or zeros. Both are within the pool.
    fn copy_record(&mut self, from: Option<usize>, to: usize);

    /// Computes the next part of a batch, `first` its first one. Returns the logits if nothing is left. Other batches may be
    /// computed between parts. All parts are given the same batch.
    fn compute_part(
        &mut self,
        batch: &Batch<'_>,
        _first: bool,
        end: PartEnd,
    ) -> Result<Option<&[f32]>, BackendError> {
        match end {
            PartEnd::Share(2..) => Ok(None),
            _ => self.compute(batch, &mut []).map(Some),
        }
    }
}

/// Where a part of a batch ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PartEnd {
    /// After one of so many equal shares of what is left, counted in time.
    Share(usize),
    /// After about this time.
    Time(Duration),
}

impl PartEnd {
    /// The end of the batch.
    pub const LAST: PartEnd = PartEnd::Share(1);
}

/// The state of slots.
#[derive(Debug)]
pub struct HostSlots {
    vocab: usize,
    /// Blocks of each KV group.
    blocks: Vec<usize>,
    demands: Demands,
    /// Records of the state, if the plan has one.
    records: Option<usize>,
    sequences: Vec<Sequence>,
    /// One for each slot, then one for each row of drafts.
    rows: Vec<DecodeRow>,
    drafts: Drafts,
    batch: BatchRows,
    /// Chunks that are computed in parts.
    split: SplitChunks,
    /// The time from the end of a step to that of the next one among them.
    gap: Option<Duration>,
    /// The time of a step: a mean in which recent ones count most.
    step_time: Duration,
    landed: LandedQueue,
    submissions: u64,
}

/// The sequence of a slot.
#[derive(Debug, Default, Clone)]
struct Sequence {
    open: bool,
    length: u32,
    /// One block table per KV group.
    tables: Vec<Vec<u32>>,
}

impl HostSlots {
    /// Closed slots for a vocabulary and a cache of these numbers of blocks, one for each KV group. `records`: records of
    /// the state, if the plan has one.
    pub fn new(vocab: usize, blocks: &[usize], records: Option<usize>) -> HostSlots {
        let Limits { slots, rows, draft_rows, .. } = HOST_LIMITS;
        let sequence = || Sequence { tables: vec![Vec::new(); blocks.len()], ..Sequence::default() };
        HostSlots {
            vocab,
            blocks: blocks.to_vec(),
            demands: Demands::of_decoder(blocks.len()),
            records,
            sequences: (0..slots).map(|_| sequence()).collect(),
            rows: (0..slots + draft_rows).map(|_| DecodeRow::default()).collect(),
            drafts: Drafts::default(),
            batch: BatchRows::with_capacity(rows + slots * HOST_LIMITS.steps),
            split: SplitChunks::default(),
            gap: None,
            step_time: Duration::ZERO,
            landed: LandedQueue::default(),
            submissions: 0,
        }
    }

    fn open(&mut self, slot: usize, length: u32) -> Result<(), BackendError> {
        let sequence = self.sequences.get_mut(slot).filter(|sequence| !sequence.open);
        let sequence = sequence.ok_or(BackendError::UnsoundBatch)?;
        (sequence.open, sequence.length) = (true, length);
        for table in &mut sequence.tables {
            table.clear();
            table.reserve(reserved((length as usize).div_ceil(KV_BLOCK)));
        }
        Ok(())
    }

    /// The sequence and the decode state of an open slot.
    fn opened(&mut self, slot: usize) -> Result<(&mut Sequence, &mut DecodeRow), BackendError> {
        let sequence = self.sequences.get_mut(slot).filter(|sequence| sequence.open);
        sequence.zip(self.rows.get_mut(slot)).ok_or(BackendError::UnsoundBatch)
    }

    fn extend(&mut self, slot: usize, tables: &[&[u32]], limit: u32) -> Result<(), BackendError> {
        let entries = tables.first().map_or(0, |table| table.len());
        let sound = tables.len() == self.blocks.len()
            && limit as usize <= entries.saturating_mul(KV_BLOCK)
            && tables.iter().zip(&self.blocks).all(|(table, &blocks)| {
                table.len() == entries && table.iter().all(|&block| (block as usize) < blocks)
            });
        let (sequence, row) = self.opened(slot)?;
        if !sound {
            return Err(BackendError::UnsoundBatch);
        }
        for (table, new) in sequence.tables.iter_mut().zip(tables) {
            table.clear();
            table.extend_from_slice(new);
        }
        row.set_limit(limit);
        Ok(())
    }

    fn start(&mut self, slot: usize, decode: &Decode<'_>) -> Result<(), BackendError> {
        let (vocab, pool, next) = (self.vocab, self.records, self.submissions + 1);
        let (sequence, row) = self.opened(slot)?;
        if decode.limit as usize > sequence.positions()
            || decode.tokens.iter().any(|&token| token as usize >= vocab)
            || pool.is_some_and(|pool| decode.records.iter().any(|&record| record as usize >= pool))
        {
            return Err(BackendError::UnsoundBatch);
        }
        row.start(decode, sequence.length, next)
    }

    fn mask(&mut self, slot: usize, position: u32, allowed: &[u32]) -> Result<(), BackendError> {
        let vocab = self.vocab;
        let (_, row) = self.opened(slot)?;
        // At least one token must be allowed. The last word may have bits beyond the vocabulary.
        let in_vocab = |index: usize| match vocab - 32 * index {
            bits @ ..32 => (1 << bits) - 1,
            _ => u32::MAX,
        };
        if allowed.len() != vocab.div_ceil(32)
            || allowed.iter().enumerate().all(|(index, word)| word & in_vocab(index) == 0)
        {
            return Err(BackendError::UnsoundBatch);
        }
        row.set_mask(position, allowed)
    }

    fn copy_state(
        &mut self,
        from: Option<u32>,
        to: u32,
        forward: &mut dyn HostForward,
    ) -> Result<(), BackendError> {
        if self.records.is_none_or(|pool| from.unwrap_or(to).max(to) as usize >= pool) {
            return Err(BackendError::UnsoundBatch);
        }
        if self.split.conflicts(from, to) {
            if self.split.defer_copy(from, to) {
                return Ok(());
            }
            self.finish_chunks(forward)?;
        }
        forward.copy_record(from.map(|from| from as usize), to as usize);
        Ok(())
    }

    fn stop(&mut self, slot: usize) -> Result<(), BackendError> {
        self.opened(slot).map(|(_, row)| row.stop())
    }

    fn draft(&mut self, slot: usize, draft: &Draft<'_>) -> Result<(), BackendError> {
        let (vocab, has_state) = (self.vocab, self.records.is_some());
        let (sequence, row) = self.opened(slot)?;
        let (length, positions) = (sequence.length, sequence.positions());
        if row.decodes() || has_state || !draft.is_sound(vocab, positions) {
            return Err(BackendError::UnsoundBatch);
        }
        self.drafts.push(slot, draft, length, vocab.div_ceil(32), &mut self.rows[HOST_LIMITS.slots..])
    }

    fn close(&mut self, slot: usize) {
        if let Ok((sequence, row)) = self.opened(slot) {
            sequence.open = false;
            row.stop();
            self.drafts.remove(slot, &mut self.rows[HOST_LIMITS.slots..]);
            self.split.slot_closed(slot);
        }
    }

    fn submit(&mut self, work: &Work<'_>, forward: &mut dyn HostForward) -> Result<u64, BackendError> {
        self.finish_chunks(forward)?;
        self.check(work)?;
        let submission = self.submissions + 1;
        if work.between > 0 {
            self.batch.push_chunks(work.chunks);
            self.split.begin(submission, work, &mut self.batch, &self.sequences);
        } else if let Err(error) = self.run(work, submission, forward) {
            self.rows.iter_mut().for_each(|row| row.expect(None));
            return Err(error);
        }
        self.submissions = submission;
        Ok(submission)
    }

    /// Computes chunks and the first step together, then the other steps.
    fn run(
        &mut self,
        work: &Work<'_>,
        submission: u64,
        forward: &mut dyn HostForward,
    ) -> Result<(), BackendError> {
        if !self.drafts.is_empty() {
            self.verify(submission, work.steps > 0, forward)?;
            return (1..work.steps).try_for_each(|_| self.step(submission, submission, forward));
        }
        if work.chunks.is_empty() {
            return (0..work.steps).try_for_each(|_| self.step(submission, submission, forward));
        }
        self.batch.push_chunks(work.chunks);
        let chunk_logits = self.batch.logits.len();
        if work.steps > 0 {
            self.batch.push_decode_rows(&self.sequences, &mut self.rows, submission, self.records.is_some());
        }
        let logits = self.batch.compute(&self.sequences, &mut self.rows, forward)?;
        self.landed.push_chunks(submission, &logits[..chunk_logits * self.vocab]);
        if work.steps > 0 {
            self.landed.push_step(submission, &self.rows[..HOST_LIMITS.slots]);
        }
        (1..work.steps).try_for_each(|_| self.step(submission, submission, forward))
    }

    /// Computes all drafts, and a step together with them if there is one.
    fn verify(
        &mut self,
        submission: u64,
        with_step: bool,
        forward: &mut dyn HostForward,
    ) -> Result<(), BackendError> {
        self.batch.clear();
        self.drafts.push_rows(&mut self.batch, &mut self.rows[HOST_LIMITS.slots..]);
        if with_step {
            self.batch.push_decode_rows(&self.sequences, &mut self.rows, submission, false);
        }
        let computed = self.batch.compute(&self.sequences, &mut self.rows, forward).map(drop);
        let rows = &mut self.rows[HOST_LIMITS.slots..][..self.drafts.rows()];
        if computed.is_ok() {
            self.landed.push_drafts(submission, rows);
        }
        self.drafts.clear(rows);
        computed?;
        if with_step {
            self.landed.push_step(submission, &self.rows[..HOST_LIMITS.slots]);
        }
        Ok(())
    }

    /// Computes a step of the slots that were started before submission `before` or with it.
    fn step(
        &mut self,
        submission: u64,
        before: u64,
        forward: &mut dyn HostForward,
    ) -> Result<(), BackendError> {
        let begun = Instant::now();
        self.batch.clear();
        self.batch.push_decode_rows(&self.sequences, &mut self.rows, before, self.records.is_some());
        if !self.batch.tokens.is_empty() {
            self.batch.compute(&self.sequences, &mut self.rows, forward)?;
            self.step_time = (self.step_time + begun.elapsed()) / 2;
        }
        self.landed.push_step(submission, &self.rows[..HOST_LIMITS.slots]);
        Ok(())
    }

    /// Computes the next part of chunks and the step after it; the steps of the submission after the last part.
    fn advance_chunks(&mut self, forward: &mut dyn HostForward) -> Result<(), BackendError> {
        let submission = self.split.submission();
        // However long steps take, prompts go on.
        let time = self.gap.map(|gap| gap.saturating_sub(self.step_time).max(gap / 3));
        match self.split.compute_part(time, forward)? {
            None => self.step(submission, submission - 1, forward),
            Some(logits) => {
                self.landed.push_chunks(submission, logits);
                (0..self.split.steps()).try_for_each(|_| self.step(submission, submission, forward))?;
                self.split.take_copies().for_each(|(from, to)| {
                    forward.copy_record(Some(from as usize), to as usize);
                });
                Ok(())
            }
        }
    }

    /// Computes what is left of chunks.
    fn finish_chunks(&mut self, forward: &mut dyn HostForward) -> Result<(), BackendError> {
        while self.split.is_running() {
            self.advance_chunks(forward)?;
        }
        Ok(())
    }

    /// The next part that has landed. If there is none and the caller waits, computes one.
    fn poll(
        &mut self,
        wait: Duration,
        forward: &mut dyn HostForward,
    ) -> Result<Option<Landed<'_>>, BackendError> {
        if self.landed.is_empty() && self.split.is_running() && !wait.is_zero() {
            self.advance_chunks(forward)?;
        }
        Ok(self.landed.next())
    }

    /// Checks a submission, and leaves an empty batch.
    fn check(&mut self, work: &Work<'_>) -> Result<(), BackendError> {
        let Limits { rows, logit_rows, steps, .. } = HOST_LIMITS;
        self.batch.clear();
        let all_steps = work.between.saturating_add(work.steps);
        let mut sound = self.landed.steps().saturating_add(all_steps) <= steps
            && (work.between == 0 || !work.chunks.is_empty())
            && (self.drafts.is_empty() || work.chunks.is_empty());
        let (mut of_chunks, mut with_logits) = (0usize, 0usize);
        for chunk in work.chunks {
            of_chunks = of_chunks.saturating_add(chunk.tokens.len());
            with_logits = with_logits.saturating_add(wanted(chunk).len());
            let positions = self.opened(chunk.slot)?.0.positions();
            sound &= !chunk.tokens.is_empty()
                && (chunk.position as usize).saturating_add(chunk.tokens.len()) <= positions
                && chunk.tokens.iter().all(|&token| (token as usize) < self.vocab);
        }
        sound &= Chunk::have_sound_records(work.chunks, self.records);
        if !sound || of_chunks > rows || with_logits > logit_rows {
            return Err(BackendError::UnsoundBatch);
        }
        if all_steps > 0 && !self.has_own_records() {
            return Err(BackendError::UnsoundBatch);
        }
        if all_steps > 1 {
            // The backend checks each batch. After the first, what it refuses would no longer leave the slots as
            // they were. So the rows of all steps are checked together.
            self.batch.push_chunks(work.chunks);
            for (slot, row) in self.rows[..HOST_LIMITS.slots].iter().enumerate() {
                row.positions(all_steps).for_each(|position| self.batch.push(0, position, slot));
            }
            let sound = self
                .batch
                .number(&self.sequences, |batch| batch.is_sound(self.vocab, &self.blocks, &self.demands));
            self.batch.clear();
            return if sound { Ok(()) } else { Err(BackendError::UnsoundBatch) };
        }
        Ok(())
    }

    /// Whether no two decoding slots have a record in common.
    fn has_own_records(&self) -> bool {
        let slots = &self.rows[..HOST_LIMITS.slots];
        let decoding = || slots.iter().filter(|row| row.decodes()).map(DecodeRow::records);
        let of = |records: Records| [records.from, Some(records.to)];
        self.records.is_none()
            || decoding().enumerate().all(|(i, records)| {
                decoding()
                    .skip(i + 1)
                    .all(|other| of(records).iter().all(|record| !of(other).contains(record)))
            })
    }

    fn reset(&mut self) {
        self.sequences.iter_mut().for_each(|sequence| sequence.open = false);
        self.drafts.clear(&mut self.rows[HOST_LIMITS.slots..]);
        self.rows.iter_mut().for_each(DecodeRow::stop);
        self.split.stop();
        self.landed.clear();
    }
}

impl Sequence {
    fn first_block(&self) -> Option<u32> {
        self.tables.first()?.first().copied()
    }

    /// Positions that have a block.
    fn positions(&self) -> usize {
        self.tables.first().map_or(0, |table| table.len() * KV_BLOCK)
    }
}

impl<B: HostBackend> Slots for B {
    fn limits(&self) -> Limits {
        HOST_LIMITS
    }

    fn stop(&mut self, slot: usize) -> Result<(), BackendError> {
        self.host_slots().0.stop(slot)
    }

    fn draft(&mut self, slot: usize, draft: &Draft<'_>) -> Result<(), BackendError> {
        self.host_slots().0.draft(slot, draft)
    }

    fn open(&mut self, slot: usize, length: u32) -> Result<(), BackendError> {
        self.host_slots().0.open(slot, length)
    }

    fn extend(&mut self, slot: usize, tables: &[&[u32]], limit: u32) -> Result<(), BackendError> {
        let (slots, forward) = self.host_slots();
        if slots.split.writes_to_closed() {
            // The new blocks may be those of the slot that was closed.
            slots.finish_chunks(forward)?;
        }
        slots.extend(slot, tables, limit)
    }

    fn start(&mut self, slot: usize, decode: &Decode<'_>) -> Result<(), BackendError> {
        self.host_slots().0.start(slot, decode)
    }

    fn mask(&mut self, slot: usize, position: u32, allowed: &[u32]) -> Result<(), BackendError> {
        self.host_slots().0.mask(slot, position, allowed)
    }

    fn copy_state(&mut self, from: Option<u32>, to: u32) -> Result<(), BackendError> {
        let (slots, forward) = self.host_slots();
        slots.copy_state(from, to, forward)
    }

    fn close(&mut self, slot: usize) {
        self.host_slots().0.close(slot);
    }

    fn submit(&mut self, work: &Work<'_>) -> Result<u64, BackendError> {
        let (slots, forward) = self.host_slots();
        slots.submit(work, forward)
    }

    fn set_gap(&mut self, gap: Option<Duration>) {
        self.host_slots().0.gap = gap;
    }

    fn poll(&mut self, wait: Duration) -> Result<Option<Landed<'_>>, BackendError> {
        let (slots, forward) = self.host_slots();
        slots.poll(wait, forward)
    }

    fn reset(&mut self) {
        self.host_slots().0.reset();
    }
}
