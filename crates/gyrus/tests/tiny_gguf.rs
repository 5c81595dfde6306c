//! Small models from GGUF files that a script with PyPI's `gguf` converts: against transformers' logits and
//! against llama.cpp on the same file.

use std::path::Path;

use gyrus::{Event, Model, Options, Precision, Request};
use gyrus_testkit::{TINY_MODELS, data, npy, oracle, tempfile};

/// How llama.cpp runs a model.
enum LlamaCpp {
    AsPublished,
    /// It truncates the ramp of gpt-oss's YaRN, so the rope of this file is not scaled.
    WithoutScaling,
    /// It ignores the window of Mistral, whose files say `llama`, and takes the last two layers before those of Gemma 4
    /// that share keys to be a local and a global one.
    Differently,
}

fn in_llama_cpp(name: &str, config: &serde_json::Value) -> LlamaCpp {
    let is = |at: usize, kind: &str| config["layer_types"][at] == *kind;
    match name {
        "mistral" => LlamaCpp::Differently,
        "gpt_oss" => LlamaCpp::WithoutScaling,
        "gemma4" => {
            let number = |key: &str| config[key].as_u64().unwrap() as usize;
            let owners = number("num_hidden_layers") - number("num_kv_shared_layers");
            match is(owners - 2, "sliding_attention") && is(owners - 1, "full_attention") {
                true => LlamaCpp::AsPublished,
                false => LlamaCpp::Differently,
            }
        }
        _ => LlamaCpp::AsPublished,
    }
}

fn open(file: &Path) -> Model {
    let options = Options { precision: Precision::Exact, context: Some(128), ..Options::default() };
    Model::open(file, &options).unwrap()
}

/// The logits of every position.
fn logits(model: &Model, ids: &[u32]) -> Vec<Vec<f32>> {
    let mut rows = Vec::new();
    model.session().score(ids, |_, row| rows.push(row.to_vec())).unwrap();
    rows
}

/// Greedy tokens in exact.
fn greedy(model: &Model, ids: &[u32], count: usize) -> Vec<u32> {
    let mut session = model.session();
    let request = Request::ids(ids).max_tokens(count).ignore_end(true);
    let mut generation = session.generate(request).unwrap();
    let mut tokens = Vec::new();
    while let Some(event) = generation.next().unwrap() {
        if let Event::Token { id, .. } = event {
            tokens.push(id);
        }
    }
    tokens
}

/// llama.cpp's greedy tokens on the same file.
fn greedy_in_llama_cpp(file: &Path, ids: &[u32], count: usize) -> Option<Vec<u32>> {
    let mut arguments = vec!["greedy".to_owned(), file.display().to_string(), count.to_string()];
    arguments.extend(ids.iter().map(u32::to_string));
    let printed = oracle("llama_cpp.py", &arguments)?;
    Some(printed.split_whitespace().map(|id| id.parse().unwrap()).collect())
}

/// llama.cpp's logits of every position, computed in f32.
fn logits_in_llama_cpp(file: &Path, ids: &[u32], vocab: usize) -> Option<Vec<Vec<f32>>> {
    let out = file.with_extension("npy");
    let mut arguments = vec!["logits".to_owned(), file.display().to_string(), out.display().to_string()];
    arguments.extend(ids.iter().map(u32::to_string));
    oracle("llama_cpp.py", &arguments)?;
    let theirs = npy::read_f32(&out);
    assert_eq!(theirs.shape, [ids.len(), vocab]);
    Some(theirs.values.chunks_exact(vocab).map(<[f32]>::to_vec).collect())
}

/// The largest difference of rows of numbers. A NaN is farther than anything.
fn distance<T: Copy + Into<f64>>(ours: &[Vec<T>], theirs: &[Vec<T>]) -> f64 {
    assert_eq!(ours.len(), theirs.len());
    let pairs = ours.iter().zip(theirs).flat_map(|(a, b)| a.iter().zip(b));
    let each = pairs.map(|(a, b)| ((*a).into() - (*b).into()).abs());
    gyrus_testkit::largest(each)
}

/// The log-probabilities of all tokens.
fn log_softmax(logits: &[f32]) -> Vec<f64> {
    let most = logits.iter().fold(f32::NEG_INFINITY, |most, logit| most.max(*logit));
    let sum: f64 = logits.iter().map(|logit| f64::from(logit - most).exp()).sum();
    logits.iter().map(|logit| f64::from(logit - most) - sum.ln()).collect()
}

#[test]
fn every_architecture_is_as_in_transformers_and_llama_cpp() {
    let folder = tempfile::tempdir().unwrap();
    for name in TINY_MODELS {
        let Some(path) = data(&format!("tiny/{name}")) else { continue };
        let json = |file: &str| -> serde_json::Value {
            serde_json::from_str(&std::fs::read_to_string(path.join(file)).unwrap()).unwrap()
        };
        let reference = json("ref.json");
        let ids: Vec<u32> = serde_json::from_value(reference["ids"].clone()).unwrap();
        let tokens: Vec<u32> = serde_json::from_value(reference["greedy"].clone()).unwrap();
        let convert = |variant: &str| {
            let file = folder.path().join(format!("{name}{variant}.gguf"));
            oracle("tiny_gguf.py", &[path.as_os_str(), file.as_os_str(), variant.as_ref()]).map(|_| file)
        };

        let Some(mut file) = convert("") else { return };
        let mut model = open(&file);
        let expected = npy::read_f32(&path.join("ref_logits_f32.npy"));
        let expected: Vec<_> = expected.values.chunks_exact(expected.shape[1]).map(<[f32]>::to_vec).collect();
        let far = distance(&logits(&model, &ids), &expected);
        println!("{name}: logits differ from transformers' by {far:e}");
        assert!(far < 1e-4, "{name}: {far}");
        assert_eq!(greedy(&model, &ids, tokens.len()), tokens, "{name}");

        if name == "qwen3next" {
            let Some(old) = convert("grouped") else { return };
            assert_eq!(logits(&open(&old), &ids), logits(&model, &ids), "{name} in one tensor");
        }
        match in_llama_cpp(name, &json("config.json")) {
            LlamaCpp::AsPublished => {}
            LlamaCpp::WithoutScaling => {
                let Some(other) = convert("unscaled") else { return };
                (model, file) = (open(&other), other);
            }
            LlamaCpp::Differently => continue,
        }
        let Some(theirs) = logits_in_llama_cpp(&file, &ids, model.plan().vocab) else { return };
        let all = |rows: &[Vec<f32>]| -> Vec<Vec<f64>> { rows.iter().map(|row| log_softmax(row)).collect() };
        let far = distance(&all(&logits(&model, &ids)), &all(&theirs));
        println!("{name}: log-probabilities differ from llama.cpp's by {far:e}");
        assert!(far < 2e-4, "{name} in llama.cpp: {far}");
        let Some(theirs) = greedy_in_llama_cpp(&file, &ids, tokens.len()) else { return };
        assert_eq!(greedy(&model, &ids, tokens.len()), theirs, "{name} in llama.cpp");
    }
}
