//! Slots: a sequence's tokens and log-probabilities do not depend on the other slots, the chunks of its prompt, the steps
//! of a submission, or on when it is held.

mod short_tales;
mod slot_backend;
mod slot_jobs;
mod written;

use gyrus::{Model, Options, Precision};
use gyrus_kernels::scalar::Reference;
use gyrus_kernels::{Backend, KV_BLOCK, KvSize};
use gyrus_testkit::Rng;
use slot_backend::{BLOCKS, cpu};
use slot_jobs::{Emitted, Job, jobs, run};

fn reference() -> Option<Reference> {
    let plan = Model::load(short_tales::checkpoint(1, 0)?, &Options::default()).unwrap().plan().clone();
    let checkpoint = short_tales::checkpoint(1, 0)?;
    let bytes = |spec: &gyrus::WeightSpec| {
        spec.data(|name| Some(checkpoint.tensor(name)?.data)).unwrap().into_owned()
    };
    let kv = KvSize::full(&plan.kv, BLOCKS * KV_BLOCK);
    Some(Reference::new(plan, &kv, bytes).unwrap())
}

/// Tokens are equal. Log-probabilities may differ by rounding: backends have their own exponential function.
fn assert_same(got: &[Emitted], expected: &[Emitted], what: &str) {
    let ids = |all: &[Emitted]| all.iter().map(|one| one.id).collect::<Vec<_>>();
    assert_eq!(ids(got), ids(expected), "{what}");
    let near = |a: f32, b: f32| a.is_nan() && b.is_nan() || (a - b).abs() < 2e-5;
    for (n, (got, expected)) in got.iter().zip(expected).enumerate() {
        assert!(near(got.logprob, expected.logprob), "{what}, token {n}: {got:?}, expected {expected:?}");
        assert_eq!(got.top.len(), expected.top.len(), "{what}, token {n}");
        for (got, expected) in got.top.iter().zip(&expected.top) {
            assert!(
                got.0 == expected.0 && near(got.1, expected.1),
                "{what}, token {n}: {got:?} {expected:?}"
            );
        }
    }
}

/// Runs jobs in slots, and compares them with what they generate alone.
fn check(backend: &mut dyn Backend, jobs: &[Job], alone: &[Vec<Emitted>], most: usize, rng: &mut Rng) {
    let results = run(backend, jobs, most, rng);
    for (n, ((got, cancelled), expected)) in results.iter().zip(alone).enumerate() {
        let what = format!("job {n} of {most} at once, {:?}", jobs[n]);
        let expected = if *cancelled { &expected[..got.len()] } else { &expected[..] };
        assert_same(got, expected, &what);
    }
    assert!(results.iter().filter(|(_, cancelled)| !cancelled).count() > jobs.len() / 2);
}

#[test]
fn a_slot_gives_the_same_tokens_beside_any_others() {
    for (precision, window) in [(Precision::Exact, 0), (Precision::Fast, 0), (Precision::Fast, 40)] {
        let Some(mut backend) = cpu(precision, window, 2) else { return };
        let mut rng = Rng::new(window.into());
        let jobs = jobs(140, backend.plan().vocab, &mut rng);
        let alone: Vec<Vec<Emitted>> = jobs.iter().map(|job| job.alone(&mut backend)).collect();
        for (most, count) in [(1, 12), (2, 24), (17, 60), (100, 140), (128, 140)] {
            check(&mut backend, &jobs[..count], &alone, most, &mut rng);
        }
    }
}

#[test]
fn the_scalar_reference_has_slots() {
    let Some(mut backend) = reference() else { return };
    let mut rng = Rng::new(3);
    let jobs = jobs(8, backend.plan().vocab, &mut rng);
    let jobs: Vec<Job> =
        jobs.into_iter().map(|job| Job { max_tokens: job.max_tokens.min(8), ..job }).collect();
    let alone: Vec<Vec<Emitted>> = jobs.iter().map(|job| job.alone(&mut backend)).collect();
    check(&mut backend, &jobs, &alone, 5, &mut rng);
}
