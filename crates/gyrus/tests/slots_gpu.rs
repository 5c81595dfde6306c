//! Slots of the GPU backend: a sequence gets the same tokens whatever other slots do.
#![cfg(feature = "gpu")]

mod adapter;
#[path = "../../gyrus-kernels/tests/common/samplers.rs"]
#[allow(
    dead_code,
    reason = "of the module, which tests of distributions share, only the samplers are needed"
)]
mod samplers;
mod short_tales;
mod slot_jobs_gpu;
mod written;

use std::collections::VecDeque;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use gyrus::{Precision, Sampler};
use gyrus_gpu::GpuBackend;
use gyrus_kernels::shader::Rungs;
use gyrus_kernels::{
    Chunk, Counts, Decode, KV_BLOCK, Landed, LogitRows, Outcome, Past, RowKind, SamplerScratch, Slots, Work,
};
use gyrus_testkit::Rng;
use slot_jobs_gpu::*;

/// Greedy, sampled and penalised sequences get the tokens that they get alone, in any slot, beside others that join and
/// leave, some of which begin with blocks that another sequence has written.
#[test]
fn slots_beside_others_are_as_if_alone() {
    let Some(mut backend) = fast(EACH * 128) else { return };
    // A software adapter takes minutes for more.
    let is_software = backend.gpu().adapter().kind == gyrus_gpu::AdapterKind::Software;
    let numbers: &[usize] =
        if is_software { &[1, 2, 15, 16, 17, 40] } else { &[1, 2, 15, 16, 17, 40, 63, 127] };
    let jobs: Vec<Job> = (0..6).map(|n| job(n, 4 + n as usize % 3)).collect();
    let expected: Vec<Vec<u32>> = jobs.iter().map(|job| alone(&mut backend, job)).collect();
    let mut random = Rng::new(5);
    for &beside in numbers {
        // Slots in a random order, so that groups have gaps.
        let mut slots: Vec<usize> = (0..(beside + 2 + beside / 8).min(128)).collect();
        (1..slots.len()).rev().for_each(|i| slots.swap(i, random.below(i + 1)));
        slots.truncate(beside + 1);
        let mut free: Vec<usize> = (0..slots.len()).collect();
        let (mut running, mut begun, mut left): (Vec<Running>, usize, usize) = (Vec::new(), 0, 0);
        let all = beside + 1 + beside.min(3);
        let mut flying: VecDeque<Vec<(usize, usize)>> = VecDeque::new();
        let mut generation: Vec<usize> = vec![0; 128];
        while left < all {
            while begun < all && !free.is_empty() && (running.len() < 2 || random.below(4) > 0) {
                let place = free.swap_remove(random.below(free.len()));
                let blocks = (0..EACH as u32).map(|block| place as u32 * EACH as u32 + block).collect();
                let chunk = 1 + random.below(30);
                let job = jobs[begun % jobs.len()].clone();
                generation[slots[place]] += 1;
                running.push(Running::begin(&mut backend, job, slots[place], blocks, chunk));
                begun += 1;
            }
            let steps = 1 + random.below(2);
            Slots::submit(&mut backend, &Work { chunks: &[], between: 0, steps }).unwrap();
            let computed: Vec<(usize, usize)> =
                running.iter().map(|running| (running.slot, generation[running.slot])).collect();
            flying.extend((0..steps).map(|_| computed.clone()));
            // Some steps stay in flight.
            while flying.len() > 3 {
                let outcomes = step(&mut backend);
                let computed = flying.pop_front().unwrap();
                for running in &mut running {
                    if computed.contains(&(running.slot, generation[running.slot])) {
                        match outcomes[running.slot] {
                            Outcome::Token { id, .. } => running.found.push(id),
                            other => panic!("slot {}: {other:?}", running.slot),
                        }
                    }
                }
            }
            // Whoever is done leaves with steps in flight, and its slot and blocks are used again at once.
            running.retain(|running| {
                if running.is_done() {
                    let place = slots.iter().position(|slot| *slot == running.slot).unwrap();
                    let number = jobs.iter().position(|job| job.prompt == running.job.prompt).unwrap();
                    let found = &running.found[..running.job.tokens];
                    assert_eq!(found, expected[number], "job {number} in slot {} of {beside}", running.slot);
                    backend.close(running.slot);
                    free.push(place);
                    left += 1;
                }
                !running.is_done()
            });
        }
        while backend.poll(WAIT).unwrap().is_some() {}
        backend.reset();
    }
    // Distinct texts, so that a mix-up would show.
    assert!(expected.windows(2).all(|pair| pair[0] != pair[1]), "{expected:?}");
}

