//! Records of recurrent states: those that sequences use, and checkpoints.
//!
//! The state of a sequence is not addressed by position: it cannot be shortened, and only what has a copy can be found
//! again. A *checkpoint* is such a copy, at the end of a block of the KV cache. Records that no sequence uses are free or
//! checkpoints, of which the least recently used is given up when a record is needed.

use super::blocks::Label;
use super::kv::SequenceKv;

/// Positions from one checkpoint to the next.
pub(crate) const CHECKPOINT_INTERVAL: usize = 256;

/// The most records of a sequence: a step reads one and writes the other.
const MOST: usize = 2;

/// The records of one plan with states; of others it has none, and nothing needs any.
#[derive(Debug)]
pub(crate) struct RecordPool {
    free: Vec<u32>,
    checkpoints: Vec<Checkpoint>,
    /// Records of the pool.
    len: usize,
    /// Records that a running sequence has; 0 if the plan has no state.
    each: usize,
    /// Positions from one checkpoint to the next; `None` if there are none.
    interval: Option<usize>,
    clock: u64,
}

#[derive(Debug)]
struct Checkpoint {
    record: u32,
    position: usize,
    /// The last block before it.
    label: Label,
    used: u64,
}

/// The state of one sequence.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct SequenceState {
    /// The state before position `p` is in record `p mod each`.
    records: [Option<u32>; MOST],
    /// Positions that the state has seen; `None` if it is not known.
    position: Option<usize>,
}

impl RecordPool {
    pub(crate) fn new(
        has_state: bool,
        records: usize,
        asynchronous: bool,
        interval: Option<usize>,
    ) -> RecordPool {
        let each = match (has_state, asynchronous) {
            (false, _) => 0,
            (true, true) => 2,
            (true, false) => 1,
        };
        let len = if has_state { records } else { 0 };
        let free = (0..len as u32).rev().collect();
        // A checkpoint is a record, so that none is added beyond this capacity while sequences decode.
        RecordPool { free, checkpoints: Vec::with_capacity(len), len, each, interval, clock: 0 }
    }

    /// Whether the plan has a state.
    pub(crate) fn is_used(&self) -> bool {
        self.each > 0
    }

    /// Forgets everything: all records are free.
    pub(crate) fn forget(&mut self) {
        self.checkpoints.clear();
        self.free.clear();
        self.free.extend((0..self.len as u32).rev());
    }

    /// The records of a sequence that decodes.
    pub(crate) fn of(&self, state: &SequenceState) -> [u32; 2] {
        let [even, odd] = state.records;
        let even = even.unwrap_or(0);
        [even, if self.each == 2 { odd.unwrap_or(0) } else { even }]
    }

    /// The record that has the state before a position.
    pub(crate) fn at(&self, state: &SequenceState, position: usize) -> u32 {
        self.of(state)[position % 2]
    }

    /// Gives a sequence all records that it needs to run. `false` if there are too few.
    pub(crate) fn acquire(&mut self, state: &mut SequenceState) -> bool {
        let missing = state.records[..self.each].iter().filter(|record| record.is_none()).count();
        if missing > self.free.len() + self.checkpoints.len() {
            return false;
        }
        for i in 0..self.each {
            if state.records[i].is_none() {
                state.records[i] = self.take();
            }
        }
        true
    }

    /// A record that nothing uses.
    fn take(&mut self) -> Option<u32> {
        if let Some(record) = self.free.pop() {
            return Some(record);
        }
        let oldest = (0..self.checkpoints.len()).min_by_key(|i| self.checkpoints[*i].used)?;
        Some(self.checkpoints.swap_remove(oldest).record)
    }

    /// Takes all records from a sequence, whose state is lost.
    pub(crate) fn release(&mut self, state: &mut SequenceState) {
        self.free.extend(state.records.iter_mut().filter_map(Option::take));
        state.position = None;
    }

    /// Leaves a sequence that does not run the record of its state, if it is known.
    pub(crate) fn rest(&mut self, state: &mut SequenceState) {
        // A state that has seen nothing is zeros, which need no record.
        let Some(position) = state.position.filter(|position| *position > 0) else {
            return self.release(state);
        };
        for i in 0..self.each {
            if i != position % self.each {
                self.free.extend(state.records[i].take());
            }
        }
    }

