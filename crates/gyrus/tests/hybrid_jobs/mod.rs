//! A hybrid of attention and Gated DeltaNet on a backend: logits in chunks, and sequences in slots with random chunks,
//! holds, steps in flight, and moves to another slot from a copy of their state.
#![allow(dead_code, reason = "tests use some of it")]

use std::ops::Range;
use std::time::Duration;

use gyrus_kernels::{
    Backend, Batch, Chunk, Decode, KV_BLOCK, KvSize, Landed, LogitRows, Outcome, Plan, Records, RowKind,
    Sampler, Slots, Work,
};
use gyrus_testkit::Rng;

/// Positions that a sequence may reach.
pub(crate) const LENGTH: usize = 96;
/// Sequences at once.
pub(crate) const SEQUENCES: usize = 5;
/// Schedules that have the same prompts.
const SAME_PROMPTS: usize = 8;
/// Blocks of a sequence.
const EACH: usize = LENGTH / KV_BLOCK;

/// The size of a cache for all sequences. Each has two records and one for a copy.
pub(crate) fn size(plan: &Plan) -> KvSize {
    let size = KvSize::full(&plan.kv, SEQUENCES * LENGTH).with_records(3 * SEQUENCES);
    KvSize { positions: LENGTH, ..size }
}

/// Logits of a range of rows, all of one sequence.
fn rows(
    backend: &mut dyn Backend,
    ids: &[u32],
    range: Range<usize>,
    kind: RowKind,
    records: Records,
) -> Vec<f32> {
    let count = range.len();
    let batch = Batch {
        tokens: &ids[range.clone()],
        positions: &range.map(|p| p as u32).collect::<Vec<_>>(),
        sequences: &vec![0; count],
        kind,
        logits: &(0..count as u32).collect::<Vec<_>>(),
        tables: &[&[2, 0, 3]],
        lengths: &[LENGTH as u32],
        records: &[records],
        inputs: Default::default(),
    };
    backend.forward(&batch).unwrap().to_vec()
}

/// Logits of all rows in chunks of this many. The state moves between records.
pub(crate) fn chunked(backend: &mut dyn Backend, ids: &[u32], kind: RowKind, chunk: usize) -> Vec<f32> {
    let (mut all, mut from) = (Vec::new(), None);
    for (i, first) in (0..ids.len()).step_by(chunk).enumerate() {
        let (to, end) = ([0, 2, 2, 1][i % 4], ids.len().min(first + chunk));
        all.extend(rows(backend, ids, first..end, kind, Records { from, to }));
        from = Some(to);
    }
    all
}

/// A sequence in a slot.
struct Running {
    sequence: usize,
    slot: usize,
    tokens: Vec<u32>,
    /// Tokens whose rows are those of a prompt, and of all in the end.
    read: usize,
    total: usize,
    /// Positions that are in the cache and in the state.
    computed: usize,
    /// The record that was written last, if one was.
    record: Option<u32>,
    started: bool,
    limit: usize,
}

impl Running {
    fn records(&self) -> [u32; 2] {
        [3 * self.sequence as u32, 3 * self.sequence as u32 + 1]
    }

    /// The record that has the state before a position, of a slot that decodes.
    fn record_at(&self, position: usize, both: bool) -> u32 {
        self.records()[if both { position % 2 } else { 0 }]
    }
}

/// What is random in a schedule.
pub(crate) struct Schedule<'r> {
    pub(crate) rng: &'r mut Rng,
    /// Whether sequences move to other slots from a copy of their state.
    pub(crate) moves: bool,
    pub(crate) together: usize,
}

