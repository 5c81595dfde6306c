//! Embeddings and rerankers on the CPU, compared with transformers and sentence-transformers on small random models.

mod encoder_fixtures;
mod encoder_references;

use encoder_fixtures::{copied, fixture};
use encoder_references::{cosine, floats, options, reference, strings};
use gyrus::{EmbedOptions, EmbedPrompt, Embedder, Options, Precision, RerankOptions, Reranker};

/// The least cosine of a model's embeddings with the published ones.
fn least_cosine(model: &str, of: &str, precision: Precision) -> f64 {
    let reference = reference(of);
    let embedder = Embedder::open(&fixture(model), &options(precision)).unwrap();
    let texts = strings(&reference["texts"]);
    let found = embedder.embed(&texts, &EmbedOptions::default()).unwrap();
    let want = reference["embeddings"].as_array().unwrap();
    assert_eq!(found.vectors().count(), want.len());
    let cosines = found.vectors().zip(want).map(|(found, want)| cosine(found, &floats(want)));
    cosines.fold(1.0, f64::min)
}

const EMBEDDERS: [&str; 5] = ["bert", "xlm-roberta", "nomic-bert", "modernbert", "qwen3-embedding"];

#[test]
fn folders_have_the_embeddings_of_sentence_transformers() {
    for name in EMBEDDERS {
        let exact = least_cosine(name, name, Precision::Exact);
        assert!(exact > 0.99999, "{name}: {exact}");
        // 32 elements average out less of int8's roundings than hundreds; MiniLM is held to 0.9995.
        let fast = least_cosine(name, name, Precision::Fast);
        assert!(fast > 0.995, "{name}: {fast}");
    }
}

#[test]
fn gguf_files_have_the_same_embeddings() {
    for name in ["bert", "xlm-roberta", "nomic-bert", "modernbert"] {
        let exact = least_cosine(&format!("{name}.gguf"), name, Precision::Exact);
        assert!(exact > 0.99999, "{name}: {exact}");
    }
}

/// Prompts, the length of vectors and the number of tokens are those of sentence-transformers.
#[test]
fn settings_are_those_of_the_files() {
    for name in EMBEDDERS {
        let reference = reference(name);
        let embedder = Embedder::open(&fixture(name), &options(Precision::Exact)).unwrap();
        let query = [reference["query"].as_str().unwrap()];
        let with = |prompt| {
            let options = EmbedOptions { prompt, ..EmbedOptions::default() };
            embedder.embed(&query, &options)
        };
        let want = floats(&reference["query_embedding"]);
        let found = with(EmbedPrompt::Named("query".to_owned())).unwrap();
        let found = found.vectors().next().unwrap();
        let close = found.iter().zip(&want).all(|(a, b)| (f64::from(*a) - b).abs() < 1e-5);
        assert!(close, "{name}: {found:?} {want:?}");
        assert_eq!(with(EmbedPrompt::Text("find: ".to_owned())).unwrap().values, found, "{name}");
        let error = with(EmbedPrompt::Named("poem".to_owned())).unwrap_err().to_string();
        assert_eq!(error, "the model has no prompt 'poem'; there are: document, query");
        let length = found.iter().map(|x| x * x).sum::<f32>().sqrt();
        assert_eq!((length - 1.0).abs() < 1e-5, reference["normalized"] == true, "{name}: {length}");
        for (text, ids) in strings(&reference["texts"]).iter().zip(reference["tokens"].as_array().unwrap()) {
            assert_eq!(embedder.count_tokens(text), ids.as_array().unwrap().len(), "{name}: {text}");
        }
        assert_eq!(
            embedder.pooling().name(),
            reference["pooling"].as_str().unwrap().trim_end_matches("token")
        );
    }
}

/// A text has the same bits alone, in any batch, and on any number of threads.
#[test]
fn embeddings_do_not_depend_on_the_batch() {
    for name in EMBEDDERS {
        let texts = strings(&reference(name)["texts"]);
        for precision in [Precision::Exact, Precision::Fast] {
            let embedder = Embedder::open(&fixture(name), &options(precision)).unwrap();
            let together = embedder.embed(&texts, &EmbedOptions::default()).unwrap();
            let single = Options { threads: Some(1), ..options(precision) };
            let embedder = Embedder::open(&fixture(name), &single).unwrap();
            for (text, want) in texts.iter().zip(together.vectors()) {
                let alone = embedder.embed(&[text], &EmbedOptions::default()).unwrap();
                assert_eq!(alone.values, want, "{name} {precision:?}: {text}");
            }
        }
    }
}

