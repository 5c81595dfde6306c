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
    /// `tables[s · groups + g][p / KV_BLOCK]` of group `g`. Entries of positions that have left a group's window are not
    /// read. The tables of a decoder's sequence have the same length.
    pub tables: &'a [&'a [u32]],
    /// For each sequence the length it may reach, the same in all its batches: the frequencies of some ropes depend on
    /// it, and cached keys must be rotated with the same ones as later keys.
    pub lengths: &'a [u32],
    /// For each sequence the records of its state; empty for plans without layers that have one.
    pub records: &'a [Records],
    /// What encoders read besides; empty for others.
    pub inputs: Inputs<'a>,
}

/// What the rows of an encoder, or of a decoder that attends to an encoder's rows, have besides tokens and positions.
#[derive(Debug, Clone, Copy, Default)]
pub struct Inputs<'a> {
    /// For each sequence and KV group, how many positions a span other than [`Span::Causal`](crate::Span::Causal) covers:
    /// `extents[s · groups + g]`. The pass, or an earlier one, has written all of them. Empty if no op has such a span.
    pub extents: &'a [u32],
    /// For each row its type; empty if all are 0.
    pub types: &'a [u32],
    /// What [`Op::Features`](crate::Op::Features) copies; empty for plans without it. The tokens of such a batch are not
    /// read.
    pub features: &'a [f32],
}

/// What a pass demands of its batches. Backends check it once per batch; kernels do not.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Demands {
    /// For each KV group, whether rows write or read it at their own positions. Tables of other groups need not cover the
    /// rows' positions, and several sequences may share them.
    pub by_position: Vec<bool>,
    /// Whether a span reads extents.
    pub extents: bool,
    /// Positions that tables of learned positions have entries for; absent without such a table.
    pub positions: Option<usize>,
    /// Types that there are; 0 if the pass reads none.
    pub types: usize,
    /// Features of each row.
    pub features: usize,
    /// Whether the rows of a sequence must be adjacent and begin with position 0.
    pub whole_sequences: bool,
}

impl Demands {
    /// Those of a decoder with this many KV groups.
    pub fn of_decoder(groups: usize) -> Demands {
        Demands { by_position: vec![true; groups], ..Demands::default() }
    }
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
    pub fn is_sound(&self, vocab: usize, blocks: &[usize], demands: &Demands) -> bool {
        self.is_in_bounds(vocab, blocks, demands) && self.writes_each_place_once(demands)
    }

    /// Whether the slices agree in length, every position that is read or written has a block, and everything that the
    /// pass demands is there. `blocks` is the number of blocks of each KV group.
    pub fn is_in_bounds(&self, vocab: usize, blocks: &[usize], demands: &Demands) -> bool {
        let (rows, groups) = (self.rows(), blocks.len());
        let by_position = |group: usize| demands.by_position.get(group).copied().unwrap_or(true);
        self.positions.len() == rows
            && self.sequences.len() == rows
            && self.tables.len() == self.lengths.len() * groups
            && self.logits.iter().all(|&r| (r as usize) < rows)
            && self.tokens.iter().all(|&t| (t as usize) < vocab)
            && self.tables.chunks_exact(groups.max(1)).all(|of_sequence| {
                let mut tables = of_sequence.iter().zip(blocks);
                tables.all(|(table, &blocks)| {
                    (demands.extents || table.len() == of_sequence[0].len())
                        && table.iter().all(|&b| (b as usize) < blocks)
                })
            })
            && (0..rows).all(|r| {
                let first = self.sequences[r] as usize * groups;
                let Some(tables) = self.tables.get(first..first + groups) else { return false };
                let entry = self.positions[r] as usize / KV_BLOCK;
                tables.iter().enumerate().all(|(group, table)| !by_position(group) || entry < table.len())
            })
            && self.has_inputs(demands)
    }

    /// Whether it has the inputs that a pass demands, within their bounds.
    fn has_inputs(&self, demands: &Demands) -> bool {
        let Inputs { extents, types, features } = self.inputs;
        let within = |extent: &u32, table: &&[u32]| *extent as usize <= table.len() * KV_BLOCK;
        let extents = (extents.is_empty() && !demands.extents)
            || (extents.len() == self.tables.len()
                && extents.iter().zip(self.tables).all(|(extent, table)| within(extent, table)));
        let types = types.is_empty()
            || (types.len() == self.rows() && types.iter().all(|of| (*of as usize) < demands.types));
        let known = |positions| self.positions.iter().all(|position| (*position as usize) < positions);
        extents
            && types
            && features.len() == self.rows() * demands.features
            && demands.positions.is_none_or(known)
            && (!demands.whole_sequences || self.has_whole_sequences())
    }

    /// Whether the rows of each sequence are adjacent, have adjacent positions, and begin with position 0.
    fn has_whole_sequences(&self) -> bool {
        let begins = |(first, count, _): (usize, usize, usize)| {
            self.positions[first..first + count].iter().zip(0..).all(|(position, at)| *position == at)
        };
        self.runs().all(begins) && self.has_adjacent_rows()
    }

    /// The extent of a row's sequence in a KV group; 0 if the batch has none.
    pub fn extent(&self, row: usize, group: u8) -> u32 {
        let at = self.sequences[row] as usize * self.groups() + usize::from(group);
        self.inputs.extents.get(at).copied().unwrap_or(0)
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
    pub fn writes_each_place_once(&self, demands: &Demands) -> bool {
        if self.rows() > MANY_ROWS {
            return self.writes_each_of_many_places_once(demands);
        }
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
                        .filter(|group| demands.by_position.get(usize::from(*group)) != Some(&false))
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

impl Batch<'_> {
    /// The same for many rows, as encoders have: the places of each group are sorted.
    fn writes_each_of_many_places_once(&self, demands: &Demands) -> bool {
        let groups = (0..self.groups() as u8)
            .filter(|group| demands.by_position.get(usize::from(*group)) != Some(&false));
        let mut places: Vec<(u32, u32)> = Vec::with_capacity(self.rows());
        groups.into_iter().all(|group| {
            places.clear();
            places.extend((0..self.rows()).map(|row| {
                let position = self.positions[row] as usize;
                (self.table(row, group)[position / KV_BLOCK], (position % KV_BLOCK) as u32)
            }));
            places.sort_unstable();
            places.windows(2).all(|pair| pair[0] != pair[1])
        })
    }
}

/// Rows from which places are sorted: it allocates, and a decoder's batches have no more.
const MANY_ROWS: usize = 1024;

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
            inputs: Inputs::default(),
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
                inputs: Inputs::default(),
            };
            let demands = Demands::of_decoder(groups);
            assert!(batch.is_in_bounds(1, &vec![9; groups], &demands));
            let sound = batch.is_sound(1, &vec![9; groups], &demands);
            assert_eq!(batch.writes_each_of_many_places_once(&demands), sound, "{rows:?}");
            sound
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
