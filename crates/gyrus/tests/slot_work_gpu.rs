//! What slots of the GPU backend are given and give: masks, chunks, log-probabilities, errors.
#![cfg(feature = "gpu")]

mod adapter;
mod short_tales;
mod slot_jobs_gpu;
mod written;

use std::time::Duration;

use gyrus::{Model, Options, Precision, Sampler};
use gyrus_kernels::{
    Backend, BackendError, Batch, Chunk, Decode, Instruments, Landed, LogitRows, MAX_TOP, Outcome, RowKind,
    Slots, Work, Workload,
};
use slot_jobs_gpu::*;

/// A masked slot holds until its mask is there, samples only what it allows, and its neighbour does not wait.
#[test]
fn a_masked_slot_waits_for_its_masks() {
    let Some(mut backend) = fast(EACH * 2) else { return };
    let other = job(1, 9);
    let expected = alone(&mut backend, &other);
    for slots in [&[0][..], &[0, 1], &[4, 2]] {
        let prompt = [5, 6, 7];
        let masked = slots[0];
        backend.open(masked, CONTEXT).unwrap();
        backend.extend(masked, &[&[0, 1, 2]], CONTEXT).unwrap();
        let chunk = Chunk {
            slot: masked,
            position: 0,
            tokens: &prompt[..2],
            kind: RowKind::Prompt,
            logits: LogitRows::None,
            records: None,
        };
        Slots::submit(&mut backend, &Work { chunks: &[chunk], between: 0, steps: 0 }).unwrap();
        let sampler = Sampler { temperature: 5.0, seed: 4, ..Sampler::default() };
        let decode = Decode {
            tokens: &prompt,
            limit: CONTEXT,
            sampler: &sampler,
            ends: &[],
            logprobs: None,
            masked: true,
            records: [0; 2],
        };
        backend.start(masked, &decode).unwrap();
        let neighbour = slots.get(1).copied();
        if let Some(slot) = neighbour {
            Running::begin(&mut backend, other.clone(), slot, (3..6).collect(), 512);
        }
        let (mut found, mut seen) = (Vec::new(), Vec::new());
        for position in 3..6u32 {
            for steps in [2, 1] {
                if steps == 1 {
                    // Two tokens are allowed, which differ by position.
                    let mut allowed = vec![0u32; short_tales::VOCAB as usize / 32];
                    allowed[position as usize] = 0b101 << position;
                    backend.mask(masked, position, &allowed).unwrap();
                }
                Slots::submit(&mut backend, &Work { chunks: &[], between: 0, steps }).unwrap();
                for _ in 0..steps {
                    let outcomes = step(&mut backend);
                    match outcomes[masked] {
                        Outcome::Token { id, .. } if steps == 1 => found.push((position, id)),
                        Outcome::Held if steps == 2 => {}
                        other => panic!("{other:?}"),
                    }
                    if let Some(slot) = neighbour {
                        let Outcome::Token { id, .. } = outcomes[slot] else { panic!("it waits") };
                        seen.push(id);
                    }
                }
            }
        }
        for (position, id) in found {
            let allowed = [32 * position + position, 32 * position + position + 2];
            assert!(allowed.contains(&id), "{id} at {position}");
        }
        assert!(neighbour.is_none() || seen == expected, "{seen:?}");
        assert!(backend.mask(9, 3, &[0; 16]).is_err());
        backend.reset();
    }
}

