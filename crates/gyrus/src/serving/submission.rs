//! Submissions: chunks of prompts and decode steps, and the blocks that they write to.

use std::time::Instant;

use gyrus_kernels::{
    BackendError, Chunk, Decode, KV_BLOCK, LogitRows, MAX_KV_GROUPS, Records, RowKind, Slots, Work,
};

use super::drafts::FlightDraft;
use super::job::{Job, JobEvent, Task};
use super::scheduler::{Ahead, Flight, FlightChunk, Scheduler};
use super::sequence::{Decodes, Phase, Running, Sequence};

/// The most rows of logits in one submission. Each is as wide as the vocabulary.
const SCORED_ROWS: usize = 32;
/// The most submissions with chunks in flight: one is recorded while the other runs.
const CHUNKS_IN_FLIGHT: usize = 2;

impl Scheduler {
    /// Submits what is useful now. Returns whether anything was submitted.
    pub(crate) fn submit(&mut self, now: Instant, slots: &mut dyn Slots) -> Result<bool, BackendError> {
        // What would be submitted comes after the parts of a chunk that are left. To record all of them now would hold up the
        // tokens that land meanwhile.
        if slots.is_recording() {
            return Ok(false);
        }
        self.follow(slots)?;
        let reading = self
            .sequences
            .iter()
            .flatten()
            .any(|s| s.reads() && s.running().is_some_and(|r| r.follows.is_none()));
        self.send_masks(!reading, slots)?;
        let drafted = self.speculate(reading, now, slots)?;
        if drafted && !self.limits.asynchronous {
            return Ok(true);
        }
        if self.time_for_masks(now).is_some() {
            return Ok(drafted);
        }
        let decoding = self.sequences.iter().flatten().filter(|sequence| sequence.decodes()).count();
        // The steps in flight before a prompt joined keep the device busy while its first chunk is recorded.
        let may_read = match self.limits.asynchronous {
            true => self.flights.iter().filter(|flight| flight.rows > 0).count() < CHUNKS_IN_FLIGHT,
            false => self.flights.is_empty(),
        };
        if reading && may_read {
            let oldest = self.readers().min().and_then(|(_, at)| self.sequences[at].as_ref());
            let position = oldest.map_or(0, |sequence| sequence.kv.len());
            let rows = self.pace.chunk_rows(decoding > 0, self.limits, self.chunk(), position);
            return self.submit_chunks(rows, now, slots);
        }
        if reading || decoding == 0 {
            return Ok(drafted);
        }
        let in_flight: usize = self.flights.iter().map(|flight| flight.steps_left).sum();
        let wanted = self.wanted_steps();
        let target = self.pace.steps_in_flight(self.limits, self.settings.steps_in_flight, decoding);
        let target = self.steps_with_drafts(self.steps_beside(target)).min(in_flight + wanted);
        // One submission holds a quarter of the steps: the others keep the device busy while it is recorded. Several
        // sequences take long enough for a submission each, so that their tokens come evenly.
        let each = if decoding > 1 { 1 } else { (target / 4).clamp(1, 8) };
        if wanted == 0 || (in_flight > 0 && in_flight + each > target) {
            return Ok(drafted);
        }
        let more = target - in_flight;
        self.grant(in_flight + more, slots)?;
        let (mut left, begun) = (more, Instant::now());
        // Sequences may have been preempted.
        while left > 0 && self.sequences.iter().flatten().any(Sequence::decodes) {
            let steps = each.min(left);
            let ahead = self.rows_of_next(slots)?;
            let submission = slots.submit(&Work { chunks: &[], between: 0, steps })?;
            self.flown(submission, Vec::new(), (0, steps, ahead), now);
            left -= steps;
        }
        self.compute_ahead(slots)?;
        self.recorded_ahead(begun);
        self.pace.submitted();
        Ok(true)
    }

    /// The most steps after those in flight that any sequence needs.
    pub(super) fn wanted_steps(&self) -> usize {
        let wanted = |sequence: &Sequence| {
            let free_events = sequence
                .job
                .as_ref()
                .map_or(0, |job| self.settings.unread_events.saturating_sub(job.events.waiting()));
            let readable = sequence.remaining().min(free_events);
            match self.masked_steps(sequence).or_else(|| self.host_steps(sequence)) {
                Some(steps) => steps.min(readable),
                None => readable.saturating_sub(self.in_flight(sequence)),
            }
        };
        self.sequences.iter().flatten().filter(|sequence| sequence.decodes()).map(wanted).max().unwrap_or(0)
    }

