//! Log-probabilities of whole models on a GPU against those on the CPU, in both precisions.
#![cfg(feature = "gpu")]

mod adapter;

use adapter::adapter;
use gyrus::{Device, Model, Options, Precision};
use gyrus_testkit::data;

fn device() -> Option<Device> {
    adapter().map(|name| Device::Gpu(Some(name)))
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

const TALES: &str = "tales/tales-7m-q8_0.gguf";

const MODELS: [&str; 4] = ["tiny/llama", "tiny/qwen3", "tiny/mistral", TALES];

#[test]
fn exact_is_exact_on_both() {
    let Some(device) = device() else { return };
    for path in MODELS {
        let Some(cpu) = open(path, Device::Cpu, Precision::Exact, 64) else { continue };
        let Some(gpu) = open(path, device.clone(), Precision::Exact, 64) else { continue };
        let vocab = cpu.plan().vocab as u32;
        // More than are multiplied at once, fewer where each takes long.
        let n = if path == TALES { 30 } else { 90 };
        let ids: Vec<u32> = (0..n).map(|i| (i * 37 + 11) % vocab).collect();
        let kl = divergence(&distributions(&cpu, &ids), &distributions(&gpu, &ids));
        println!("{path}: {kl:e}");
        assert!(kl < 1e-11, "{path}: {kl:e} nats apart");
    }
}

/// A model that people use. A GPU in software takes minutes for the 300 tokens that a real one is given.
#[test]
fn smollm2_is_as_on_the_cpu() {
    let Some(device) = device() else { return };
    let Some(path) = gyrus_testkit::model("SmolLM2-135M-Instruct.Q4_1.gguf") else { return };
    let model = |device: &Device, precision| {
        let options = Options { device: device.clone(), precision, context: Some(512), ..Options::default() };
        Model::open(&path, &options).unwrap()
    };
    let software = gyrus_gpu::adapters().first().is_some_and(|a| a.kind == gyrus_gpu::AdapterKind::Software);
    let tokens = if software { 24 } else { 300 };
    let ids: Vec<u32> = (0..tokens).map(|i| (i * 7919 + 11) % 49_152).collect();
    let truth = distributions(&model(&Device::Cpu, Precision::Exact), &ids);
    let exact = divergence(&truth, &distributions(&model(&device, Precision::Exact), &ids));
    let fast = divergence(&truth, &distributions(&model(&device, Precision::Fast), &ids));
    let cpu = divergence(&truth, &distributions(&model(&Device::Cpu, Precision::Fast), &ids));
    println!("KL from exact on the CPU: exact {exact:e}, fast {fast:e}; fast on the CPU {cpu:e}");
    assert!(exact < 1e-10, "{exact:e}");
    assert!(fast <= 1.5 * cpu + 1e-6, "{fast:e} on the GPU, {cpu:e} on the CPU");
}

/// Held to `exact` by statistics, as `fast` is on the CPU.
#[test]
fn fast_is_as_near_to_exact_as_on_the_cpu() {
    let Some(device) = device() else { return };
    let path = TALES;
    let Some(exact) = open(path, Device::Cpu, Precision::Exact, 64) else { return };
    let Some(cpu) = open(path, Device::Cpu, Precision::Fast, 64) else { return };
    let Some(gpu) = open(path, device, Precision::Fast, 64) else { return };
    let ids: Vec<u32> = (0..100).map(|i| (i * 37 + 11) % 4096).collect();
    let truth = distributions(&exact, &ids);
    let (cpu, gpu) =
        (divergence(&truth, &distributions(&cpu, &ids)), divergence(&truth, &distributions(&gpu, &ids)));
    println!("KL from exact: {gpu:e} on the GPU, {cpu:e} on the CPU");
    assert!(gpu <= 1.5 * cpu + 1e-6, "{gpu:e} on the GPU, {cpu:e} on the CPU");
}
