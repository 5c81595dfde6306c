//! Rows of which there are so many that one workgroup attends to all of a row's splits, in whole models.
#![cfg(feature = "gpu")]

mod adapter;
mod short_tales;
mod together;
mod written;

use adapter::adapter;
use gyrus::{Device, Model, Options, Sampler, Session};
use gyrus_gpu::{Gpu, GpuBackend};
use gyrus_kernels::{Instruments, KvSize, Workload};
use together::decode_together;

/// Four heads of keys: sixteen rows are gathered, fifteen are not.
const KV_HEADS: u32 = 4;

fn open(options: Options) -> Option<Model> {
    Some(Model::load(short_tales::checkpoint(KV_HEADS, 0)?, &options).unwrap())
}

fn ids(text: u32, count: u32) -> Vec<u32> {
    (0..count).map(|i| (i * 37 + 11 * text + 3) % short_tales::VOCAB).collect()
}

/// Sixteen texts leave out the kernel that puts splits together and makes bytes of them.
#[test]
fn gathered_rows_need_no_merge() {
    let Some(adapter) = adapter() else { return };
    let Some(checkpoint) = short_tales::checkpoint(KV_HEADS, 0) else { return };
    let Some(model) = open(Options { context: Some(64), ..Options::default() }) else { return };
    let gpu = Gpu::open(&gyrus_gpu::Options { adapter: Some(adapter), ..Default::default() }).unwrap();
    let bytes = |spec: &gyrus::WeightSpec| checkpoint.tensor(&spec.name).map(|tensor| tensor.data);
    let mut backend =
        GpuBackend::new(gpu, model.plan().clone(), KvSize::full(&model.plan().kv, 128), bytes, |_| {})
            .unwrap();
    // In this order, so that one table has gathered and is not to gather again.
    for (texts, merges) in [(16, 0), (15, 2), (16, 0)] {
        let profile = backend.profile(Workload::Sequences(texts), 70, &[&[0, 1, 2, 3]]).unwrap();
        let count = |name: &str| profile.entries.iter().find(|of| of.name == name).map_or(0, |of| of.count);
        assert_eq!(count("merge · quantise"), merges, "{texts} texts: {:?}", profile.entries);
        assert_eq!(count("rope · write · attend"), 2, "{texts} texts: {:?}", profile.entries);
    }
}

/// Sixteen texts at once get what each gets alone.
#[test]
fn gathered_texts_are_as_if_alone() {
    const TOKENS: usize = 8;
    let Some(name) = adapter() else { return };
    let device = Device::Gpu(Some(name));
    let Some(model) = open(Options { device, context: Some(128), sessions: 17, ..Options::default() }) else {
        return;
    };
    // Hot, since what is left of Tales repeats itself.
    let sampler =
        |text: u32| Sampler { temperature: 4.0, top_k: 40, seed: text.into(), ..Sampler::default() };
    let begin = |text: u32| {
        let mut session = model.session();
        session.set_tokens(&ids(text, 2 + 5 * text)).unwrap();
        session
    };
    let mut together: Vec<Session> = (0..16).map(begin).collect();
    let samplers: Vec<Sampler> = (0..16).map(sampler).collect();
    decode_together(&mut together, &samplers, TOKENS, |_| true).unwrap();
    for text in [0, 7, 12, 15] {
        let mut alone = [begin(text)];
        decode_together(&mut alone, &[sampler(text)], TOKENS, |_| true).unwrap();
        assert_eq!(alone[0].tokens(), together[text as usize].tokens(), "text {text}");
    }
}
