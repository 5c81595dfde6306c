//! Runs sequences on a backend: allocates blocks of the KV cache and builds batches.

mod kv_sequence;

use std::time::Instant;

use gyrus_kernels::observe::Observer;
use gyrus_kernels::{
    Backend, BackendError, Batch, Counts, Instruments, KV_BLOCK, MAX_KV_GROUPS, Precision, Sampler,
};

use crate::Error;
use crate::in_flight::{GenerationId, InFlight};
pub(crate) use kv_sequence::KvSequence;

/// The most sequences in one batch. Their block tables are collected in an array on the stack.
pub(crate) const MAX_SEQUENCES: usize = 64;

/// Positions that a sequence keeps beyond its windows, so that the last tokens can be taken back without computing the
/// window again: a stop discards the steps in flight.
pub(crate) const WINDOW_SLACK: usize = 128;

/// A backend and the allocator of its paged KV cache.
pub(crate) struct Engine {
    backend: Box<dyn Backend>,
    /// Free blocks of each KV group, stacks: the last one is allocated first.
    free: Vec<Vec<u32>>,
    /// The rows of the batch, reused from one batch to the next.
    tokens: Vec<u32>,
    positions: Vec<u32>,
    sequences: Vec<u32>,
    logit_rows: Vec<u32>,
    in_flight: InFlight,
}

/// The rows of a chunk whose logits are computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LogitRows {
    None,
    Last,
    All,
}

/// The rows of one sequence in a batch.
pub(crate) trait BatchEntry {
    fn sequence(&self) -> &KvSequence;
    fn sequence_mut(&mut self) -> &mut KvSequence;
    /// The tokens to compute; they follow the cached ones.
    fn tokens(&self) -> &[u32];
    fn logits(&self) -> LogitRows;
}

/// A chunk of a prompt to prefill.
pub(crate) struct Chunk<'a> {
    pub(crate) sequence: &'a mut KvSequence,
    pub(crate) tokens: &'a [u32],
    pub(crate) logits: LogitRows,
}

/// A sequence to decode: all tokens but the last are cached.
pub(crate) struct DecodeSequence<'a> {
    pub(crate) sequence: &'a mut KvSequence,
    /// All tokens of the sequence.
    pub(crate) tokens: &'a mut Vec<u32>,
    pub(crate) sampler: &'a Sampler,
}

impl BatchEntry for Chunk<'_> {
    fn sequence(&self) -> &KvSequence {
        self.sequence
    }

    fn sequence_mut(&mut self) -> &mut KvSequence {
        self.sequence
    }

    fn tokens(&self) -> &[u32] {
        self.tokens
    }

    fn logits(&self) -> LogitRows {
        self.logits
    }
}

/// One row: the last token.
impl BatchEntry for DecodeSequence<'_> {
    fn sequence(&self) -> &KvSequence {
        self.sequence
    }

    fn sequence_mut(&mut self) -> &mut KvSequence {
        self.sequence
    }

    fn tokens(&self) -> &[u32] {
        &self.tokens[self.tokens.len().saturating_sub(1)..]
    }

    fn logits(&self) -> LogitRows {
        LogitRows::Last
    }
}

impl Engine {
    pub(crate) fn new(backend: Box<dyn Backend>, steps_in_flight: usize) -> Engine {
        assert!(backend.kv_blocks().len() <= MAX_KV_GROUPS, "a plan has at most {MAX_KV_GROUPS} KV groups");
        Engine {
            free: backend.kv_blocks().iter().map(|blocks| (0..*blocks as u32).rev().collect()).collect(),
            backend,
            tokens: Vec::new(),
            positions: Vec::new(),
            sequences: Vec::new(),
            logit_rows: Vec::new(),
            in_flight: InFlight { max: steps_in_flight.max(1), ..InFlight::default() },
        }
    }

    /// The backend's profiler and tuner, if it has them. Steps in flight are discarded.
    pub(crate) fn instruments(&mut self) -> Option<&mut dyn Instruments> {
        self.in_flight.generation = None;
        self.backend.instruments()
    }

    /// Frees a sequence's blocks. The device runs submissions in order, so steps in flight finish before a later step
    /// reuses the blocks.
    pub(crate) fn release(&mut self, sequence: &mut KvSequence) {
        self.in_flight.generation = None;
        self.free_all(sequence);
    }

    fn free_all(&mut self, sequence: &mut KvSequence) {
        for ((free, table), first) in
            self.free.iter_mut().zip(&mut sequence.tables).zip(&mut sequence.first_held)
        {
            free.extend(table.drain(..).skip(*first));
            *first = 0;
        }
        sequence.len = 0;
    }

