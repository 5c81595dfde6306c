//! Admission: which waiting jobs get a slot, and where blocks come from when there are too few.

use gyrus_kernels::{BackendError, KV_BLOCK, Slots};

use super::job::{JobEvent, Task};
use super::scheduler::Scheduler;
use super::sequence::{Decodes, Follows, Phase, Running, Sequence};

impl Scheduler {
    /// Gives slots to waiting jobs, as long as there are slots and blocks.
    pub(crate) fn admit(&mut self, slots: &mut dyn Slots) -> Result<(), BackendError> {
        while let Some(id) = self.queue.peek() {
            let Some(&at) = self.by_id.get(&id) else {
                self.queue.pop();
                continue;
            };
            let admitted = match self.free_slot() {
                None => false,
                Some(slot) => {
                    self.admitting = Some(at);
                    let admitted = self.admit_one(at, slot, slots)?;
                    self.admitting = None;
                    admitted
                }
            };
            if !admitted && !self.park_unread(at, slots) {
                break;
            }
        }
        Ok(())
    }

    /// A slot for one more sequence, unless as many run as may.
    fn free_slot(&self) -> Option<usize> {
        let running = self.slots.iter().flatten().count();
        self.slots.iter().position(Option::is_none).filter(|_| running < self.settings.running)
    }

    /// Gives a slot to a waiting sequence. `false` if there are too few blocks. It waits until nothing can fail any more.
    fn admit_one(&mut self, at: usize, slot: usize, slots: &mut dyn Slots) -> Result<bool, BackendError> {
        let follows = self.leader(at);
        let Some(sequence) = &mut self.sequences[at] else { return Ok(false) };
        let Phase::Waiting { order, announced } = sequence.phase else { return Ok(false) };
        let leased = sequence.kv.len();
        if !self.acquire_records(at) {
            return Ok(false);
        }
        let Some(sequence) = &mut self.sequences[at] else { return Ok(false) };
        let is_score = matches!(sequence.job.as_ref().map(|job| &job.task), Some(Task::Score));
        if leased == 0 && !is_score && follows.is_none() {
            self.kv.adopt(&mut sequence.kv, &sequence.tokens);
        }
        let positions = sequence.positions();
        let checkpoint = self.rewind_to_state(at);
        while !self.has_blocks(at, positions) {
            if !self.reclaim_idle(at) {
                // Blocks that it adopted must not be missing elsewhere while it waits.
                let Some(sequence) = self.sequences[at].as_mut() else { return Ok(false) };
                if leased == 0 {
                    self.kv.release(&mut sequence.kv);
                }
                self.records.rest(&mut sequence.state);
                return Ok(false);
            }
        }
        let Some(sequence) = &mut self.sequences[at] else { return Ok(false) };
        slots.open(slot, sequence.length)?;
        if let Some((record, position)) = checkpoint {
            slots.copy_state(Some(record), self.records.at(&sequence.state, position))?;
            sequence.state.set(position);
        }
        self.queue.pop();
        let order = order.unwrap_or_else(|| {
            self.admitted += 1;
            self.admitted
        });
        self.epoch += 1;
        let epoch = self.epoch;
        let cached = sequence.kv.len();
        sequence.phase = Phase::Running(Running {
            slot,
            order,
            epoch,
            landed: cached,
            decodes: Decodes::No,
            sent_limit: 0,
            sent_blocks: 0,
            host_step: None,
            follows,
        });
        self.slots[slot] = Some(at);
        self.pace.restart();
        if !announced && follows.is_none() {
            self.counters.prompt(sequence.tokens.len(), cached);
            sequence.tell(JobEvent::Admitted { cached });
        }
        Ok(true)
    }

    /// Gives a sequence the records that it needs to run. `false` if there are too few.
    fn acquire_records(&mut self, at: usize) -> bool {
        loop {
            let Some(sequence) = &mut self.sequences[at] else { return false };
            if self.records.acquire(&mut sequence.state) {
                return true;
            }
            if !self.reclaim_idle(at) {
                self.rest(at);
                return false;
            }
        }
    }

    /// Returns the records of a sequence that does not run, but for that of its state.
    fn rest(&mut self, at: usize) {
        if let Some(sequence) = &mut self.sequences[at] {
            self.records.rest(&mut sequence.state);
        }
    }

    /// Shortens the cache of a sequence to the positions whose state is known: its own, or that of a checkpoint, which is
    /// returned with its position.
    pub(super) fn rewind_to_state(&mut self, at: usize) -> Option<(u32, usize)> {
        let sequence = self.sequences[at].as_mut()?;
        if !self.records.is_used() || sequence.kv.len() == 0 || sequence.state.is_at(sequence.kv.len()) {
            return None;
        }
        let found = self.records.find(&sequence.kv, &sequence.tokens);
        self.kv.rewind(&mut sequence.kv, found.map_or(0, |(_, position)| position));
        // Without the blocks of a window nothing was kept.
        found.filter(|(_, position)| sequence.kv.len() == *position)
    }

