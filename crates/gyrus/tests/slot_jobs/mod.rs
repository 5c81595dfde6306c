//! Jobs that run in slots with random joins, leaves, chunks and steps, and what each of them generates alone.

use std::time::Duration;

use gyrus_kernels::{
    Backend, Batch, Chunk, Counts, Decode, KV_BLOCK, Landed, LogitRows, MAX_TOP, Outcome, RowKind, Sampler,
    Slots, Work, log_softmax_at,
};
use gyrus_testkit::Rng;

/// Positions that a job may reach.
pub(crate) const LENGTH: u32 = 160;

/// A completion to generate.
#[derive(Debug, Clone)]
pub(crate) struct Job {
    pub(crate) prompt: Vec<u32>,
    pub(crate) sampler: Sampler,
    pub(crate) max_tokens: usize,
    pub(crate) ends: Vec<u32>,
    pub(crate) logprobs: Option<usize>,
    pub(crate) masked: bool,
}

/// A generated token.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Emitted {
    pub(crate) id: u32,
    pub(crate) logprob: f32,
    pub(crate) top: Vec<(u32, f32)>,
}

impl Job {
    /// The tokens that may be sampled for a position: about a third of the vocabulary.
    pub(crate) fn allowed(position: u32, vocab: usize) -> Vec<u32> {
        let mut words = vec![0; vocab.div_ceil(32)];
        (0..vocab)
            .filter(|id| (id + position as usize).is_multiple_of(3))
            .for_each(|id| words[id / 32] |= 1 << (id % 32));
        words
    }

    /// What the job generates alone, by a forward pass and a draw for each token. The tokens' blocks are those of an
    /// empty cache.
    pub(crate) fn alone(&self, backend: &mut dyn Backend) -> Vec<Emitted> {
        let (vocab, groups) = (backend.plan().vocab, backend.plan().kv.len());
        let table: Vec<u32> = (0..LENGTH.div_ceil(KV_BLOCK as u32)).collect();
        let mut tokens = self.prompt.clone();
        let (mut emitted, mut counts, mut done) = (Vec::new(), Counts::new(), 0);
        while emitted.len() < self.max_tokens {
            let positions: Vec<u32> = (done as u32..tokens.len() as u32).collect();
            let logits = backend.forward(&Batch {
                tokens: &tokens[done..],
                positions: &positions,
                sequences: &vec![0; positions.len()],
                kind: RowKind::Generated,
                logits: &[positions.len() as u32 - 1],
                tables: &vec![&table[..]; groups],
                lengths: &[LENGTH],
                records: &[],
                inputs: Default::default(),
            });
            let logits = logits.unwrap().to_vec();
            done = tokens.len();
            let mut masked = logits.clone();
            if self.masked {
                let allowed = Job::allowed(done as u32, vocab);
                let ids = (0..vocab).filter(|id| allowed[id / 32] >> (id % 32) & 1 == 0);
                ids.for_each(|id| masked[id] = f32::NAN);
            }
            self.sampler.count(&tokens, &mut counts);
            let id = self.sampler.draw(&masked, &counts, done as u64, &mut Vec::new());
            let mut top: Vec<(u32, f32)> = (0..).zip(logits.iter().copied()).collect();
            top.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
            top.truncate(self.logprobs.unwrap_or(0));
            let top = top.into_iter().map(|(id, _)| (id, log_softmax_at(&logits, id))).collect();
            let logprob = if self.logprobs.is_some() { log_softmax_at(&logits, id) } else { f32::NAN };
            emitted.push(Emitted { id, logprob, top });
            tokens.push(id);
            if self.ends.contains(&id) {
                break;
            }
        }
        emitted
    }
}

/// Jobs of random kinds. Those after the first few begin with the same blocks of tokens as an earlier one.
pub(crate) fn jobs(count: usize, vocab: usize, rng: &mut Rng) -> Vec<Job> {
    let mut jobs: Vec<Job> = Vec::new();
    for _ in 0..count {
        let mut prompt: Vec<u32> = (0..1 + rng.below(90)).map(|_| rng.below(vocab) as u32).collect();
        if let Some(other) = (jobs.len() > 3).then(|| rng.pick(&jobs).prompt.clone()) {
            let shared = other.len().min(prompt.len()) / KV_BLOCK * KV_BLOCK;
            prompt[..shared].copy_from_slice(&other[..shared]);
        }
        let sampler = match rng.below(4) {
            0 => Sampler::default(),
            1 => Sampler { temperature: 0.9, ..Sampler::default() },
            2 => Sampler { temperature: 1.3, top_k: 40, top_p: 0.9, min_p: 0.01, ..Sampler::default() },
            _ => Sampler {
                temperature: [0.0, 0.7][rng.below(2)],
                repetition_penalty: 1.3,
                frequency_penalty: 0.4,
                penalty_window: [3, 64, u32::MAX][rng.below(3)],
                ..Sampler::default()
            },
        };
        jobs.push(Job {
            prompt,
            sampler: Sampler { seed: rng.u64(), ..sampler },
            max_tokens: 1 + rng.below(50),
            // Some of the vocabulary, so that jobs end early.
            ends: (0..rng.below(5)).map(|_| rng.below(vocab) as u32).collect(),
            logprobs: [None, None, Some(0), Some(3), Some(MAX_TOP)][rng.below(5)],
            masked: rng.below(4) == 0,
        });
    }
    jobs
}