/// Generates tokens of sequences, each from a prompt of its own up to a length of its own.
pub(crate) fn generate(backend: &mut dyn Backend, prompts: &[Prompt], on: Schedule<'_>) -> Vec<Vec<u32>> {
    let Schedule { rng, moves, together } = on;
    let groups = backend.plan().kv.len();
    let slots = backend.slots();
    let (asynchronous, most_steps) = (slots.limits().asynchronous, slots.limits().steps.min(4));
    let mut results: Vec<Vec<u32>> = vec![Vec::new(); prompts.len()];
    let mut waiting: Vec<usize> = (0..prompts.len()).rev().collect();
    let mut running: Vec<Running> = Vec::new();
    let mut in_flight = 0;
    let sampler = Sampler { temperature: 0.8, seed: 3, ..Sampler::default() };
    while !(waiting.is_empty() && running.is_empty()) {
        while running.len() < together && !waiting.is_empty() {
            let sequence = waiting.pop().unwrap();
            let slot = free_slot(&running, rng);
            slots.open(slot, LENGTH as u32).unwrap();
            let Prompt { tokens, read, total } = prompts[sequence].clone();
            let (computed, record, started, limit) = (0, None, false, 0);
            running.push(Running { sequence, slot, tokens, read, total, computed, record, started, limit });
        }
        let mut planned: Vec<(usize, usize, usize, Records)> = Vec::new();
        for (n, one) in running.iter_mut().enumerate() {
            one.limit = one.limit.max((one.tokens.len() + rng.below(7)).min(one.total));
            let table: Vec<u32> =
                (0..EACH as u32).map(|block| block + (one.sequence % SEQUENCES * EACH) as u32).collect();
            slots.extend(one.slot, &vec![&table[..]; groups], one.limit as u32).unwrap();
            let left = one.tokens.len() - 1 - one.computed.min(one.tokens.len() - 1);
            if !one.started && left > 0 && rng.below(4) > 0 {
                let of_kind = if one.computed < one.read { one.read - one.computed } else { left };
                let rows = of_kind.min(1 + rng.below(40));
                // The last chunk leaves the state where the first step reads it.
                let to = one.record_at(one.computed + rows, asynchronous);
                planned.push((n, one.computed, rows, Records { from: one.record, to }));
                (one.computed, one.record) = (one.computed + rows, Some(to));
            }
            if !one.started && one.computed + 1 >= one.tokens.len() && rng.below(3) > 0 {
                let [even, odd] = one.records();
                let records = if asynchronous { [even, odd] } else { [even, even] };
                let (tokens, limit) = (&one.tokens[..], one.limit as u32);
                let (ends, logprobs, masked, sampler) = (&[][..], None, false, &sampler);
                slots
                    .start(one.slot, &Decode { tokens, limit, sampler, ends, logprobs, masked, records })
                    .unwrap();
                if one.record.is_none() {
                    slots.copy_state(None, one.record_at(0, asynchronous)).unwrap();
                }
                one.started = true;
            }
        }
        let texts: Vec<Vec<u32>> = running.iter().map(|one| one.tokens.clone()).collect();
        let chunks: Vec<Chunk<'_>> = planned
            .iter()
            .map(|&(n, position, rows, records)| Chunk {
                slot: running[n].slot,
                position: position as u32,
                tokens: &texts[n][position..position + rows],
                // A row has the same kind whatever its chunk.
                kind: if position < running[n].read { RowKind::Prompt } else { RowKind::Generated },
                logits: if position % 3 == 2 { LogitRows::Last } else { LogitRows::None },
                records: Some(records),
            })
            .collect();
        let between = if chunks.is_empty() { 0 } else { rng.below(3) };
        let steps = rng.below(most_steps + 1);
        let fits = in_flight + between + steps <= slots.limits().steps;
        let (between, steps) = if fits { (between, steps) } else { (0, 0) };
        slots.submit(&Work { chunks: &chunks, between, steps }).unwrap();
        in_flight += between + steps;
        drop(chunks);
        for (n, .., records) in planned {
            take_checkpoint(slots, &mut running[n], records.to, rng);
        }
        // Some steps stay in flight.
        while !asynchronous || in_flight > 3 || rng.below(3) == 0 {
            match slots.poll(Duration::from_secs(60)).unwrap() {
                None => break,
                Some(Landed::Chunks { .. }) => {}
                Some(Landed::Drafts { .. }) => panic!("a plan with a state has no drafts"),
                Some(Landed::Step { outcomes, .. }) => {
                    in_flight -= 1;
                    land(&mut running, outcomes);
                }
            }
        }
        if moves && rng.below(4) == 0 {
            // What is in flight may still advance slots.
            while let Some(landed) = slots.poll(Duration::from_secs(60)).unwrap() {
                if let Landed::Step { outcomes, .. } = landed {
                    in_flight -= 1;
                    land(&mut running, outcomes);
                }
            }
            let n = rng.below(running.len());
            move_to_other_slot(slots, &mut running, n, asynchronous, rng);
        }
        running.retain(|one| {
            let done = one.tokens.len() >= one.total;
            if done {
                results[one.sequence] = one.tokens.clone();
                slots.close(one.slot);
            }
            !done
        });
    }
    while slots.poll(Duration::from_secs(60)).unwrap().is_some() {}
    results
}