    /// A running sequence that computes a prefix of these tokens, which are not cached yet.
    fn leader(&self, at: usize) -> Option<Follows> {
        let sequence = self.sequences[at].as_ref()?;
        if !self.settings.prefix_cache || sequence.kv.len() > 0 {
            return None;
        }
        let shared = |other: &Sequence| {
            let pairs = sequence.tokens.iter().zip(&other.tokens[..other.to_read()]);
            let common = pairs.take_while(|(a, b)| a == b).count().min(sequence.tokens.len() - 1);
            common / KV_BLOCK * KV_BLOCK
        };
        let others = self.sequences.iter().flatten().filter(|other| {
            let is_running = other.running().is_some_and(|running| running.follows.is_none());
            is_running && other.id != sequence.id && other.kv.chain() == sequence.kv.chain()
        });
        let candidates = others.filter_map(|other| {
            let (common, running) = (shared(other), other.running()?);
            let follows = Follows { leader: other.id, epoch: running.epoch, common };
            (common > running.landed).then_some(follows)
        });
        candidates.max_by_key(|follows| follows.common).filter(|follows| follows.common > 0)
    }

    /// Whether a sequence can be admitted: there are blocks for its positions beside those that were promised, and one
    /// for each sequence that decodes.
    fn has_blocks(&self, at: usize, positions: usize) -> bool {
        let running = || self.sequences.iter().flatten().filter(|other| other.running().is_some());
        let watermark = running().filter(|other| other.generates()).count();
        let Some(sequence) = &self.sequences[at] else { return false };
        (0..self.kv.pools().len()).all(|group| {
            let needed = self.missing_blocks(sequence, group, positions) + self.promised_blocks(group);
            needed + watermark <= self.kv.pools()[group].available()
        })
    }

    /// Blocks of a group that a sequence has to take before it has this many positions. Those that have left the window
    /// are not its own any more.
    fn missing_blocks(&self, sequence: &Sequence, group: usize, positions: usize) -> usize {
        let most = self.kv.most_held(group, positions, self.chunk());
        most.saturating_sub(sequence.kv.held_blocks(group))
    }

    /// Blocks of a group that the prompts which are being read have yet to take.
    pub(super) fn promised_blocks(&self, group: usize) -> usize {
        let reading = self.sequences.iter().flatten().filter(|sequence| sequence.reads());
        reading.map(|sequence| self.missing_blocks(sequence, group, sequence.positions())).sum()
    }

    /// Frees the blocks of the least recently used sequence that does not run. `false` if there is none.
    pub(super) fn reclaim_idle(&mut self, except: usize) -> bool {
        let idle = self.sequences.iter().enumerate().filter_map(|(at, sequence)| {
            let sequence = sequence.as_ref().filter(|sequence| sequence.running().is_none())?;
            (at != except && sequence.kv.capacity() > 0).then_some((sequence.used, at))
        });
        let Some((_, at)) = idle.min() else { return false };
        if let Some(sequence) = &mut self.sequences[at] {
            self.kv.release(&mut sequence.kv);
            self.records.release(&mut sequence.state);
        }
        true
    }

    /// Frees blocks for a sequence that needs one: those of a sequence that does not run, then of one whose client does not
    /// read, then of the youngest, which is preempted. `false` if that is the sequence itself, or nothing is left.
    pub(super) fn free_blocks_for(&mut self, at: usize, slots: &mut dyn Slots) -> Result<bool, BackendError> {
        if self.reclaim_idle(at) || self.park_unread(at, slots) {
            return Ok(true);
        }
        let running = self
            .sequences
            .iter()
            .enumerate()
            .filter_map(|(other, sequence)| Some((sequence.as_ref()?.running()?.order, other)));
        let Some((_, youngest)) = running.max() else { return Ok(false) };
        let alone = self.slots.iter().flatten().count() == 1;
        if youngest == at && alone {
            return Ok(false);
        }
        self.preempt(youngest, slots);
        Ok(youngest != at)
    }

    /// Takes slot and blocks from a sequence and returns its job to the front of the queue. Its complete blocks stay
    /// findable, so that it computes little again if they are not needed meanwhile.
    fn preempt(&mut self, at: usize, slots: &mut dyn Slots) {
        let Some(sequence) = &mut self.sequences[at] else { return };
        let Phase::Running(running) = sequence.phase else { return };
        slots.close(running.slot);
        self.slots[running.slot] = None;
        self.kv.release(&mut sequence.kv);
        self.records.release(&mut sequence.state);
        if let Some(mask) = &mut sequence.mask {
            mask.lost_slot();
        }
        let announced = running.follows.is_none();
        sequence.phase = Phase::Waiting { order: Some(running.order), announced };
        match sequence.is_unread(self.settings.unread_events) {
            true => self.queue.park(running.order, sequence.id),
            false => self.queue.push_preempted(running.order, sequence.id),
        }
        self.counters.preemptions(1);
    }

    /// Preempts the youngest sequence that holds because its client does not read, for another one that waits. It comes
    /// back when its client has read. `false` if there is none.
    fn park_unread(&mut self, except: usize, slots: &mut dyn Slots) -> bool {
        let unread = self.sequences.iter().enumerate().filter_map(|(at, sequence)| {
            let sequence = sequence.as_ref().filter(|_| at != except)?;
            let holds = sequence.generates() && sequence.is_unread(self.settings.unread_events);
            Some((sequence.running().filter(|_| holds)?.order, at))
        });
        let Some((_, youngest)) = unread.max() else { return false };
        self.preempt(youngest, slots);
        true
    }

    /// Lets jobs wait for a slot again whose clients have read half of their events.
    pub(crate) fn resume_read(&mut self) {
        let Scheduler { queue, sequences, by_id, settings, .. } = self;
        queue.resume(|id| {
            let sequence = by_id.get(&id).and_then(|at| sequences[*at].as_ref());
            sequence.is_none_or(|sequence| !sequence.is_unread(settings.unread_events.div_ceil(2)))
        });
    }
}
