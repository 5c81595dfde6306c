//! Mixtures of experts: rows depend on their own sequence alone, files of every layout are read, and what is wrong with a
//! file is an error with a name.

mod folder;
mod reference;
mod small_model;
mod together;

use folder::{Folder, error, exact, scored};
use gyrus::{DType, Device, Error, Model, Options, Precision, Sampler, Skipped, SkippedPart};
use gyrus_formats::{Bytes, Checkpoint};
use gyrus_testkit::data;
use reference::{distance, logits};
use serde_json::json;
use together::decode_together;

const MODELS: [&str; 6] = ["gemma4moe", "gpt_oss", "mixtral", "qwen35moe", "qwen3moe", "qwen3next"];

#[test]
fn results_do_not_depend_on_chunks_and_threads() {
    for name in MODELS {
        let Some(path) = data(&format!("tiny/{name}")) else { continue };
        let (_, ids, expected) = reference::read(&path);
        // gpt-oss is wide enough for blocks, so that its experts are multiplied in int8.
        let quantized = if name == "gpt_oss" { Some(DType::Q8_0) } else { None };
        for (precision, quantize) in
            [(Precision::Exact, None), (Precision::Fast, None), (Precision::Fast, quantized)]
        {
            let mut first: Option<Vec<f32>> = None;
            for (chunk, threads) in [(512, 1), (512, 2), (37, 3), (16, 2), (7, 1), (1, 2), (1, 1)] {
                let options =
                    Options { precision, quantize, chunk, threads: Some(threads), ..Options::default() };
                let found = logits(&Model::open(&path, &options).unwrap(), &ids);
                let expected = first.get_or_insert_with(|| found.clone());
                assert!(found == *expected, "{name}, {precision:?}, chunks of {chunk}, {threads} threads");
            }
            let found = first.unwrap();
            let squares: f32 = found.iter().zip(&expected).map(|(a, b)| (a - b).powi(2)).sum();
            let (far, mean) = (distance(&found, &expected), (squares / found.len() as f32).sqrt());
            println!("{name}, {precision:?}, {quantize:?}: off by {far:e}, {mean:e} on average");
            // Where two router logits are close, rounding may choose another expert.
            assert!(
                if precision == Precision::Exact { far < 1e-4 } else { mean < 0.25 },
                "{name}: {far}, {mean}"
            );
        }
    }
}

/// Sequences that decode together have the tokens that they have alone.
#[test]
fn results_do_not_depend_on_other_sequences() {
    for name in MODELS {
        let Some(path) = data(&format!("tiny/{name}")) else { continue };
        let options = Options { sessions: 5, context: Some(128), ..Options::default() };
        let model = Model::open(&path, &options).unwrap();
        let prompt = |n: u32| (0..3 + 7 * n).map(|i| 3 + (i * 37 + 11 * n) % 90).collect::<Vec<u32>>();
        let sampler = |n: u64| Sampler { temperature: 0.9, seed: n, ..Sampler::default() };
        let run = |sequences: &[u32]| {
            let mut sessions: Vec<_> = sequences.iter().map(|_| model.session()).collect();
            for (session, n) in sessions.iter_mut().zip(sequences) {
                session.set_tokens(&prompt(*n)).unwrap();
            }
            let samplers: Vec<Sampler> = sequences.iter().map(|n| sampler(u64::from(*n))).collect();
            let mut tokens = Vec::new();
            decode_together(&mut sessions, &samplers, 24, |step| {
                tokens.push(step.to_vec());
                true
            })
            .unwrap();
            tokens
        };
        let together = run(&[0, 1, 2, 3, 4]);
        for n in 0..5 {
            let alone: Vec<u32> = run(&[n]).concat();
            let beside: Vec<u32> = together.iter().map(|step| step[n as usize]).collect();
            assert_eq!(alone, beside, "{name}, sequence {n}");
        }
    }
}