/// Chunks of several sequences and kinds, with steps of others in between, give the logits that batches of their own
/// give; so they do in single precision, compared with the CPU.
#[test]
fn chunks_with_logits_are_forward_batches() {
    for precision in [Precision::Exact, Precision::Fast] {
        let Some(mut backend) = backend_of(short, precision, true, EACH * 4) else { return };
        let text: Vec<u32> = (0..50).map(|i| (i * 41 + 7) % short_tales::VOCAB).collect();
        let mut forward = |first: usize, rows: usize, kind: RowKind, blocks: &[u32]| -> Vec<u32> {
            let positions: Vec<u32> = (first as u32..).take(rows).collect();
            let batch = Batch {
                tokens: &text[first..first + rows],
                positions: &positions,
                sequences: &vec![0; rows],
                kind,
                logits: &(0..rows as u32).collect::<Vec<_>>(),
                tables: &[blocks],
                lengths: &[CONTEXT],
                records: &[],
                inputs: Default::default(),
            };
            backend.forward(&batch).unwrap().iter().map(|logit| logit.to_bits()).collect()
        };
        let mut expected = forward(0, 20, RowKind::Prompt, &[0, 1]);
        expected.extend(forward(20, 3, RowKind::Generated, &[0, 1]));
        let short = forward(0, 2, RowKind::Prompt, &[2]);
        let vocab = backend.plan().vocab;
        Running::begin(&mut backend, job(3, 1), 9, (9..12).collect(), 512);
        for (slot, blocks) in [(0, &[3, 4]), (40, &[5, 6])] {
            backend.open(slot, CONTEXT).unwrap();
            backend.extend(slot, &[blocks], 64).unwrap();
        }
        let chunk = |slot, first: usize, rows: usize, kind, logits| Chunk {
            slot,
            position: first as u32,
            tokens: &text[first..first + rows],
            kind,
            logits,
            records: None,
        };
        let chunks = [
            chunk(0, 0, 20, RowKind::Prompt, LogitRows::All),
            chunk(0, 20, 3, RowKind::Generated, LogitRows::All),
            chunk(40, 0, 2, RowKind::Prompt, LogitRows::Last),
        ];
        let submission =
            Slots::submit(&mut backend, &Work { chunks: &chunks, between: 0, steps: 2 }).unwrap();
        let found = loop {
            match backend.poll(WAIT).unwrap().unwrap() {
                Landed::Chunks { submission: of, logits } if of == submission => break logits.to_vec(),
                _ => {}
            }
        };
        assert!(matches!(step(&mut backend)[9], Outcome::Token { .. }));
        let bits: Vec<u32> = found.iter().map(|logit| logit.to_bits()).collect();
        assert_eq!(bits[..23 * vocab], expected, "{precision:?}");
        assert_eq!(bits[23 * vocab..], short[vocab..], "{precision:?}");
        if precision == Precision::Exact {
            let options = Options {
                device: gyrus::Device::Cpu,
                precision,
                context: Some(CONTEXT as usize),
                ..Options::default()
            };
            let model = Model::load(short_tales::checkpoint(2, 0).unwrap(), &options).unwrap();
            let mut session = model.session();
            let mut difference = 0f32;
            let compare = |position: usize, logits: &[f32]| {
                let row = &found[position * vocab..(position + 1) * vocab];
                difference = gyrus_testkit::largest([difference, gyrus_testkit::distance(row, logits)]);
            };
            session.score(&text[..23], compare).unwrap();
            assert!(difference > 0.0 && difference < 1e-3, "{difference}");
        }
    }
}

/// What a caller may get wrong is an error, and changes nothing.
#[test]
fn mistakes_are_errors() {
    let Some(mut backend) = fast(EACH) else { return };
    let unsound = |result: Result<(), BackendError>| {
        assert!(matches!(result, Err(BackendError::UnsoundBatch)), "{result:?}");
    };
    let limits = backend.limits();
    assert_eq!((limits.slots, limits.rows, limits.kinds_differ), (128, 512, true));
    unsound(backend.open(limits.slots, 5));
    unsound(backend.extend(0, &[&[0]], 5));
    backend.open(0, CONTEXT).unwrap();
    unsound(backend.open(0, CONTEXT));
    unsound(backend.extend(0, &[&[EACH as u32]], 5));
    unsound(backend.extend(0, &[&[0]], 33));
    unsound(backend.extend(0, &[&[0; 5]], 33));
    unsound(backend.extend(0, &[&[0], &[0]], 5));
    backend.extend(0, &[&[0]], 32).unwrap();
    let sampler = Sampler::default();
    let decode = |tokens, limit| Decode {
        tokens,
        limit,
        sampler: &sampler,
        ends: &[],
        logprobs: None,
        masked: false,
        records: [0; 2],
    };
    unsound(backend.start(1, &decode(&[1], 5)));
    unsound(backend.start(0, &decode(&[], 5)));
    unsound(backend.start(0, &decode(&[short_tales::VOCAB], 5)));
    unsound(backend.start(0, &decode(&[1; 33], 32)));
    unsound(backend.start(0, &decode(&[1], 33)));
    unsound(backend.mask(0, 1, &[u32::MAX; 16]));
    let chunk = |slot, position, tokens| Chunk {
        slot,
        position,
        tokens,
        kind: RowKind::Prompt,
        logits: LogitRows::None,
        records: None,
    };
    for chunk in [chunk(1, 0, &[1][..]), chunk(0, 31, &[1, 1]), chunk(0, 0, &[9999]), chunk(0, 0, &[])] {
        unsound(Slots::submit(&mut backend, &Work { chunks: &[chunk], between: 0, steps: 0 }).map(drop));
    }
    unsound(
        Slots::submit(&mut backend, &Work { chunks: &[], between: 0, steps: limits.steps + 1 }).map(drop),
    );
    backend.start(0, &decode(&[1], 32)).unwrap();
    let number =
        Slots::submit(&mut backend, &Work { chunks: &[chunk(0, 0, &[1, 2])], between: 0, steps: 1 }).unwrap();
    assert_eq!(number, 1);
    assert!(matches!(backend.poll(WAIT).unwrap(), Some(Landed::Chunks { submission: 1, logits: &[] })));
    assert!(matches!(backend.poll(WAIT).unwrap(), Some(Landed::Step { submission: 1, .. })));
    assert!(backend.poll(WAIT).unwrap().is_none());
    assert_eq!(Slots::submit(&mut backend, &Work::default()).unwrap(), 2);
    assert!(backend.poll(WAIT).unwrap().is_none());
}

