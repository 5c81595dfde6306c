//! Divides the chunks of a submission into batches.

use gyrus_kernels::{Chunk, LogitRows, Records, RowKind};

use crate::buffers::{MATVEC_ROWS, SLOTS};

/// Rows of chunks that are computed together.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ChunkBatch {
    pub(super) kind: RowKind,
    pub(super) tokens: Vec<u32>,
    pub(super) positions: Vec<u32>,
    /// The slot of each row.
    pub(super) slots: Vec<u32>,
    /// Rows whose logits are wanted, and where these are among the logits of all chunks.
    pub(super) logits: Vec<u32>,
    pub(super) wanted: Vec<usize>,
    /// The records of each slot, if the plan has a state.
    pub(super) records: Vec<Records>,
}

/// How many rows of a chunk want logits.
pub(super) fn logit_rows(chunk: &Chunk<'_>) -> usize {
    match chunk.logits {
        LogitRows::None => 0,
        LogitRows::Last => chunk.tokens.len().min(1),
        LogitRows::All => chunk.tokens.len(),
    }
}

/// The batches of chunks, in the order in which they are computed: all rows of prompts in one batch, generated rows in
/// batches of [`MATVEC_ROWS`]. A slot's chunks stay in order: each change of kind in a slot begins another round.
pub(super) fn batches(chunks: &[Chunk<'_>]) -> Vec<ChunkBatch> {
    // Rounds alternate between prompts and generated rows.
    let mut last: [Option<usize>; SLOTS] = [None; SLOTS];
    let mut rounds: Vec<Vec<(&Chunk<'_>, usize)>> = Vec::new();
    let mut wanted = 0;
    for chunk in chunks {
        let parity = usize::from(chunk.kind == RowKind::Generated);
        let round = match last[chunk.slot] {
            None => parity,
            Some(round) => round + usize::from(round % 2 != parity),
        };
        last[chunk.slot] = Some(round);
        rounds.resize_with(rounds.len().max(round + 1), Vec::new);
        rounds[round].push((chunk, wanted));
        wanted += logit_rows(chunk);
    }
    rounds.iter().enumerate().flat_map(|(round, chunks)| of_round(round % 2 == 1, chunks)).collect()
}

fn of_round(generated: bool, chunks: &[(&Chunk<'_>, usize)]) -> Vec<ChunkBatch> {
    let (kind, most) =
        if generated { (RowKind::Generated, MATVEC_ROWS) } else { (RowKind::Prompt, usize::MAX) };
    let mut batches: Vec<ChunkBatch> = Vec::new();
    for (chunk, first_wanted) in chunks {
        let without_logits = chunk.tokens.len() - logit_rows(chunk);
        for (i, token) in chunk.tokens.iter().enumerate() {
            if batches.last().is_none_or(|batch| batch.tokens.len() == most) {
                batches.push(ChunkBatch::new(kind));
            }
            let Some(batch) = batches.last_mut() else { continue };
            if i >= without_logits {
                batch.logits.push(batch.tokens.len() as u32);
                batch.wanted.push(first_wanted + i - without_logits);
            }
            if let Some(Records { from, to }) = chunk.records {
                // Rows of the chunk in an earlier batch have written its record.
                let from = if i == 0 { from } else { Some(to) };
                batch.add_records(chunk.slot, Records { from, to });
            }
            batch.tokens.push(*token);
            batch.positions.push(chunk.position + i as u32);
            batch.slots.push(chunk.slot as u32);
        }
    }
    batches
}

impl ChunkBatch {
    pub(super) fn new(kind: RowKind) -> ChunkBatch {
        let [tokens, positions, slots, logits] = [(); 4].map(|()| Vec::new());
        let (wanted, records) = (Vec::new(), Vec::new());
        ChunkBatch { kind, tokens, positions, slots, logits, wanted, records }
    }

    /// Sets the records of a slot unless it has rows in the batch, which the next one follows.
    fn add_records(&mut self, slot: usize, records: Records) {
        // Other slots have no rows here; theirs are not read.
        self.records.resize(SLOTS, Records { from: None, to: 0 });
        if self.slots.last() != Some(&(slot as u32)) {
            self.records[slot] = records;
        }
    }

    /// Sequences of the batch, whose rows are adjacent.
    pub(super) fn runs(&self) -> u32 {
        self.slots.chunk_by(|a, b| a == b).count() as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunk(slot: usize, position: u32, tokens: &[u32], kind: RowKind, logits: LogitRows) -> Chunk<'_> {
        Chunk { slot, position, tokens, kind, logits, records: None }
    }

    #[test]
    fn prompts_share_a_batch_and_generated_rows_follow_in_sixteens() {
        let (prompt, generated) = (RowKind::Prompt, RowKind::Generated);
        let long: Vec<u32> = (100..117).collect();
        let found = batches(&[
            chunk(3, 0, &[1, 2], prompt, LogitRows::None),
            chunk(3, 2, &long, generated, LogitRows::Last),
            chunk(5, 7, &[4], prompt, LogitRows::All),
            chunk(5, 8, &[5], generated, LogitRows::None),
            chunk(3, 19, &[6], prompt, LogitRows::None),
        ]);
        let of = |batch: &ChunkBatch| (batch.kind, batch.positions.clone(), batch.slots.clone());
        assert_eq!(of(&found[0]), (prompt, vec![0, 1, 7], vec![3, 3, 5]));
        assert_eq!(of(&found[1]), (generated, (2..18).collect(), vec![3; 16]));
        assert_eq!(of(&found[2]), (generated, vec![18, 8], vec![3, 5]));
        assert_eq!(of(&found[3]), (prompt, vec![19], vec![3]));
        assert_eq!(found.len(), 4);
        let logits: Vec<_> = found.iter().map(|batch| (batch.logits.clone(), batch.wanted.clone())).collect();
        assert_eq!(logits, [(vec![2], vec![1]), (vec![], vec![]), (vec![0], vec![0]), (vec![], vec![])]);
        assert!(batches(&[]).is_empty());
    }
}
