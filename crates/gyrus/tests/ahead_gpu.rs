//! Rows that are computed ahead of the step that samples from them: masks may come while they are computed, and a sequence
//! gets the tokens that it gets alone, whatever other slots do.
#![cfg(feature = "gpu")]

mod adapter;
mod short_tales;
mod slot_jobs_gpu;
mod written;

use gyrus::{Precision, Sampler};
use gyrus_gpu::GpuBackend;
use gyrus_kernels::{Chunk, Decode, Landed, LogitRows, Outcome, RowKind, Slots, TopTokens, Work};
use gyrus_testkit::Rng;
use slot_jobs_gpu::*;

/// A job that may be masked, and may have an end token.
#[derive(Clone)]
struct Asked {
    job: Job,
    /// The seed of its masks.
    masks: Option<u64>,
    ends: Vec<u32>,
    logprobs: Option<usize>,
}

/// The same in a slot.
struct Active {
    number: usize,
    asked: Asked,
    slot: usize,
    /// Its tokens, those of the prompt first.
    tokens: Vec<u32>,
    logprobs: Vec<f32>,
    /// The position that the slot has a mask for.
    mask: usize,
    /// Whether it was started since the last step.
    is_new: bool,
}

fn words(seed: u64, position: usize) -> Vec<u32> {
    let mut random = Rng::new(seed * 1000 + position as u64);
    (0..short_tales::VOCAB.div_ceil(32)).map(|_| random.below(1 << 31) as u32 | 1 << 31).collect()
}

fn asked(number: u32) -> Asked {
    let masks = (number % 4 != 2).then_some(u64::from(number) + 1);
    Asked { job: job(number, 5 + number as usize % 3), masks, ends: Vec::new(), logprobs: None }
}

impl Active {
    fn begin(backend: &mut GpuBackend, number: usize, asked: &Asked, slot: usize, place: usize) -> Active {
        let tokens = asked.job.prompt.clone();
        let blocks: Vec<u32> = (0..EACH as u32).map(|block| (place * EACH) as u32 + block).collect();
        backend.open(slot, CONTEXT).unwrap();
        backend.extend(slot, &[&blocks], CONTEXT).unwrap();
        let chunk = Chunk {
            slot,
            position: 0,
            tokens: &tokens[..tokens.len() - 1],
            kind: RowKind::Prompt,
            logits: LogitRows::None,
            records: None,
        };
        Slots::submit(backend, &Work { chunks: &[chunk], between: 0, steps: 0 }).unwrap();
        let (asked, logprobs) = (asked.clone(), Vec::new());
        let mut active = Active { number, asked, slot, tokens, logprobs, mask: 0, is_new: true };
        active.start(backend);
        active
    }

    fn start(&mut self, backend: &mut GpuBackend) {
        let decode = Decode {
            tokens: &self.tokens,
            limit: CONTEXT,
            sampler: &self.asked.job.sampler,
            ends: &self.asked.ends,
            logprobs: self.asked.logprobs,
            masked: self.asked.masks.is_some(),
            records: [0; 2],
        };
        backend.start(self.slot, &decode).unwrap();
        (self.mask, self.is_new) = (0, true);
    }

    fn send_mask(&mut self, backend: &mut GpuBackend) {
        if let Some(seed) = self.asked.masks.filter(|_| self.mask != self.tokens.len()) {
            self.mask = self.tokens.len();
            backend.mask(self.slot, self.mask as u32, &words(seed, self.mask)).unwrap();
        }
    }

    /// Takes the outcome of a step. A slot that has no mask holds; one without masks holds only once, when it begins.
    fn landed(&mut self, outcome: Outcome, top: TopTokens<'_>) {
        let is_new = std::mem::take(&mut self.is_new);
        match (outcome, self.asked.masks) {
            (Outcome::Token { id, logprob, .. }, masks) => {
                if let Some(seed) = masks {
                    assert_eq!(self.mask, self.tokens.len(), "job {} was not masked", self.number);
                    let allowed = words(seed, self.mask)[id as usize / 32] >> (id % 32) & 1 == 1;
                    assert!(allowed, "job {}: token {id} is not allowed", self.number);
                }
                if let Some(n) = self.asked.logprobs {
                    assert!(logprob <= 0.0, "{logprob}");
                    self.logprobs.push(logprob);
                    self.logprobs.extend(top.of(self.slot, n).iter().map(|(_, logprob)| *logprob));
                }
                self.tokens.push(id);
            }
            (Outcome::Held, None) => assert!(is_new || self.is_done(), "job {} has held", self.number),
            (Outcome::Held, Some(_)) => {
                let has_mask = self.mask == self.tokens.len();
                assert!(!has_mask || is_new || self.is_done(), "job {} has held with a mask", self.number);
            }
            (Outcome::NotFinite, _) => panic!("job {}", self.number),
        }
    }

    fn found(&self) -> &[u32] {
        &self.tokens[self.asked.job.prompt.len()..]
    }

    fn is_done(&self) -> bool {
        let has_ended = self.found().last().is_some_and(|last| self.asked.ends.contains(last));
        has_ended || self.found().len() >= self.asked.job.tokens
    }
}

