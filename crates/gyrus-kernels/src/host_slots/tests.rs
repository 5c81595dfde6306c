use std::time::Duration;

use super::*;
use crate::select::Sampler;
use crate::slots::Outcome;

const VOCAB: usize = 70;
/// A token after which the logits are not finite.
const BAD: u32 = 66;

/// The most likely token after token `t` is `t + 1`. It keeps the rows that it computed.
#[derive(Default)]
struct Fake {
    logits: Vec<f32>,
    /// Token and position of each row, batch by batch.
    batches: Vec<Vec<(u32, u32)>>,
}

struct Backend {
    slots: HostSlots,
    fake: Fake,
}

impl HostBackend for Backend {
    fn host_slots(&mut self) -> (&mut HostSlots, &mut dyn HostForward) {
        (&mut self.slots, &mut self.fake)
    }
}

impl HostForward for Fake {
    fn compute(&mut self, batch: &Batch<'_>, rows: &mut [DecodeRow]) -> Result<&[f32], BackendError> {
        if !batch.is_sound(VOCAB, &[8, 8]) {
            return Err(BackendError::UnsoundBatch);
        }
        self.batches.push(batch.tokens.iter().copied().zip(batch.positions.iter().copied()).collect());
        self.logits = vec![0.0; batch.logits.len() * VOCAB];
        for (&row, logits) in batch.logits.iter().zip(self.logits.chunks_exact_mut(VOCAB)) {
            let token = batch.tokens[row as usize];
            logits[(token as usize + 1) % VOCAB] = if token == BAD { f32::NAN } else { 1.0 };
        }
        rows.iter_mut().for_each(|row| row.sample(&self.logits, VOCAB, crate::LogSoftmax::new));
        Ok(&self.logits)
    }

    fn copy_record(&mut self, _from: Option<usize>, _to: usize) {}
}

fn backend() -> Backend {
    Backend { slots: HostSlots::new(VOCAB, &[8, 8], None), fake: Fake::default() }
}

/// Opens a slot with blocks of its own in both groups.
fn open(backend: &mut Backend, slot: usize, blocks: &[u32], limit: u32) {
    backend.open(slot, 100).unwrap();
    backend.extend(slot, &[blocks, blocks], limit).unwrap();
}

fn decode<'a>(tokens: &'a [u32], limit: u32, sampler: &'a Sampler) -> Decode<'a> {
    Decode { tokens, limit, sampler, ends: &[], logprobs: None, masked: false, records: [0; 2] }
}

fn start(backend: &mut Backend, slot: usize, tokens: &[u32], limit: u32) {
    backend.start(slot, &decode(tokens, limit, &Sampler::default())).unwrap();
}

fn chunk(slot: usize, position: u32, tokens: &[u32], logits: LogitRows) -> Chunk<'_> {
    Chunk { slot, position, tokens, kind: RowKind::Prompt, logits, records: None }
}

fn steps(steps: usize) -> Work<'static> {
    Work { chunks: &[], between: 0, steps }
}

/// What the next step did with a slot: its token, `None` if it held.
fn landed(backend: &mut Backend, slot: usize) -> Option<u32> {
    match backend.poll(Duration::ZERO).unwrap() {
        Some(Landed::Step { outcomes, .. }) => match outcomes[slot] {
            Outcome::Token { id, logprob } => {
                assert!(logprob.is_nan());
                Some(id)
            }
            Outcome::Held => None,
            Outcome::NotFinite => panic!("slot {slot} is not finite"),
        },
        other => panic!("a step, not {other:?}"),
    }
}