/// Samplers that the device cannot run: of those whose draws are compared with the exact distribution.
fn host_samplers() -> Vec<Sampler> {
    let all = samplers::cases().into_iter().map(|case| case.sampler);
    let found: Vec<Sampler> = all.filter(|sampler| !sampler.is_plain()).collect();
    assert!(found.len() >= 15, "{}", found.len());
    found
}

/// The tokens that a sampler draws from the logits of a sequence, one after the other.
fn drawn_from(logits: &[f32], sampler: &Sampler, prompt: &[u32], count: usize) -> Vec<u32> {
    let mut tokens = prompt.to_vec();
    let (mut counts, mut scratch) = (Counts::new(), SamplerScratch::default());
    let mut mu = sampler.mirostat.map_or(f32::NAN, |mirostat| mirostat.mu());
    for row in logits.chunks(logits.len() / count) {
        sampler.count(&tokens, &mut counts);
        let past = Past { counts: &counts, tokens: &tokens, mu };
        let drawn = sampler.sample(row, past, tokens.len() as u64, &mut scratch);
        tokens.push(drawn.id);
        mu = drawn.mu;
    }
    tokens.split_off(prompt.len())
}

/// The host draws from the slot's own logits what the sampler means, and slots that the device samples go on beside it
/// with the tokens that they have alone. The tokens of each sampler and seed are those that `Sampler::sample` draws from
/// these logits; that its draws have the exact distribution is what `gyrus-kernels/tests/samplers.rs` tests with the same
/// samplers, by chi-squared.
#[test]
fn the_host_samples_what_the_device_cannot() {
    const TOKENS: usize = 8;
    const SEEDS: usize = 3;
    let Some(mut backend) = fast(EACH * (SEEDS + 2)) else { return };
    let beside = job(1, TOKENS + 4);
    let expected_beside = alone(&mut backend, &beside);
    let blocks = |first: usize| (0..EACH as u32).map(|block| (first * EACH) as u32 + block).collect();
    let mut drawn = Vec::new();
    for sampler in host_samplers() {
        let jobs: Vec<Job> = (0..SEEDS as u64)
            .map(|seed| Job { sampler: Sampler { seed, ..sampler.clone() }, ..job(4, TOKENS) })
            .collect();
        let begin = |backend: &mut GpuBackend, job: &Job, slot: usize| {
            Running::begin(backend, job.clone(), slot, blocks(slot), 512)
        };
        let mut hosted: Vec<Running> =
            jobs.iter().enumerate().map(|(slot, job)| begin(&mut backend, job, slot)).collect();
        let mut other = begin(&mut backend, &beside, SEEDS);
        let mut in_flight = 0;
        while !hosted.iter().all(Running::is_done) || !other.is_done() {
            // Two steps in flight: what the second computes of the hosted slots is not new.
            while in_flight < 2 {
                Slots::submit(&mut backend, &Work { chunks: &[], between: 0, steps: 1 }).unwrap();
                in_flight += 1;
            }
            let outcomes = step(&mut backend);
            in_flight -= 1;
            for (hosted, outcome) in hosted.iter_mut().zip(&outcomes) {
                if let Outcome::Token { id, .. } = outcome {
                    hosted.found.push(*id);
                }
            }
            let Outcome::Token { id, .. } = outcomes[SEEDS] else { panic!("{outcomes:?}") };
            other.found.push(id);
        }
        assert_eq!(other.found[..beside.tokens], expected_beside);
        while backend.poll(WAIT).unwrap().is_some() {}
        backend.reset();
        for (job, hosted) in jobs.iter().zip(&hosted) {
            // The logits of the same rows.
            let all = [&job.prompt[..], &hosted.found[..TOKENS]].concat();
            let read = job.prompt.len() - 1;
            let table: Vec<u32> = blocks(SEEDS + 1);
            backend.open(2, CONTEXT).unwrap();
            backend.extend(2, &[&table], CONTEXT).unwrap();
            let chunk = |position: usize, tokens, kind, logits| Chunk {
                slot: 2,
                position: position as u32,
                tokens,
                kind,
                logits,
                records: None,
            };
            let chunks = [
                chunk(0, &all[..read], RowKind::Prompt, LogitRows::None),
                chunk(read, &all[read..read + TOKENS], RowKind::Generated, LogitRows::All),
            ];
            Slots::submit(&mut backend, &Work { chunks: &chunks, between: 0, steps: 0 }).unwrap();
            let Some(Landed::Chunks { logits, .. }) = backend.poll(WAIT).unwrap() else {
                panic!("no logits")
            };
            let expected = drawn_from(logits, &job.sampler, &job.prompt, TOKENS);
            assert_eq!(hosted.found[..TOKENS], expected, "{:?}", job.sampler);
            drawn.push(expected);
            backend.reset();
        }
    }
    // Samplers and seeds that made no difference would show little.
    drawn.sort_unstable();
    let all = drawn.len();
    drawn.dedup();
    assert!(drawn.len() * 2 > all, "{} of {all} differ", drawn.len());
}

