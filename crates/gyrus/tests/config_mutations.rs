//! A `config.json` with wrong values gives an error or a plan, but never a panic.

use std::path::Path;

use gyrus::speech::SpeechOptions;
use gyrus::{Config, Device, Embedder, Options, Precision, Reranker, Transcriber};
use gyrus_formats::{Bytes, Checkpoint};
use gyrus_testkit::{Rng, cases, repository};
use serde_json::{Value, json};

/// Paths of all values in a document.
fn paths(value: &Value, path: &str, found: &mut Vec<String>) {
    if !path.is_empty() {
        found.push(path.to_owned());
    }
    match value {
        Value::Object(fields) => {
            fields.iter().for_each(|(name, value)| paths(value, &format!("{path}/{name}"), found));
        }
        Value::Array(items) => {
            items.iter().enumerate().for_each(|(n, value)| paths(value, &format!("{path}/{n}"), found));
        }
        _ => {}
    }
}

/// Values of wrong types and sizes.
fn wrong_values() -> Vec<Value> {
    vec![
        json!(null),
        json!(true),
        json!(false),
        json!(0),
        json!(1),
        json!(2),
        json!(3),
        json!(-1),
        json!(16),
        json!(4096),
        json!(1u64 << 32),
        json!(u64::MAX),
        json!(0.5),
        json!(-1e300),
        json!(1e300),
        json!(1e-300),
        json!("linear"),
        json!("yarn"),
        json!("dynamic"),
        json!("full_attention"),
        json!("gemma4_text"),
        json!([]),
        json!([1, 1.5, null]),
        json!({}),
        json!({"0": {"head_dim": 0, "num_key_value_heads": 7}}),
    ]
}

/// Changes one to three values of a configuration.
fn mutated(whole: &Value, all: &[String], values: &[Value], rng: &mut Rng) -> Value {
    let mut config = whole.clone();
    for _ in 0..1 + rng.below(3) {
        // A field that an earlier change has removed stays away.
        if let Some(value) = config.pointer_mut(rng.pick::<String>(all)) {
            *value = rng.pick(values).clone();
        }
    }
    config
}

#[test]
fn a_configuration_with_wrong_values_is_an_error_or_a_plan() {
    let values = wrong_values();
    let mut rng = Rng::new(11);
    for folder in std::fs::read_dir(repository().join("tests/data/tiny")).unwrap() {
        let folder = folder.unwrap().path();
        let tensors = std::fs::read(folder.join("model.safetensors")).unwrap();
        let read = |config: &Value| {
            let bytes = Bytes::Owned(tensors.clone());
            let model =
                Checkpoint::from_safetensors("model.safetensors", bytes, config.to_string().as_bytes());
            Config::read(&model.unwrap(), Precision::Fast)
        };
        let whole: Value =
            serde_json::from_slice(&std::fs::read(folder.join("config.json")).unwrap()).unwrap();
        assert!(read(&whole).is_ok(), "{}", folder.display());
        let mut all = Vec::new();
        paths(&whole, "", &mut all);
        let (mut plans, mut errors) = (0, 0);
        for _ in 0..cases(100) {
            let config = mutated(&whole, &all, &values, &mut rng);
            match read(&config) {
                Ok((read, plan)) => {
                    assert_eq!(plan.layers.len(), read.layers.len(), "{config}");
                    plans += 1;
                }
                Err(error) => {
                    assert!(!error.to_string().is_empty(), "{config}");
                    errors += 1;
                }
            }
        }
        assert!(plans > 0 && errors > 0, "{}: {plans} plans, {errors} errors", folder.display());
    }
}

fn copy_folder(from: &Path, to: &Path) {
    std::fs::create_dir(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        match entry.file_type().unwrap().is_dir() {
            true => copy_folder(&entry.path(), &to),
            false => drop(std::fs::copy(entry.path(), to).unwrap()),
        }
    }
}

/// Opens a copy of a model's folder with wrong values in its configuration.
fn open_mutated(folder: &Path, seed: u64, open: impl Fn(&Path) -> Result<(), gyrus::Error>) {
    let parent = gyrus_testkit::tempfile::tempdir().unwrap();
    // Some kinds of models are told by the name of their folder.
    let copy = parent.path().join(folder.file_name().unwrap());
    copy_folder(folder, &copy);
    let whole: Value = serde_json::from_slice(&std::fs::read(folder.join("config.json")).unwrap()).unwrap();
    assert!(open(&copy).is_ok(), "{}", folder.display());
    let (values, mut all, mut rng) = (wrong_values(), Vec::new(), Rng::new(seed));
    paths(&whole, "", &mut all);
    let (mut opened, mut errors) = (0, 0);
    for _ in 0..cases(40) {
        let config = mutated(&whole, &all, &values, &mut rng);
        std::fs::write(copy.join("config.json"), config.to_string()).unwrap();
        match open(&copy) {
            Ok(()) => opened += 1,
            Err(error) => {
                assert!(!error.to_string().is_empty(), "{config}");
                errors += 1;
            }
        }
    }
    assert!(opened > 0 && errors > 0, "{}: {opened} opened, {errors} errors", folder.display());
}

#[test]
fn an_encoder_with_wrong_values_is_an_error_or_opens() {
    let options = Options { device: Device::Cpu, threads: Some(1), ..Options::default() };
    for folder in std::fs::read_dir(repository().join("tests/data/encoders")).unwrap() {
        let folder = folder.unwrap().path();
        if !folder.is_dir() {
            continue;
        }
        let is_reranker = folder.to_string_lossy().ends_with("-reranker");
        open_mutated(&folder, 12, |path| match is_reranker {
            true => Reranker::open(path, &options).map(drop),
            false => Embedder::open(path, &options).map(drop),
        });
    }
}

#[test]
fn a_whisper_with_wrong_values_is_an_error_or_opens() {
    let options = SpeechOptions { device: Device::Cpu, threads: Some(1), ..SpeechOptions::default() };
    let folder = repository().join("tests/data/whisper");
    open_mutated(&folder, 13, |path| Transcriber::open(path, &options).map(drop));
}
