use std::time::Duration;

use super::*;
use crate::sampler::Sampler;
use crate::slots::{Chunk, LogitRows, Outcome, RowKind};

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
        if !batch.is_sound(VOCAB, &[8, 8], &Demands::of_decoder(2)) {
            return Err(BackendError::UnsoundBatch);
        }
        self.batches.push(batch.tokens.iter().copied().zip(batch.positions.iter().copied()).collect());
        self.logits = vec![0.0; batch.logits.len() * VOCAB];
        for (&row, logits) in batch.logits.iter().zip(self.logits.chunks_exact_mut(VOCAB)) {
            let token = batch.tokens[row as usize];
            logits[(token as usize + 1) % VOCAB] = if token == BAD { f32::NAN } else { 1.0 };
        }
        rows.iter_mut().for_each(|row| row.sample(&self.logits, VOCAB, crate::LogSoftmax::with_top));
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
            Outcome::Token { id, logprob, .. } => {
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
    for expected in
        [[Outcome::Token { id: BAD, logprob: 0.0, mu: 0.0 }; 1], [Outcome::NotFinite], [Outcome::Held]]
    {
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
    unsound(backend.submit(&steps(HOST_LIMITS.steps + 1)).map(drop));
    assert!(backend.fake.batches.is_empty());
    assert!(backend.poll(Duration::ZERO).unwrap().is_none());
    assert_eq!(backend.submit(&steps(3)).unwrap(), 1);
    unsound(backend.submit(&steps(HOST_LIMITS.steps - 2)).map(drop));
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

/// A submission with two steps between its chunks of slot 2 while slot 0 decodes, and one after them.
fn split(backend: &mut Backend, tokens: &[u32]) {
    open(backend, 0, &[0], 30);
    start(backend, 0, &[1, 2], 30);
    backend.submit(&steps(1)).unwrap();
    assert_eq!(landed(backend, 0), Some(3));
    open(backend, 2, &[1], 0);
    let chunks = [chunk(2, 0, tokens, LogitRows::Last)];
    assert_eq!(backend.submit(&Work { chunks: &chunks, between: 2, steps: 1 }).unwrap(), 2);
}

fn step(backend: &mut Backend) -> [Option<u32>; 3] {
    match backend.poll(Duration::from_secs(1)).unwrap() {
        Some(Landed::Step { outcomes, .. }) => [0, 1, 2].map(|slot| match outcomes[slot] {
            Outcome::Token { id, .. } => Some(id),
            _ => None,
        }),
        other => panic!("a step, not {other:?}"),
    }
}

#[test]
fn steps_between_chunks_land_before_them_one_with_each_poll() {
    let mut backend = backend();
    split(&mut backend, &[7, 8, 9]);
    assert!(backend.poll(Duration::ZERO).unwrap().is_none(), "nothing is computed without a wait");
    assert_eq!(step(&mut backend), [Some(4), None, None]);
    // A slot that is started meanwhile takes part in later submissions only.
    open(&mut backend, 1, &[2], 30);
    start(&mut backend, 1, &[20, 21], 30);
    assert_eq!(step(&mut backend), [Some(5), None, None]);
    let Some(Landed::Chunks { submission: 2, logits }) = backend.poll(Duration::from_secs(1)).unwrap() else {
        panic!("chunks land after the steps between them");
    };
    assert_eq!((logits.len(), logits[10]), (VOCAB, 1.0));
    assert_eq!(step(&mut backend), [Some(6), None, None]);
    assert!(backend.poll(Duration::from_secs(1)).unwrap().is_none());
    backend.submit(&steps(1)).unwrap();
    assert_eq!(step(&mut backend), [Some(7), Some(22), None]);
}

/// A backend that ends parts by their time may need fewer of them than there are steps between.
#[test]
fn chunks_with_a_gap_land_when_they_are_complete() {
    let mut backend = backend();
    // This forward pass takes less time than any gap.
    backend.set_gap(Some(Duration::from_secs(1)));
    split(&mut backend, &[7, 8, 9]);
    let Some(Landed::Chunks { submission: 2, logits }) = backend.poll(Duration::from_secs(1)).unwrap() else {
        panic!("no part was left");
    };
    assert_eq!((logits.len(), logits[10]), (VOCAB, 1.0));
    assert_eq!(step(&mut backend), [Some(4), None, None]);
    assert!(backend.poll(Duration::from_secs(1)).unwrap().is_none());
    backend.submit(&steps(1)).unwrap();
    assert_eq!(step(&mut backend), [Some(5), None, None]);
}

#[test]
fn chunks_are_abandoned_when_their_slots_are_closed() {
    let mut backend = backend();
    split(&mut backend, &[7, 8, 9]);
    assert_eq!(step(&mut backend), [Some(4), None, None]);
    let computed = backend.fake.batches.len();
    backend.close(2);
    // Its block is given to another, which the chunks must not write to.
    backend.extend(0, &[&[0, 1], &[0, 1]], 40).unwrap();
    assert_eq!(step(&mut backend), [Some(5), None, None]);
    let chunks = backend.poll(Duration::from_secs(1)).unwrap();
    assert!(matches!(chunks, Some(Landed::Chunks { submission: 2, logits: &[] })), "{chunks:?}");
    assert_eq!(step(&mut backend), [Some(6), None, None]);
    let rows: Vec<_> = backend.fake.batches[computed..].concat();
    assert_eq!(rows, [(4, 3), (5, 4)], "only slot 0 was computed");
}

/// Of two slots with chunks one is closed: the chunks are completed before its blocks can be used.
#[test]
fn chunks_of_several_slots_are_completed_before_blocks_change() {
    let mut backend = backend();
    for (slot, block) in [(0, 0), (1, 1), (2, 2)] {
        open(&mut backend, slot, &[block], if slot == 0 { 30 } else { 0 });
    }
    start(&mut backend, 0, &[1, 2], 30);
    backend.submit(&steps(1)).unwrap();
    assert_eq!(landed(&mut backend, 0), Some(3));
    let chunks = [chunk(1, 0, &[11], LogitRows::None), chunk(2, 0, &[12], LogitRows::None)];
    backend.submit(&Work { chunks: &chunks, between: 3, steps: 0 }).unwrap();
    assert_eq!(step(&mut backend), [Some(4), None, None]);
    backend.close(1);
    assert!(!backend.fake.batches.concat().contains(&(11, 0)), "the last part has not been computed");
    backend.extend(0, &[&[0, 1], &[0, 1]], 40).unwrap();
    assert!(backend.fake.batches.concat().contains(&(11, 0)));
    assert_eq!([step(&mut backend), step(&mut backend)], [[Some(5), None, None], [Some(6), None, None]]);
    assert!(matches!(backend.poll(Duration::ZERO).unwrap(), Some(Landed::Chunks { submission: 2, .. })));
    // A later submission completes them, too, and a reset forgets them.
    for reset in [false, true] {
        backend.close(2);
        open(&mut backend, 2, &[2], 0);
        let chunks = [chunk(2, 0, &[13], LogitRows::None)];
        let submission = backend.submit(&Work { chunks: &chunks, between: 1, steps: 0 }).unwrap();
        if reset {
            backend.reset();
            assert!(backend.poll(Duration::from_secs(1)).unwrap().is_none());
        } else {
            backend.submit(&steps(1)).unwrap();
            assert!(step(&mut backend)[0].is_some());
            let chunks = backend.poll(Duration::ZERO).unwrap();
            assert!(matches!(chunks, Some(Landed::Chunks { submission: n, .. }) if n == submission));
            assert!(step(&mut backend)[0].is_some());
        }
    }
    // Steps between nothing are refused.
    let nothing = Work { chunks: &[], between: 1, steps: 1 };
    assert!(matches!(backend.submit(&nothing), Err(BackendError::UnsoundBatch)));
}

/// What drafts have sampled.
fn drafted(backend: &mut Backend) -> Vec<Outcome> {
    match backend.poll(Duration::ZERO).unwrap() {
        Some(Landed::Drafts { outcomes, .. }) => outcomes.to_vec(),
        other => panic!("drafts, not {other:?}"),
    }
}

fn draft<'a>(tokens: &'a [u32], guesses: usize, sampler: &'a Sampler) -> Draft<'a> {
    Draft { tokens, guesses, sampler, logprobs: None, masks: &[] }
}

#[test]
fn drafts_and_a_step_are_one_batch() {
    let (mut backend, sampler) = (backend(), Sampler::default());
    open(&mut backend, 2, &[0, 1], 64);
    open(&mut backend, 5, &[2], 32);
    open(&mut backend, 9, &[3], 32);
    start(&mut backend, 2, &[1], 64);
    start(&mut backend, 9, &[20], 32);
    backend.stop(9).unwrap();
    backend.draft(5, &draft(&[7, 8, 9, 40], 2, &sampler)).unwrap();
    // A mask for each row: the second one allows token 50 alone.
    let mut masks = vec![u32::MAX; 6];
    masks[3..].copy_from_slice(&[0, 1 << 18, 0]);
    let masked = Draft { masks: &masks, ..draft(&[BAD - 3, BAD - 2], 1, &sampler) };
    backend.draft(9, &masked).unwrap();
    backend.submit(&steps(2)).unwrap();
    let first = vec![(8, 1), (9, 2), (40, 3), (BAD - 3, 0), (BAD - 2, 1), (1, 0)];
    assert_eq!(backend.fake.batches, [first, vec![(2, 1)]]);
    let token = |outcome: &Outcome| match outcome {
        Outcome::Token { id, .. } => Some(*id),
        _ => None,
    };
    let found: Vec<_> = drafted(&mut backend).iter().map(token).collect();
    assert_eq!(found, [Some(9), Some(10), Some(41), Some(BAD - 2), Some(50)]);
    assert_eq!([landed(&mut backend, 2), landed(&mut backend, 2)], [Some(2), Some(3)]);
    // The slots do not decode, and a submission without a step has drafts alone.
    backend.draft(5, &draft(&[BAD], 0, &sampler)).unwrap();
    backend.submit(&steps(0)).unwrap();
    assert_eq!(drafted(&mut backend), [Outcome::NotFinite]);
    assert!(backend.poll(Duration::ZERO).unwrap().is_none());
    // A draft goes with its slot, and the others stay in order.
    backend.draft(5, &draft(&[1, 2], 1, &sampler)).unwrap();
    backend.draft(9, &draft(&[30, 31], 1, &sampler)).unwrap();
    backend.close(5);
    backend.submit(&steps(0)).unwrap();
    assert_eq!(drafted(&mut backend).iter().map(token).collect::<Vec<_>>(), [Some(31), Some(32)]);
}

#[test]
fn unsound_drafts_are_refused() {
    let (mut backend, sampler) = (backend(), Sampler::default());
    let unsound =
        |result: Result<(), BackendError>| assert!(matches!(result, Err(BackendError::UnsoundBatch)));
    unsound(backend.draft(0, &draft(&[1], 0, &sampler)));
    unsound(backend.stop(0));
    open(&mut backend, 0, &[0], 32);
    open(&mut backend, 1, &[1], 32);
    let long: Vec<u32> = vec![1; 33];
    let words = [u32::MAX; 3];
    for refused in [
        draft(&[], 0, &sampler),
        draft(&[1, 2], 2, &sampler),
        draft(&[1, VOCAB as u32], 1, &sampler),
        draft(&long, 3, &sampler),
        Draft { masks: &words, ..draft(&[1, 2], 1, &sampler) },
        // Only bits beyond the vocabulary.
        Draft { masks: &[0, 0, !0 << (VOCAB - 64)], ..draft(&[1], 0, &sampler) },
        Draft { logprobs: Some(21), ..draft(&[1], 0, &sampler) },
    ] {
        unsound(backend.draft(0, &refused));
    }
    backend.draft(0, &draft(&long[..32], 31, &sampler)).unwrap();
    unsound(backend.draft(0, &draft(&[1], 0, &sampler)));
    // More rows than there may be, and drafts beside chunks.
    unsound(backend.draft(1, &draft(&[1], 0, &sampler)));
    let chunks = [chunk(1, 0, &[5], LogitRows::None)];
    unsound(backend.submit(&Work { chunks: &chunks, between: 0, steps: 0 }).map(drop));
    backend.submit(&steps(0)).unwrap();
    assert_eq!(drafted(&mut backend).len(), 32);
    // A slot that decodes has no draft.
    start(&mut backend, 1, &[1], 32);
    unsound(backend.draft(1, &draft(&[1, 2], 1, &sampler)));
}
