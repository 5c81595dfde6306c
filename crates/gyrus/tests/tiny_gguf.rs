//! Small models from GGUF files that a script with PyPI's `gguf` converts: against transformers' logits and
//! against llama.cpp on the same file.

use std::path::Path;

use gyrus::{Event, Model, Options, Precision, Request};
use gyrus_testkit::{data, npy, oracle, tempfile};

/// The models, and whether llama.cpp runs them as published: it ignores the window of Mistral, whose files say `llama`,
/// has no graph for a Gemma 4 of this size with inputs per layer, and truncates the ramp of gpt-oss's YaRN.
const MODELS: [(&str, bool); 19] = [
    ("ernie4_5", true),
    ("gemma", true),
    ("gemma2", true),
    ("gemma3", true),
    ("gemma4", false),
    ("gemma4moe", true),
    ("gpt_oss", false),
    ("granite", true),
    ("llama", true),
    ("mistral", false),
    ("mixtral", true),
    ("olmo2", true),
    ("phi3", true),
    ("qwen2", true),
    ("qwen3", true),
    ("qwen35", true),
    ("qwen35moe", true),
    ("qwen3moe", true),
    ("smollm3", true),
];

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

/// The largest difference of log-probabilities from llama.cpp's on the same file.
fn distance_from_llama_cpp(file: &Path, ids: &[u32], ours: &[Vec<f32>]) -> Option<f32> {
    let out = file.with_extension("npy");
    let mut arguments = vec!["logits".to_owned(), file.display().to_string(), out.display().to_string()];
    arguments.extend(ids.iter().map(u32::to_string));
    oracle("llama_cpp.py", &arguments)?;
    let theirs = npy::read_f32(&out);
    let log_softmax = |row: &[f32]| -> Vec<f64> {
        let sum: f64 = row.iter().map(|logit| f64::from(*logit).exp()).sum();
        row.iter().map(|logit| f64::from(*logit) - sum.ln()).collect()
    };
    let rows = ours.iter().zip(theirs.values.chunks_exact(theirs.shape[1]));
    let of_row = |(a, b): (&Vec<f32>, &[f32])| {
        let pairs = log_softmax(a).into_iter().zip(log_softmax(b));
        pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f64::max)
    };
    Some(rows.map(of_row).fold(0.0, f64::max) as f32)
}

#[test]
fn every_architecture_is_as_in_transformers_and_llama_cpp() {
    let folder = tempfile::tempdir().unwrap();
    for (name, in_llama_cpp) in MODELS {
        let Some(path) = data(&format!("tiny/{name}")) else { continue };
        let file = folder.path().join(format!("{name}.gguf"));
        let Some(_) = oracle("tiny_gguf.py", &[path.as_os_str(), file.as_os_str()]) else { return };
        let text = std::fs::read_to_string(path.join("ref.json")).unwrap();
        let reference: serde_json::Value = serde_json::from_str(&text).unwrap();
        let ids: Vec<u32> = serde_json::from_value(reference["ids"].clone()).unwrap();
        let expected = npy::read_f32(&path.join("ref_logits_f32.npy"));
        let options = Options { precision: Precision::Exact, context: Some(128), ..Options::default() };
        let model = Model::open(&file, &options).unwrap();
        let (mut worst, vocab) = (0f32, model.plan().vocab);
        let mut rows = Vec::new();
        model
            .session()
            .score(&ids, |position, row| {
                let expected = &expected.values[position * vocab..];
                rows.push(row.to_vec());
                worst = row.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(worst, f32::max);
            })
            .unwrap();
        println!("{name}: worst logit differs by {worst:e}");
        assert!(worst < 1e-4, "{name}: {worst}");
        if !in_llama_cpp {
            continue;
        }
        // Theirs has a cache in f16.
        if name.starts_with("qwen35") {
            let Some(far) = distance_from_llama_cpp(&file, &ids, &rows) else { return };
            println!("{name}: log-probabilities differ from llama.cpp's by {far:e}");
            assert!(far < 1e-3, "{name} in llama.cpp: {far}");
        }
        let expected: Vec<u32> = serde_json::from_value(reference["greedy"].clone()).unwrap();
        let Some(theirs) = greedy_in_llama_cpp(&file, &ids, expected.len()) else { return };
        let ours = greedy(&model, &ids, expected.len());
        assert_eq!(ours, expected, "{name}");
        assert_eq!(ours, theirs, "{name} in llama.cpp");
    }
}

/// The log-probabilities of all tokens.
fn log_softmax(logits: &[f32]) -> Vec<f64> {
    let most = logits.iter().fold(f32::NEG_INFINITY, |most, logit| most.max(*logit));
    let sum: f64 = logits.iter().map(|logit| f64::from(logit - most).exp()).sum();
    logits.iter().map(|logit| f64::from(logit - most) - sum.ln()).collect()
}

/// llama.cpp has GELU from a table of f16.
#[test]
fn experts_have_the_log_probabilities_of_llama_cpp() {
    let folder = tempfile::tempdir().unwrap();
    for (name, scaling, tolerance) in [
        ("mixtral", "", 1e-3),
        ("qwen3moe", "", 1e-3),
        ("gpt_oss", "unscaled", 1e-3),
        ("gemma4moe", "", 5e-3),
    ] {
        let Some(path) = data(&format!("tiny/{name}")) else { continue };
        let (file, out) = (folder.path().join(format!("{name}.gguf")), folder.path().join("logits.npy"));
        let Some(_) = oracle("tiny_gguf.py", &[path.as_os_str(), file.as_os_str(), scaling.as_ref()]) else {
            return;
        };
        let text = std::fs::read_to_string(path.join("ref.json")).unwrap();
        let reference: serde_json::Value = serde_json::from_str(&text).unwrap();
        let ids: Vec<u32> = serde_json::from_value(reference["ids"].clone()).unwrap();
        let mut arguments = vec!["logits".to_owned(), file.display().to_string(), out.display().to_string()];
        arguments.extend(ids.iter().map(u32::to_string));
        let Some(_) = oracle("llama_cpp.py", &arguments) else { return };
        let theirs = npy::read_f32(&out).values;
        let options = Options { precision: Precision::Exact, context: Some(128), ..Options::default() };
        let model = Model::open(&file, &options).unwrap();
        let (mut worst, vocab) = (0f64, model.plan().vocab);
        let score = |position: usize, row: &[f32]| {
            let theirs = log_softmax(&theirs[position * vocab..(position + 1) * vocab]);
            let each = log_softmax(row).into_iter().zip(theirs).map(|(a, b)| (a - b).abs());
            worst = each.fold(worst, f64::max);
        };
        model.session().score(&ids, score).unwrap();
        println!("{name}: worst log-probability differs by {worst:e}");
        assert!(worst < tolerance, "{name}: {worst}");
    }
}
