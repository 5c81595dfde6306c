//! MLX folders on the CPU: against logits of MLX in f32, with settings for single
//! layers, and with mistakes.

mod mlx_folder;
mod reference;

use gyrus::{Device, Model, Options, Precision};
use gyrus_tensor::DType;
use gyrus_testkit::{Rng, data, tempfile};
use mlx_folder::{Affine, Folder, Tensor, quantize};
use reference::{distance, logits};
use serde_json::{Value, json};

fn options(precision: Precision) -> Options {
    Options { precision, context: Some(160), ..Options::default() }
}

#[test]
fn every_folder_is_as_in_its_reference() {
    for name in ["gemma3-4bit", "llama-4bit", "qwen3-3bit", "qwen3-4bit", "qwen3-6bit", "qwen3-8bit"] {
        let Some(path) = data(&format!("mlx/{name}")) else { continue };
        let (_, ids, expected) = reference::read(&path);
        let far = |precision| {
            let model = Model::open(&path, &options(precision)).unwrap();
            distance(&logits(&model, &ids), &expected)
        };
        let (exact, fast) = (far(Precision::Exact), far(Precision::Fast));
        let largest = expected.iter().fold(0f32, |most, logit| most.max(logit.abs()));
        println!("{name}: exact is off by {exact:e}, fast by {fast:e}, the largest logit is {largest}");
        assert!(exact < 3e-4, "{name}, exact: {exact}");
        assert!(fast < 0.1 * largest, "{name}, fast: {fast}");
    }
}

/// The scalar reference reads MLX weights through the same source as the CPU backend.
#[test]
fn the_scalar_reference_reads_quantised_folders() {
    let Some(path) = data("mlx/qwen3-4bit") else { return };
    let (_, ids, expected) = reference::read(&path);
    let on_reference = Options { device: Device::Reference, ..options(Precision::Exact) };
    let model = Model::open(&path, &on_reference).unwrap();
    let far = distance(&logits(&model, &ids), &expected);
    assert!(far < 3e-4, "{far}");
}

/// A model of random weights: every weight with other bits, groups and scales, and one that is not quantised. The
/// same values as plain f32 give the same logits, bit for bit.
#[test]
fn settings_of_single_layers_give_the_bits_of_plain_weights() {
    let Some(path) = data("mlx/qwen3-4bit") else { return };
    let original = Folder::read(&path);
    let (mut mlx, mut plain) = (original.clone(), original.clone());
    let mut settings = json!({"group_size": 64, "bits": 4});
    let mut rng = Rng::new(8);
    let mut kinds = Vec::new();
    for bits in [2, 3, 4, 5, 6, 8] {
        for (group, scale) in [(32, DType::BF16), (64, DType::F16), (64, DType::F32), (128, DType::BF16)] {
            kinds.push((bits, group, scale));
        }
    }
    let stems: Vec<&str> = original.tensors.keys().filter_map(|name| name.strip_suffix(".scales")).collect();
    assert_eq!(stems.len(), 29);
    for (i, stem) in stems.into_iter().enumerate() {
        let (rows, words) = match original.tensors[&format!("{stem}.weight")].shape[..] {
            [rows, words] => (rows, words),
            _ => panic!("{stem} is no matrix"),
        };
        let cols = 8 * words;
        let values: Vec<f32> = (0..rows * cols).map(|_| 0.05 * rng.gaussian() as f32).collect();
        let float = |values: &[f32]| {
            let bytes = gyrus_tensor::quantize(DType::F32, values).unwrap();
            Tensor { dtype: DType::F32, shape: vec![rows, cols], bytes }
        };
        for folder in [&mut mlx, &mut plain] {
            folder.tensors.retain(|name, _| !name.starts_with(&format!("{stem}.")));
        }
        let (bits, group, scale) = kinds[i % kinds.len()];
        let group = if cols % group == 0 { group } else { 64 };
        let weight = format!("{stem}.weight");
        if i == 5 {
            settings[stem] = Value::Bool(false);
            mlx.tensors.insert(weight.clone(), float(&values));
            plain.tensors.insert(weight, float(&values));
            continue;
        }
        settings[stem] = json!({"group_size": group, "bits": bits});
        let ([words, scales, biases], made) = quantize(&values, cols, &Affine { bits, group, scale });
        mlx.tensors.insert(weight.clone(), words);
        mlx.tensors.insert(format!("{stem}.scales"), scales);
        mlx.tensors.insert(format!("{stem}.biases"), biases);
        plain.tensors.insert(weight, float(&made));
    }
    mlx.config["quantization"] = settings.clone();
    mlx.config["quantization_config"] = settings;
    for name in ["quantization", "quantization_config"] {
        plain.config.as_object_mut().unwrap().remove(name);
    }
    let ids: Vec<u32> = (0..40).map(|i| i * 11 % 512).collect();
    let run = |folder: &Folder| {
        let place = tempfile::tempdir().unwrap();
        folder.write(place.path());
        logits(&Model::open(place.path(), &options(Precision::Exact)).unwrap(), &ids)
    };
    let (found, expected) = (run(&mlx), run(&plain));
    assert!(expected.iter().any(|logit| logit.abs() > 0.01), "all logits are about 0");
    let bits = |values: &[f32]| values.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
    assert!(bits(&found) == bits(&expected), "they differ by {}", distance(&found, &expected));
}