    /// The record and position of the last checkpoint within the computed positions of a sequence with these tokens.
    pub(crate) fn find(&mut self, kv: &SequenceKv, tokens: &[u32]) -> Option<(u32, usize)> {
        let fits = |checkpoint: &&mut Checkpoint| {
            checkpoint.position <= kv.len()
                && kv.label(tokens, checkpoint.position).is_some_and(|label| label == checkpoint.label)
        };
        let found = self.checkpoints.iter_mut().filter(fits).max_by_key(|checkpoint| checkpoint.position)?;
        self.clock += 1;
        found.used = self.clock;
        Some((found.record, found.position))
    }

    /// Whether a sequence of `to_read` tokens before its first step has a checkpoint at a position: at every interval, and
    /// at the end of the prompt's last block.
    pub(crate) fn is_checkpoint(&self, position: usize, to_read: usize) -> bool {
        let Some(interval) = self.interval.filter(|_| self.is_used() && position > 0) else { return false };
        position.is_multiple_of(interval) || position == last_block(to_read)
    }

    /// The next position at which chunks end, so that a checkpoint can be taken there.
    pub(crate) fn next_checkpoint(&self, position: usize, to_read: usize) -> usize {
        let Some(interval) = self.interval.filter(|_| self.is_used()) else { return usize::MAX };
        let next = (position / interval + 1) * interval;
        match last_block(to_read) {
            last if last > position => next.min(last),
            _ => next,
        }
    }

    /// The position at which a slot that decodes holds for a checkpoint.
    pub(crate) fn next_hold(&self, position: usize) -> usize {
        self.next_checkpoint(position, 0)
    }

    /// A record for a checkpoint.
    pub(crate) fn take_for_checkpoint(&mut self) -> Option<u32> {
        self.take()
    }

    /// Whether there is a checkpoint after this block.
    pub(crate) fn has_checkpoint(&self, label: &Label, position: usize) -> bool {
        self.checkpoints.iter().any(|known| known.position == position && known.label == *label)
    }

    /// Adds a checkpoint whose record has been written. Without a label it cannot be found, and its record is free.
    pub(crate) fn add_checkpoint(&mut self, record: u32, position: usize, label: Option<Label>) {
        match label.filter(|label| !self.has_checkpoint(label, position)) {
            Some(label) => {
                self.clock += 1;
                self.checkpoints.push(Checkpoint { record, position, label, used: self.clock });
            }
            None => self.free.push(record),
        }
    }

    /// Records that are free or can be made free.
    #[cfg(test)]
    pub(crate) fn available(&self) -> usize {
        self.free.len() + self.checkpoints.len()
    }

    /// Checks that no record is used twice, for tests; `held` are those of sequences and of checkpoints in flight.
    #[cfg(test)]
    pub(crate) fn check(&self, held: impl IntoIterator<Item = u32>) {
        let mut seen = vec![0; self.len];
        let own = self.free.iter().copied().chain(self.checkpoints.iter().map(|known| known.record));
        own.chain(held).for_each(|record| seen[record as usize] += 1);
        assert!(seen.iter().all(|count| *count == 1), "records are lost or used twice: {seen:?}");
    }
}

impl SequenceState {
    /// Whether the state is that before this position.
    pub(crate) fn is_at(&self, position: usize) -> bool {
        self.position == Some(position)
    }

    /// The state is that before this position, once what was submitted has run.
    pub(crate) fn set(&mut self, position: usize) {
        self.position = Some(position);
    }

    /// The state is not known any more.
    pub(crate) fn lose(&mut self) {
        self.position = None;
    }

    #[cfg(test)]
    pub(crate) fn held(&self) -> impl Iterator<Item = u32> {
        self.records.into_iter().flatten()
    }
}

/// The end of the last complete block.
fn last_block(tokens: usize) -> usize {
    tokens / gyrus_kernels::KV_BLOCK * gyrus_kernels::KV_BLOCK
}