/// Log-probabilities are those of the logits, whatever is sampled from them, and the most likely tokens come first.
#[test]
fn log_probabilities_are_of_the_logits() {
    let Some(mut backend) = fast(EACH * 3) else { return };
    let vocab = backend.plan().vocab;
    let prompt: Vec<u32> = (0..9).map(|i| (i * 41 + 7) % short_tales::VOCAB).collect();
    let batch = Batch {
        tokens: &prompt,
        positions: &(0..9).collect::<Vec<u32>>(),
        sequences: &[0; 9],
        kind: RowKind::Generated,
        logits: &[8],
        tables: &[&[0]],
        lengths: &[CONTEXT],
        records: &[],
        inputs: Default::default(),
    };
    let logits = backend.forward(&batch).unwrap().to_vec();
    let most = logits.iter().fold(f32::MIN, |a, b| a.max(*b));
    let sum: f64 = logits.iter().map(|logit| f64::from(logit - most).exp()).sum();
    let expected: Vec<f64> = logits.iter().map(|logit| f64::from(logit - most) - sum.ln()).collect();
    let mut order: Vec<usize> = (0..vocab).collect();
    order.sort_by(|a, b| expected[*b].total_cmp(&expected[*a]).then(a.cmp(b)));
    // Alone, and beside one that wants none, and one that wants only its own.
    for beside in [false, true] {
        let sampler = Sampler { temperature: 3.0, seed: 2, repetition_penalty: 1.5, ..Sampler::default() };
        let begin = |backend: &mut gyrus_gpu::GpuBackend, slot: usize, block: u32, logprobs| {
            backend.open(slot, CONTEXT).unwrap();
            backend.extend(slot, &[&[block]], 32).unwrap();
            let chunk = Chunk {
                slot,
                position: 0,
                tokens: &prompt[..8],
                kind: RowKind::Generated,
                logits: LogitRows::None,
                records: None,
            };
            Slots::submit(backend, &Work { chunks: &[chunk], between: 0, steps: 0 }).unwrap();
            let decode = Decode {
                tokens: &prompt,
                limit: 32,
                sampler: &sampler,
                ends: &[],
                logprobs,
                masked: false,
                records: [0; 2],
            };
            backend.start(slot, &decode).unwrap();
        };
        begin(&mut backend, 0, 0, Some(MAX_TOP));
        if beside {
            begin(&mut backend, 1, 1, None);
            begin(&mut backend, 20, 2, Some(0));
        }
        Slots::submit(&mut backend, &Work { chunks: &[], between: 0, steps: 1 }).unwrap();
        let (outcomes, top) = loop {
            if let Landed::Step { outcomes, top, .. } = backend.poll(WAIT).unwrap().unwrap() {
                break (outcomes.to_vec(), top.of(0, MAX_TOP).to_vec());
            }
        };
        let near = |id: u32, logprob: f32| (f64::from(logprob) - expected[id as usize]).abs() < 1e-4;
        let slots: &[usize] = if beside { &[0, 20] } else { &[0] };
        for slot in slots {
            let Outcome::Token { id, logprob, .. } = outcomes[*slot] else { panic!("{:?}", outcomes[*slot]) };
            assert!(near(id, logprob), "slot {slot}: {logprob}, {}", expected[id as usize]);
        }
        if beside {
            assert!(matches!(outcomes[1], Outcome::Token { logprob, .. } if logprob.is_nan()));
        }
        assert_eq!(top.len(), MAX_TOP);
        for ((id, logprob), expected) in top.iter().zip(&order) {
            assert_eq!(*id as usize, *expected);
            assert!(near(*id, *logprob));
        }
        backend.reset();
    }
}