    /// The steps after those in flight that a sequence needs whose tokens the host samples: one for each token. `None` if
    /// the backend samples them in its steps.
    fn host_steps(&self, sequence: &Sequence) -> Option<usize> {
        if !self.limits.asynchronous || !sequence.has_host_sampler() {
            return None;
        }
        let Some(first) = sequence.running()?.host_step else { return Some(1) };
        let own = self.flights.iter().filter(|flight| flight.submission >= first);
        Some(1usize.saturating_sub(own.map(|flight| flight.steps_left).sum()))
    }

    /// Steps in flight in which a sequence takes part.
    pub(super) fn in_flight(&self, sequence: &Sequence) -> usize {
        let (first, last) = match sequence.running().map(|running| running.decodes) {
            Some(Decodes::Since(first)) => (first, u64::MAX),
            Some(Decodes::Stops { since, last }) => (since, last),
            _ => return 0,
        };
        let own = self.flights.iter().filter(|flight| (first..=last).contains(&flight.submission));
        own.map(|flight| flight.steps_left).sum()
    }

    /// Submits the next chunks of prompts, `rows` rows together, and a step of the sequences that decode.
    fn submit_chunks(
        &mut self,
        rows: usize,
        now: Instant,
        slots: &mut dyn Slots,
    ) -> Result<bool, BackendError> {
        let mut planned: Vec<(FlightChunk, usize, RowKind)> = Vec::new();
        let mut order: Vec<(u64, usize)> = self.readers().collect();
        order.sort_unstable();
        let (mut left, mut logits_left) = (rows, self.limits.logit_rows.min(SCORED_ROWS));
        // Each gets a share, then the oldest get the rest.
        let share = (rows / order.len().max(1)).max(KV_BLOCK);
        for (round, limit) in [share, usize::MAX].into_iter().enumerate() {
            for &(_, at) in &order {
                let mut own = limit;
                while own.min(left) > 0 && !self.ends_at_checkpoint(&planned, at) {
                    let Some(sequence) = &self.sequences[at] else { break };
                    let next = sequence.next_chunk(own.min(left), &self.records);
                    let Some((count, kind, logits)) = next else { break };
                    let count = if logits == LogitRows::All { count.min(logits_left) } else { count };
                    let first = sequence.kv.len();
                    let count = self.reserve_for_chunk(at, first, count, slots)?;
                    let Some(sequence) = self.sequences[at].as_mut().filter(|_| count > 0) else { break };
                    let Some(&Running { slot, epoch, .. }) = sequence.running() else { break };
                    debug_assert!(
                        self.kv.may_write(&sequence.kv, first),
                        "a block that others may read is written to"
                    );
                    sequence.kv.computed(count, kind);
                    let checkpoint = None;
                    let chunk = FlightChunk { sequence: at, epoch, first, count, logits, checkpoint };
                    planned.push((chunk, slot, kind));
                    left -= count;
                    own -= count;
                    if logits == LogitRows::All {
                        logits_left -= count;
                    }
                }
            }
            if left == 0 || round == 1 {
                break;
            }
        }
        // A sequence that was preempted meanwhile has no chunk.
        planned.retain(|(chunk, slot, _)| self.slots[*slot] == Some(chunk.sequence));
        let has_steps = !planned.is_empty() && self.wanted_steps() > 0;
        let in_flight: usize = self.flights.iter().map(|flight| flight.steps_left).sum();
        let free_steps = self.limits.steps.saturating_sub(in_flight + 1);
        let chunks = (rows - left, FlightChunk::position(planned.iter().map(|(chunk, ..)| chunk)));
        let between =
            if has_steps { self.pace.steps_between(chunks, self.limits).min(free_steps) } else { 0 };
        for &(_, at) in &order {
            // The state at the end of its prompt is copied before a step changes it.
            if !self.ends_at_checkpoint(&planned, at) {
                self.start_decoding(at, slots)?;
            }
        }
        let decoding = self.sequences.iter().flatten().any(Sequence::decodes);
        let steps = usize::from(decoding && self.wanted_steps() > 0 && in_flight < self.limits.steps);
        if between + steps > 0 {
            self.grant(in_flight + between + steps, slots)?;
        }
        // To start or to grant may preempt, too.
        planned.retain(|(chunk, slot, _)| self.slots[*slot] == Some(chunk.sequence));
        let between = if planned.is_empty() { 0 } else { between };
        // Without a chunk, because blocks are missing, steps go on one by one.
        if planned.is_empty() && (steps == 0 || self.flights.len() >= CHUNKS_IN_FLIGHT) {
            return Ok(false);
        }
        // Chunks of a slot are adjacent.
        planned.sort_by_key(|(_, slot, _)| *slot);
        self.fly_planned(&mut planned, between, steps, now, slots)?;
        Ok(true)
    }

