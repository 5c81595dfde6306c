//! Random text compared with independent implementations: Hugging Face tokenizers and llama.cpp.
//!
//! `GYRUS_CASES` sets the number of texts for each vocabulary. Models that are not in the test data are in the folder
//! `GYRUS_MODELS`.

mod common;

use std::path::PathBuf;

use common::{Request, compare, model, random_requests, tokenizer};

fn vocabulary(name: &str) -> Option<PathBuf> {
    gyrus_testkit::data(&format!("vocab/ggml-vocab-{name}.gguf"))
}

fn requests(seed: u64) -> Vec<Request> {
    random_requests(seed, gyrus_testkit::cases(300))
}

fn against_llama(path: Option<PathBuf>, seed: u64, skip: impl Fn(&Request) -> bool) {
    let Some(path) = path else { return };
    compare("tokenize_llama.py", &path, &tokenizer(&path), &requests(seed), skip);
}

/// Compares with a Hugging Face tokenizer; `adds` is whether it adds special tokens.
fn against_hf(
    path: Option<PathBuf>,
    truth: Option<PathBuf>,
    seed: u64,
    adds: bool,
    skip: impl Fn(&Request) -> bool,
) {
    let (Some(path), Some(truth)) = (path, truth) else { return };
    let mut requests = requests(seed);
    requests.iter_mut().for_each(|request| request.add &= adds);
    compare("tokenize_hf.py", &truth, &tokenizer(&path), &requests, skip);
}

#[test]
fn gpt2() {
    against_llama(vocabulary("gpt-2"), 1, |_| false);
}

#[test]
fn tales() {
    against_hf(
        gyrus_testkit::data("tales/tales-7m-q8_0.gguf"),
        gyrus_testkit::data("tales/tokenizer.json"),
        2,
        false,
        |_| false,
    );
}

#[test]
fn deepseek_llm() {
    // The ideographic space is punctuation in this pre-tokenizer, which llama.cpp's regex fallback does not match.
    against_llama(vocabulary("deepseek-llm"), 3, |request| request.text.contains('\u{3000}'));
}

#[test]
fn llama_spm() {
    against_llama(vocabulary("llama-spm"), 4, |_| false);
}

#[test]
fn phi3() {
    // In the model's reference tokenizer "</s>" is a user-defined token; in llama.cpp it is a control token.
    against_llama(vocabulary("phi-3"), 5, |request| request.text.contains("</s>"));
}

#[test]
fn smollm2() {
    against_llama(model("SmolLM2-135M-Instruct.Q4_1.gguf"), 6, |_| false);
}

#[test]
fn stories260k() {
    against_llama(gyrus_testkit::data("stories260K/stories260K.gguf"), 7, |_| false);
}

#[test]
fn qwen2() {
    against_hf(vocabulary("qwen2"), model("tokenizer-qwen3/tokenizer.json"), 8, true, |_| false);
}

#[test]
fn llama_bpe() {
    against_hf(vocabulary("llama-bpe"), model("tokenizer-llama3_2/tokenizer.json"), 9, true, |_| false);
}

#[test]
fn gemma3() {
    // In files of this model tokens of several spaces are user-defined. The reference tokenizer merges them, so that a
    // typed U+2581 can join them.
    against_hf(
        model("gemma-3-270m-q4_k_m.gguf"),
        model("tokenizer-gemma3/tokenizer.json"),
        10,
        true,
        |request| request.text.contains('\u{2581}'),
    );
}

#[test]
fn bert() {
    against_hf(vocabulary("bert-bge"), vocabulary("bert-bge"), 11, false, |_| false);
}

/// The same vocabulary in the format of newer files: merges instead of scores.
#[test]
fn gemma4() {
    let Some(truth) = model("tokenizer-gemma3/tokenizer.json") else { return };
    let folder = gyrus_testkit::tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("gemma4.gguf");
    if gyrus_testkit::oracle("gemma4_vocabulary.py", &[&truth, &path]).is_some() {
        against_hf(Some(path), Some(truth), 12, true, |_| false);
    }
}