/// A sequence whose logits are not finite ends; its neighbours do not notice.
#[test]
fn one_slot_is_not_finite() {
    const BAD: u32 = 77;
    fn damaged() -> Option<gyrus_formats::Checkpoint> {
        short_tales::untied(BAD)
    }
    let Some(mut backend) = backend_of(damaged, Precision::Fast, true, EACH * 3) else { return };
    let good = Job { prompt: vec![5, 6, 7], sampler: Sampler::default(), tokens: 4 };
    let expected = alone(&mut backend, &good);
    for slots in [[1, 0], [0, 5], [3, 33]] {
        let bad = Job { prompt: vec![5, BAD, 7], ..good.clone() };
        Running::begin(&mut backend, good.clone(), slots[0], vec![0, 1, 2], 512);
        Running::begin(&mut backend, bad, slots[1], vec![3, 4, 5], 512);
        Slots::submit(&mut backend, &Work { chunks: &[], between: 0, steps: 4 }).unwrap();
        for (number, expected) in expected.iter().enumerate() {
            let outcomes = step(&mut backend);
            assert!(matches!(outcomes[slots[0]], Outcome::Token { id, .. } if id == *expected));
            let ended = if number == 0 { Outcome::NotFinite } else { Outcome::Held };
            assert_eq!(outcomes[slots[1]], ended, "step {number}");
        }
        backend.reset();
    }
}

/// Every call says that the device was lost.
#[test]
fn a_lost_device_is_named_by_every_call() {
    let Some(mut backend) = fast(EACH) else { return };
    let running = Running::begin(&mut backend, job(0, 1), 0, vec![0, 1, 2], 512);
    Slots::submit(&mut backend, &Work { chunks: &[], between: 0, steps: 4 }).unwrap();
    backend.gpu().close();
    let sampler = Sampler::default();
    let decode = Decode {
        tokens: &[1],
        limit: 32,
        sampler: &sampler,
        ends: &[],
        logprobs: None,
        masked: false,
        records: [0; 2],
    };
    for _ in 0..2 {
        let errors = [
            backend.open(1, 1).unwrap_err(),
            backend.extend(0, &[&running.blocks], 32).unwrap_err(),
            backend.start(0, &decode).unwrap_err(),
            backend.mask(0, 1, &[0; 16]).unwrap_err(),
            Slots::submit(&mut backend, &Work { chunks: &[], between: 0, steps: 1 }).unwrap_err(),
            backend.poll(WAIT).unwrap_err(),
        ];
        for error in errors {
            assert_eq!(error.to_string(), "the GPU was lost: it was closed");
        }
    }
    backend.close(0);
    backend.reset();
    assert_eq!(backend.poll(WAIT).unwrap_err().to_string(), "the GPU was lost: it was closed");
}

/// A device that completes nothing in time is given up with an error that names the time, by both recorders.
#[test]
fn a_device_that_hangs_is_given_up() {
    for vulkan in [true, false] {
        let Some(mut backend) = backend_of(short, Precision::Fast, vulkan, EACH) else { return };
        Running::begin(&mut backend, job(0, 1), 0, vec![0, 1, 2], 512);
        let usual = backend.gpu().patience();
        // As much as possible, so that it has not completed when the caller looks.
        let steps = backend.limits().steps;
        Slots::submit(&mut backend, &Work { chunks: &[], between: 0, steps }).unwrap();
        backend.gpu().set_patience(Duration::ZERO);
        let error = loop {
            // The prompt may have been read.
            match backend.poll(WAIT) {
                Ok(landed) => assert!(matches!(landed, Some(Landed::Chunks { .. })), "{landed:?}"),
                Err(error) => break error,
            }
        };
        assert!(matches!(error, BackendError::TimedOut { seconds: 0 }), "{error}");
        // It has not hung in fact, so that what it uses can be freed.
        backend.gpu().set_patience(usual);
        backend.reset();
    }
}

/// Profiling and batches beside a sequence change nothing of it; profiling takes only blocks that it was given.
#[test]
fn profiling_does_not_disturb_a_sequence() {
    let Some(mut backend) = fast(EACH * 2) else { return };
    let job = job(1, 8);
    let expected = alone(&mut backend, &job);
    let mut running = Running::begin(&mut backend, job, 0, vec![0, 1, 2], 512);
    let free: [u32; EACH] = [3, 4, 5];
    for number in 0..8 {
        Slots::submit(&mut backend, &Work { chunks: &[], between: 0, steps: 1 }).unwrap();
        if number == 3 {
            // With the step in flight.
            let profile = backend.profile(Workload::Sequences(1), 70, &[&free]).unwrap();
            assert!(profile.entries.iter().any(|entry| entry.name == "sample"));
            let error = backend.profile(Workload::Sequences(1), 70, &[&free[..2]]).unwrap_err().to_string();
            let expected = "measuring at this depth needs 3 free blocks of the KV cache, 2 are free";
            assert_eq!(error, expected);
            let batch = Batch {
                tokens: &[9],
                positions: &[0],
                sequences: &[0],
                kind: RowKind::Generated,
                logits: &[0],
                tables: &[&[3]],
                lengths: &[CONTEXT],
                records: &[],
                inputs: Default::default(),
            };
            backend.forward(&batch).unwrap();
        }
        let Outcome::Token { id, .. } = step(&mut backend)[0] else { panic!("step {number}") };
        running.found.push(id);
    }
    assert_eq!(running.found, expected);
}