fn free_slot(running: &[Running], rng: &mut Rng) -> usize {
    let free: Vec<usize> = (0..40).filter(|slot| running.iter().all(|one| one.slot != *slot)).collect();
    *rng.pick(&free)
}

fn land(running: &mut [Running], outcomes: &[Outcome]) {
    for one in running.iter_mut().filter(|one| one.started) {
        match outcomes.get(one.slot).copied().unwrap_or_default() {
            Outcome::Held => {}
            Outcome::NotFinite => panic!("slot {} is not finite", one.slot),
            Outcome::Token { id, .. } => {
                assert!(one.tokens.len() < one.total, "beyond the limit");
                one.tokens.push(id);
                one.computed = one.tokens.len() - 1;
            }
        }
    }
}

/// Sometimes copies the state that a chunk leaves, before or after it is computed, and continues with the copy.
fn take_checkpoint(slots: &mut dyn Slots, one: &mut Running, record: u32, rng: &mut Rng) {
    let copy = 3 * one.sequence as u32 + 2;
    // A sequence that decodes has changed its state, or continues without chunks.
    if one.started || one.computed + 1 >= one.tokens.len() || rng.below(2) == 0 {
        return;
    }
    slots.copy_state(Some(record), copy).unwrap();
    one.record = Some(copy);
    if rng.below(3) == 0 {
        // The record may be used for something else.
        slots.copy_state(None, record).unwrap();
    }
}

/// Copies a sequence's state, closes its slot, and continues in another from the copy.
fn move_to_other_slot(slots: &mut dyn Slots, running: &mut [Running], n: usize, both: bool, rng: &mut Rng) {
    let slot = free_slot(running, rng);
    let one = &mut running[n];
    let current = match one.started {
        true => Some(one.record_at(one.tokens.len() - 1, both)),
        false => one.record,
    };
    let copy = 3 * one.sequence as u32 + 2;
    if let Some(current) = current {
        slots.copy_state(Some(current), copy).unwrap();
        // What the old records hold does not matter any more.
        for other in one.records() {
            slots.copy_state(None, other).unwrap();
        }
        let to = one.record_at(one.tokens.len() - 1, both);
        slots.copy_state(Some(copy), to).unwrap();
        one.record = Some(copy);
    }
    slots.close(one.slot);
    slots.open(slot, LENGTH as u32).unwrap();
    (one.slot, one.started) = (slot, false);
}

/// A sequence to generate.
#[derive(Debug, Clone)]
pub(crate) struct Prompt {
    tokens: Vec<u32>,
    /// The first tokens, whose rows are those of a prompt. Later ones are computed as generated rows.
    read: usize,
    /// Tokens in the end.
    total: usize,
}

/// Random prompts.
fn prompts(vocab: usize, rng: &mut Rng) -> Vec<Prompt> {
    (0..SEQUENCES)
        .map(|_| {
            let tokens: Vec<u32> = (0..1 + rng.below(50)).map(|_| rng.below(vocab) as u32).collect();
            let total = tokens.len() + 1 + rng.below(40);
            Prompt { read: rng.below(tokens.len()), tokens, total }
        })
        .collect()
}

/// Random schedules generate what each sequence does alone. Each schedule has a seed of its own.
pub(crate) fn check_schedules(backend: &mut dyn Backend, seeds: Range<usize>) {
    let vocab = backend.plan().vocab;
    let mut known: Option<(usize, Vec<Prompt>, Vec<Vec<u32>>)> = None;
    for seed in seeds {
        let set = seed / SAME_PROMPTS;
        let (prompts, alone) = match known.take().filter(|(of, ..)| *of == set) {
            Some((_, prompts, alone)) => (prompts, alone),
            None => {
                let prompts = prompts(vocab, &mut Rng::new(17 + set as u64));
                let alone = prompts.iter().map(|one| {
                    let on = Schedule { rng: &mut Rng::new(1), moves: false, together: 1 };
                    generate(backend, std::slice::from_ref(one), on).remove(0)
                });
                let alone = alone.collect();
                (prompts, alone)
            }
        };
        let rng = &mut Rng::new(seed as u64);
        let on = Schedule { moves: rng.below(2) == 0, rng, together: SEQUENCES };
        assert_eq!(generate(backend, &prompts, on), alone, "schedule {seed}");
        known = Some((set, prompts, alone));
    }
}