#[test]
fn chunks_and_the_first_step_are_one_batch() {
    let mut backend = backend();
    // Rows are in the order of the sequences' first blocks.
    open(&mut backend, 3, &[1, 2], 10);
    open(&mut backend, 1, &[3, 4], 10);
    start(&mut backend, 1, &[40, 41], 10);
    start(&mut backend, 3, &[5, 6, 7, 8], 10);
    // Slot 9 is open and holds.
    open(&mut backend, 9, &[5], 1);
    start(&mut backend, 9, &[50], 1);
    let chunks = [chunk(3, 0, &[5, 6], LogitRows::All), chunk(3, 2, &[7], LogitRows::None)];
    assert_eq!(backend.submit(&Work { chunks: &chunks, between: 0, steps: 2 }).unwrap(), 1);
    assert_eq!(backend.fake.batches, [vec![(5, 0), (6, 1), (7, 2), (8, 3), (41, 1)], vec![(9, 4), (42, 2)]]);
    let Some(Landed::Chunks { submission: 1, logits }) = backend.poll(Duration::ZERO).unwrap() else {
        panic!("chunks land first");
    };
    assert_eq!((logits.len(), logits[6], logits[VOCAB + 7]), (2 * VOCAB, 1.0, 1.0));
    assert_eq!(landed(&mut backend, 1), Some(42));
    assert_eq!(landed(&mut backend, 3), Some(10));
    assert!(backend.poll(Duration::ZERO).unwrap().is_none());
}

#[test]
fn slots_hold_at_limits_ends_and_masks() {
    let mut backend = backend();
    open(&mut backend, 0, &[0], 4);
    start(&mut backend, 0, &[1, 2], 4);
    backend.submit(&steps(4)).unwrap();
    let tokens: Vec<Option<u32>> = (0..4).map(|_| landed(&mut backend, 0)).collect();
    assert_eq!(tokens, [Some(3), Some(4), None, None]);
    assert_eq!(backend.fake.batches.len(), 2, "steps that hold are not computed");
    // Blocks come, and an end token ends it.
    backend.extend(0, &[&[0, 1], &[0, 1]], 40).unwrap();
    backend.submit(&steps(1)).unwrap();
    assert_eq!(landed(&mut backend, 0), Some(5));
    let sampler = Sampler::default();
    let ended = Decode { ends: &[9, 7], ..decode(&[1, 2, 3, 4, 5], 40, &sampler) };
    backend.start(0, &ended).unwrap();
    backend.submit(&steps(4)).unwrap();
    let tokens: Vec<Option<u32>> = (0..4).map(|_| landed(&mut backend, 0)).collect();
    assert_eq!(tokens, [Some(6), Some(7), None, None]);
    // A masked slot needs a mask for every position.
    let masked = Decode { masked: true, ..decode(&[1, 2], 40, &sampler) };
    backend.start(0, &masked).unwrap();
    backend.mask(0, 2, &[0, 0, 1 << 2]).unwrap();
    backend.submit(&steps(2)).unwrap();
    assert_eq!([landed(&mut backend, 0), landed(&mut backend, 0)], [Some(66), None]);
    backend.mask(0, 4, &[u32::MAX; 3]).unwrap();
    backend.submit(&steps(1)).unwrap();
    assert_eq!(landed(&mut backend, 0), None, "the mask is for another position");
    // A closed slot holds, and can be opened again.
    start(&mut backend, 0, &[1, 2], 40);
    backend.close(0);
    backend.submit(&steps(1)).unwrap();
    assert_eq!(landed(&mut backend, 0), None);
    open(&mut backend, 0, &[7], 32);
    start(&mut backend, 0, &[20], 32);
    backend.submit(&steps(1)).unwrap();
    assert_eq!(landed(&mut backend, 0), Some(21));
}