#[test]
fn the_cpu_computes_what_the_twins_do() {
    for name in MODELS {
        let Some(path) = data(&format!("tiny/{name}")) else { continue };
        let (_, ids, _) = reference::read(&path);
        let open = |device| Model::open(&path, &Options { device, ..exact() }).unwrap();
        let (cpu, twins) =
            (logits(&open(Device::Cpu), &ids[..40]), logits(&open(Device::Reference), &ids[..40]));
        let far = distance(&cpu, &twins);
        assert!(far < 1e-4, "{name}: {far}");
    }
}

/// Experts in MXFP4, whose quants and scales are tensors of their own, are those of the same values in bf16.
#[test]
fn mxfp4_experts_are_assembled() {
    let Some(mut model) = Folder::of("gpt_oss") else { return };
    let mut blocks = model.tensors.clone();
    for (name, (dtype, shape, bytes)) in model
        .tensors
        .iter_mut()
        .filter(|(name, _)| name.ends_with("experts.gate_up_proj") || name.ends_with("experts.down_proj"))
    {
        let [experts, cols, rows] = shape[..] else { panic!("{name}") };
        let mut values = vec![0.0; experts * cols * rows];
        gyrus_tensor::dequantize(dtype.parse().unwrap(), bytes, &mut values).unwrap();
        let at = |i: usize| {
            let (expert, row, col) = (i / (rows * cols), i / cols % rows, i % cols);
            (expert * cols + col) * rows + row
        };
        let by_rows: Vec<f32> = (0..values.len()).map(|i| values[at(i)]).collect();
        let quantized = gyrus_tensor::quantize(DType::MXFP4, &by_rows).unwrap();
        let mut rounded = vec![0.0; values.len()];
        gyrus_tensor::dequantize(DType::MXFP4, &quantized, &mut rounded).unwrap();
        (0..values.len()).for_each(|i| values[at(i)] = rounded[i]);
        (*dtype, *bytes) = ("BF16".to_owned(), gyrus_tensor::quantize(DType::BF16, &values).unwrap());
        // A block has elements 0 to 15 in its low bits; the tensor has neighbours in a byte.
        let (mut quants, mut scales) = (Vec::new(), Vec::new());
        for block in quantized.chunks_exact(17) {
            scales.push(block[0]);
            let code = |j: usize| block[1 + j % 16] >> (4 * (j / 16)) & 15;
            quants.extend((0..16).map(|j| code(2 * j) | code(2 * j + 1) << 4));
        }
        blocks.remove(name);
        let dims = vec![experts, rows, cols / 32];
        blocks.insert(format!("{name}_blocks"), ("U8".to_owned(), [&dims[..], &[16]].concat(), quants));
        blocks.insert(format!("{name}_scales"), ("U8".to_owned(), dims, scales));
    }
    let expected = scored(&Model::open(model.write().path(), &exact()).unwrap()).unwrap();
    model.tensors = blocks;
    model.config["quantization_config"] = json!({"quant_method": "mxfp4"});
    let loaded = Model::open(model.write().path(), &exact()).unwrap();
    assert_eq!(loaded.plan().weights.iter().filter(|spec| spec.dtype == DType::MXFP4).count(), 6);
    let far = distance(&scored(&loaded).unwrap(), &expected);
    assert!(far < 1e-5, "{far}");
    // A tensor of the wrong length, and none.
    let name = "model.layers.1.mlp.experts.down_proj_scales";
    model.tensors.get_mut(name).unwrap().1[1] -= 1;
    let (_, shape, bytes) = model.tensors.get_mut(name).unwrap();
    bytes.truncate(shape.iter().product());
    assert!(error(model.write().path()).contains(name), "{}", error(model.write().path()));
    model.tensors.remove(name);
    assert!(error(model.write().path()).contains(name), "{}", error(model.write().path()));
}

