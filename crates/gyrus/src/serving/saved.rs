//! Sequences that are saved, restored and forked: who holds their blocks.

use gyrus_kernels::{Backend, BackendError, KV_BLOCK};

use super::job::SequenceId;
use super::kv::{SequenceKv, Shortage};
use super::records::SequenceState;
use super::scheduler::Scheduler;
use super::sequence::Phase;
use crate::Error;

/// What is known of the positions of a sequence, apart from their contents.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Outline {
    /// Positions that the cache has.
    pub(crate) positions: usize,
    /// The first block of each KV group that the cache has.
    pub(crate) first_blocks: Vec<usize>,
    /// For each block, which of its positions were computed as generated rows.
    pub(crate) kinds: Vec<u32>,
    /// Positions whose kinds are known.
    pub(crate) known: usize,
    /// The length for which the ropes' frequencies were chosen.
    pub(crate) length: u32,
}

impl Scheduler {
    /// How often the device was lost.
    pub(crate) fn losses(&self) -> u64 {
        self.losses
    }

    /// Whether rows of a prompt and generated rows have different roundings.
    pub(crate) fn kinds_differ(&self) -> bool {
        self.limits.kinds_differ
    }

    /// Holds the blocks of what a sequence has of these tokens, until [`Scheduler::release_blocks`]. Returns them, what is
    /// known of them, and the record of the state at their end, if the plan has a state.
    pub(crate) fn hold(&mut self, id: SequenceId, tokens: &[u32]) -> (SequenceKv, Outline, Option<u32>) {
        let groups = self.kv.groups().len();
        let empty = Outline { first_blocks: vec![0; groups], ..Outline::default() };
        let found = self.by_id.get(&id).and_then(|at| self.sequences[*at].as_ref());
        // A session that is saved has no job.
        let Some(sequence) = found.filter(|sequence| sequence.phase == Phase::Idle) else {
            return (SequenceKv::new(groups, 0, []), empty, None);
        };
        let common = sequence.common(tokens);
        let mut kv = self.kv.share(&sequence.kv, common, common);
        let mut record = None;
        if self.records.is_used() && kv.len() > 0 {
            let at = match sequence.state.is_at(kv.len()) {
                true => Some((self.records.at(&sequence.state, kv.len()), kv.len())),
                false => self.records.find(&kv, tokens),
            };
            self.kv.rewind(&mut kv, at.map_or(0, |(_, position)| position));
            record = at.filter(|(_, position)| kv.len() == *position).map(|(record, _)| record);
        }
        let outline = Outline { length: sequence.length, ..self.kv.outline(&mut kv) };
        (kv, outline, record)
    }

    /// Takes blocks for a sequence that is restored, from idle sequences if there are too few.
    pub(crate) fn take_blocks(
        &mut self,
        id: SequenceId,
        outline: &Outline,
        tokens: usize,
    ) -> Result<SequenceKv, Error> {
        // A chain of its own: what a file says is in its blocks is found by nobody else.
        let classes = self.plan.ropes.iter().map(|rope| rope.length_class(outline.length as usize) as u64);
        let salt: Vec<u64> = classes.chain([u64::MAX, id.0]).collect();
        loop {
            match self.kv.restore(outline, tokens, salt.iter().copied()) {
                Ok(kv) => return Ok(kv),
                Err(Shortage { needed, available }) => {
                    if !self.reclaim_idle(usize::MAX) {
                        return Err(Error::CacheFull { needed, free: available });
                    }
                }
            }
        }
    }

    /// Returns blocks that were held.
    pub(crate) fn release_blocks(&mut self, kv: &mut SequenceKv) {
        self.kv.release(kv);
    }

    /// Makes a sequence of these blocks, whose contents have been written. `write` writes the record of its state.
    pub(crate) fn restore(
        &mut self,
        id: SequenceId,
        tokens: &[u32],
        mut kv: SequenceKv,
        outline: &Outline,
        write: impl FnOnce(u32) -> Result<(), Error>,
    ) -> Result<(), Error> {
        kv.set_len(outline.positions);
        let mut state = SequenceState::default();
        if self.records.is_used() && outline.positions > 0 {
            let written = match self.acquire_for_state(&mut state) {
                true => write(self.records.at(&state, outline.positions)),
                // Without a record its positions are computed again.
                false => {
                    self.kv.rewind(&mut kv, 0);
                    Ok(())
                }
            };
            if let Err(error) = written {
                self.records.release(&mut state);
                self.kv.release(&mut kv);
                return Err(error);
            }
            state.set(kv.len());
            self.records.rest(&mut state);
        }
        self.adopt_sequence(id, tokens, kv, state, (outline.length, 0), true);
        Ok(())
    }

    /// Makes another sequence with these tokens, and what a sequence has of them in the cache. Whole blocks are shared.
    /// The last one is copied if it is not whole, and so is the state.
    pub(crate) fn fork(
        &mut self,
        id: SequenceId,
        child: SequenceId,
        tokens: &[u32],
        backend: &mut dyn Backend,
    ) -> Result<(), BackendError> {
        let Some(&at) = self.by_id.get(&id) else { return Ok(()) };
        let Some(parent) = self.sequences[at].as_ref().filter(|parent| parent.phase == Phase::Idle) else {
            return Ok(());
        };
        let common = parent.common(tokens);
        let len = parent.kv.len().min(common);
        let whole = len / KV_BLOCK * KV_BLOCK;
        let mut kv = self.kv.share(&parent.kv, whole, common);
        let mut state = SequenceState::default();
        let tail = (kv.len() == whole && len > whole).then(|| parent.kv.blocks_at(whole / KV_BLOCK));
        if let Some(tail) = tail
            && let Some(contents) = backend.contents()
            && self.kv.reserve(&mut kv, len).is_ok()
        {
            let mut bytes = Vec::new();
            for (group, from) in tail.into_iter().enumerate() {
                let to = kv.table(group)[whole / KV_BLOCK];
                bytes.resize(self.kv.groups()[group].bytes_per_block(self.plan.precision), 0);
                let copied = contents.read_blocks(group, &[from], &mut bytes);
                if let Err(error) = copied.and_then(|()| contents.write_blocks(group, &[to], &bytes)) {
                    self.kv.release(&mut kv);
                    return Err(error);
                }
            }
            kv.set_len(len);
        }
        let Some(parent) = &self.sequences[at] else { return Ok(()) };
        let (length, tenant, own_chain) = (parent.length, parent.tenant, parent.has_own_chain);
        let from = parent.state;
        if from.is_at(len) && kv.len() == len && len > 0 && self.records.is_used() {
            // Without a record it begins at a checkpoint.
            if self.records.acquire(&mut state) {
                let (from, to) = (self.records.at(&from, len), self.records.at(&state, len));
                if let Err(error) = backend.slots().copy_state(Some(from), to) {
                    self.records.release(&mut state);
                    self.kv.release(&mut kv);
                    return Err(error);
                }
                state.set(len);
                self.records.rest(&mut state);
            }
        }
        self.adopt_sequence(child, tokens, kv, state, (length, tenant), own_chain);
        Ok(())
    }

    /// Gives a state all records that it needs, from idle sequences if there are too few.
    fn acquire_for_state(&mut self, state: &mut SequenceState) -> bool {
        loop {
            if self.records.acquire(state) {
                return true;
            }
            if !self.reclaim_idle(usize::MAX) {
                self.records.release(state);
                return false;
            }
        }
    }
}
