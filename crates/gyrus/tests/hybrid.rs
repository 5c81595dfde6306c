//! A hybrid of attention and Gated DeltaNet on the host's backends: logits of transformers at every length, whatever the
//! chunks, and its state in slots.

mod hybrid_jobs;
mod reference;

use std::path::Path;
use std::sync::Arc;

use gyrus::{Config, Precision};
use gyrus_cpu::CpuBackend;
use gyrus_formats::Checkpoint;
use gyrus_kernels::RowKind::Prompt;
use gyrus_kernels::scalar::Reference;
use gyrus_testkit::{cases, data};
use hybrid_jobs::{check_schedules, chunked, size};

fn cpu(path: &Path, precision: Precision) -> CpuBackend {
    let checkpoint = Checkpoint::open(path).unwrap();
    let (_, plan) = Config::read(&checkpoint, precision).unwrap();
    let kv = size(&plan);
    let bytes = |spec: &gyrus::WeightSpec| {
        spec.data(|name| Some(checkpoint.tensor(name)?.data)).unwrap().into_owned()
    };
    CpuBackend::new(plan, &kv, 2, |spec| Arc::new(bytes(spec))).unwrap()
}

fn scalar(path: &Path) -> Reference {
    let checkpoint = Checkpoint::open(path).unwrap();
    let (_, plan) = Config::read(&checkpoint, Precision::Exact).unwrap();
    let kv = size(&plan);
    Reference::new(plan, &kv, |spec| spec.data(|name| Some(checkpoint.tensor(name)?.data)).unwrap()).unwrap()
}

#[test]
fn every_length_and_chunk_is_as_in_transformers() {
    let Some(path) = data("tiny/qwen35") else { return };
    let (_, ids, expected) = reference::read(&path);
    let near = |found: &[f32], what: &str, bound: f32| {
        let far = reference::distance(found, &expected);
        println!("{what}: off by {far:e}");
        assert!(far < bound, "{what}: {far}");
    };
    near(&chunked(&mut scalar(&path), &ids, Prompt, 7), "scalar", 3e-5);
    let (mut exact, mut fast) = (cpu(&path, Precision::Exact), cpu(&path, Precision::Fast));
    let whole = chunked(&mut exact, &ids, Prompt, ids.len());
    near(&whole, "exact", 5e-5);
    let fast_whole = chunked(&mut fast, &ids, Prompt, ids.len());
    near(&fast_whole, "fast", 5e-3);
    for chunk in [1, 2, 3, 5, 16, 33, 64] {
        assert!(chunked(&mut exact, &ids, Prompt, chunk) == whole, "exact in chunks of {chunk}");
        assert!(chunked(&mut fast, &ids, Prompt, chunk) == fast_whole, "fast in chunks of {chunk}");
    }
}

#[test]
fn sequences_in_slots_are_as_alone() {
    let Some(path) = data("tiny/qwen35") else { return };
    check_schedules(&mut cpu(&path, Precision::Fast), 0..cases(40));
    check_schedules(&mut cpu(&path, Precision::Exact), 0..cases(12));
    check_schedules(&mut scalar(&path), 0..cases(4));
}