#[test]
fn a_router_that_is_nan_is_an_error() {
    for (name, router) in [
        ("qwen3moe", "model.layers.1.mlp.gate.weight"),
        ("mixtral", "model.layers.0.block_sparse_moe.gate.weight"),
        ("gpt_oss", "model.layers.1.mlp.router.bias"),
        ("gemma4moe", "model.layers.2.router.scale"),
        ("gemma4moe", "model.layers.0.router.per_expert_scale"),
        ("qwen35moe", "model.layers.0.mlp.gate.weight"),
        ("qwen3next", "model.layers.1.mlp.shared_expert_gate.weight"),
    ] {
        let Some(mut model) = Folder::of(name) else { continue };
        let bytes = &mut model.tensors.get_mut(router).unwrap().2;
        bytes.chunks_exact_mut(2).for_each(|value| value.copy_from_slice(&0x7fc0u16.to_le_bytes()));
        let folder = model.write();
        for precision in [Precision::Exact, Precision::Fast] {
            let options = Options { precision, ..exact() };
            let found = scored(&Model::open(folder.path(), &options).unwrap());
            assert!(matches!(found, Err(Error::NotFinite { position: 0, .. })), "{router}: {found:?}");
        }
    }
}

#[test]
fn what_is_wrong_with_experts_is_named() {
    let said = |name: &str, change: &dyn Fn(&mut Folder)| {
        let mut model = Folder::of(name)?;
        change(&mut model);
        Some(error(model.write().path()))
    };
    let set = |field: &'static str, value: serde_json::Value| {
        move |model: &mut Folder| model.config[field] = value.clone()
    };
    let lacks = |tensor: &'static str| move |model: &mut Folder| _ = model.tensors.remove(tensor);
    type Change = Box<dyn Fn(&mut Folder)>;
    // Ids of experts are computed, so a file has them in the names of tensors alone.
    let has = |tensor: &'static str| move |model: &mut Folder| model.add(tensor);
    let cases: [(&str, Change, &str); 18] = [
        (
            "qwen3moe",
            Box::new(has("model.layers.1.mlp.experts.6.up_proj.weight")),
            "experts.6.up_proj.weight' is not used",
        ),
        (
            "qwen3next",
            Box::new(has("model.layers.0.mlp.experts.4294967296.up_proj.weight")),
            "experts.4294967296.up",
        ),
        (
            "qwen3next",
            Box::new(lacks("model.layers.0.linear_attn.in_proj_ba.weight")),
            "linear_attn.in_proj_ba",
        ),
        ("qwen35moe", Box::new(lacks("model.layers.1.mlp.shared_expert_gate.weight")), "shared_expert_gate"),
        ("qwen3moe", Box::new(lacks("model.layers.1.mlp.experts.5.up_proj.weight")), "experts.5.up_proj"),
        ("mixtral", Box::new(lacks("model.layers.0.block_sparse_moe.gate.weight")), "block_sparse_moe.gate"),
        ("gpt_oss", Box::new(lacks("model.layers.1.self_attn.sinks")), "self_attn.sinks"),
        ("gpt_oss", Box::new(lacks("model.layers.1.mlp.experts.down_proj_bias")), "down_proj_bias"),
        ("gemma4moe", Box::new(lacks("model.layers.2.router.scale")), "router.scale"),
        ("qwen3moe", Box::new(set("num_local_experts", json!(7))), "expected 7 × 32"),
        ("qwen3moe", Box::new(set("num_local_experts", json!(5))), "mlp.gate.weight"),
        ("gpt_oss", Box::new(set("num_local_experts", json!(1u64 << 40))), "expert count"),
        ("mixtral", Box::new(set("num_experts_per_tok", json!(5))), "number of experts used is 5"),
        ("mixtral", Box::new(set("num_experts_per_tok", json!(0))), "number of experts used is 0"),
        ("gemma4moe", Box::new(set("moe_intermediate_size", json!(0))), "expert length"),
        ("qwen3moe", Box::new(set("scoring_func", json!("sigmoid"))), "router 'sigmoid'"),
        ("gpt_oss", Box::new(set("swiglu_limit", json!(6.0))), "'swiglu_limit'"),
        ("qwen3moe", Box::new(set("n_group", json!(2))), "2 groups"),
    ];
    for (name, change, part) in cases {
        let Some(said) = said(name, &change) else { continue };
        assert!(said.contains(part), "{name}: '{part}' is not in '{said}'");
    }
}