    /// Runs all entries as one batch and returns the requested logits, `[logit rows, vocab]` in order.
    ///
    /// On an error no sequence has grown.
    pub(crate) fn forward(&mut self, entries: &mut [impl BatchEntry]) -> Result<&[f32], Error> {
        assert!(entries.len() <= MAX_SEQUENCES, "a batch has at most {MAX_SEQUENCES} sequences");
        self.in_flight.generation = None;
        for entry in &mut *entries {
            let more = entry.tokens().len();
            self.reserve(entry.sequence_mut(), more)?;
        }
        for rows in [&mut self.tokens, &mut self.positions, &mut self.sequences, &mut self.logit_rows] {
            rows.clear();
        }
        for (n, entry) in entries.iter().enumerate() {
            let first = self.tokens.len();
            for (i, &token) in entry.tokens().iter().enumerate() {
                self.tokens.push(token);
                self.positions.push((entry.sequence().len + i) as u32);
                self.sequences.push(n as u32);
            }
            let rows = first as u32..self.tokens.len() as u32;
            match entry.logits() {
                LogitRows::None => {}
                LogitRows::Last => self.logit_rows.extend(rows.last()),
                LogitRows::All => self.logit_rows.extend(rows),
            }
        }
        let groups = self.free.len();
        let mut tables: [&[u32]; MAX_SEQUENCES * MAX_KV_GROUPS] = [&[]; MAX_SEQUENCES * MAX_KV_GROUPS];
        let mut lengths = [0; MAX_SEQUENCES];
        for ((tables, length), entry) in tables.chunks_exact_mut(groups).zip(&mut lengths).zip(entries.iter())
        {
            entry.sequence().push_tables(tables);
            *length = entry.sequence().max_len;
        }
        let batch = Batch {
            tokens: &self.tokens,
            positions: &self.positions,
            sequences: &self.sequences,
            logits: &self.logit_rows,
            tables: &tables[..entries.len() * groups],
            lengths: &lengths[..entries.len()],
        };
        let precision = self.backend.plan().precision;
        let logits = self.backend.forward(&batch).map_err(|error| {
            at_position(error, precision, |row| self.positions.get(row).map(|position| *position as usize))
        })?;
        for entry in entries {
            let more = entry.tokens().len();
            entry.sequence_mut().len += more;
        }
        Ok(logits)
    }

    /// Runs a chunk of one sequence with the logits of its last row, and shows the results of all ops. On an error the
    /// sequence has not grown.
    pub(crate) fn observe(
        &mut self,
        sequence: &mut KvSequence,
        tokens: &[u32],
        observer: &mut Observer<'_>,
    ) -> Result<(), Error> {
        self.in_flight.generation = None;
        self.reserve(sequence, tokens.len())?;
        let first = sequence.len as u32;
        let positions: Vec<u32> = (first..).take(tokens.len()).collect();
        let tables: Vec<&[u32]> = sequence.tables.iter().map(Vec::as_slice).collect();
        let batch = Batch {
            tokens,
            positions: &positions,
            sequences: &vec![0; tokens.len()],
            logits: &[tokens.len().saturating_sub(1) as u32],
            tables: &tables,
            lengths: &[sequence.max_len],
        };
        self.backend.observe(&batch, observer)?;
        sequence.len += tokens.len();
        Ok(())
    }

