//! Jobs by decode steps and by drafts, which must give the same.

use std::time::Duration;

use gyrus_kernels::{
    Backend, Chunk, Decode, Draft, KV_BLOCK, Landed, LogitRows, MAX_TOP, Outcome, RowKind, Sampler, Slots,
    TopTokens, Work,
};
use gyrus_testkit::Rng;

pub(crate) const LENGTH: u32 = 96;
const WAIT: Duration = Duration::from_secs(60);

/// A completion to generate.
#[derive(Debug, Clone)]
pub(crate) struct Job {
    prompt: Vec<u32>,
    sampler: Sampler,
    tokens: usize,
    logprobs: Option<usize>,
    masked: bool,
}

/// A token with its log-probability and alternatives, by their bits.
type Emitted = (u32, u32, Vec<(u32, u32)>);

/// Greedy, sampled and penalised jobs, with and without masks and log-probabilities.
pub(crate) fn jobs(count: usize, vocab: usize, tokens: usize, rng: &mut Rng) -> Vec<Job> {
    let samplers = [
        Sampler::default(),
        Sampler { temperature: 1.3, top_k: 40, top_p: 0.9, ..Sampler::default() },
        Sampler { repetition_penalty: 1.3, penalty_window: 5, ..Sampler::default() },
        Sampler { temperature: 0.9, frequency_penalty: 0.4, penalty_window: u32::MAX, ..Sampler::default() },
    ];
    let job = |n: usize| Job {
        prompt: (0..1 + rng.below(50)).map(|_| rng.below(vocab) as u32).collect(),
        sampler: Sampler { seed: rng.u64(), ..samplers[n % samplers.len()].clone() },
        tokens,
        logprobs: [None, Some(0), Some(3), Some(MAX_TOP)][n / 2 % 4],
        masked: n % 3 == 2,
    };
    (0..count).map(job).collect()
}

fn allowed(position: usize, vocab: usize) -> Vec<u32> {
    let mut words = vec![0; vocab.div_ceil(32)];
    let ids = (0..vocab).filter(|id| (id + position).is_multiple_of(3));
    ids.for_each(|id| words[id / 32] |= 1 << (id % 32));
    words
}

fn emitted(outcome: Outcome, top: &[(u32, f32)]) -> Emitted {
    match outcome {
        Outcome::Token { id, logprob, .. } => {
            (id, logprob.to_bits(), top.iter().map(|(id, value)| (*id, value.to_bits())).collect())
        }
        other => panic!("{other:?}"),
    }
}

/// Opens a slot with blocks of its own and reads all tokens of the prompt but the last.
fn open(slots: &mut dyn Slots, slot: usize, job: &Job) {
    let each = LENGTH.div_ceil(KV_BLOCK as u32);
    let table: Vec<u32> = (0..each).map(|block| slot as u32 * each + block).collect();
    slots.open(slot, LENGTH).unwrap();
    slots.extend(slot, &[&table], LENGTH).unwrap();
    if let (_, tokens @ [_, ..]) = job.prompt.split_last().unwrap() {
        let (kind, logits) = (RowKind::Prompt, LogitRows::None);
        let chunk = Chunk { slot, position: 0, tokens, kind, logits, records: None };
        slots.submit(&Work { chunks: &[chunk], between: 0, steps: 0 }).unwrap();
        assert!(matches!(slots.poll(WAIT).unwrap(), Some(Landed::Chunks { .. })));
    }
}

fn start(slots: &mut dyn Slots, slot: usize, job: &Job, tokens: &[u32]) {
    let Job { sampler, logprobs, masked, .. } = job;
    let (logprobs, masked) = (*logprobs, *masked);
    let decode = Decode { tokens, limit: LENGTH, sampler, ends: &[], logprobs, masked, records: [0; 2] };
    slots.start(slot, &decode).unwrap();
}

/// The next step of a slot that decodes, alone.
fn step(slots: &mut dyn Slots, slot: usize, job: &Job, tokens: &[u32], vocab: usize) -> Emitted {
    if job.masked {
        slots.mask(slot, tokens.len() as u32, &allowed(tokens.len(), vocab)).unwrap();
    }
    slots.submit(&Work { chunks: &[], between: 0, steps: 1 }).unwrap();
    match slots.poll(WAIT).unwrap() {
        Some(Landed::Step { outcomes, top, .. }) => {
            emitted(outcomes[slot], top.of(slot, job.logprobs.unwrap_or(0)))
        }
        other => panic!("a step, not {other:?}"),
    }
}

/// What a job generates by steps.
pub(crate) fn by_steps(backend: &mut dyn Backend, job: &Job) -> Vec<Emitted> {
    let vocab = backend.plan().vocab;
    let slots = backend.slots();
    open(slots, 0, job);
    let mut tokens = job.prompt.clone();
    start(slots, 0, job, &tokens);
    let mut found = Vec::new();
    while found.len() < job.tokens {
        found.push(step(slots, 0, job, &tokens, vocab));
        tokens.push(found[found.len() - 1].0);
    }
    slots.reset();
    found
}