/// Submits a step, perhaps with rows ahead of the next one, and gives its outcomes to all slots.
fn step(backend: &mut GpuBackend, active: &mut [Active], ahead: bool) {
    Slots::submit(backend, &Work { chunks: &[], between: 0, steps: 1 }).unwrap();
    if ahead {
        let masked = active.iter().any(|active| active.asked.masks.is_some());
        assert_eq!(backend.compute_ahead().unwrap(), masked);
    }
    loop {
        match backend.poll(WAIT).unwrap().expect("a step is in flight") {
            Landed::Step { outcomes, top, .. } => {
                let of = |slot: usize| outcomes.get(slot).copied().unwrap_or_default();
                active.iter_mut().for_each(|active| active.landed(of(active.slot), top));
                return;
            }
            Landed::Chunks { logits, .. } => assert!(logits.is_empty()),
            Landed::Drafts { .. } => panic!("drafts were not asked for"),
        }
    }
}

/// The tokens and log-probabilities of a job alone, by steps that compute their rows themselves.
fn alone(backend: &mut GpuBackend, asked: &Asked) -> (Vec<u32>, Vec<f32>) {
    let mut active = [Active::begin(backend, 0, asked, 0, 0)];
    while !active[0].is_done() {
        active[0].send_mask(backend);
        step(backend, &mut active, false);
    }
    backend.reset();
    (active[0].found().to_vec(), active[0].logprobs.clone())
}

/// Masks come late or not, slots begin, end, are stopped and started again and closed while rows are computed ahead, in
/// several groups of slots.
fn rows_ahead_change_no_token(vulkan_recorder: bool, rounds: usize) {
    const SLOTS: [usize; 5] = [0, 1, 9, 16, 18];
    let Some(mut backend) = backend_of(short, Precision::Fast, vulkan_recorder, EACH * SLOTS.len()) else {
        return;
    };
    let mut jobs: Vec<Asked> = (0..7).map(asked).collect();
    jobs[3].logprobs = Some(3);
    let free = alone(&mut backend, &jobs[4]).0;
    jobs[4].ends = vec![free[2]];
    let expected: Vec<_> = jobs.iter().map(|asked| alone(&mut backend, asked)).collect();
    assert!(expected[4].0.len() <= 3);
    let mut random = Rng::new(17);
    let (mut active, mut places): (Vec<Active>, Vec<usize>) = (Vec::new(), (0..SLOTS.len()).collect());
    let (mut begun, mut ended) = (0, 0);
    while ended < rounds {
        let join = active.is_empty() || random.below(3) == 0;
        if begun < rounds && !places.is_empty() && join {
            let place = places.swap_remove(random.below(places.len()));
            let number = begun % jobs.len();
            active.push(Active::begin(&mut backend, number, &jobs[number], SLOTS[place], place));
            begun += 1;
        }
        for active in &mut active {
            if random.below(3) > 0 {
                active.send_mask(&mut backend);
            }
        }
        step(&mut backend, &mut active, random.below(4) > 0);
        active.retain_mut(|active| {
            // A client goes away, or guesses are verified and the slot decodes again.
            let leaves = random.below(20) == 0;
            if leaves || active.is_done() {
                if !leaves {
                    let (tokens, logprobs) = &expected[active.number];
                    assert_eq!(active.found(), tokens, "job {} in slot {}", active.number, active.slot);
                    assert_eq!(&active.logprobs, logprobs, "job {}", active.number);
                }
                backend.close(active.slot);
                places.push(SLOTS.iter().position(|slot| *slot == active.slot).unwrap());
                ended += 1;
                return false;
            }
            if random.below(8) == 0 {
                backend.stop(active.slot).unwrap();
                // What it sampled last is not in the cache; the row that was computed ahead may have been cleared.
                active.start(&mut backend);
            }
            true
        });
    }
    assert!(expected.windows(2).all(|pair| pair[0].0 != pair[1].0), "texts differ, so that a mix-up shows");
}

#[test]
fn rows_ahead_change_no_token_with_vulkan_commands() {
    rows_ahead_change_no_token(true, 30);
}

#[test]
fn rows_ahead_change_no_token_with_wgpu() {
    rows_ahead_change_no_token(false, 14);
}

/// Logits of a prompt are in the buffer of the first group's rows: what was computed ahead there is computed again.
#[test]
fn logits_of_chunks_do_not_replace_those_of_rows() {
    let Some(mut backend) = fast(EACH * 2) else { return };
    let asked = asked(0);
    let expected = alone(&mut backend, &asked).0;
    let mut active = [Active::begin(&mut backend, 0, &asked, 0, 0)];
    let table: Vec<u32> = (EACH as u32..2 * EACH as u32).collect();
    backend.open(1, CONTEXT).unwrap();
    backend.extend(1, &[&table], CONTEXT).unwrap();
    let tokens = [5, 6, 7, 8];
    while !active[0].is_done() {
        step(&mut backend, &mut active, true);
        for rows in [LogitRows::Last, LogitRows::All] {
            let (kind, logits) = (RowKind::Generated, rows);
            let chunk = Chunk { slot: 1, position: 0, tokens: &tokens, kind, logits, records: None };
            Slots::submit(&mut backend, &Work { chunks: &[chunk], between: 0, steps: 0 }).unwrap();
            assert!(matches!(backend.poll(WAIT).unwrap(), Some(Landed::Chunks { .. })));
        }
        active[0].send_mask(&mut backend);
        step(&mut backend, &mut active, true);
    }
    assert_eq!(active[0].found(), expected);
    assert!(
        matches!(active[0].asked.job.sampler, Sampler { temperature: 0.0, .. }),
        "the first job is greedy"
    );
}
