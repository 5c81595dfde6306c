//! [`Slots`] of backends that compute at once, when work is submitted.
//!
//! A submission's chunks and its first step are one batch; each further step is another. Slots that hold are not
//! computed. Results wait in a queue for [`Slots::poll`].

mod decode_row;
mod landed_queue;
mod penalty_window;
#[cfg(test)]
mod tests;

use std::time::Duration;

pub use decode_row::DecodeRow;
use decode_row::reserved;
use landed_queue::LandedQueue;

use crate::backend::BackendError;
use crate::batch::Batch;
use crate::delta::Records;
use crate::kv::{KV_BLOCK, MAX_KV_GROUPS};
use crate::slots::{Chunk, Decode, Landed, Limits, LogitRows, RowKind, Slots, Work};

/// What backends on the host can run at once. They compute when work is submitted, so more steps gain nothing.
pub const HOST_LIMITS: Limits =
    Limits { slots: 128, rows: 512, logit_rows: 512, steps: 4, asynchronous: false, kinds_differ: false };

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
}

/// The state of slots.
#[derive(Debug)]
pub struct HostSlots {
    vocab: usize,
    /// Blocks of each KV group.
    blocks: Vec<usize>,
    /// Records of the state, if the plan has one.
    records: Option<usize>,
    sequences: Vec<Sequence>,
    /// One for each slot.
    rows: Vec<DecodeRow>,
    batch: BatchRows,
    landed: LandedQueue,
    submissions: u64,
}

/// The sequence of a slot.
#[derive(Debug, Default)]
struct Sequence {
    open: bool,
    length: u32,
    /// One block table per KV group.
    tables: Vec<Vec<u32>>,
}

/// The rows of a batch.
#[derive(Debug, Default)]
struct BatchRows {
    tokens: Vec<u32>,
    positions: Vec<u32>,
    /// Slots instead of sequences, until [`BatchRows::number`].
    sequences: Vec<u32>,
    logits: Vec<u32>,
    /// The slots of the sequences; before [`BatchRows::number`], slots in the order of their rows.
    slots: Vec<usize>,
    lengths: Vec<u32>,
    /// The records of each slot's rows.
    records: Vec<Option<Records>>,
    /// Those of the sequences.
    numbered: Vec<Records>,
}