fn prediction_layers(name: &str) -> Skipped {
    Skipped { name: name.to_owned(), part: SkippedPart::PredictionLayers }
}

/// Layers that predict several tokens are not loaded, and named.
#[test]
fn prediction_layers_are_skipped_by_name() {
    let Some(mut model) = Folder::of("qwen3moe") else { return };
    model.add("mtp.layers.0.mlp.gate.weight");
    model.add("mtp.fc.weight");
    let loaded = model.assert_same(model.write().path());
    assert_eq!(loaded.config().skipped, [prediction_layers("mtp")]);
    let Some(mut model) = Folder::of("qwen3moe") else { return };
    model.add("model.layers.2.eh_proj.weight");
    assert!(error(model.write().path()).contains("model.layers.2.eh_proj.weight"));
    model.config["num_nextn_predict_layers"] = json!(1);
    let loaded = model.assert_same(model.write().path());
    assert_eq!(loaded.config().skipped, [prediction_layers("model.layers.2")]);
}

#[test]
fn what_is_wrong_with_experts_of_a_gguf_file_is_named() {
    let load = |numbers: &[(&str, u32)], skip: &str, add: Option<(&str, &[usize])>| {
        let bytes = Bytes::Owned(small_model::with_experts(numbers, skip, add));
        let loaded = Model::load(Checkpoint::from_gguf("small.gguf", bytes).unwrap(), &exact());
        loaded.map(|model| model.config().skipped.clone()).map_err(|error| error.to_string())
    };
    assert_eq!(load(&[], "", None), Ok(vec![]));
    // Softmax over all experts, which are then renormalised, and over the chosen ones.
    assert_eq!(load(&[("expert_gating_func", 1)], "", None), Ok(vec![]));
    assert_eq!(load(&[("expert_gating_func", 3)], "", None), Ok(vec![]));
    let predicting = [("block_count", 2), ("nextn_predict_layers", 1)];
    let head: (&str, &[usize]) = ("blk.1.nextn.eh_proj.weight", &[8, 16]);
    assert_eq!(load(&predicting, "", Some(head)), Ok(vec![prediction_layers("blk.1")]));
    let up = "blk.0.ffn_up_exps.weight";
    for (numbers, skip, part) in [
        (&[("expert_gating_func", 2)][..], "", "router kind 2"),
        (&[("expert_count", 4)], "", "'blk.0.ffn_gate_inp.weight' has shape 3 × 8, expected 4 × 8"),
        (&[("expert_count", u32::MAX)], "", "expert count is 4294967295"),
        (&[("expert_count", 0)], "", "'blk.0.ffn_gate.weight' is missing"),
        (&[("expert_used_count", 4)], "", "number of experts used is 4, it must be from 1 to 3"),
        (&[("expert_used_count", 0)], "", "number of experts used is 0"),
        (&[("expert_feed_forward_length", 13)], "", "has shape 3 × 12 × 8, expected 3 × 13 × 8"),
        (&[("expert_group_count", 2)], "", "a router with 2 groups"),
        (&[("nextn_predict_layers", 1)], "", "layer count is 0"),
        (&[("nextn_predict_layers", u32::MAX)], "", "layer count is 0"),
        (&[], up, "'blk.0.ffn_up_exps.weight' is missing"),
        (&[], "blk.0.ffn_gate_inp.weight", "'blk.0.ffn_gate_inp.weight' is missing"),
    ] {
        let said = load(numbers, skip, None).unwrap_err();
        assert!(said.contains(part), "{numbers:?}, without '{skip}': '{part}' is not in '{said}'");
    }
    let said = load(&[], up, Some((up, &[3, 8, 12]))).unwrap_err();
    assert!(said.contains("expected 3 × 12 × 8"), "{said}");
}