    /// Decodes one token of each sequence, sampled on the device, and stores the tokens in `sampled`. The device may
    /// have several more steps in flight; the caller needs at most `remaining` tokens.
    ///
    /// Returns `false`, and changes nothing, if the backend does not sample or does not support these samplers.
    pub(crate) fn sample_on_device(
        &mut self,
        generation: GenerationId,
        sequences: &mut [DecodeSequence<'_>],
        remaining: usize,
        sampled: &mut Vec<u32>,
    ) -> Result<bool, Error> {
        if self.in_flight.generation != Some(generation) && !self.begin_chain(generation, sequences)? {
            return Ok(false);
        }
        let done = self.advance_chain(sequences, remaining, sampled);
        if done.is_err() {
            self.in_flight.generation = None;
        }
        done.map(|()| true)
    }

    /// As [`Engine::sample_on_device`], but samples the backend's logits on the CPU.
    pub(crate) fn sample_on_host(
        &mut self,
        sequences: &mut [DecodeSequence<'_>],
        sampled: &mut Vec<u32>,
        counts: &mut Counts,
        candidates: &mut Vec<(f32, u32)>,
    ) -> Result<(), Error> {
        let vocab = self.backend.plan().vocab;
        let logits = self.forward(sequences)?;
        sampled.clear();
        for (sequence, logits) in sequences.iter().zip(logits.chunks_exact(vocab)) {
            let position = sequence.tokens.len() as u64;
            sequence.sampler.count(sequence.tokens, counts);
            sampled.push(sequence.sampler.draw(logits, counts, position, candidates));
        }
        Ok(())
    }

    /// Starts a chain of decode steps on the device. `false` if the backend does not support it.
    fn begin_chain(
        &mut self,
        generation: GenerationId,
        sequences: &mut [DecodeSequence<'_>],
    ) -> Result<bool, Error> {
        if self.backend.chain().is_none() || sequences.len() > MAX_SEQUENCES {
            return Ok(false);
        }
        for rows in [&mut self.tokens, &mut self.positions, &mut self.sequences, &mut self.logit_rows] {
            rows.clear();
        }
        for (n, entry) in sequences.iter_mut().enumerate() {
            let Some((last, before)) = entry.tokens.split_last() else { return Ok(false) };
            if before.len() != entry.sequence.len {
                return Ok(false);
            }
            self.reserve(entry.sequence, 1)?;
            self.tokens.push(*last);
            self.positions.push(before.len() as u32);
            self.sequences.push(n as u32);
            self.logit_rows.push(n as u32);
        }
        let groups = self.free.len();
        let (mut tables, mut lengths) = ([&[] as &[u32]; MAX_SEQUENCES * MAX_KV_GROUPS], [0; MAX_SEQUENCES]);
        let mut samplers = Vec::with_capacity(sequences.len());
        let mut tokens = Vec::with_capacity(sequences.len());
        for (n, entry) in sequences.iter().enumerate() {
            entry.sequence.push_tables(&mut tables[n * groups..(n + 1) * groups]);
            lengths[n] = entry.sequence.max_len;
            samplers.push(entry.sampler);
            tokens.push(entry.tokens.as_slice());
        }
        let batch = Batch {
            tokens: &self.tokens,
            positions: &self.positions,
            sequences: &self.sequences,
            logits: &self.logit_rows,
            tables: &tables[..sequences.len() * groups],
            lengths: &lengths[..sequences.len()],
        };
        let Some(chain) = self.backend.chain() else { return Ok(false) };
        self.in_flight.generation = None;
        if !chain.begin(&batch, &samplers, &tokens)? {
            return Ok(false);
        }
        let max = self.in_flight.max.min(chain.most());
        self.in_flight = InFlight { generation: Some(generation), limit: 2, max, ..InFlight::default() };
        Ok(true)
    }

    /// Submits more decode steps if too few are in flight, then waits for the tokens of the oldest step.
    fn advance_chain(
        &mut self,
        sequences: &mut [DecodeSequence<'_>],
        remaining: usize,
        sampled: &mut Vec<u32>,
    ) -> Result<(), Error> {
        let in_flight = self.backend.chain().map_or(0, |chain| chain.in_flight());
        let target = self.in_flight.target(remaining);
        // One submission holds a quarter of the steps: the others keep the device busy while it is recorded. With a
        // submission for each step the device would idle between them.
        let per_submission = (target / 4).clamp(1, 8);
        if in_flight == 0 || in_flight + per_submission <= target {
            let mut more = target - in_flight;
            for entry in &mut *sequences {
                self.free_outside_windows(entry.sequence);
                // Free blocks limit the steps in flight.
                let free = self.free.iter().map(Vec::len).min().unwrap_or(0);
                let capacity = (entry.sequence.blocks() + free) * KV_BLOCK;
                more = more
                    .min(capacity.saturating_sub(entry.sequence.len + in_flight))
                    .max(usize::from(in_flight == 0));
                self.reserve(entry.sequence, in_flight + more)?;
            }
            let groups = self.free.len();
            let mut tables = [&[] as &[u32]; MAX_SEQUENCES * MAX_KV_GROUPS];
            for (tables, entry) in tables.chunks_exact_mut(groups).zip(sequences.iter()) {
                entry.sequence.push_tables(tables);
            }
            if let Some(chain) = self.backend.chain() {
                while more > 0 {
                    let steps = per_submission.min(more);
                    chain.submit(steps, &tables[..sequences.len() * groups])?;
                    more -= steps;
                }
            }
            self.in_flight.limit = (2 * self.in_flight.limit).min(self.in_flight.max);
        }
        sampled.clear();
        let wait_start = Instant::now();
        let precision = self.backend.plan().precision;
        if let Some(chain) = self.backend.chain() {
            let next = chain.next();
            sampled.extend_from_slice(next.map_err(|error| {
                at_position(error, precision, |row| sequences.get(row).map(|entry| entry.sequence.len))
            })?);
        }
        self.in_flight.wait_time += wait_start.elapsed();
        self.in_flight.tokens_read += 1;
        for entry in sequences {
            entry.sequence.len += 1;
        }
        Ok(())
    }

    /// Allocates blocks so that a sequence can hold `more` positions.
    fn reserve(&mut self, sequence: &mut KvSequence, more: usize) -> Result<(), Error> {
        if sequence.tables.is_empty() {
            sequence.groups.clone_from(&self.backend.plan().kv);
            sequence.tables.resize_with(self.free.len(), || Vec::with_capacity(sequence.capacity));
            sequence.first_held.resize(self.free.len(), 0);
        }
        if !sequence.holds_windows() {
            // Positions are computed again whose blocks were freed.
            self.free_all(sequence);
        }
        self.free_outside_windows(sequence);
        let blocks = (sequence.len + more).div_ceil(KV_BLOCK);
        let needed = blocks.saturating_sub(sequence.blocks());
        if let Some(free) = self.free.iter().map(Vec::len).min().filter(|free| needed > *free) {
            return Err(Error::CacheFull { needed, free });
        }
        for (free, table) in self.free.iter_mut().zip(&mut sequence.tables) {
            table.extend(free.drain(free.len() - needed..));
        }
        Ok(())
    }

    /// Frees a sequence's blocks that have left the window of their group. The device runs submissions in order, so steps
    /// in flight finish before a later step reuses the blocks.
    fn free_outside_windows(&mut self, sequence: &mut KvSequence) {
        let groups = self.backend.plan().kv.iter().zip(&mut self.free);
        let tables = sequence.tables.iter().zip(&mut sequence.first_held);
        for ((group, free), (table, first)) in groups.zip(tables) {
            let needed = group.first_needed(sequence.len.saturating_sub(WINDOW_SLACK)) / KV_BLOCK;
            if needed > *first {
                free.extend(&table[*first..needed.min(table.len())]);
                *first = needed;
            }
        }
    }
}

/// Converts a backend's error and replaces its row by the row's position in the sequence.
fn at_position(
    error: BackendError,
    precision: Precision,
    position: impl Fn(usize) -> Option<usize>,
) -> Error {
    match error {
        BackendError::NotFinite { row } => match position(row) {
            Some(position) => Error::NotFinite { position, precision },
            None => Error::Backend(error),
        },
        other => Error::Backend(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Model, Options};
    use gyrus_testkit::data;

    fn bits(logits: &[f32]) -> Vec<u32> {
        logits.iter().map(|l| l.to_bits()).collect()
    }

    /// A batch that mixes prefill and decode gives each row the same bits as a batch of its sequence alone.
    #[test]
    fn batched_sequences_match_single_sequences() {
        let Some(path) = data("tales/tales-7m-q8_0.gguf") else { return };
        for precision in [Precision::Exact, Precision::Fast] {
            let options = Options { precision, sessions: 8, ..Options::default() };
            let model = Model::open(&path, &options).unwrap();
            let vocab = model.plan().vocab;
            let mut engine = model.engine();
            let prompt = |n: usize, seed: usize| -> Vec<u32> {
                (0..n).map(|i| ((i * 97 + seed * 389 + 3) % vocab) as u32).collect()
            };
            // Two sequences decode one token, two prefill.
            let (cached, now) = ([prompt(50, 1), prompt(3, 2), prompt(0, 3), prompt(0, 4)], [1, 1, 70, 2]);
            let mut alone = Vec::new();
            let mut batched: Vec<KvSequence> = Vec::new();
            for (n, cached) in cached.iter().enumerate() {
                for in_batch in [false, true] {
                    let mut sequence = KvSequence::default();
                    if !cached.is_empty() {
                        let logits = LogitRows::None;
                        engine
                            .forward(&mut [Chunk { sequence: &mut sequence, tokens: cached, logits }])
                            .unwrap();
                    }
                    if in_batch {
                        batched.push(sequence);
                        continue;
                    }
                    let tokens = prompt(now[n], 10 + n);
                    let chunk = Chunk { sequence: &mut sequence, tokens: &tokens, logits: LogitRows::Last };
                    alone.extend(bits(engine.forward(&mut [chunk]).unwrap()));
                    engine.release(&mut sequence);
                }
            }
            let tokens: Vec<Vec<u32>> = now.iter().enumerate().map(|(n, &len)| prompt(len, 10 + n)).collect();
            let mut chunks: Vec<Chunk<'_>> = batched
                .iter_mut()
                .zip(&tokens)
                .map(|(sequence, tokens)| Chunk { sequence, tokens, logits: LogitRows::Last })
                .collect();
            assert_eq!(bits(engine.forward(&mut chunks).unwrap()), alone, "{precision:?}");
        }
    }
}
