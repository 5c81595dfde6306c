//! An entrance for fuzzing: bodies of requests and files of keys, without a server.

use std::collections::BTreeMap;

use bytes::Bytes;
use gyrus::speech::Task;

use crate::openai::audio::Form;
use crate::{anthropic, keys, llama_cpp, native, ollama, openai, tei};

/// Parses a body as a request of every wire format.
pub fn requests(body: &[u8]) {
    let _ = openai::chat::parse(body);
    let _ = openai::completions::parse(body);
    let _ = openai::responses::parse(body);
    let _ = openai::embeddings::parse(body);
    let _ = openai::embeddings::parse_ranks(body);
    let _ = Form::parse(&Bytes::copy_from_slice(body), Task::Transcribe);
    let _ = tei::parse(body);
    let _ = tei::parse_ranks(body);
    let _ = anthropic::parse(body, false);
    let _ = anthropic::parse(body, true);
    let _ = ollama::parse_chat(body);
    let _ = ollama::parse_generate(body);
    let _ = llama_cpp::parse_completion(body);
    let _ = llama_cpp::parse_infill(body);
    let _ = llama_cpp::parse_tokenize(body);
    let _ = llama_cpp::parse_detokenize(body);
    let _ = llama_cpp::parse_template(body);
    let _ = native::parse_tokenize(body);
}

/// Parses a file of keys.
pub fn keys(file: &[u8]) {
    if let Ok(text) = std::str::from_utf8(file) {
        let _ = keys::Keys::parse(text, &BTreeMap::new());
    }
}
