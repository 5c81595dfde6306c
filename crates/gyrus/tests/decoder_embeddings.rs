//! Decoders as embedders and rerankers from GGUF files, and decoders whose rows attend to the whole text, compared with
//! sentence-transformers, transformers and a forward pass in f64 (`scripts/oracle/bidirectional.py`).

mod encoder_fixtures;
mod encoder_references;
mod qwen3_gguf;

use std::path::Path;

use encoder_fixtures::{copied, fixture};
use encoder_references::{cosine, floats, options, reference, strings};
use gyrus::{EmbedOptions, Embedder, Error, Model, ModelKind, Pooling, Precision, RerankOptions, Reranker};
use gyrus_formats::{Access, Checkpoint};
use gyrus_testkit::tempfile;
use qwen3_gguf::Qwen3Gguf;
use serde_json::Value;

/// Pooling types of llama.cpp.
const LAST: u32 = 3;
const RANK: u32 = 4;

/// Sets a field of a folder's `config.json`.
fn set(folder: &Path, field: &str, value: Value) {
    let path = folder.join("config.json");
    let mut config: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    config[field] = value;
    std::fs::write(&path, config.to_string()).unwrap();
}

/// The least cosine of a model's embeddings with those of a reference.
fn least_cosine(model: &Path, reference: &Value) -> f64 {
    let embedder = Embedder::open(model, &options(Precision::Exact)).unwrap();
    assert_eq!(embedder.pooling(), Pooling::Last);
    let found = embedder.embed(&strings(&reference["texts"]), &EmbedOptions::default()).unwrap();
    let want = reference["embeddings"].as_array().unwrap();
    assert_eq!(found.vectors().count(), want.len());
    found.vectors().zip(want).map(|(found, want)| cosine(found, &floats(want))).fold(1.0, f64::min)
}

fn bidirectional() -> Value {
    let path = fixture("qwen3-embedding").join("bidirectional.json");
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

#[test]
fn a_gguf_file_embeds_the_last_row() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("embedder.gguf");
    for (causal, reference) in [
        (None, reference("qwen3-embedding")),
        (Some(true), reference("qwen3-embedding")),
        (Some(false), bidirectional()),
    ] {
        let mut file = Qwen3Gguf::new("qwen3-embedding", LAST);
        file.flags.extend(causal.map(|causal| ("qwen3.attention.causal", causal)));
        std::fs::write(&path, file.bytes()).unwrap();
        let kind = ModelKind::of(&Checkpoint::open_with(&path, Access::Read).unwrap()).unwrap();
        assert_eq!(kind, ModelKind::Embedder);
        let least = least_cosine(&path, &reference);
        assert!(least > 0.99999, "causal: {causal:?}: {least}");
    }
}

/// The classifier's labels are the rows of yes and no, so that their difference is that of the logits.
#[test]
fn a_gguf_file_ranks_by_its_labels() {
    let reference = reference("qwen3-reranker");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ranker.gguf");
    let file = Qwen3Gguf::new("qwen3-reranker", RANK).with_labels(["yes", "no"]);
    std::fs::write(&path, file.bytes()).unwrap();
    let kind = ModelKind::of(&Checkpoint::open_with(&path, Access::Read).unwrap()).unwrap();
    assert_eq!(kind, ModelKind::Reranker);
    let reranker = Reranker::open(&path, &options(Precision::Exact)).unwrap();
    assert_eq!(reranker.plan().buffer(reranker.plan().result()).width, 2);
    let documents = strings(&reference["documents"]);
    let query = reference["query"].as_str().unwrap();
    let found = reranker.scores(query, &documents, &RerankOptions::default()).unwrap();
    let want = floats(&reference["logits"]);
    assert_eq!(found.len(), want.len());
    for (found, want) in found.iter().zip(&want) {
        assert!((f64::from(found.logit) - want).abs() < 2e-4, "{found:?} {want}");
    }
}

#[test]
fn rows_of_a_decoder_that_is_not_causal_attend_to_the_whole_text() {
    let folder = copied("qwen3-embedding");
    set(folder.path(), "is_causal", false.into());
    let least = least_cosine(folder.path(), &bidirectional());
    assert!(least > 0.99999, "{least}");
    // A text has the same bits alone and beside others, in both precisions.
    let texts = strings(&bidirectional()["texts"]);
    for precision in [Precision::Exact, Precision::Fast] {
        let embedder = Embedder::open(folder.path(), &options(precision)).unwrap();
        let together = embedder.embed(&texts, &EmbedOptions::default()).unwrap();
        for (text, want) in texts.iter().zip(together.vectors()) {
            let alone = embedder.embed(&[text], &EmbedOptions::default()).unwrap();
            assert_eq!(alone.values, want, "{precision:?}: {text}");
        }
    }
    set(folder.path(), "is_causal", true.into());
    let least = least_cosine(folder.path(), &reference("qwen3-embedding"));
    assert!(least > 0.99999, "{least}");
}

/// What has no plan is an error that names the field.
#[test]
fn attention_that_no_plan_has_is_refused_by_name() {
    let options = options(Precision::Exact);
    let said = |error: Option<Error>| error.unwrap().to_string();

    let decoder = copied("qwen3-embedding");
    set(decoder.path(), "is_causal", false.into());
    let error = said(Model::open(decoder.path(), &options).err());
    assert!(error.contains("rows attend to later positions, which generates no text"), "{error}");
    set(decoder.path(), "use_sliding_window", true.into());
    set(decoder.path(), "sliding_window", 8.into());
    set(decoder.path(), "max_window_layers", 0.into());
    set(decoder.path(), "layer_types", Value::Null);
    let error = said(Embedder::open(decoder.path(), &options).err());
    assert!(error.contains("a window on both sides ('is_causal' in config.json is false)"), "{error}");

    let encoder = copied("bert");
    set(encoder.path(), "is_causal", true.into());
    let error = said(Embedder::open(encoder.path(), &options).err());
    assert!(error.contains("an encoder whose attention is causal ('is_causal' in config.json)"), "{error}");

    let mut bytes = std::fs::read(fixture("bert.gguf")).unwrap();
    let key = b"bert.attention.causal";
    let at = bytes.windows(key.len()).position(|part| part == key).unwrap() + key.len();
    // The type of the value, a bool, and the value.
    assert_eq!(bytes[at..at + 5], [7, 0, 0, 0, 0]);
    bytes[at + 4] = 1;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("bert.gguf");
    std::fs::write(&path, bytes).unwrap();
    let error = said(Embedder::open(&path, &options).err());
    assert!(error.contains("an encoder whose attention is causal ('bert.attention.causal')"), "{error}");
}
