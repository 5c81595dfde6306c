//! The rows of a batch on the host: those of chunks, and one for each slot that decodes.

use super::decode_row::DecodeRow;
use super::{HOST_LIMITS, HostForward, Sequence};
use crate::backend::BackendError;
use crate::batch::{Batch, Inputs};
use crate::delta::Records;
use crate::kv::MAX_KV_GROUPS;
use crate::slots::{Chunk, LogitRows, RowKind};

/// The rows of a batch.
#[derive(Debug, Default)]
pub(super) struct BatchRows {
    pub(super) tokens: Vec<u32>,
    positions: Vec<u32>,
    /// The slot of each row.
    slot_of: Vec<usize>,
    pub(super) logits: Vec<u32>,
    /// The sequence of each row. This and what follows is for [`BatchRows::number`].
    sequences: Vec<u32>,
    /// The slots of the sequences; before, slots in the order of their rows.
    slots: Vec<usize>,
    lengths: Vec<u32>,
    /// The records of each slot's rows.
    records: Vec<Option<Records>>,
    /// Those of the sequences.
    numbered: Vec<Records>,
}

impl BatchRows {
    pub(super) fn with_capacity(rows: usize) -> BatchRows {
        let (row, slot) = (|| Vec::with_capacity(rows), HOST_LIMITS.slots);
        let (slots, lengths) = (Vec::with_capacity(slot), Vec::with_capacity(slot));
        let slot_of = Vec::with_capacity(rows);
        BatchRows {
            tokens: row(),
            positions: row(),
            slot_of,
            logits: row(),
            sequences: row(),
            slots,
            lengths,
            records: vec![None; slot],
            numbered: Vec::with_capacity(slot),
        }
    }

    pub(super) fn clear(&mut self) {
        for rows in [&mut self.tokens, &mut self.positions, &mut self.logits] {
            rows.clear();
        }
        self.slot_of.clear();
        self.records.clear();
        self.records.resize(HOST_LIMITS.slots, None);
    }

    /// Rows of a slot with these records follow those that it has in the batch.
    fn continue_records(&mut self, slot: usize, Records { from, to }: Records) {
        let from = self.records[slot].map_or(from, |first| first.from);
        self.records[slot] = Some(Records { from, to });
    }

    /// Whether rows read or write a record.
    pub(super) fn use_record(&self, record: u32) -> bool {
        self.records.iter().flatten().any(|records| records.from == Some(record) || records.to == record)
    }

    /// Whether rows write a record.
    pub(super) fn write_record(&self, record: u32) -> bool {
        self.records.iter().flatten().any(|records| records.to == record)
    }

    pub(super) fn push(&mut self, token: u32, position: u32, slot: usize) {
        self.tokens.push(token);
        self.positions.push(position);
        self.slot_of.push(slot);
    }

    /// Adds the rows of chunks.
    pub(super) fn push_chunks(&mut self, chunks: &[Chunk<'_>]) {
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

    /// Adds a row whose logits are wanted, and returns their number.
    pub(super) fn push_with_logits(&mut self, token: u32, position: u32, slot: usize) -> usize {
        self.logits.push(self.tokens.len() as u32);
        self.push(token, position, slot);
        self.logits.len() - 1
    }

    /// Adds a row for each slot that advances and takes part in steps of submission `before`. Rows of sequences that begin
    /// with the same block are adjacent, so that attention reads their common blocks once.
    pub(super) fn push_decode_rows(
        &mut self,
        sequences: &[Sequence],
        rows: &mut [DecodeRow],
        before: u64,
        has_state: bool,
    ) {
        self.slots.clear();
        self.slots.extend(0..sequences.len());
        self.slots.sort_unstable_by_key(|&slot| (sequences[slot].first_block(), slot));
        for i in 0..sequences.len() {
            let slot = self.slots[i];
            let input = rows[slot].next_input().filter(|_| rows[slot].since() <= before);
            let logits = input.map(|(token, position)| self.push_with_logits(token, position, slot));
            rows[slot].expect(logits);
            if logits.is_some() && has_state {
                self.continue_records(slot, rows[slot].records());
            }
        }
    }

    /// Numbers the sequences and calls `body` with the batch.
    pub(super) fn number<R>(&mut self, sequences: &[Sequence], body: impl FnOnce(&Batch<'_>) -> R) -> R {
        const SLOTS: usize = HOST_LIMITS.slots;
        let mut numbers = [u32::MAX; SLOTS];
        self.slots.clear();
        self.sequences.clear();
        for &slot in &self.slot_of {
            if numbers[slot] == u32::MAX {
                numbers[slot] = self.slots.len() as u32;
                self.slots.push(slot);
            }
            self.sequences.push(numbers[slot]);
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
            inputs: Inputs::default(),
        })
    }

    pub(super) fn compute<'f>(
        &mut self,
        sequences: &[Sequence],
        rows: &mut [DecodeRow],
        forward: &'f mut dyn HostForward,
    ) -> Result<&'f [f32], BackendError> {
        self.number(sequences, |batch| forward.compute(batch, rows))
    }
}

/// The rows of a chunk whose logits are wanted.
pub(super) fn wanted(chunk: &Chunk<'_>) -> std::ops::Range<usize> {
    let rows = chunk.tokens.len();
    match chunk.logits {
        LogitRows::None => rows..rows,
        LogitRows::Last => rows.saturating_sub(1)..rows,
        LogitRows::All => 0..rows,
    }
}
