//! Embeddings and rerank in the formats of OpenAI, Ollama, Jina and text-embeddings-inference.

mod common;

use common::client::post;
use common::{TestSource, config, fixture, start_with};
use gyrus::{EmbedOptions, Embedder, RerankOptions, Reranker};
use serde_json::{Value, json};

fn floats(value: &Value) -> Vec<f32> {
    value.as_array().unwrap().iter().map(|x| x.as_f64().unwrap() as f32).collect()
}

#[test]
fn embeddings_equal_the_library_in_every_format() {
    let Some(source) = TestSource::tales() else { return };
    let embedder = Embedder::open(&fixture("bert"), &source.options).unwrap();
    let texts = ["a cat on the mat", "the old bridge"];
    let want = embedder.embed(&texts, &EmbedOptions::default()).unwrap();
    let want: Vec<Vec<f32>> = want.vectors().map(<[f32]>::to_vec).collect();
    let server = start_with(config(), source);

    let reply = post(server.address, "/v1/embeddings", &json!({ "model": "bert", "input": texts })).json();
    assert_eq!((&reply["object"], &reply["model"]), (&json!("list"), &json!("bert")), "{reply}");
    for (index, want) in want.iter().enumerate() {
        assert_eq!(reply["data"][index]["index"], index);
        assert_eq!(floats(&reply["data"][index]["embedding"]), *want);
    }
    let tokens: usize = texts.iter().map(|text| embedder.count_tokens(text)).sum();
    assert_eq!(reply["usage"], json!({ "prompt_tokens": tokens, "total_tokens": tokens }));
    let body = json!({ "model": "bert", "input": texts[1], "encoding_format": "base64", "dimensions": 3 });
    let reply = post(server.address, "/v1/embeddings", &body).json();
    assert_eq!(reply["data"][0]["embedding"].as_str().unwrap().len(), 16);
    // The tokens of "[CLS] [SEP]".
    let body = json!({ "model": "bert", "input": [[2, 3], [2, 3]] });
    let reply = post(server.address, "/v1/embeddings", &body).json();
    let empty = embedder.embed(&[""], &EmbedOptions::default()).unwrap();
    assert_eq!(floats(&reply["data"][1]["embedding"]), empty.values);

    let reply = post(server.address, "/api/embed", &json!({ "model": "bert", "input": texts })).json();
    assert_eq!(floats(&reply["embeddings"][1]), want[1], "{reply}");
    let reply =
        post(server.address, "/api/embeddings", &json!({ "model": "bert", "prompt": texts[0] })).json();
    assert_eq!(floats(&reply["embedding"]), want[0]);
    let reply = post(server.address, "/embed", &json!({ "model": "bert", "inputs": texts })).json();
    assert_eq!(floats(&reply[1]), want[1]);
}

#[test]
fn what_is_wrong_with_a_request_is_said() {
    let Some(source) = TestSource::tales() else { return };
    let server = start_with(config(), source);
    let long = "cat ".repeat(300);
    for (path, body, part) in [
        ("/v1/embeddings", json!({ "model": "bert", "input": long }), "text 1 has 302 tokens, at most 128"),
        ("/v1/embeddings", json!({ "model": "bert", "input": [] }), "input: it is empty"),
        ("/v1/embeddings", json!({ "model": "bert", "input": [1, "x"] }), "input: it must be"),
        ("/v1/embeddings", json!({ "model": "bert", "input": [[9999]] }), "token id 9999"),
        ("/v1/embeddings", json!({ "model": "bert", "input": "x", "dimensions": 99 }), "99 dimensions"),
        (
            "/v1/embeddings",
            json!({ "model": "bert", "input": "x", "poem": 1 }),
            "poem: there is no such field",
        ),
        (
            "/v1/embeddings",
            json!({ "model": "ranker", "input": "x" }),
            "ranker ranks documents, no embeddings",
        ),
        (
            "/v1/rerank",
            json!({ "model": "bert", "query": "x", "documents": ["y"] }),
            "bert computes embeddings",
        ),
        ("/v1/rerank", json!({ "model": "ranker", "query": "x", "documents": [] }), "documents: from 1"),
        (
            "/v1/rerank",
            json!({ "model": "ranker", "query": "x", "documents": ["y"], "instruction": "z" }),
            "an instruction: the model is a cross-encoder",
        ),
        ("/embed", json!({ "model": "bert", "inputs": long }), "at most 128"),
        (
            "/v1/embeddings",
            json!({ "model": "bert", "input": [2, 3], "prompt_name": "query" }),
            "prompt_name: it changes texts",
        ),
        (
            "/v1/embeddings",
            json!({ "model": "bert", "input": [2, 3], "truncate": true }),
            "truncate: it changes texts",
        ),
    ] {
        let reply = post(server.address, path, &body);
        assert_eq!(reply.status, 400, "{path} {}", reply.text());
        assert!(reply.text().contains(part), "{path}: {}", reply.text());
    }
    let reply = post(server.address, "/api/embed", &json!({ "model": "bert", "input": long }));
    assert_eq!(reply.status, 200, "{}", reply.text());
}

#[test]
fn documents_are_ranked_as_by_the_library() {
    let Some(source) = TestSource::tales() else { return };
    let reranker = Reranker::open(&fixture("bert-reranker"), &source.options).unwrap();
    let documents = ["the old bridge", "snow in winter", "a red ship sails"];
    let want = reranker.rank("a ship", &documents, &RerankOptions::default()).unwrap();
    let server = start_with(config(), source);
    let body = json!({ "model": "ranker", "query": "a ship", "documents": documents, "top_n": 2,
        "return_documents": true });
    let reply = post(server.address, "/v1/rerank", &body).json();
    let results = reply["results"].as_array().unwrap();
    assert_eq!(results.len(), 2, "{reply}");
    for (result, want) in results.iter().zip(&want) {
        assert_eq!(result["index"], want.index);
        assert_eq!(result["relevance_score"].as_f64().unwrap() as f32, want.score);
        assert_eq!(result["document"]["text"], documents[want.index]);
    }
    let body = json!({ "model": "ranker", "query": "a ship", "texts": documents, "raw_scores": true });
    let reply = post(server.address, "/rerank", &body).json();
    for (result, want) in reply.as_array().unwrap().iter().zip(&want) {
        assert_eq!(result["index"], want.index);
        assert_eq!(result["score"].as_f64().unwrap() as f32, want.logit);
    }
}