/// Two sequences whose first block is the same one.
#[test]
fn sequences_share_blocks() {
    let Some(mut backend) = fast(EACH * 3) else { return };
    let mut shared = job(1, 12);
    shared.prompt = (0..40).map(|i| (i * 29 + 5) % short_tales::VOCAB).collect();
    let other =
        Job { sampler: Sampler { temperature: 3.0, seed: 9, ..Sampler::default() }, ..shared.clone() };
    let expected = [alone(&mut backend, &shared), alone(&mut backend, &other)];
    let mut first = Running::begin(&mut backend, shared, 0, vec![0, 1, 2], 512);
    // The second begins after the first block, which it does not compute.
    let slot = 17;
    backend.open(slot, CONTEXT).unwrap();
    backend.extend(slot, &[&[0, 4, 5]], CONTEXT).unwrap();
    let tokens = &other.prompt[KV_BLOCK..39];
    let position = KV_BLOCK as u32;
    let chunk =
        Chunk { slot, position, tokens, kind: RowKind::Prompt, logits: LogitRows::None, records: None };
    Slots::submit(&mut backend, &Work { chunks: &[chunk], between: 0, steps: 0 }).unwrap();
    let decode = Decode {
        tokens: &other.prompt,
        limit: CONTEXT,
        sampler: &other.sampler,
        ends: &[],
        logprobs: None,
        masked: false,
        records: [0; 2],
    };
    backend.start(slot, &decode).unwrap();
    let mut found = Vec::new();
    for _ in 0..12 {
        Slots::submit(&mut backend, &Work { chunks: &[], between: 0, steps: 1 }).unwrap();
        let outcomes = step(&mut backend);
        for (slot, found) in [(0, &mut first.found), (slot, &mut found)] {
            let Outcome::Token { id, .. } = outcomes[slot] else { panic!("{outcomes:?}") };
            found.push(id);
        }
    }
    assert_eq!([first.found, found], expected);
}

/// A slot holds at its limit and goes on from there when it is extended; beside it, another is not affected.
#[test]
fn a_slot_holds_at_its_limit() {
    for (vulkan, beside) in [(true, false), (true, true), (false, true)] {
        let Some(mut backend) = backend_of(short, Precision::Fast, vulkan, EACH * 2) else { return };
        let [held, other] = [job(1, 20), job(2, 20)];
        let expected = [alone(&mut backend, &held), alone(&mut backend, &other)];
        let mut running = vec![Running::begin(&mut backend, held.clone(), 0, (0..3).collect(), 512)];
        let limit = held.prompt.len() as u32 + 5;
        backend.extend(0, &[&running[0].blocks], limit).unwrap();
        if beside {
            running.push(Running::begin(&mut backend, other, 1, (3..6).collect(), 512));
        }
        let mut outcomes = Vec::new();
        for steps in [4, 4, 12] {
            if outcomes.len() == 8 {
                backend.extend(0, &[&running[0].blocks], running[0].limit).unwrap();
            }
            Slots::submit(&mut backend, &Work { chunks: &[], between: 0, steps }).unwrap();
            (0..steps).for_each(|_| outcomes.push(step(&mut backend)));
        }
        let of = |slot: usize| -> Vec<Option<u32>> {
            let token = |outcome| if let Outcome::Token { id, .. } = outcome { Some(id) } else { None };
            outcomes.iter().map(|step| token(step[slot])).collect()
        };
        let tokens = of(0);
        // From the prompt's last token it advances to the position before its limit.
        assert!(tokens[..5].iter().all(Option::is_some) && tokens[5..8].iter().all(Option::is_none));
        let found: Vec<u32> = tokens.into_iter().flatten().collect();
        assert_eq!(found, expected[0][..17], "vulkan {vulkan}, beside {beside}");
        if beside {
            assert_eq!(of(1).into_iter().flatten().collect::<Vec<_>>(), expected[1]);
        }
    }
}

