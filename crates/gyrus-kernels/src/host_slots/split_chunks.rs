//! Chunks that are computed in parts, with decode steps between them.

use std::time::Duration;

use super::batch_rows::BatchRows;
use super::{HOST_LIMITS, HostForward, PartEnd, Sequence};
use crate::backend::BackendError;
use crate::slots::Work;

/// The chunks of a submission that has steps between them.
///
/// The caller may close slots and give them to other sequences before the last part is computed. So the block tables are
/// copies.
#[derive(Debug, Default)]
pub(super) struct SplitChunks {
    state: State,
    submission: u64,
    /// The next part, and their greatest number.
    part: usize,
    parts: usize,
    /// Steps after the last part.
    steps: usize,
    rows: BatchRows,
    /// Copies of records after the last step: of states that the chunks leave.
    copies: Vec<(u32, u32)>,
    /// The sequences of the slots with chunks, and whether the slot was closed.
    sequences: Vec<Sequence>,
    slots: Vec<(usize, bool)>,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum State {
    #[default]
    Idle,
    Running,
    /// All slots with chunks were closed. The steps still run.
    Abandoned,
}

impl SplitChunks {
    /// Takes the rows of a submission's chunks.
    pub(super) fn begin(
        &mut self,
        submission: u64,
        work: &Work<'_>,
        rows: &mut BatchRows,
        sequences: &[Sequence],
    ) {
        std::mem::swap(&mut self.rows, rows);
        self.copies.clear();
        self.sequences.resize(HOST_LIMITS.slots, Sequence::default());
        self.slots.clear();
        for chunk in work.chunks {
            if self.slots.iter().all(|(slot, _)| *slot != chunk.slot) {
                self.slots.push((chunk.slot, false));
                self.sequences[chunk.slot].clone_from(&sequences[chunk.slot]);
            }
        }
        (self.state, self.submission) = (State::Running, submission);
        (self.part, self.parts, self.steps) = (0, work.between + 1, work.steps);
    }

    pub(super) fn is_running(&self) -> bool {
        self.state != State::Idle
    }

    pub(super) fn submission(&self) -> u64 {
        self.submission
    }

    pub(super) fn steps(&self) -> usize {
        self.steps
    }

    pub(super) fn stop(&mut self) {
        self.state = State::Idle;
        self.copies.clear();
    }

    /// Whether a copy between these records would not be the same now and after the chunks.
    pub(super) fn conflicts(&self, from: Option<u32>, to: u32) -> bool {
        let copied = |record: u32| self.copies.iter().any(|(from, to)| *from == record || *to == record);
        self.is_running()
            && [from, Some(to)]
                .into_iter()
                .flatten()
                .any(|record| self.rows.use_record(record) || copied(record))
    }

    /// Leaves a copy of a state that the chunks write for later, unless what it overwrites is in use. Returns whether it did.
    pub(super) fn defer_copy(&mut self, from: Option<u32>, to: u32) -> bool {
        let Some(from) = from.filter(|from| self.rows.write_record(*from)) else { return false };
        let is_free = !self.rows.use_record(to)
            && self.copies.iter().all(|(from, other)| ![*from, *other].contains(&to));
        if is_free {
            self.copies.push((from, to));
        }
        is_free
    }

    /// The copies that were left for later.
    pub(super) fn take_copies(&mut self) -> impl Iterator<Item = (u32, u32)> + '_ {
        self.copies.drain(..)
    }

    /// The caller no longer wants the chunks of a slot. Without any chunk that is wanted, the other parts are not computed.
    pub(super) fn slot_closed(&mut self, slot: usize) {
        self.slots.iter_mut().filter(|(own, _)| *own == slot).for_each(|(_, closed)| *closed = true);
        if self.state == State::Running && self.slots.iter().all(|(_, closed)| *closed) {
            self.state = State::Abandoned;
        }
    }

    /// Whether parts that are left write to blocks of a slot that was closed.
    pub(super) fn writes_to_closed(&self) -> bool {
        self.state == State::Running && self.slots.iter().any(|(_, closed)| *closed)
    }

    /// Computes the next part, of about this time, or of the share of a part. The last one returns the logits, which are
    /// empty if nobody wants them.
    pub(super) fn compute_part<'f>(
        &mut self,
        time: Option<Duration>,
        forward: &'f mut dyn HostForward,
    ) -> Result<Option<&'f [f32]>, BackendError> {
        let (part, left) = (self.part, self.parts - self.part);
        self.part += 1;
        if self.state == State::Abandoned {
            if left == 1 {
                self.state = State::Idle;
            }
            return Ok((left == 1).then_some(&[]));
        }
        let end = match time {
            Some(time) if left > 1 => PartEnd::Time(time),
            _ => PartEnd::Share(left),
        };
        let logits = self.rows.number(&self.sequences, |batch| forward.compute_part(batch, part == 0, end));
        if !matches!(logits, Ok(None)) {
            self.state = State::Idle;
        }
        logits
    }
}
