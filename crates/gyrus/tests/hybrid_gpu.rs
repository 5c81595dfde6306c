//! A hybrid of attention and Gated DeltaNet on a GPU: logits of transformers at every length and in every kind of batch,
//! and its state in slots, by both recorders.
#![cfg(feature = "gpu")]

mod adapter;
mod hybrid_jobs;
mod reference;

use std::path::Path;

use adapter::adapter;
use gyrus::{Config, Precision};
use gyrus_formats::Checkpoint;
use gyrus_gpu::{Gpu, GpuBackend};
use gyrus_kernels::RowKind;
use gyrus_testkit::{cases, data};
use hybrid_jobs::{check_schedules, chunked, size};

fn gpu(path: &Path, precision: Precision, vulkan_recorder: bool) -> Option<GpuBackend> {
    let options = gyrus_gpu::Options { adapter: Some(adapter()?), vulkan_recorder, ..Default::default() };
    let checkpoint = Checkpoint::open(path).unwrap();
    let (_, plan) = Config::read(&checkpoint, precision).unwrap();
    let kv = size(&plan);
    let bytes = |spec: &gyrus::WeightSpec| spec.data(|name| Some(checkpoint.tensor(name)?.data));
    Some(GpuBackend::new(Gpu::open(&options).unwrap(), plan, kv, bytes, |_| {}).unwrap())
}

#[test]
fn every_chunk_is_as_in_transformers() {
    let Some(path) = data("tiny/qwen35") else { return };
    let (_, ids, expected) = reference::read(&path);
    // In `fast` the mean is compared: heads of 16 elements enlarge roundings at single positions (see tiny_gpu).
    let fast = (Precision::Fast, reference::mean_distance as fn(&[f32], &[f32]) -> f32, 5e-3);
    for (precision, far_from, bound) in [(Precision::Exact, reference::distance as _, 1e-4), fast] {
        let Some(mut backend) = gpu(&path, precision, true) else { return };
        let mut whole = Vec::new();
        for (kind, chunk) in [(RowKind::Prompt, 512), (RowKind::Prompt, 33), (RowKind::Prompt, 1)] {
            let found = chunked(&mut backend, &ids, kind, chunk);
            let far = far_from(&found, &expected);
            println!("{precision:?} in chunks of {chunk}: off by {far:e}");
            assert!(far < bound, "{precision:?} in chunks of {chunk}: {far}");
            whole.push(found);
        }
        assert!(whole.iter().all(|found| *found == whole[0]), "{precision:?}: results depend on chunks");
        let single = chunked(&mut backend, &ids, RowKind::Generated, 1);
        for chunk in [2, 5, 16] {
            let found = chunked(&mut backend, &ids, RowKind::Generated, chunk);
            let far = far_from(&found, &expected);
            assert!(far < bound, "{precision:?}, generated rows in chunks of {chunk}: {far}");
            assert!(found == single, "{precision:?}: generated rows depend on chunks of {chunk}");
        }
    }
}

#[test]
fn sequences_in_slots_are_as_alone() {
    let Some(path) = data("tiny/qwen35") else { return };
    for vulkan_recorder in [true, false] {
        for precision in [Precision::Fast, Precision::Exact] {
            let Some(mut backend) = gpu(&path, precision, vulkan_recorder) else { return };
            check_schedules(&mut backend, 0..cases(8));
        }
    }
}