impl HostSlots {
    /// Closed slots for a vocabulary and a cache of these numbers of blocks, one for each KV group. `records`: records of
    /// the state, if the plan has one.
    pub fn new(vocab: usize, blocks: &[usize], records: Option<usize>) -> HostSlots {
        let Limits { slots, rows, .. } = HOST_LIMITS;
        let sequence = || Sequence { tables: vec![Vec::new(); blocks.len()], ..Sequence::default() };
        HostSlots {
            vocab,
            blocks: blocks.to_vec(),
            records,
            sequences: (0..slots).map(|_| sequence()).collect(),
            rows: (0..slots).map(|_| DecodeRow::default()).collect(),
            batch: BatchRows::with_capacity(rows + slots * HOST_LIMITS.steps),
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
        let (vocab, pool) = (self.vocab, self.records);
        let (sequence, row) = self.opened(slot)?;
        if decode.limit as usize > sequence.positions()
            || decode.tokens.iter().any(|&token| token as usize >= vocab)
            || pool.is_some_and(|pool| decode.records.iter().any(|&record| record as usize >= pool))
        {
            return Err(BackendError::UnsoundBatch);
        }
        row.start(decode, sequence.length)
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
        let (from, to) = (from.map(|from| from as usize), to as usize);
        if self.records.is_none_or(|pool| from.is_some_and(|from| from >= pool) || to >= pool) {
            return Err(BackendError::UnsoundBatch);
        }
        forward.copy_record(from, to);
        Ok(())
    }

    fn close(&mut self, slot: usize) {
        if let Ok((sequence, row)) = self.opened(slot) {
            sequence.open = false;
            row.stop();
        }
    }

    fn submit(&mut self, work: &Work<'_>, forward: &mut dyn HostForward) -> Result<u64, BackendError> {
        self.check(work)?;
        let submitted = self.run(work, forward);
        if submitted.is_err() {
            self.rows.iter_mut().for_each(|row| row.expect(None));
        }
        submitted
    }

    fn run(&mut self, work: &Work<'_>, forward: &mut dyn HostForward) -> Result<u64, BackendError> {
        let submission = self.submissions + 1;
        self.batch.push_chunks(work.chunks);
        let chunk_logits = self.batch.logits.len();
        for step in 0..work.steps.max(1) {
            if step > 0 {
                self.batch.clear();
            }
            if work.steps > 0 {
                self.batch.push_decode_rows(&self.sequences, &mut self.rows, self.records.is_some());
            }
            let logits = if self.batch.tokens.is_empty() {
                &[]
            } else {
                self.batch.compute(&self.sequences, &mut self.rows, forward)?
            };
            if step == 0 && !work.chunks.is_empty() {
                let logits = &logits[..chunk_logits * self.vocab];
                self.landed.push_chunks(submission, logits);
            }
            if work.steps > 0 {
                self.landed.push_step(submission, &self.rows);
            }
        }
        self.submissions = submission;
        Ok(submission)
    }

    /// Checks a submission, and leaves an empty batch.
    fn check(&mut self, work: &Work<'_>) -> Result<(), BackendError> {
        let Limits { rows, logit_rows, steps, .. } = HOST_LIMITS;
        self.batch.clear();
        let mut sound = self.landed.steps() + work.steps <= steps && work.between == 0;
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
        if work.steps > 0 && !self.has_own_records() {
            return Err(BackendError::UnsoundBatch);
        }
        if work.steps > 1 {
            // The backend checks each batch. After the first, what it refuses would no longer leave the slots as
            // they were. So the rows of all steps are checked together.
            self.batch.push_chunks(work.chunks);
            for (slot, row) in self.rows.iter().enumerate() {
                row.positions(work.steps).for_each(|position| self.batch.push(0, position, slot));
            }
            let sound = self.batch.number(&self.sequences, |batch| batch.is_sound(self.vocab, &self.blocks));
            self.batch.clear();
            return if sound { Ok(()) } else { Err(BackendError::UnsoundBatch) };
        }
        Ok(())
    }

    /// Whether no two decoding slots have a record in common.
    fn has_own_records(&self) -> bool {
        let decoding = || self.rows.iter().filter(|row| row.decodes()).map(DecodeRow::records);
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
        self.rows.iter_mut().for_each(DecodeRow::stop);
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

impl BatchRows {
    fn with_capacity(rows: usize) -> BatchRows {
        let (row, slot) = (|| Vec::with_capacity(rows), HOST_LIMITS.slots);
        let (slots, lengths) = (Vec::with_capacity(slot), Vec::with_capacity(slot));
        BatchRows {
            tokens: row(),
            positions: row(),
            sequences: row(),
            logits: row(),
            slots,
            lengths,
            records: vec![None; slot],
            numbered: Vec::with_capacity(slot),
        }
    }

    fn clear(&mut self) {
        for rows in [&mut self.tokens, &mut self.positions, &mut self.sequences, &mut self.logits] {
            rows.clear();
        }
        self.records.fill(None);
    }

    fn push(&mut self, token: u32, position: u32, slot: usize) {
        self.tokens.push(token);
        self.positions.push(position);
        self.sequences.push(slot as u32);
    }

    /// Rows of a slot with these records follow those that it has in the batch.
    fn continue_records(&mut self, slot: usize, Records { from, to }: Records) {
        let from = self.records[slot].map_or(from, |first| first.from);
        self.records[slot] = Some(Records { from, to });
    }

    /// Adds the rows of chunks.
    fn push_chunks(&mut self, chunks: &[Chunk<'_>]) {
        for chunk in chunks {
            let first = self.tokens.len();
            for (&token, position) in chunk.tokens.iter().zip(chunk.position..) {
                self.push(token, position, chunk.slot);
            }
            self.logits.extend(wanted(chunk).map(|row| (first + row) as u32));
            if let Some(records) = chunk.records {
                self.continue_records(chunk.slot, records);
            }
        }
    }

    /// Adds a row for each slot that advances. Rows of sequences that begin with the same block are adjacent, so that
    /// attention reads their common blocks once.
    fn push_decode_rows(&mut self, sequences: &[Sequence], rows: &mut [DecodeRow], has_state: bool) {
        self.slots.clear();
        self.slots.extend(0..rows.len());
        self.slots.sort_unstable_by_key(|&slot| (sequences[slot].first_block(), slot));
        for i in 0..rows.len() {
            let slot = self.slots[i];
            let input = rows[slot].next_input();
            rows[slot].expect(input.map(|_| self.logits.len()));
            if let Some((token, position)) = input {
                self.logits.push(self.tokens.len() as u32);
                self.push(token, position, slot);
                if has_state {
                    self.continue_records(slot, rows[slot].records());
                }
            }
        }
    }

    /// Numbers the sequences and calls `body` with the batch.
    fn number<R>(&mut self, sequences: &[Sequence], body: impl FnOnce(&Batch<'_>) -> R) -> R {
        const SLOTS: usize = HOST_LIMITS.slots;
        let mut numbers = [u32::MAX; SLOTS];
        self.slots.clear();
        for sequence in &mut self.sequences {
            let slot = *sequence as usize;
            if numbers[slot] == u32::MAX {
                numbers[slot] = self.slots.len() as u32;
                self.slots.push(slot);
            }
            *sequence = numbers[slot];
        }
        self.lengths.clear();
        self.lengths.extend(self.slots.iter().map(|&slot| sequences[slot].length));
        self.numbered.clear();
        self.numbered.extend(self.slots.iter().filter_map(|&slot| self.records[slot]));
        let mut tables: [&[u32]; SLOTS * MAX_KV_GROUPS] = [&[]; SLOTS * MAX_KV_GROUPS];
        let all = self.slots.iter().flat_map(|&slot| &sequences[slot].tables);
        let count = tables.iter_mut().zip(all).map(|(entry, table)| *entry = table).count();
        body(&Batch {
            tokens: &self.tokens,
            positions: &self.positions,
            sequences: &self.sequences,
            // The host has the same kernels for all rows.
            kind: RowKind::Generated,
            logits: &self.logits,
            tables: &tables[..count],
            lengths: &self.lengths,
            records: &self.numbered,
        })
    }

    fn compute<'f>(
        &mut self,
        sequences: &[Sequence],
        rows: &mut [DecodeRow],
        forward: &'f mut dyn HostForward,
    ) -> Result<&'f [f32], BackendError> {
        self.number(sequences, |batch| forward.compute(batch, rows))
    }
}

/// The rows of a chunk whose logits are wanted.
fn wanted(chunk: &Chunk<'_>) -> std::ops::Range<usize> {
    let rows = chunk.tokens.len();
    match chunk.logits {
        LogitRows::None => rows..rows,
        LogitRows::Last => rows.saturating_sub(1)..rows,
        LogitRows::All => 0..rows,
    }
}

impl<B: HostBackend> Slots for B {
    fn limits(&self) -> Limits {
        HOST_LIMITS
    }

    fn open(&mut self, slot: usize, length: u32) -> Result<(), BackendError> {
        self.host_slots().0.open(slot, length)
    }

    fn extend(&mut self, slot: usize, tables: &[&[u32]], limit: u32) -> Result<(), BackendError> {
        self.host_slots().0.extend(slot, tables, limit)
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

    fn poll(&mut self, _wait: Duration) -> Result<Option<Landed<'_>>, BackendError> {
        Ok(self.host_slots().0.landed.next())
    }

    fn reset(&mut self) {
        self.host_slots().0.reset();
    }
}
