//! The steps of sequences, divided into passes that the device takes.

use gyrus_kernels::{Batch, Inputs, RowKind};

use super::engine::{Encoded, Sequence};
use crate::arch::whisper::WhisperConfig;

/// A sequence to compute: the window that it attends to, and the positions of its tokens, not yet computed, whose logits are
/// wanted beside those of the last one.
pub(super) struct Step<'a> {
    pub(super) sequence: &'a mut Sequence,
    pub(super) window: &'a Encoded,
    pub(super) also: Option<usize>,
}

impl Step<'_> {
    fn rows(&self) -> usize {
        self.sequence.tokens.len() - self.sequence.computed
    }

    /// The kernels of a step depend on the step alone, so that its rows have the same bits beside any others.
    fn kind(&self) -> RowKind {
        if self.rows() == 1 { RowKind::Generated } else { RowKind::Prompt }
    }

    fn wants_logits(&self, position: usize) -> bool {
        position + 1 == self.sequence.tokens.len() || self.also == Some(position)
    }

    /// Rows of logits that it gives.
    pub(super) fn logit_rows(&self) -> usize {
        let Sequence { tokens, computed, .. } = &*self.sequence;
        (*computed..tokens.len()).filter(|position| self.wants_logits(*position)).count()
    }
}

/// Steps that are computed together, by their indices.
#[derive(Debug, PartialEq)]
pub(super) struct Pass {
    kind: RowKind,
    pub(super) steps: Vec<usize>,
}

impl Pass {
    /// Of one step.
    pub(super) fn of_one(step: &Step<'_>) -> Pass {
        Pass { kind: step.kind(), steps: vec![0] }
    }

    /// Divides steps into passes of one kind each, of at most this many sequences and rows. A step is not divided.
    pub(super) fn divide(steps: &[Step<'_>], most_sequences: usize, most_rows: usize) -> Vec<Pass> {
        let mut passes: Vec<Pass> = Vec::new();
        for kind in [RowKind::Generated, RowKind::Prompt] {
            let mut rows = 0usize;
            for (n, step) in steps.iter().enumerate().filter(|(_, step)| step.kind() == kind) {
                rows = rows.saturating_add(step.rows());
                let last = passes.last_mut().filter(|pass| pass.kind == kind);
                match last.filter(|pass| rows <= most_rows && pass.steps.len() < most_sequences) {
                    Some(pass) => pass.steps.push(n),
                    None => {
                        rows = step.rows();
                        passes.push(Pass { kind, steps: vec![n] });
                    }
                }
            }
        }
        passes
    }
}

/// The slices of a batch, which are kept from one to the next.
#[derive(Default)]
pub(super) struct Rows {
    pub(super) tokens: Vec<u32>,
    pub(super) positions: Vec<u32>,
    pub(super) sequences: Vec<u32>,
    pub(super) logits: Vec<u32>,
    /// The step or window of each sequence.
    pub(super) sources: Vec<usize>,
}

impl Rows {
    pub(super) fn clear(&mut self) {
        for list in [&mut self.tokens, &mut self.positions, &mut self.sequences, &mut self.logits] {
            list.clear();
        }
        self.sources.clear();
    }

    /// Collects the rows of a pass.
    pub(super) fn collect(&mut self, steps: &[Step<'_>], pass: &Pass) {
        self.clear();
        self.sources.extend_from_slice(&pass.steps);
        for (sequence, n) in (0..).zip(&pass.steps) {
            let step = &steps[*n];
            let Sequence { tokens, computed, .. } = &*step.sequence;
            for (position, token) in tokens.iter().enumerate().skip(*computed) {
                if step.wants_logits(position) {
                    self.logits.push(self.tokens.len() as u32);
                }
                self.tokens.push(*token);
                self.positions.push(position as u32);
                self.sequences.push(sequence);
            }
        }
    }

    /// The step or window of a row.
    pub(super) fn source(&self, row: usize) -> Option<usize> {
        self.sources.get(*self.sequences.get(row)? as usize).copied()
    }
}

/// What a batch borrows from its steps.
pub(super) struct Bound<'a> {
    /// The block tables of each sequence by group.
    tables: Vec<&'a [u32]>,
    extents: Vec<u32>,
    lengths: Vec<u32>,
    kind: RowKind,
}

impl<'a> Bound<'a> {
    pub(super) fn new(steps: &'a [Step<'_>], pass: &Pass, config: &WhisperConfig) -> Bound<'a> {
        let tables = pass.steps.iter().map(|n| &steps[*n]);
        let tables = tables.flat_map(|step| [&[][..], &step.window.blocks[..], &step.sequence.blocks[..]]);
        Bound {
            tables: tables.collect(),
            extents: pass.steps.iter().flat_map(|_| [0, config.audio_context as u32, 0]).collect(),
            lengths: vec![config.text_context as u32; pass.steps.len()],
            kind: pass.kind,
        }
    }

    pub(super) fn batch<'b>(&'b self, rows: &'b Rows) -> Batch<'b> {
        Batch {
            tokens: &rows.tokens,
            positions: &rows.positions,
            sequences: &rows.sequences,
            kind: self.kind,
            logits: &rows.logits,
            tables: &self.tables,
            lengths: &self.lengths,
            records: &[],
            inputs: Inputs { extents: &self.extents, types: &[], features: &[] },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_divided_by_kind_sequences_and_rows() {
        let window = Encoded { blocks: Vec::new() };
        let mut sequences: Vec<Sequence> = [1, 5, 1, 1, 4, 2, 9, 1].map(|n| Sequence::new(vec![0; n])).into();
        let steps: Vec<Step<'_>> =
            sequences.iter_mut().map(|sequence| Step { sequence, window: &window, also: Some(0) }).collect();
        assert_eq!(steps.iter().map(Step::logit_rows).collect::<Vec<_>>(), [1, 2, 1, 1, 2, 2, 2, 1]);
        let divided = |most_sequences, most_rows| -> Vec<Vec<usize>> {
            Pass::divide(&steps, most_sequences, most_rows).into_iter().map(|pass| pass.steps).collect()
        };
        let all = vec![vec![0, 2, 3, 7], vec![1, 4, 5, 6]];
        assert_eq!(divided(usize::MAX, usize::MAX), all);
        assert_eq!(divided(4, 20), all);
        assert_eq!(divided(3, 20), [vec![0, 2, 3], vec![7], vec![1, 4, 5], vec![6]]);
        // A step that is too long is for the device to refuse.
        assert_eq!(divided(4, 8), [vec![0, 2, 3, 7], vec![1], vec![4, 5], vec![6]]);
        assert!(Pass::divide(&[], 4, 8).is_empty());
    }
}