struct Running {
    job: usize,
    slot: usize,
    table: Vec<u32>,
    /// Positions in the cache, or in chunks of this submission.
    cached: usize,
    started: bool,
    tokens: Vec<u32>,
    /// The position of the last mask.
    masked: usize,
    /// The caller closes the slot after this many tokens.
    cancelled_at: usize,
    ended: bool,
    closed: bool,
}

/// Runs all jobs, at most `most` at once, and returns what each generated. A job that was cancelled has generated less.
pub(crate) fn run(
    backend: &mut dyn Backend,
    jobs: &[Job],
    most: usize,
    rng: &mut Rng,
) -> Vec<(Vec<Emitted>, bool)> {
    let (vocab, groups, blocks) = (backend.plan().vocab, backend.plan().kv.len(), backend.kv_blocks()[0]);
    let slots = backend.slots();
    let limits = slots.limits();
    let mut references = vec![0; blocks];
    let mut results = vec![(Vec::new(), false); jobs.len()];
    let (mut waiting, mut running): (Vec<usize>, Vec<Running>) =
        ((0..jobs.len()).rev().collect(), Vec::new());
    while !(waiting.is_empty() && running.is_empty()) {
        while running.len() < most.min(limits.slots) && (running.is_empty() || rng.below(3) > 0) {
            let Some(job) = waiting.pop() else { break };
            let taken: Vec<usize> = running.iter().map(|running| running.slot).collect();
            let free: Vec<usize> = (0..limits.slots).filter(|slot| !taken.contains(slot)).collect();
            // Blocks of the same tokens are used again, but for the last token's.
            let prompt = &jobs[job].prompt;
            let shared = running.iter().map(|other| {
                let same = prompt.iter().zip(&other.tokens).take_while(|(a, b)| a == b).count();
                let blocks = same.min(other.cached).min(prompt.len() - 1) / KV_BLOCK;
                other.table[..blocks].to_vec()
            });
            let table = shared.max_by_key(Vec::len).unwrap_or_default();
            table.iter().for_each(|block| references[*block as usize] += 1);
            let slot = *rng.pick(&free);
            slots.open(slot, LENGTH).unwrap();
            running.push(Running {
                job,
                slot,
                cached: table.len() * KV_BLOCK,
                table,
                started: false,
                tokens: prompt.clone(),
                masked: 0,
                cancelled_at: if rng.below(8) == 0 { rng.below(20) } else { usize::MAX },
                ended: false,
                closed: false,
            });
        }
        let mut budget = limits.rows;
        let mut chunks: Vec<(usize, usize, usize, LogitRows)> = Vec::new();
        for (n, running) in running.iter_mut().enumerate() {
            let job = &jobs[running.job];
            // Blocks for the prompt, and for a few more positions.
            let limit = running.tokens.len() + rng.below(6);
            let limit = limit.max(running.cached).min(job.prompt.len() + job.max_tokens);
            while running.table.len() * KV_BLOCK < limit {
                let free = (0..blocks).find(|block| references[*block] == 0).unwrap();
                references[free] = 1;
                running.table.push(free as u32);
            }
            slots.extend(running.slot, &vec![&running.table[..]; groups], limit as u32).unwrap();
            let left = (job.prompt.len() - 1).saturating_sub(running.cached);
            let mut rows = left.min(budget).min(1 + rng.below(70));
            if rows > 0 && rng.below(4) > 0 {
                budget -= rows;
                if rows > 3 && rng.below(3) == 0 {
                    chunks.push((n, running.cached, 2, LogitRows::None));
                    (running.cached, rows) = (running.cached + 2, rows - 2);
                }
                let logits = *rng.pick(&[LogitRows::None, LogitRows::None, LogitRows::Last, LogitRows::All]);
                chunks.push((n, running.cached, rows, logits));
                running.cached += rows;
            }
            if !running.started && running.cached >= job.prompt.len() - 1 && rng.below(3) > 0 {
                let decode = Decode {
                    tokens: &running.tokens,
                    limit: limit as u32,
                    sampler: &job.sampler,
                    ends: &job.ends,
                    logprobs: job.logprobs,
                    masked: job.masked,
                    records: [0; 2],
                };
                slots.start(running.slot, &decode).unwrap();
                running.started = true;
            }
            if job.masked && running.started && running.masked < running.tokens.len() && rng.below(2) == 0 {
                running.masked = running.tokens.len();
                let position = running.tokens.len() as u32;
                slots.mask(running.slot, position, &Job::allowed(position, vocab)).unwrap();
            }
        }
        let (mut between, steps) = (rng.below(5) * rng.below(2), rng.below(limits.steps.min(4) + 1));
        if chunks.is_empty() || limits.steps < between + steps {
            between = 0;
        }
        let wanted: usize = chunks
            .iter()
            .map(|(_, _, rows, logits)| match logits {
                LogitRows::None => 0,
                LogitRows::Last => 1,
                LogitRows::All => *rows,
            })
            .sum();
        let prompts: Vec<Vec<u32>> = running.iter().map(|running| running.tokens.clone()).collect();
        let chunks: Vec<Chunk<'_>> = chunks
            .iter()
            .map(|&(n, position, rows, logits)| Chunk {
                slot: running[n].slot,
                position: position as u32,
                tokens: &prompts[n][position..position + rows],
                kind: RowKind::Prompt,
                logits,
                records: None,
            })
            .collect();
        let has_chunks = !chunks.is_empty();
        let number = slots.submit(&Work { chunks: &chunks, between, steps }).unwrap();
        // The steps that have landed, and how many of them landed before the chunks.
        let (mut landed, mut before) = (0, None);
        while let Some(part) = slots.poll(Duration::from_secs(60)).unwrap() {
            match part {
                Landed::Chunks { submission, logits } => {
                    assert!(submission == number && before.is_none() && has_chunks);
                    before = Some(landed);
                    // Nobody wants the logits of slots that were all closed.
                    assert!(logits.len() == wanted * vocab || (between > 0 && logits.is_empty()));
                }
                Landed::Drafts { .. } => panic!("drafts were not asked for"),
                Landed::Step { submission, outcomes, top } => {
                    assert!(submission == number);
                    landed += 1;
                    for running in running.iter_mut().filter(|running| !running.closed) {
                        match outcomes.get(running.slot).copied().unwrap_or_default() {
                            Outcome::Held => {}
                            Outcome::NotFinite => panic!("slot {} is not finite", running.slot),
                            Outcome::Token { id, logprob, .. } => {
                                assert!(running.started && !running.ended);
                                let n = jobs[running.job].logprobs.unwrap_or(0);
                                let top = top.of(running.slot, n).to_vec();
                                results[running.job].0.push(Emitted { id, logprob, top });
                                running.cached = running.tokens.len();
                                running.tokens.push(id);
                                running.ended = jobs[running.job].ends.contains(&id);
                            }
                        }
                    }
                }
            }
            if has_chunks && before.is_none() {
                disturb(slots, &mut running, jobs, groups, &mut references, rng);
            }
        }
        // A backend that ends parts by time may need fewer steps between them.
        let before = before.unwrap_or(0);
        assert!(before == between || !limits.asynchronous && before < between, "{before} of {between}");
        assert_eq!(landed - before, steps);
        running.retain_mut(|running| {
            let emitted = results[running.job].0.len();
            let cancelled = emitted >= running.cancelled_at || running.closed;
            let done = cancelled || running.ended || emitted >= jobs[running.job].max_tokens;
            if done {
                results[running.job].1 = cancelled;
                running.close(slots, &mut references);
            }
            !done
        });
    }
    results
}