#[test]
fn first_dimensions_are_scaled_again() {
    let embedder = Embedder::open(&fixture("bert"), &options(Precision::Exact)).unwrap();
    let texts = ["a cat on the mat"];
    let whole = embedder.embed(&texts, &EmbedOptions::default()).unwrap();
    let with = |dimensions| {
        embedder.embed(&texts, &EmbedOptions { dimensions: Some(dimensions), ..EmbedOptions::default() })
    };
    let short = with(8).unwrap();
    assert_eq!(short.dimensions, 8);
    let length = whole.values[..8].iter().map(|x| x * x).sum::<f32>().sqrt();
    for (short, whole) in short.values.iter().zip(&whole.values) {
        assert!((short - whole / length).abs() < 1e-6);
    }
    for wrong in [0, 33] {
        let error = with(wrong).unwrap_err().to_string();
        assert!(error.contains("the model has 32"), "{error}");
    }
}

#[test]
fn a_text_that_is_too_long_is_an_error_unless_it_may_be_truncated() {
    let embedder = Embedder::open(&fixture("bert"), &options(Precision::Exact)).unwrap();
    let long = "cat ".repeat(200);
    let error = embedder.embed(&["cat", &long], &EmbedOptions::default()).unwrap_err().to_string();
    assert_eq!(error, "text 2 has 202 tokens, at most 128 are possible; shorten it, or ask for truncation");
    let options = EmbedOptions { truncate: true, ..EmbedOptions::default() };
    let truncated = embedder.embed(&[&long], &options).unwrap();
    assert_eq!(truncated.tokens, 128);
    let fitting = embedder.embed(&["cat ".repeat(126)], &EmbedOptions::default()).unwrap();
    assert_eq!(truncated.values, fitting.values);
}

const RERANKERS: [&str; 6] = [
    "bert-reranker",
    "xlm-roberta-reranker",
    "modernbert-reranker",
    "qwen3-reranker",
    "bert-reranker.gguf",
    "xlm-roberta-reranker.gguf",
];

#[test]
fn rerankers_have_the_logits_of_transformers() {
    for name in RERANKERS {
        let reference = reference(name.trim_end_matches(".gguf"));
        let reranker = Reranker::open(&fixture(name), &options(Precision::Exact)).unwrap();
        let (query, documents) = (reference["query"].as_str().unwrap(), strings(&reference["documents"]));
        let want = floats(&reference["logits"]);
        let found = reranker.scores(query, &documents, &RerankOptions::default()).unwrap();
        for (found, want) in found.iter().zip(&want) {
            assert!((f64::from(found.logit) - want).abs() < 2e-4, "{name}: {found:?} {want}");
            let score = 1.0 / (1.0 + (-want).exp());
            assert!((f64::from(found.score) - score).abs() < 1e-4, "{name}: {found:?} {score}");
        }
        let ranked = reranker.rank(query, &documents, &RerankOptions::default()).unwrap();
        assert!(ranked.windows(2).all(|pair| pair[0].logit >= pair[1].logit), "{name}");
        let alone = reranker.scores(query, &documents[3..4], &RerankOptions::default()).unwrap();
        assert_eq!(alone[0].logit, found[3].logit, "{name}");
    }
}

/// A model of the wrong kind is an error that says what it is.
#[test]
fn models_of_the_wrong_kind_are_refused_by_name() {
    let options = options(Precision::Exact);
    let errors = [
        gyrus::Model::open(&fixture("bert"), &options).err(),
        Embedder::open(&gyrus_testkit::repository().join("tests/data/tiny/llama"), &options).err(),
        Reranker::open(&fixture("bert"), &options).err(),
        Reranker::open(&gyrus_testkit::repository().join("tests/data/tiny/llama"), &options).err(),
    ];
    let errors = errors.map(|error| error.unwrap().to_string());
    insta::assert_snapshot!(errors.join("\n"));
}

/// Scores that an instruction did not change would look as if they followed it.
#[test]
fn an_instruction_is_followed_or_refused() {
    let instruction = Some("Find what is red.".to_owned());
    let instructed = RerankOptions { instruction, ..RerankOptions::default() };
    let documents = ["a red ship", "the old bridge", "snow"];
    for name in RERANKERS {
        let reranker = Reranker::open(&fixture(name), &options(Precision::Exact)).unwrap();
        let plain = reranker.scores("a ship", &documents, &RerankOptions::default()).unwrap();
        match reranker.scores("a ship", &documents, &instructed) {
            Ok(found) => {
                assert_eq!(name, "qwen3-reranker");
                assert_ne!(found, plain);
            }
            Err(error) => {
                assert_ne!(name, "qwen3-reranker");
                assert!(
                    error.to_string().contains("an instruction: the model is a cross-encoder"),
                    "{error}"
                );
            }
        }
    }
}

