use crate::backend::BackendError;
use crate::delta::Records;
use crate::kv::KV_BLOCK;
use crate::slots::RowKind;

/// The rows of one forward pass. Prefill, decode and batches of sequences are the same call with different rows.
///
/// All slices but `logits`, `tables`, `lengths` and `records` have one entry per row. A sequence's rows must come in order of
/// position, and the cache must already hold every earlier position of that sequence.
#[derive(Debug, Clone, Copy)]
pub struct Batch<'a> {
    /// Token ids.
    pub tokens: &'a [u32],
    /// Positions, which determine the rotary phase and the cache slot. M-RoPE uses them for all its rows of positions,
    /// as for text.
    pub positions: &'a [u32],
    /// For each row, the index of its sequence.
    pub sequences: &'a [u32],
    /// What all rows are: it decides which kernels compute them.
    pub kind: RowKind,
    /// Indices of the rows whose logits are wanted, ascending.
    pub logits: &'a [u32],
    /// For each sequence its block tables, one per KV group: position `p` of sequence `s` is in block
    /// `tables[s · groups + g][p / KV_BLOCK]` of group `g`. All tables of a sequence have the same length. Entries of
    /// positions that have left a group's window are not read.
    pub tables: &'a [&'a [u32]],
    /// For each sequence the length it may reach, the same in all its batches: the frequencies of some ropes depend on
    /// it, and cached keys must be rotated with the same ones as later keys.
    pub lengths: &'a [u32],
    /// For each sequence the records of its state; empty for plans without layers that have one.
    pub records: &'a [Records],
}

impl Batch<'_> {
    /// Whether all logits are finite.
    pub fn check_logits(&self, logits: &[f32], vocab: usize) -> Result<(), BackendError> {
        let rows = self.logits.iter().zip(logits.chunks_exact(vocab.max(1)));
        match rows.into_iter().find(|(_, logits)| !are_finite(logits)) {
            Some((row, _)) => Err(BackendError::NotFinite { row: *row as usize }),
            None => Ok(()),
        }
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.tokens.len()
    }

    /// KV groups: block tables per sequence.
    pub fn groups(&self) -> usize {
        self.tables.len().checked_div(self.lengths.len()).unwrap_or(0)
    }

    /// The block table of a row's sequence in a KV group.
    pub fn table(&self, row: usize, group: u8) -> &[u32] {
        self.tables[self.sequences[row] as usize * self.groups() + usize::from(group)]
    }

    /// The block tables of all sequences in a KV group.
    pub fn tables_of(&self, group: usize) -> impl Iterator<Item = &[u32]> + Clone {
        self.tables.iter().skip(group).step_by(self.groups().max(1)).copied()
    }

    /// Whether the batch is in bounds and no two rows write one place of the cache. Backends check this once per batch;
    /// kernels do not.
    pub fn is_sound(&self, vocab: usize, blocks: &[usize]) -> bool {
        self.is_in_bounds(vocab, blocks) && self.writes_each_place_once()
    }

    /// Whether the slices agree in length and every position has a block. `blocks` is the number of blocks of each KV
    /// group.
    pub fn is_in_bounds(&self, vocab: usize, blocks: &[usize]) -> bool {
        let (rows, groups) = (self.rows(), blocks.len());
        self.positions.len() == rows
            && self.sequences.len() == rows
            && self.tables.len() == self.lengths.len() * groups
            && self.logits.iter().all(|&r| (r as usize) < rows)
            && self.tokens.iter().all(|&t| (t as usize) < vocab)
            && self.tables.chunks_exact(groups.max(1)).all(|of_sequence| {
                let mut tables = of_sequence.iter().zip(blocks);
                tables.all(|(table, &blocks)| {
                    table.len() == of_sequence[0].len() && table.iter().all(|&b| (b as usize) < blocks)
                })
            })
            && (0..rows).all(|r| {
                let table = self.tables.get(self.sequences[r] as usize * groups);
                table.is_some_and(|t| (self.positions[r] as usize) / KV_BLOCK < t.len())
            })
    }

    /// Adjacent rows of one sequence: the first row, how many, and the sequence.
    pub fn runs(&self) -> impl Iterator<Item = (usize, usize, usize)> + '_ {
        let mut first = 0;
        self.sequences.chunk_by(|a, b| a == b).map(move |rows| {
            first += rows.len();
            (first - rows.len(), rows.len(), rows[0] as usize)
        })
    }

    /// Whether all rows of a sequence are adjacent.
    pub fn has_adjacent_rows(&self) -> bool {
        self.runs()
            .enumerate()
            .all(|(i, (.., sequence))| self.runs().skip(i + 1).all(|(.., of)| of != sequence))
    }

    /// Whether each sequence has its records, out of a pool of this many; none has any if plans have no state.
    pub fn has_sound_records(&self, has_state: bool, pool: usize) -> bool {
        match has_state {
            true => self.records.len() == self.lengths.len() && Records::are_sound(self.records, pool),
            false => self.records.is_empty(),
        }
    }

    /// Whether all rows write different places in every group; the batch is in bounds. Rows of one sequence at adjacent positions of a block
    /// are compared with later rows together: a prompt of 512 rows has 17 such runs.
    pub fn writes_each_place_once(&self) -> bool {
        let place =
            |row: usize| (self.positions[row] as usize / KV_BLOCK, self.positions[row] as usize % KV_BLOCK);
        let mut first = 0;
        while first < self.rows() {
            let (entry, slot) = place(first);
            let follows = |row: &usize| {
                self.sequences[*row] == self.sequences[first] && place(*row) == (entry, slot + row - first)
            };
            let end = (first + 1..self.rows()).take_while(follows).last().map_or(first + 1, |row| row + 1);
            let slots = slot..slot + end - first;
            let written = |row: usize| {
                let (other, slot) = place(row);
                slots.contains(&slot)
                    && (0..self.groups() as u8)
                        .any(|group| self.table(row, group)[other] == self.table(first, group)[entry])
            };
            if (end..self.rows()).any(written) {
                return false;
            }
            first = end;
        }
        true
    }
}