impl Running {
    /// Closes the slot and gives its blocks back.
    fn close(&mut self, slots: &mut dyn Slots, references: &mut [usize]) {
        if !self.closed {
            slots.close(self.slot);
            self.table.iter().for_each(|block| references[*block as usize] -= 1);
            self.closed = true;
        }
    }
}

/// Closes a slot and gives its blocks to another that decodes, between the parts of chunks.
fn disturb(
    slots: &mut dyn Slots,
    running: &mut [Running],
    jobs: &[Job],
    groups: usize,
    references: &mut [usize],
    rng: &mut Rng,
) {
    let (closed, extended) = (rng.below(running.len()), rng.below(running.len()));
    if rng.below(30) == 0 {
        running[closed].close(slots, references);
    }
    let one = &mut running[extended];
    if one.started && !one.closed && rng.below(2) == 0 {
        let most = jobs[one.job].prompt.len() + jobs[one.job].max_tokens;
        let limit = (one.tokens.len() + 1 + rng.below(KV_BLOCK)).min(most);
        while one.table.len() * KV_BLOCK < limit {
            let free = references.iter().position(|references| *references == 0).unwrap();
            references[free] = 1;
            one.table.push(free as u32);
        }
        slots.extend(one.slot, &vec![&one.table[..]; groups], limit as u32).unwrap();
    }
}
