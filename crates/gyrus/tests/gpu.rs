//! Whole models on a GPU against the same models on the CPU. In CI the GPU is lavapipe, and its absence a failure.
#![cfg(feature = "gpu")]

use gyrus::{Device, Event, Model, Options, Precision, Request};
use gyrus_testkit::data;

/// An adapter for tests: the one that is named, the best, or one in software.
fn device() -> Option<Device> {
    let adapters = gyrus_gpu::adapters();
    let named = std::env::var("GYRUS_TEST_ADAPTER").ok();
    let found = named.or_else(|| adapters.first().map(|adapter| adapter.name.clone()));
    if found.is_none() {
        assert_ne!(std::env::var("GYRUS_REQUIRE_GPU").as_deref(), Ok("1"), "no GPU was found");
        println!("skipped: no GPU was found");
    }
    found.map(|name| Device::Gpu(Some(name)))
}

fn open(path: &str, device: Device, precision: Precision, chunk: usize) -> Option<Model> {
    let options = Options { device, precision, chunk, context: Some(512), ..Options::default() };
    Some(Model::open(&data(path)?, &options).unwrap())
}

/// Log-probabilities at every position of a text.
fn distributions(model: &Model, ids: &[u32]) -> Vec<Vec<f64>> {
    let mut all = Vec::new();
    let collect = |_: usize, row: &[f32]| {
        let most = row.iter().copied().fold(f32::MIN, f32::max);
        let total: f64 = row.iter().map(|v| f64::from(v - most).exp()).sum();
        all.push(row.iter().map(|v| f64::from(v - most) - total.ln()).collect());
    };
    model.session().score(ids, collect).unwrap();
    all
}

/// The mean over positions of how far `q` is from `p`, in nats.
fn divergence(p: &[Vec<f64>], q: &[Vec<f64>]) -> f64 {
    let one = |p: &[f64], q: &[f64]| -> f64 { p.iter().zip(q).map(|(p, q)| p.exp() * (p - q)).sum() };
    p.iter().zip(q).map(|(p, q)| one(p, q)).sum::<f64>() / p.len() as f64
}

const MODELS: [&str; 4] = ["tiny/llama", "tiny/qwen3", "tiny/mistral", "tales/tales-7m-q8_0.gguf"];

#[test]
fn exact_is_exact_on_both() {
    let Some(device) = device() else { return };
    for path in MODELS {
        let Some(cpu) = open(path, Device::Cpu, Precision::Exact, 64) else { continue };
        let Some(gpu) = open(path, device.clone(), Precision::Exact, 64) else { continue };
        let vocab = cpu.plan().vocab as u32;
        let ids: Vec<u32> = (0..90).map(|i| (i * 37 + 11) % vocab).collect();
        let kl = divergence(&distributions(&cpu, &ids), &distributions(&gpu, &ids));
        println!("{path}: {kl:e}");
        assert!(kl < 1e-6, "{path}: {kl:e} nats apart");
    }
}

/// Held to `exact` by statistics, as `fast` is on the CPU.
#[test]
fn fast_is_as_near_to_exact_as_on_the_cpu() {
    let Some(device) = device() else { return };
    let path = "tales/tales-7m-q8_0.gguf";
    let Some(exact) = open(path, Device::Cpu, Precision::Exact, 64) else { return };
    let Some(cpu) = open(path, Device::Cpu, Precision::Fast, 64) else { return };
    let Some(gpu) = open(path, device, Precision::Fast, 64) else { return };
    let ids: Vec<u32> = (0..200).map(|i| (i * 37 + 11) % 4096).collect();
    let truth = distributions(&exact, &ids);
    let (cpu, gpu) =
        (divergence(&truth, &distributions(&cpu, &ids)), divergence(&truth, &distributions(&gpu, &ids)));
    println!("KL from exact: {gpu:e} on the GPU, {cpu:e} on the CPU");
    assert!(gpu <= 1.5 * cpu + 1e-6, "{gpu:e} on the GPU, {cpu:e} on the CPU");
}

/// Greedy text and its log-probabilities as bits.
fn story(model: &Model, ids: &[u32], steps: usize) -> Vec<(u32, u32)> {
    let mut session = model.session();
    let request = Request::ids(ids.to_vec()).max_tokens(steps).ignore_end(true).logprobs(true);
    let mut generation = session.generate(request).unwrap();
    let mut all = Vec::new();
    while let Some(event) = generation.next().unwrap() {
        if let Event::Token { id, logprob, .. } = event {
            all.push((id, logprob.unwrap().to_bits()));
        }
    }
    all
}

/// Pieces of one, three and nine rows take different kernels, with sums in the same order. In `fast`, a long prompt
/// alone may differ: it is multiplied in tiles.
#[test]
fn pieces_of_a_prompt_do_not_matter() {
    let Some(device) = device() else { return };
    for precision in [Precision::Exact, Precision::Fast] {
        let ids: Vec<u32> = (0..70).map(|i| (i * 37 + 11) % 4096).collect();
        let mut first = None;
        let pieces: &[usize] = if precision == Precision::Exact { &[512, 9, 3, 1] } else { &[9, 3, 1] };
        for &chunk in pieces {
            let Some(model) = open("tales/tales-7m-q8_0.gguf", device.clone(), precision, chunk) else {
                return;
            };
            let got = story(&model, &ids, 6);
            let expected = first.get_or_insert_with(|| got.clone());
            assert_eq!(&got, expected, "{precision:?}, pieces of {chunk}");
        }
    }
}

#[test]
fn a_gpu_that_is_not_there_is_an_error() {
    let Some(path) = data("tales/tales-7m-q8_0.gguf") else { return };
    let options = Options { device: "gpu:Voodoo 2".parse().unwrap(), ..Options::default() };
    let error = Model::open(&path, &options).err().unwrap().to_string();
    assert!(error.starts_with("no GPU is called 'Voodoo 2'"), "{error}");
}