/// Whether all values are finite. The loop has no early exit, so that it is vectorised: a vocabulary takes
/// microseconds.
pub(crate) fn are_finite(values: &[f32]) -> bool {
    const EXPONENT: u32 = 0x7f80_0000;
    let largest = values.iter().fold(0, |most, value| most.max(value.to_bits() & EXPONENT));
    largest < EXPONENT
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logits_that_are_not_finite_are_found_at_every_place() {
        let batch = Batch {
            tokens: &[0; 5],
            positions: &[0, 1, 2, 3, 4],
            sequences: &[0; 5],
            kind: RowKind::Prompt,
            logits: &[1, 4],
            tables: &[&[0]],
            lengths: &[5],
            records: &[],
        };
        let vocab = 37;
        let mut logits = vec![f32::MAX; 2 * vocab];
        logits[3] = f32::MIN;
        assert!(batch.check_logits(&logits, vocab).is_ok());
        for bad in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for at in 0..logits.len() {
                let before = std::mem::replace(&mut logits[at], bad);
                let row = if at < vocab { 1 } else { 4 };
                let error = batch.check_logits(&logits, vocab).unwrap_err();
                assert!(matches!(error, BackendError::NotFinite { row: found } if found == row), "{error}");
                logits[at] = before;
            }
        }
    }

    /// Rows that write one place are found, within a sequence, between sequences, and in any group.
    #[test]
    fn two_rows_that_write_one_place_are_unsound() {
        let sound = |rows: &[(u32, u32)], tables: &[&[u32]], groups: usize| {
            let (sequences, positions): (Vec<u32>, Vec<u32>) = rows.iter().copied().unzip();
            let batch = Batch {
                tokens: &vec![0; rows.len()],
                positions: &positions,
                sequences: &sequences,
                kind: RowKind::Prompt,
                logits: &[],
                tables,
                lengths: &vec![100; tables.len() / groups],
                records: &[],
            };
            assert!(batch.is_in_bounds(1, &vec![9; groups]));
            batch.is_sound(1, &vec![9; groups])
        };
        // Sequences share block 0, which neither writes.
        let (a, b, c): (&[u32], &[u32], &[u32]) = (&[0, 1, 2], &[0, 3, 4], &[5, 6, 2]);
        assert!(sound(&[(0, 40), (1, 40)], &[a, b], 1));
        assert!(!sound(&[(0, 7), (1, 7)], &[a, b], 1));
        assert!(sound(&[(0, 7), (1, 8)], &[a, b], 1));
        let prompt: Vec<(u32, u32)> = (20..96).map(|position| (0, position)).collect();
        assert!(sound(&prompt, &[a], 1));
        assert!(sound(&[&prompt[..], &[(1, 95)]].concat(), &[a, b], 1));
        assert!(!sound(&[&prompt[..], &[(1, 64)]].concat(), &[a, c], 1));
        assert!(!sound(&[&[(1, 95)], &prompt[..]].concat(), &[a, c], 1));
        // One sequence: a row twice, in any order, and a table that names a block twice.
        assert!(!sound(&[(0, 5), (0, 5)], &[a], 1));
        assert!(!sound(&[(0, 4), (0, 5), (0, 6), (0, 5)], &[a], 1));
        assert!(!sound(&[(0, 5), (1, 5), (0, 5)], &[a, c], 1));
        assert!(!sound(&prompt, &[&[0, 1, 1]], 1));
        // Only the second group's blocks are the same.
        assert!(sound(&[(0, 40), (1, 40)], &[a, a, b, b], 2));
        assert!(!sound(&[(0, 40), (1, 40)], &[a, a, b, a], 2));
    }
}