#[test]
fn mistakes_are_errors_that_name_the_tensor_or_the_field() {
    let Some(path) = data("mlx/qwen3-4bit") else { return };
    let good = Folder::read(&path);
    let error = |change: &dyn Fn(&mut Folder)| {
        let mut folder = good.clone();
        change(&mut folder);
        let place = tempfile::tempdir().unwrap();
        folder.write(place.path());
        match Model::open(place.path(), &options(Precision::Exact)) {
            Ok(_) => "no error".to_owned(),
            Err(error) => error.to_string(),
        }
    };
    assert_eq!(error(&|_| {}), "no error");
    let down = "model.layers.0.mlp.down_proj";
    let set = |name: &'static str, value: Value| {
        error(&move |folder: &mut Folder| {
            for settings in ["quantization", "quantization_config"] {
                folder.config[settings][name] = value.clone();
            }
        })
    };
    let change = |name: &str, change: &dyn Fn(&mut Tensor)| {
        error(&|folder: &mut Folder| change(folder.tensors.get_mut(name).unwrap()))
    };
    let scales = format!("{down}.scales");
    let biases = format!("{down}.biases");
    for (found, part) in [
        (error(&|folder| drop(folder.tensors.remove(&scales))), format!("tensor '{scales}' is missing")),
        (error(&|folder| drop(folder.tensors.remove(&biases))), format!("tensor '{biases}' is missing")),
        (set("bits", json!(7)), "'quantization.bits' of 7".to_owned()),
        (set("mode", json!("mxfp4")), "mode 'mxfp4' ('quantization.mode' in config.json)".to_owned()),
        (set(down, json!(false)), format!("tensor '{down}.weight' of type U32")),
        (
            set("bits", json!(8)),
            "tensor 'model.embed_tokens.scales' has shape 512 × 2, expected 512 × 1 for quants of 8 bits in groups of 64"
                .to_owned(),
        ),
        (
            set(down, json!({"bits": 3, "group_size": 64})),
            format!("tensor '{down}.weight' has shape 128 × 40, expected rows of whole groups of 64 elements of 3 bits"),
        ),
        (
            set(down, json!({"bits": 4, "group_size": 32})),
            format!("tensor '{scales}' has shape 128 × 5, expected 128 × 10 for quants of 4 bits in groups of 32"),
        ),
        (
            set("hidden_size", json!(1)),
            "'quantization.hidden_size' in config.json".to_owned(),
        ),
        (change(&scales, &|t| t.shape = vec![5, 128]), format!("tensor '{scales}' has shape 5 × 128")),
        (change(&biases, &|t| t.shape = vec![640]), format!("tensor '{biases}' has shape 640")),
        (change(&biases, &|t| t.dtype = DType::F16), format!("tensor '{biases}' of type F16")),
        (change(&scales, &|t| t.dtype = DType::I16), format!("tensor '{scales}' has type I16")),
        (
            error(&|folder| folder.config["intermediate_size"] = json!(256)),
            "gate_proj.weight' has shape 320 × 128, expected 256 × 128".to_owned(),
        ),
        (
            error(&|folder| {
                for name in ["quantization", "quantization_config"] {
                    folder.config.as_object_mut().unwrap().remove(name);
                }
            }),
            "tensor 'model.embed_tokens.weight' has type U32".to_owned(),
        ),
    ] {
        assert!(found.contains(&part), "{found}: expected {part}");
    }
}