/// What two jobs generate by drafts of random lengths, of which some guesses are wrong, in between by steps, while a third
/// slot decodes beside them.
pub(crate) fn by_drafts(
    backend: &mut dyn Backend,
    jobs: [&Job; 3],
    expected: [&[Emitted]; 3],
    rng: &mut Rng,
) -> [usize; 2] {
    let (vocab, rows) = (backend.plan().vocab, backend.slots().limits().draft_rows);
    let slots = backend.slots();
    let places = [1, 17, 4];
    jobs.iter().zip(places).for_each(|(job, slot)| open(slots, slot, job));
    let mut tokens = jobs.map(|job| job.prompt.clone());
    let mut found: [Vec<Emitted>; 3] = Default::default();
    start(slots, places[2], jobs[2], &tokens[2]);
    let (mut drafted, mut right) = (0, 0);
    while found[0].len() < jobs[0].tokens || found[1].len() < jobs[1].tokens {
        // A job by a step now and then, after which its slot is stopped.
        let stepped = rng.below(2);
        if rng.below(4) == 0 && found[stepped].len() < jobs[stepped].tokens && !jobs[2].masked {
            start(slots, places[stepped], jobs[stepped], &tokens[stepped]);
            let one = step(slots, places[stepped], jobs[stepped], &tokens[stepped], vocab);
            tokens[stepped].push(one.0);
            found[stepped].push(one);
            slots.stop(places[stepped]).unwrap();
            // The third went on, too.
            let (known, all) = (found[2].len(), expected[2]);
            if known < all.len() {
                tokens[2].push(all[known].0);
                found[2].push(all[known].clone());
            }
            continue;
        }
        let mut in_flight = Vec::new();
        let mut used = 0;
        for n in 0..2 {
            let (job, known) = (jobs[n], found[n].len());
            let most = (job.tokens - known).min((rows - used).min(rows / 2 + n * rows / 2));
            if most < 1 || (n == 0 && rng.below(5) == 0) {
                continue;
            }
            let guesses = rng.below(most);
            let first = tokens[n].len();
            for i in 0..guesses {
                let token = expected[n][known + i].0;
                tokens[n].push(if rng.below(5) == 0 { (token + 1) % vocab as u32 } else { token });
            }
            let masks: Vec<u32> = match job.masked {
                true => (first..=first + guesses).flat_map(|position| allowed(position, vocab)).collect(),
                false => Vec::new(),
            };
            let Job { sampler, logprobs, .. } = job;
            let draft = Draft { tokens: &tokens[n], guesses, sampler, logprobs: *logprobs, masks: &masks };
            slots.draft(places[n], &draft).unwrap();
            used += guesses + 1;
            in_flight.push((n, tokens[n].split_off(first)));
        }
        if in_flight.is_empty() {
            continue;
        }
        let with_step = found[2].len() < jobs[2].tokens;
        if with_step && jobs[2].masked {
            let position = tokens[2].len();
            slots.mask(places[2], position as u32, &allowed(position, vocab)).unwrap();
        }
        slots.submit(&Work { chunks: &[], between: 0, steps: usize::from(with_step) }).unwrap();
        let Some(Landed::Drafts { outcomes, top, .. }) = slots.poll(WAIT).unwrap() else {
            panic!("drafts land first")
        };
        let (outcomes, top) = (outcomes.to_vec(), top.entries.to_vec());
        let mut row = 0;
        for (n, guesses) in in_flight {
            let top = TopTokens { entries: &top };
            for i in 0..=guesses.len() {
                let one = emitted(outcomes[row + i], top.of(row + i, jobs[n].logprobs.unwrap_or(0)));
                tokens[n].push(one.0);
                let is_right = guesses.get(i) == Some(&one.0);
                found[n].push(one);
                right += usize::from(is_right);
                if !is_right {
                    break;
                }
            }
            drafted += guesses.len();
            row += guesses.len() + 1;
        }
        assert_eq!(row, outcomes.len());
        if with_step {
            let Some(Landed::Step { outcomes, top, .. }) = slots.poll(WAIT).unwrap() else {
                panic!("the step lands behind them")
            };
            let one = emitted(outcomes[places[2]], top.of(places[2], jobs[2].logprobs.unwrap_or(0)));
            tokens[2].push(one.0);
            found[2].push(one);
        }
    }
    for (n, found) in found.iter().enumerate() {
        assert_eq!(found[..], expected[n][..found.len()], "job {n} of {jobs:?}");
    }
    slots.reset();
    [drafted, right]
}

/// Compares jobs of `tokens` tokens by steps and by drafts.
pub(crate) fn compare(backend: &mut dyn Backend, count: usize, tokens: usize, rng: &mut Rng) {
    let jobs = jobs(count, backend.plan().vocab, tokens, rng);
    let expected: Vec<Vec<Emitted>> = jobs.iter().map(|job| by_steps(backend, job)).collect();
    let mut all = [0, 0];
    for first in 0..count {
        let three = [0, 5, 7].map(|after| (first + after) % count);
        let (of_jobs, of_steps) = (three.map(|n| &jobs[n]), three.map(|n| &expected[n][..]));
        let [drafted, right] = by_drafts(backend, of_jobs, of_steps, rng);
        all = [all[0] + drafted, all[1] + right];
    }
    // Otherwise the drafts would not test much.
    assert!(all[1] > count && all[0] - all[1] > count, "{} of {} guesses were right", all[1], all[0]);
}