/// A query that leaves no room for documents would give all of them one score.
#[test]
fn a_query_that_is_too_long_is_refused_also_if_documents_may_be_truncated() {
    for name in ["bert-reranker", "qwen3-reranker"] {
        let limit = Options { context: Some(120), ..options(Precision::Exact) };
        let reranker = Reranker::open(&fixture(name), &limit).unwrap();
        assert_eq!(reranker.max_tokens(), 120);
        let truncate = RerankOptions { truncate: true, ..RerankOptions::default() };
        let documents = ["a red ship", "the old bridge", "snow"];
        let error = reranker.scores(&"cat ".repeat(200), &documents, &truncate).unwrap_err().to_string();
        assert!(error.starts_with("the query has "), "{name}: {error}");
    }
}

#[test]
fn work_can_be_stopped_before_each_pass() {
    let embedder = Embedder::open(&fixture("bert"), &options(Precision::Exact)).unwrap();
    let texts = vec!["cat ".repeat(100); 30];
    let whole = embedder.embed(&texts, &EmbedOptions::default()).unwrap();
    let passes = std::sync::Mutex::new(Vec::new());
    let embed = |most: usize| {
        passes.lock().unwrap().clear();
        let goes_on = |tokens: usize| {
            let mut passes = passes.lock().unwrap();
            passes.extend((tokens > 0).then_some(tokens));
            passes.len() <= most
        };
        embedder.embed_while(&texts, &EmbedOptions::default(), &goes_on)
    };
    assert_eq!(embed(usize::MAX).unwrap().values, whole.values);
    let counted = passes.lock().unwrap().clone();
    assert_eq!((counted.iter().sum::<usize>(), counted.len() > 2), (whole.tokens, true));
    assert!(matches!(embed(1), Err(gyrus::Error::Stopped)));
    assert_eq!(passes.lock().unwrap().len(), 2);
    let reranker = Reranker::open(&fixture("bert-reranker"), &options(Precision::Exact)).unwrap();
    let ranked = reranker.rank_while("a cat", &texts, &RerankOptions::default(), &|tokens| tokens == 0);
    assert!(matches!(ranked, Err(gyrus::Error::Stopped)));
}

/// A model that is damaged is not a mistake of the request.
#[test]
fn errors_say_which_text_has_none_or_is_not_finite() {
    let embedder = Embedder::open(&fixture("bert"), &options(Precision::Exact)).unwrap();
    let error = embedder.embed_ids(&[vec![2, 3], Vec::new()], &EmbedOptions::default()).unwrap_err();
    assert!(matches!(error, gyrus::Error::NoTokens { index: 1 }), "{error:?}");
    let folder = copied("bert");
    let path = folder.path().join("model.safetensors");
    let mut bytes = std::fs::read(&path).unwrap();
    let head = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    // All weights are NaN in bf16.
    bytes[head..].chunks_exact_mut(2).for_each(|weight| weight.copy_from_slice(&0x7fc0u16.to_le_bytes()));
    std::fs::write(&path, bytes).unwrap();
    let embedder = Embedder::open(folder.path(), &options(Precision::Exact)).unwrap();
    let error = embedder.embed(&["a cat"], &EmbedOptions::default()).unwrap_err();
    assert!(matches!(error, gyrus::Error::TextNotFinite { index: 0, .. }), "{error:?}");
}

/// The folder of a module may be that of the model, and never one outside.
#[test]
fn modules_are_read_in_the_folder_of_the_model() {
    let folder = copied("bert");
    let modules = |path: &str| {
        let modules = serde_json::json!([
            { "idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer" },
            { "idx": 1, "name": "1", "path": path, "type": "sentence_transformers.models.Pooling" },
        ]);
        std::fs::write(folder.path().join("modules.json"), modules.to_string()).unwrap();
        Embedder::open(folder.path(), &options(Precision::Exact)).err().map(|error| error.to_string())
    };
    assert_eq!(modules("1_Pooling"), None);
    assert_eq!(modules("").as_deref(), Some("config.json: it names no pooling"));
    for outside in ["..", "/etc", "1_Pooling/../.."] {
        let error = modules(outside).unwrap();
        assert!(error.contains("is no folder") && error.contains(outside), "{error}");
    }
}