    /// Whether the chunks of a sequence end where a checkpoint of its state is taken: nothing may follow them in this
    /// submission.
    fn ends_at_checkpoint(&self, planned: &[(FlightChunk, usize, RowKind)], at: usize) -> bool {
        let last = planned.iter().rev().find(|(chunk, ..)| chunk.sequence == at);
        last.is_some_and(|(chunk, ..)| self.takes_checkpoint(chunk))
    }

    /// Whether a checkpoint is taken at the end of a chunk.
    fn takes_checkpoint(&self, chunk: &FlightChunk) -> bool {
        let Some(sequence) = &self.sequences[chunk.sequence] else { return false };
        let is_score = matches!(sequence.job.as_ref().map(|job| &job.task), Some(Task::Score));
        !is_score && self.records.is_checkpoint(chunk.first + chunk.count, sequence.to_read())
    }

    fn readers(&self) -> impl Iterator<Item = (u64, usize)> + '_ {
        self.sequences.iter().enumerate().filter_map(|(at, sequence)| {
            let running = sequence.as_ref()?.running()?;
            (running.decodes == Decodes::No && running.follows.is_none()).then_some((running.order, at))
        })
    }

    /// Takes blocks for a chunk of a sequence, and returns how many of its rows have blocks.
    fn reserve_for_chunk(
        &mut self,
        at: usize,
        first: usize,
        count: usize,
        slots: &mut dyn Slots,
    ) -> Result<usize, BackendError> {
        loop {
            let Some(sequence) = &mut self.sequences[at] else { return Ok(0) };
            if sequence.running().is_none() {
                return Ok(0);
            }
            // A block for what follows the prompt, too, so that it can decode at once.
            let wanted = (first + count + 1)
                .min(sequence.tokens.len() + 1)
                .min(sequence.job.as_ref().map_or(0, |j| j.max_len).max(first + count));
            let capacity = sequence.kv.capacity();
            match self.kv.reserve(&mut sequence.kv, wanted) {
                Ok(()) => return Ok(count),
                Err(_) if capacity > first => return Ok(count.min(capacity - first)),
                Err(_) => {
                    if !self.free_blocks_for(at, slots)? {
                        return Ok(0);
                    }
                }
            }
        }
    }

    /// Begins to decode a sequence whose prompt is submitted, or which comes back from drafts.
    pub(super) fn start_decoding(&mut self, at: usize, slots: &mut dyn Slots) -> Result<(), BackendError> {
        let ready = |sequence: &Sequence| {
            (sequence.reads() || sequence.awaits_draft())
                && sequence.kv.len() == sequence.to_read()
                && sequence.remaining() > 0
        };
        // The block of the last token.
        loop {
            let Some(sequence) = self.sequences[at].as_mut().filter(|sequence| ready(sequence)) else {
                return Ok(());
            };
            let positions = sequence.kv.len() + 1;
            if self.kv.reserve(&mut sequence.kv, positions).is_ok() {
                break;
            }
            if !self.free_blocks_for(at, slots)? {
                return Ok(());
            }
        }
        let Some(sequence) = &mut self.sequences[at] else { return Ok(()) };
        let Phase::Running(running) = &mut sequence.phase else { return Ok(()) };
        let Some(Job { task: Task::Generate { sampler, ends, logprobs, .. }, max_len, .. }) = &sequence.job
        else {
            return Ok(());
        };
        let position = sequence.kv.len();
        let hold = self.records.next_hold(position).saturating_add(1);
        let limit = sequence.kv.capacity().min(*max_len).min(hold) as u32;
        let records = self.records.of(&sequence.state);
        if position == 0 && self.records.is_used() {
            slots.copy_state(None, self.records.at(&sequence.state, 0))?;
        }
        let (tables, groups) = sequence.kv.tables();
        slots.extend(running.slot, &tables[..groups], limit)?;
        (running.sent_limit, running.sent_blocks) = (limit, sequence.kv.capacity() / KV_BLOCK);
        let masked = sequence.mask.is_some();
        slots.start(
            running.slot,
            &Decode { tokens: &sequence.tokens, limit, sampler, ends, logprobs: *logprobs, masked, records },
        )?;
        running.decodes = Decodes::Next;
        sequence.send_mask(slots)
    }

    /// Makes sure that every sequence that decodes has a block for its next token, and if there are enough for all steps
    /// in flight. Preempts the youngest sequences if there are too few.
    pub(super) fn grant(&mut self, steps: usize, slots: &mut dyn Slots) -> Result<(), BackendError> {
        for number in 0..self.slots.len() {
            let Some(at) = self.slots[number] else { continue };
            let unread_events = self.settings.unread_events;
            // One whose client does not read holds, and takes no block from those that go on.
            let goes_on = |sequence: &&mut Sequence| sequence.decodes() && !sequence.is_unread(unread_events);
            while let Some(sequence) = self.sequences[at].as_mut().filter(goes_on) {
                let max_len = sequence.job.as_ref().map_or(0, |job| job.max_len);
                let needed = (sequence.tokens.len() + 1).min(max_len);
                if self.kv.reserve(&mut sequence.kv, needed).is_ok() {
                    break;
                }
                if self.trim_ahead(at, slots)? {
                    continue;
                }
                if !self.free_blocks_for(at, slots)? {
                    break;
                }
            }
        }
        // Blocks that were promised to prompts are not taken ahead.
        let mut promised = [0; MAX_KV_GROUPS];
        for (group, promised) in promised.iter_mut().enumerate().take(self.kv.pools().len()) {
            *promised = self.promised_blocks(group);
        }
        for number in 0..self.slots.len() {
            let Some(at) = self.slots[number] else { continue };
            let Some(sequence) = self.sequences[at].as_mut().filter(|s| s.decodes()) else { continue };
            let Some(job) = &sequence.job else { continue };
            // A client that does not read its events makes its slot hold.
            let free_events = self.settings.unread_events.saturating_sub(job.events.waiting());
            let readable = job.max_len.min(sequence.tokens.len() + free_events);
            let ahead = (sequence.tokens.len() + steps + 1).min(job.max_len);
            let blocks = ahead.div_ceil(KV_BLOCK).saturating_sub(sequence.kv.capacity() / KV_BLOCK);
            let mut pools = self.kv.pools().iter().zip(&promised);
            if blocks > 0 && pools.all(|(pool, promised)| blocks + promised <= pool.available()) {
                // There are enough.
                let _ = self.kv.reserve(&mut sequence.kv, ahead);
            }
            let capacity = sequence.kv.capacity();
            debug_assert!(
                self.kv.may_write(&sequence.kv, sequence.kv.len()),
                "a block that others may read is written to"
            );
            let position = sequence.kv.len();
            let hold = self.records.next_hold(position);
            let limit = capacity.min(readable).min(hold.saturating_add(1)) as u32;
            let label = sequence.kv.label(&sequence.tokens, position);
            let (tables, groups) = sequence.kv.tables();
            let Phase::Running(running) = &mut sequence.phase else { continue };
            // A slot that holds for a checkpoint goes on after it.
            if running.sent_limit as usize == position + 1
                && self.records.is_checkpoint(position, 0)
                && let Some(label) = label.filter(|label| !self.records.has_checkpoint(label, position))
                && let Some(record) = self.records.take_for_checkpoint()
            {
                slots.copy_state(Some(self.records.at(&sequence.state, position)), record)?;
                self.records.add_checkpoint(record, position, Some(label));
            }
            if running.sent_limit != limit || running.sent_blocks != capacity / KV_BLOCK {
                slots.extend(running.slot, &tables[..groups], limit)?;
                (running.sent_limit, running.sent_blocks) = (limit, capacity / KV_BLOCK);
            }
        }
        Ok(())
    }

    /// Takes back blocks that other sequences took ahead and that no step in flight can reach. `false` if there are none.
    fn trim_ahead(&mut self, except: usize, slots: &mut dyn Slots) -> Result<bool, BackendError> {
        let before = self.kv.available();
        for at in 0..self.sequences.len() {
            let in_flight = self.sequences[at].as_ref().map_or(0, |sequence| self.in_flight(sequence));
            let others = self.sequences[at].as_mut().filter(|s| at != except && s.decodes());
            let Some(sequence) = others else { continue };
            let keep = sequence.tokens.len() + 1 + in_flight;
            let capacity = sequence.kv.capacity();
            self.kv.trim(&mut sequence.kv, keep);
            if sequence.kv.capacity() < capacity {
                let blocks = sequence.kv.capacity() / KV_BLOCK;
                let (tables, groups) = sequence.kv.tables();
                let Phase::Running(running) = &mut sequence.phase else { continue };
                let limit = running.sent_limit.min((blocks * KV_BLOCK) as u32);
                slots.extend(running.slot, &tables[..groups], limit)?;
                (running.sent_limit, running.sent_blocks) = (limit, blocks);
            }
        }
        Ok(self.kv.available() > before)
    }

    /// Sends the tables of sequences with chunks, and submits.
    fn fly_planned(
        &mut self,
        planned: &mut [(FlightChunk, usize, RowKind)],
        between: usize,
        steps: usize,
        now: Instant,
        slots: &mut dyn Slots,
    ) -> Result<(), BackendError> {
        for (chunk, slot, _) in &*planned {
            let Some(sequence) = &mut self.sequences[chunk.sequence] else { continue };
            let blocks = sequence.kv.capacity() / KV_BLOCK;
            let (tables, groups) = sequence.kv.tables();
            let Phase::Running(running) = &mut sequence.phase else { continue };
            if running.sent_blocks != blocks && running.decodes == Decodes::No {
                slots.extend(*slot, &tables[..groups], 0)?;
                (running.sent_limit, running.sent_blocks) = (0, blocks);
            }
        }
        let chunks: Vec<Chunk<'_>> = planned
            .iter()
            .filter_map(|(chunk, slot, kind)| {
                let tokens = &self.sequences[chunk.sequence].as_ref()?.tokens;
                let tokens = &tokens[chunk.first..chunk.first + chunk.count];
                let position = chunk.first as u32;
                let records = self.chunk_records(planned, chunk);
                Some(Chunk { slot: *slot, position, tokens, kind: *kind, logits: chunk.logits, records })
            })
            .collect();
        if between > 0 {
            slots.set_gap(self.pace.gap(self.limits));
        }
        let submission = slots.submit(&Work { chunks: &chunks, between, steps })?;
        drop(chunks);
        self.take_checkpoints(planned, slots)?;
        let flown = planned.iter().map(|(chunk, ..)| *chunk).collect();
        self.flown(submission, flown, (between, steps, Ahead::No), now);
        if between + steps > 0 {
            self.compute_ahead(slots)?;
        }
        Ok(())
    }

    /// The records of a chunk: chunks of a sequence in one submission write the same.
    fn chunk_records(
        &self,
        planned: &[(FlightChunk, usize, RowKind)],
        chunk: &FlightChunk,
    ) -> Option<Records> {
        let state = &self.sequences[chunk.sequence].as_ref()?.state;
        let own = || planned.iter().map(|(chunk, ..)| chunk).filter(|other| other.sequence == chunk.sequence);
        let end = own().map(|chunk| chunk.first + chunk.count).max()?;
        let first = own().map(|chunk| chunk.first).min()?;
        let to = self.records.at(state, end);
        let from = match (chunk.first == first, first) {
            (false, _) => Some(to),
            (true, 0) => None,
            (true, first) => Some(self.records.at(state, first)),
        };
        self.records.is_used().then_some(Records { from, to })
    }

    /// Copies the states at the ends of chunks that were submitted, where checkpoints are.
    fn take_checkpoints(
        &mut self,
        planned: &mut [(FlightChunk, usize, RowKind)],
        slots: &mut dyn Slots,
    ) -> Result<(), BackendError> {
        if !self.records.is_used() {
            return Ok(());
        }
        for (chunk, ..) in planned {
            let end = chunk.first + chunk.count;
            let is_checkpoint = self.takes_checkpoint(chunk);
            let Some(sequence) = &mut self.sequences[chunk.sequence] else { continue };
            sequence.state.set(end);
            if is_checkpoint && self.settings.prefix_cache {
                chunk.checkpoint = self.records.take_for_checkpoint();
            }
            if let Some(record) = chunk.checkpoint {
                slots.copy_state(Some(self.records.at(&sequence.state, end)), record)?;
            }
        }
        Ok(())
    }

    fn flown(
        &mut self,
        submission: u64,
        chunks: Vec<FlightChunk>,
        steps: (usize, usize, Ahead),
        now: Instant,
    ) {
        self.flown_with(submission, chunks, Vec::new(), steps, now);
    }

    /// The same with drafts. Steps are those among the chunks, and those after them.
    pub(super) fn flown_with(
        &mut self,
        submission: u64,
        chunks: Vec<FlightChunk>,
        drafts: Vec<FlightDraft>,
        (between, steps_after, ahead): (usize, usize, Ahead),
        now: Instant,
    ) {
        let steps = between + steps_after;
        for sequence in self.sequences.iter_mut().flatten() {
            if let Some(running) = sequence.running_mut().filter(|running| running.decodes == Decodes::Next) {
                running.decodes = Decodes::Since(submission);
            }
            if let Some(running) = sequence.running_mut().filter(|running| running.decodes != Decodes::No)
                && steps > 0
            {
                running.host_step.get_or_insert(submission);
            }
            if let Some(mask) = sequence.mask.as_mut().filter(|_| steps > 0) {
                mask.flown(submission);
            }
        }
        let rows = chunks.iter().map(|chunk| chunk.count).sum();
        let position = FlightChunk::position(chunks.iter());
        let decoding = self.sequences.iter().flatten().filter(|sequence| sequence.decodes()).count();
        self.flights.push_back(Flight {
            submission,
            at: now,
            ahead,
            chunks_landed: chunks.is_empty(),
            chunks,
            drafts_landed: drafts.is_empty(),
            draft_rows: drafts.iter().map(|draft| draft.rows).sum(),
            drafts,
            rows,
            position,
            decoding,
            steps,
            steps_left: steps,
            steps_after,
        });
    }

    /// Lets sequences go on whose prefix another one has computed, or no longer computes.
    fn follow(&mut self, slots: &mut dyn Slots) -> Result<(), BackendError> {
        for at in 0..self.sequences.len() {
            let Some(sequence) = &self.sequences[at] else { continue };
            let Some(follows) = sequence.running().and_then(|running| running.follows) else {
                continue;
            };
            let leader = self.by_id.get(&follows.leader).and_then(|at| self.sequences[*at].as_ref());
            let leads = |running: &Running| running.epoch == follows.epoch && running.landed < follows.common;
            if leader.and_then(Sequence::running).is_some_and(leads) {
                continue;
            }
            let Some(sequence) = &mut self.sequences[at] else { continue };
            self.kv.release(&mut sequence.kv);
            self.kv.adopt(&mut sequence.kv, &sequence.tokens);
            sequence.state.lose();
            let checkpoint = self.rewind_to_state(at);
            let Some(sequence) = &mut self.sequences[at] else { continue };
            if let Some((record, position)) = checkpoint {
                slots.copy_state(Some(record), self.records.at(&sequence.state, position))?;
                sequence.state.set(position);
            }
            let cached = sequence.kv.len();
            if let Some(running) = sequence.running_mut() {
                running.follows = None;
                running.landed = cached;
            }
            self.counters.prompt(sequence.tokens.len(), cached);
            sequence.tell(JobEvent::Admitted { cached });
        }
        Ok(())
    }
}