/// What changes or closes a slot after a submission without work comes after the slot's start.
#[test]
fn a_submission_without_work_starts_slots() {
    for vulkan in [true, false] {
        let Some(mut backend) = backend_of(short, Precision::Fast, vulkan, EACH * 2) else { return };
        let [first, second] = [job(1, 12), job(2, 12)];
        let expected = [alone(&mut backend, &first), alone(&mut backend, &second)];
        let nothing = Work::default();
        // The slot is closed, and its blocks are those of another.
        Running::begin(&mut backend, first.clone(), 0, (0..3).collect(), 512);
        Slots::submit(&mut backend, &nothing).unwrap();
        backend.close(0);
        let mut running = vec![Running::begin(&mut backend, second, 3, (0..3).collect(), 512)];
        running.push(Running::begin(&mut backend, first.clone(), 2, (3..6).collect(), 512));
        let few = first.prompt.len() as u32 + 5;
        backend.extend(2, &[&running[1].blocks], few).unwrap();
        Slots::submit(&mut backend, &nothing).unwrap();
        // The limit is larger than at the start.
        backend.extend(2, &[&running[1].blocks], running[1].limit).unwrap();
        Slots::submit(&mut backend, &Work { chunks: &[], between: 0, steps: 12 }).unwrap();
        let outcomes: Vec<Vec<Outcome>> = (0..12).map(|_| step(&mut backend)).collect();
        for (slot, expected) in [(3, &expected[1]), (2, &expected[0])] {
            let token = |step: &Vec<Outcome>| match step[slot] {
                Outcome::Token { id, .. } => Some(id),
                _ => None,
            };
            let found: Vec<u32> = outcomes.iter().filter_map(token).collect();
            assert_eq!(found, *expected, "vulkan {vulkan}, slot {slot}");
            backend.close(slot);
        }
    }
}

/// A slot ends with its end token, which is emitted.
#[test]
fn a_slot_ends_with_an_end_token() {
    let Some(mut backend) = fast(EACH * 2) else { return };
    let ending = job(1, 20);
    let expected = alone(&mut backend, &ending);
    let end = expected[6];
    let last = expected.iter().position(|token| *token == end).unwrap();
    for slot in [0, 3] {
        let running = Running::begin(&mut backend, ending.clone(), slot, (0..3).collect(), 512);
        let decode = Decode {
            tokens: &ending.prompt,
            limit: running.limit,
            sampler: &ending.sampler,
            ends: &[short_tales::VOCAB + 5, end],
            logprobs: None,
            masked: false,
            records: [0; 2],
        };
        backend.start(slot, &decode).unwrap();
        Slots::submit(&mut backend, &Work { chunks: &[], between: 0, steps: 12 }).unwrap();
        for number in 0..12 {
            let outcome = step(&mut backend)[slot];
            match expected.get(number).filter(|_| number <= last) {
                Some(id) => assert!(matches!(outcome, Outcome::Token { id: found, .. } if found == *id)),
                None => assert_eq!(outcome, Outcome::Held, "step {number}"),
            }
        }
        backend.reset();
    }
}

