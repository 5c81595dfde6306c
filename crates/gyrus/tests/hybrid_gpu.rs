//! A hybrid of attention and Gated DeltaNet on a GPU: logits of transformers at every length and in every kind of batch,
//! and its state in slots, by both recorders.
#![cfg(feature = "gpu")]

mod adapter;
mod hybrid_jobs;
mod random_hybrid;
mod reference;
mod written;

use std::path::Path;

use adapter::adapter;
use gyrus::{Config, Device, Event, Model, Options, Precision, Prompt, Request};
use gyrus_formats::Checkpoint;
use gyrus_gpu::{Gpu, GpuBackend, MemoryNeed};
use gyrus_kernels::{Backend, KvSize, Plan, RowKind};
use gyrus_testkit::{cases, data};
use hybrid_jobs::{check_schedules, chunked, size};

fn gpu(path: &Path, precision: Precision, vulkan_recorder: bool) -> Option<GpuBackend> {
    gpu_with(path, precision, vulkan_recorder, size)
}

fn gpu_with(
    path: &Path,
    precision: Precision,
    vulkan_recorder: bool,
    size: impl FnOnce(&Plan) -> KvSize,
) -> Option<GpuBackend> {
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

/// Heads of 128 elements do not enlarge the roundings of prefill: layers with a state are off by hardly more than layers of
/// attention, at every position.
#[test]
fn heads_of_published_size_round_as_attention_does() {
    let Some(name) = adapter() else { return };
    let ids: Vec<u32> = (0..80).map(|i| (i * 37 + 11) % random_hybrid::VOCAB as u32).collect();
    // Relative to the largest logit.
    let off = |interval: u32| {
        let logits = |device: Device, precision| {
            let options = Options { device, precision, context: Some(256), ..Options::default() };
            reference::logits(&Model::load(random_hybrid::checkpoint(interval), &options).unwrap(), &ids)
        };
        let expected = logits(Device::Cpu, Precision::Exact);
        let found = logits(Device::Gpu(Some(name.clone())), Precision::Fast);
        let largest = expected.iter().fold(0f32, |most, logit| most.max(logit.abs()));
        let exact =
            reference::distance(&logits(Device::Gpu(Some(name.clone())), Precision::Exact), &expected);
        (reference::distance(&found, &expected) / largest, exact)
    };
    let (attention, states) = (off(1), off(4));
    println!("layers of attention are off by {attention:?}, with states by {states:?}");
    assert!(states.0 < 3.0 * attention.0 && states.0 < 6e-3, "{states:?}, attention by {attention:?}");
    assert!(states.1 < 1e-4, "{states:?}");
}

/// The device has as many bytes of states as are predicted. Allocators round buffers up.
#[test]
fn records_take_the_predicted_memory() {
    let Some(path) = data("tiny/qwen35") else { return };
    let taken = |records: usize| {
        let backend = gpu_with(&path, Precision::Fast, true, |plan| size(plan).with_records(records))?;
        let need = MemoryNeed::new(backend.plan(), &size(backend.plan()).with_records(records)).unwrap();
        assert_eq!(need.states, ((records + 1) * backend.plan().record_bytes()) as u64);
        Some((need.total() - need.spare, backend.gpu().used()?.0))
    };
    let (Some(few), Some(many)) = (taken(1000), taken(3000)) else { return };
    let (predicted, used) = (many.0 - few.0, many.1 - few.1);
    println!("{predicted} bytes more are predicted, {used} are used");
    assert!(predicted > 30 << 20 && used.abs_diff(predicted) < 4096, "{used} of {predicted}");
}

#[test]
fn sequences_in_slots_are_as_alone() {
    let Some(path) = data("tiny/qwen35") else { return };
    for vulkan_recorder in [true, false] {
        for precision in [Precision::Fast, Precision::Exact] {
            let Some(mut backend) = gpu(&path, precision, vulkan_recorder) else { return };
            println!("{precision:?}, {}", if vulkan_recorder { "Vulkan" } else { "wgpu" });
            check_schedules(&mut backend, 0..cases(4));
        }
    }
}

/// What `prefill` computed is not computed again when the session goes on, although a state cannot be shortened.
#[test]
fn a_session_goes_on_from_its_prefill() {
    let (Some(path), Some(name)) = (data("tiny/qwen35"), adapter()) else { return };
    for prefix_cache in [true, false] {
        let options = Options {
            device: Device::Gpu(Some(name.clone())),
            precision: Precision::Fast,
            context: Some(256),
            prefix_cache,
            ..Options::default()
        };
        let model = Model::open(&path, &options).unwrap();
        for before in [1, 31, 32, 33, 63, 64, 100] {
            let ids: Vec<u32> = (0..=before).map(|i| (i * 37 + 11) % model.plan().vocab as u32).collect();
            let mut session = model.session();
            session.prefill(&ids[..before as usize]).unwrap();
            session.set_tokens(&ids).unwrap();
            let request = Request::new(Prompt::Continue).max_tokens(2).ignore_end(true);
            let mut generation = session.generate(request).unwrap();
            let mut found = None;
            while let Some(event) = generation.next().unwrap() {
                if let Event::Prompt { cached, .. } = event {
                    found = Some(cached);
                }
            }
            assert_eq!(found, Some(before as usize), "prefix cache: {prefix_cache}");
        }
    }
}