#[test]
fn a_row_that_is_not_finite_ends_its_slot_alone() {
    let mut backend = backend();
    open(&mut backend, 0, &[0], 20);
    open(&mut backend, 1, &[1], 20);
    open(&mut backend, 2, &[2], 20);
    start(&mut backend, 0, &[BAD - 1], 20);
    start(&mut backend, 1, &[1], 20);
    backend.submit(&steps(3)).unwrap();
    for expected in [[Outcome::Token { id: BAD, logprob: 0.0 }; 1], [Outcome::NotFinite], [Outcome::Held]] {
        let Some(Landed::Step { outcomes, .. }) = backend.poll(Duration::ZERO).unwrap() else {
            panic!("a step");
        };
        match (outcomes[0], expected[0]) {
            (Outcome::Token { id, .. }, Outcome::Token { id: expected, .. }) => assert_eq!(id, expected),
            (outcome, expected) => assert_eq!(outcome, expected),
        }
        assert!(matches!(outcomes[1], Outcome::Token { .. }));
    }
    // Logits that a chunk asks for are the caller's to check; the step after them is not affected.
    let chunks = [chunk(2, 0, &[1, BAD], LogitRows::None), chunk(2, 2, &[BAD, 3], LogitRows::All)];
    backend.submit(&Work { chunks: &chunks, between: 0, steps: 1 }).unwrap();
    match backend.poll(Duration::ZERO).unwrap() {
        Some(Landed::Chunks { logits, .. }) => assert!(logits.iter().any(|logit| !logit.is_finite())),
        other => panic!("{other:?}"),
    }
    assert_eq!(landed(&mut backend, 1), Some(5));
}

#[test]
fn mistakes_leave_the_slots_as_they_were() {
    let mut backend = backend();
    open(&mut backend, 0, &[0], 30);
    open(&mut backend, 1, &[1, 2], 40);
    start(&mut backend, 0, &[10], 30);
    let sampler = Sampler::default();
    let unsound = |result: Result<(), BackendError>| {
        assert!(matches!(result, Err(BackendError::UnsoundBatch)), "{result:?}");
    };
    unsound(backend.open(0, 10));
    unsound(backend.open(128, 10));
    unsound(backend.extend(5, &[&[0], &[0]], 1));
    unsound(backend.extend(0, &[&[0]], 1));
    unsound(backend.extend(0, &[&[0], &[0, 1]], 1));
    unsound(backend.extend(0, &[&[0], &[8]], 1));
    unsound(backend.extend(0, &[&[0], &[0]], 33));
    unsound(backend.start(5, &decode(&[1], 1, &sampler)));
    unsound(backend.start(0, &decode(&[], 1, &sampler)));
    unsound(backend.start(0, &decode(&[VOCAB as u32], 1, &sampler)));
    unsound(backend.start(0, &decode(&[1], 33, &sampler)));
    unsound(backend.mask(0, 1, &[1, 0, 0]));
    backend.start(1, &Decode { masked: true, ..decode(&[1], 40, &sampler) }).unwrap();
    unsound(backend.mask(1, 1, &[1, 0]));
    unsound(backend.mask(1, 1, &[0, 0, 1 << 31]));
    let long = vec![1; 33];
    for chunks in [
        &[chunk(5, 0, &[1], LogitRows::None)][..],
        &[chunk(1, 0, &[], LogitRows::None)],
        &[chunk(1, 0, &[VOCAB as u32], LogitRows::None)],
        &[chunk(1, 32, &long, LogitRows::None)],
        &[chunk(1, u32::MAX, &[1], LogitRows::None)],
        &[chunk(1, 0, &[1], LogitRows::None), chunk(1, 0, &[1], LogitRows::None)],
        // The first row that slot 0 decodes, and its third.
        &[chunk(0, 0, &[1], LogitRows::None)],
        &[chunk(0, 2, &[1], LogitRows::None)],
    ] {
        unsound(backend.submit(&Work { chunks, between: 0, steps: 4 }).map(drop));
    }
    unsound(backend.submit(&steps(5)).map(drop));
    assert!(backend.fake.batches.is_empty());
    assert!(backend.poll(Duration::ZERO).unwrap().is_none());
    assert_eq!(backend.submit(&steps(3)).unwrap(), 1);
    unsound(backend.submit(&steps(2)).map(drop));
    assert_eq!(backend.submit(&steps(1)).unwrap(), 2);
    assert_eq!(
        (0..4).map(|_| landed(&mut backend, 0)).collect::<Vec<_>>(),
        (11..15).map(Some).collect::<Vec<_>>()
    );
    backend.submit(&steps(1)).unwrap();
    backend.reset();
    assert!(backend.poll(Duration::ZERO).unwrap().is_none());
    backend.open(0, 10).unwrap();
}