/// With a sliding window, rows have different numbers of splits, which do not grow with the position.
#[test]
fn windowed_sequences_are_as_if_alone() {
    let windowed = || short_tales::checkpoint(2, 40);
    let Some(mut backend) = backend_of(windowed, Precision::Fast, true, EACH * 3) else { return };
    let jobs: Vec<Job> = [0, 4, 5].into_iter().map(|n| job(n, 40)).collect();
    let expected: Vec<Vec<u32>> = jobs.iter().map(|job| alone(&mut backend, job)).collect();
    let mut all: Vec<Running> = Vec::new();
    for (job, slot) in jobs.iter().zip(0..) {
        let first = (slot * EACH) as u32;
        all.push(Running::begin(&mut backend, job.clone(), slot, (first..first + EACH as u32).collect(), 7));
    }
    for _ in 0..5 {
        Slots::submit(&mut backend, &Work { chunks: &[], between: 0, steps: 8 }).unwrap();
    }
    for _ in 0..40 {
        let outcomes = step(&mut backend);
        for running in &mut all {
            let Outcome::Token { id, .. } = outcomes[running.slot] else { panic!("{outcomes:?}") };
            running.found.push(id);
        }
    }
    let found: Vec<Vec<u32>> = all.into_iter().map(|running| running.found).collect();
    assert_eq!(found, expected);
}

/// The self-test of int8 cooperative matrices compiles kernels for wgpu.
fn without_self_test(name: &str) -> gyrus_gpu::Options {
    let rungs = Rungs { int8_matrix: false, ..Rungs::ALL };
    gyrus_gpu::Options { adapter: Some(name.to_owned()), rungs, ..gyrus_gpu::Options::default() }
}

/// The first tokens of sequences compile nothing that was not compiled at load, for the recorder that runs them and for no
/// other. Kernels of several rows follow in the background.
#[test]
fn kernels_of_the_first_token_are_compiled_once() {
    let Some(name) = adapter::adapter() else { return };
    for vulkan_recorder in [true, false] {
        let options = gyrus_gpu::Options { vulkan_recorder, ..without_self_test(&name) };
        let Some(mut backend) = backend_on(&options, short, Precision::Fast, EACH) else { return };
        let is_vulkan = vulkan_recorder && backend.gpu().adapter().api() == "Vulkan";
        let count = |backend: &GpuBackend| {
            let (wgpu, vulkan) = backend.gpu().compiled_kernels();
            if is_vulkan { (vulkan, wgpu) } else { (wgpu, vulkan) }
        };
        let (loaded, others) = count(&backend);
        assert!(loaded > 10, "{loaded} kernels");
        assert_eq!(others, 0, "compiled for the recorder that is not used");
        for number in 0..3 {
            alone(&mut backend, &job(number, 1));
        }
        assert_eq!(count(&backend), (loaded, 0));
        alone(&mut backend, &job(0, 40));
        let start = Instant::now();
        while count(&backend).0 == loaded {
            assert!(start.elapsed() < WAIT, "nothing was compiled in the background");
            std::thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(count(&backend).1, 0);
    }
}

/// A backend that records through wgpu leaves one file of pipelines. The next one has the same tokens with it, and ignores
/// it if it is damaged.
#[test]
fn pipelines_of_a_backend_are_stored() {
    let Some(name) = adapter::adapter() else { return };
    let folder = gyrus_testkit::tempfile::tempdir().unwrap();
    let files = || -> Vec<PathBuf> {
        let entries = std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path());
        entries.filter(|path| path.extension().is_some_and(|extension| extension == "bin")).collect()
    };
    let tokens = || {
        let pipelines = Some(folder.path().to_owned());
        let options = gyrus_gpu::Options { pipelines, vulkan_recorder: false, ..without_self_test(&name) };
        let mut backend = backend_on(&options, short, Precision::Fast, EACH)?;
        let keeps = backend.gpu().adapter().pipeline_cache;
        Some((alone(&mut backend, &job(1, 4)), keeps))
    };
    let Some((expected, keeps)) = tokens() else { return };
    if !keeps {
        return gyrus_testkit::skip(gyrus_testkit::Need::Extra, &format!("{name} has no pipeline cache"));
    }
    let [path] = &files()[..] else { panic!("{:?}", files()) };
    let good = std::fs::read(path).unwrap();
    for bytes in [good.clone(), good[..good.len() - 1].to_vec(), vec![0xa5; 4096]] {
        std::fs::write(path, bytes).unwrap();
        assert_eq!(tokens().unwrap().0, expected);
        assert_eq!(files(), std::slice::from_ref(path));
        assert_eq!(std::fs::read(path).unwrap()[..8], *b"gyruspc1");
    }
}
