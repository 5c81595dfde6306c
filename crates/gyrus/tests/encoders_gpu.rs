//! Embeddings and rerankers on a GPU: small random models of every family, compared with transformers' embeddings, with the
//! CPU, and with themselves in other batches.
#![cfg(feature = "gpu")]

mod adapter;
mod encoder_fixtures;

use adapter::adapter;
use encoder_fixtures::{copied, fixture};
use gyrus::{Device, EmbedOptions, Embedder, Options, Precision, RerankOptions, Reranker};
use serde_json::Value;

const EMBEDDERS: [&str; 5] = ["bert", "xlm-roberta", "nomic-bert", "modernbert", "qwen3-embedding"];
const RERANKERS: [&str; 4] =
    ["bert-reranker", "xlm-roberta-reranker", "modernbert-reranker", "qwen3-reranker"];

fn options(precision: Precision, device: Device) -> Options {
    Options { precision, device, threads: Some(2), ..Options::default() }
}

fn strings(name: &str, key: &str) -> Vec<String> {
    let reference: Value =
        serde_json::from_slice(&std::fs::read(fixture(name).join("ref.json")).unwrap()).unwrap();
    reference[key].as_array().unwrap().iter().map(|text| text.as_str().unwrap().to_owned()).collect()
}

fn cosine(a: &[f32], b: &[f32]) -> f64 {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
    dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
}

/// `exact` agrees with the CPU in `exact`, which agrees with sentence-transformers. So does `fast`, whose weights are those
/// of the file: their products are in f16.
#[test]
fn embeddings_are_those_of_the_cpu() {
    let Some(name) = adapter() else { return };
    let device = Device::Gpu(Some(name));
    for name in EMBEDDERS {
        let texts = strings(name, "texts");
        let embed = |precision, device| {
            let embedder = Embedder::open(&fixture(name), &options(precision, device)).unwrap();
            embedder.embed(&texts, &EmbedOptions::default()).unwrap()
        };
        let on_cpu = embed(Precision::Exact, Device::Cpu);
        for (precision, least) in [(Precision::Exact, 0.99999), (Precision::Fast, 0.9995)] {
            let found = embed(precision, device.clone());
            let cosines = found.vectors().zip(on_cpu.vectors()).map(|(a, b)| cosine(a, b));
            let lowest = cosines.fold(1.0, f64::min);
            assert!(lowest > least, "{name} {precision:?}: {lowest}");
        }
    }
}

/// Query heads of a group share keys, which encoders' do not.
#[test]
fn a_decoder_that_is_not_causal_has_the_embeddings_of_the_cpu() {
    let Some(name) = adapter() else { return };
    let folder = copied("qwen3-embedding");
    let path = folder.path().join("config.json");
    let mut config: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    config["is_causal"] = false.into();
    std::fs::write(&path, config.to_string()).unwrap();
    let texts = strings("qwen3-embedding", "texts");
    let embed = |precision, device| {
        let embedder = Embedder::open(folder.path(), &options(precision, device)).unwrap();
        embedder.embed(&texts, &EmbedOptions::default()).unwrap()
    };
    let on_cpu = embed(Precision::Exact, Device::Cpu);
    for (precision, least) in [(Precision::Exact, 0.99999), (Precision::Fast, 0.9995)] {
        let found = embed(precision, Device::Gpu(Some(name.clone())));
        let lowest = found.vectors().zip(on_cpu.vectors()).map(|(a, b)| cosine(a, b)).fold(1.0, f64::min);
        assert!(lowest > least, "{precision:?}: {lowest}");
    }
}

/// A text has the same bits alone and in any batch.
#[test]
fn embeddings_do_not_depend_on_the_batch() {
    let Some(name) = adapter() else { return };
    let device = Device::Gpu(Some(name));
    for name in EMBEDDERS {
        let texts = strings(name, "texts");
        for precision in [Precision::Exact, Precision::Fast] {
            let embedder = Embedder::open(&fixture(name), &options(precision, device.clone())).unwrap();
            let together = embedder.embed(&texts, &EmbedOptions::default()).unwrap();
            for (text, want) in texts.iter().zip(together.vectors()) {
                let alone = embedder.embed(&[text], &EmbedOptions::default()).unwrap();
                assert_eq!(alone.values, want, "{name} {precision:?}: {text}");
            }
        }
    }
}

#[test]
fn rerankers_have_the_logits_of_the_cpu() {
    let Some(name) = adapter() else { return };
    let device = Device::Gpu(Some(name));
    for name in RERANKERS {
        let documents = strings(name, "documents");
        let scores = |device| {
            let reranker = Reranker::open(&fixture(name), &options(Precision::Exact, device)).unwrap();
            reranker.scores("a cat", &documents, &RerankOptions::default()).unwrap()
        };
        for (found, want) in scores(device.clone()).iter().zip(scores(Device::Cpu)) {
            assert!((found.logit - want.logit).abs() < 2e-4, "{name}: {found:?} {want:?}");
        }
    }
}

/// A device's largest pass limits the texts of a decoder with logits. What is reported is what can be computed.
#[test]
fn a_reranker_takes_as_many_tokens_as_it_says() {
    let Some(name) = adapter() else { return };
    let folder = copied("qwen3-reranker");
    let path = folder.path().join("config.json");
    let mut config: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    config["max_position_embeddings"] = 4096.into();
    config["_name_or_path"] = "qwen3-reranker".into();
    std::fs::write(&path, config.to_string()).unwrap();
    let options = options(Precision::Exact, Device::Gpu(Some(name)));
    let reranker = Reranker::open(folder.path(), &options).unwrap();
    let most = reranker.max_tokens();
    let long = ["cat ".repeat(4000)];
    match reranker.scores("a cat", &long, &RerankOptions::default()) {
        Err(gyrus::Error::TextTooLong { most: said, .. }) => assert_eq!(said, most),
        other => panic!("{other:?}"),
    }
    let truncate = RerankOptions { truncate: true, ..RerankOptions::default() };
    reranker.scores("a cat", &long, &truncate).unwrap();
}
