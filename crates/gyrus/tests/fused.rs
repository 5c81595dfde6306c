//! The kernel calls that a plan becomes on a GPU, as text. No GPU is needed.
#![cfg(feature = "gpu")]

mod llama_plan;

use gyrus::{Model, Options};
use gyrus_gpu::{BatchKind, Capabilities, fused};
use gyrus_kernels::{KvSize, Plan};
use gyrus_tensor::DType;
use gyrus_testkit::repository;
use llama_plan::Llama;

/// The calls of a plan for each kind of batch, on a device without optional features and on one with all.
fn calls(plan: &Plan) -> String {
    let mut text = String::new();
    for (device, capabilities) in [("plain device", Capabilities::PLAIN), ("H200", Capabilities::H200)] {
        for kind in [BatchKind::Decode, BatchKind::Sequences, BatchKind::ShortChunk, BatchKind::Prefill] {
            let fused = fused(plan, &KvSize::full(&plan.kv, 2048), &capabilities, kind).unwrap();
            text += &format!("{device}, {fused}\n");
        }
    }
    text
}

#[test]
fn tales() {
    let path = repository().join("models/tales-7m/tales-7m-q8_0.gguf");
    let model = Model::open(&path, &Options::default()).unwrap();
    let mut plan = model.plan().clone();
    // All layers are alike.
    plan.forward = llama_plan::first_layers(&plan, 1);
    insta::assert_snapshot!(calls(&plan));
}

/// SmolLM2-135M in Q4_1, one layer. The plan of the model's file gives the same calls.
#[test]
fn smollm2() {
    let mut plan = Llama::SMOLLM2.plan();
    plan.forward = llama_plan::first_layers(&plan, 1);
    let text = calls(&plan);
    insta::assert_snapshot!(text);
    let Some(path) = gyrus_testkit::model("SmolLM2-135M-Instruct.Q4_1.gguf") else { return };
    let model = Model::open(&path, &Options { context: Some(512), ..Options::default() }).unwrap();
    let mut plan = model.plan().clone();
    plan.forward = llama_plan::first_layers(&plan, 1);
    assert_eq!(calls(&plan), text);
}

/// The calls of one row and of a prompt for each architecture, as if its matrices were Q8_0. The layers are those of the
/// test model.
#[test]
fn architectures() {
    for name in [
        "gemma",
        "gemma2",
        "gemma3",
        "gemma4",
        "gemma4moe",
        "gpt_oss",
        "granite",
        "mixtral",
        "olmo2",
        "phi3",
        "qwen2",
        "qwen3moe",
        "smollm3",
    ] {
        // Not those of `GYRUS_TEST_DATA`, which have other sizes.
        let path = gyrus_testkit::repository().join("tests/data/tiny").join(name);
        let model = Model::open(&path, &Options::default()).unwrap();
        let mut plan = model.plan().clone();
        let is_router = |name: &str| name.contains("router") || name.ends_with("mlp.gate.weight");
        let matrices = plan.weights.iter_mut();
        let matrices = matrices.filter(|weight| weight.shape.rank() >= 2 && !is_router(&weight.name));
        // Rows of other lengths than whole blocks stay as they are.
        matrices.filter(|weight| weight.shape.row() % 32 == 0).for_each(|weight| weight.dtype = DType::Q8_0);
        let mut text = String::new();
        for kind in [BatchKind::Decode, BatchKind::Prefill] {
            let size = KvSize::full(&plan.kv, 2048);
            text += &format!("{}\n", fused(&plan, &size, &Capabilities::H200, kind).unwrap());
        }
        insta::assert_snapshot!(format!("architecture_{name}"), text);
    }
}

/// The shape of Llama-3.2-1B in 4 bits, two layers.
#[test]
fn llama_1b() {
    insta::assert_snapshot!(calls(&Llama::LLAMA_1B.plan()));
}

/// A mixture of types as in Q4_K_M, so that Q, K and V are two products, with a window and heads that splits do not
/// take.
#[test]
fn small_llama_of_mixed_types() {
    let llama = Llama {
        vocab: 1000,
        dim: 256,
        ffn: 512,
        heads: 8,
        kv_heads: 2,
        head_dim: 48,
        layers: 1,
        window: Some(100),
        head_norms: true,
        qk: DType::Q4_K,
        v: DType::Q6_K,
        others: DType::F16,
        ..Llama::LLAMA_1B
    };
    insta::assert_snapshot!(calls(&llama.plan()));
}

/// A norm that is read again after its input has changed is computed by a kernel of its own before that.
#[test]
fn norms_that_are_read_later() {
    let mut plan = Llama { layers: 1, ..Llama::LLAMA_1B }.plan();
    let product = plan.forward[2].clone();
    // Behind the product that adds attention to the stream.
    plan.forward.insert(6, product);
    let fused = fused(&plan, &KvSize::full(&plan.kv, 2048), &Capabilities::H200, BatchKind::Decode).unwrap();
    insta::assert_snapshot!(fused.to_string());
}

/// In single precision nothing is fused, whatever the batch.
#[test]
fn exact_is_not_fused() {
    let llama = Llama { precision: gyrus::Precision::Exact, layers: 1, ..Llama::LLAMA_1B };
    let plan = llama.plan();
    let calls = |kind| {
        let fused =
            fused(&plan, &KvSize::full(&plan.kv, 2048), &Capabilities::H200, kind).unwrap().to_string();
        fused.lines().skip(1).map(str::to_owned).collect::<Vec<_>>()
    };
    let prefill = calls(BatchKind::Prefill);
    assert_eq!(calls(BatchKind::ShortChunk), prefill);
    insta::assert_snapshot!(prefill.join("\n"));
}
