//! Real vocabularies compared with the token ids that their reference implementations published.

mod common;

use common::{ids, load, tokenizer};
use gyrus_text::{Special, Tokenizer};

#[test]
fn published_cases_are_encoded_exactly() {
    let Some(folder) = gyrus_testkit::data("vocab") else { return };
    let mut vocabularies = 0;
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.extension().is_none_or(|extension| extension != "gguf") {
            continue;
        }
        vocabularies += 1;
        let tokenizer = tokenizer(&path);
        let read = |suffix: &str| {
            std::fs::read_to_string(path.with_extension(format!("gguf.{suffix}"))).expect("text")
        };
        let inputs = read("inp");
        let outputs = read("out");
        let inputs: Vec<_> = inputs.split("\n__ggml_vocab_test__\n").collect();
        let outputs: Vec<_> = outputs.lines().collect();
        assert!(inputs.len() >= 40 && inputs.len().abs_diff(outputs.len()) <= 1, "{}", path.display());
        for (input, output) in inputs.iter().zip(&outputs) {
            let found = tokenizer.encode(input, Special::Literal, false);
            assert_eq!(found, ids(output), "{} with {input:?}", path.display());
        }
    }
    assert!(vocabularies >= 7, "{vocabularies} vocabularies");
}

#[test]
fn tales_encodes_as_in_its_readme() {
    let Some(path) = gyrus_testkit::data("tales/tales-7m-q8_0.gguf") else { return };
    let tokenizer = tokenizer(&path);
    let ids = tokenizer.encode("Once upon a time", Special::Literal, true);
    assert_eq!(ids, [0, 387, 390, 259, 360]);
    assert_eq!(tokenizer.decode(&ids, false), "Once upon a time");
    assert_eq!(tokenizer.end_tokens().collect::<Vec<_>>(), [0]);
}

#[test]
fn end_tokens_are_found_by_name_but_not_in_plain_text() {
    let Some(folder) = gyrus_testkit::data("vocab") else { return };
    let ends = |name: &str| {
        let tokenizer = tokenizer(&folder.join(format!("ggml-vocab-{name}.gguf")));
        tokenizer
            .end_tokens()
            .map(|id| tokenizer.token_text(id).expect("a token").to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(ends("gpt-2"), ["<|endoftext|>"]);
    assert_eq!(ends("llama-spm"), ["</s>"]);
    assert_eq!(ends("llama-bpe"), ["<|end_of_text|>", "<|eot_id|>"]);
    // This vocabulary also has "</s>", as two merges of plain text.
    assert_eq!(ends("qwen2"), ["<|endoftext|>", "<|im_end|>"]);
}

#[test]
fn control_tokens_are_text_in_literal_mode() {
    let Some(folder) = gyrus_testkit::data("vocab") else { return };
    let qwen = tokenizer(&folder.join("ggml-vocab-qwen2.gguf"));
    let text = "<|im_start|>user<|im_end|>";
    let parsed = qwen.encode(text, Special::Parse, false);
    assert_eq!(parsed, [151_644, 872, 151_645]);
    let literal = qwen.encode(text, Special::Literal, false);
    assert!(literal.iter().all(|&id| id < 151_643), "{literal:?}");
    assert_eq!(qwen.decode(&literal, false), text);
    assert_eq!(qwen.decode(&parsed, true), text);
    assert_eq!(qwen.decode(&parsed, false), "user");
}

#[test]
fn tokenizers_are_shared_between_threads() {
    fn shared<T: Send + Sync>() {}
    shared::<Tokenizer>();
}

#[test]
fn an_unknown_pre_tokenizer_in_a_real_file_is_an_error() {
    let Some(folder) = gyrus_testkit::data("vocab") else { return };
    let mut data = load(&folder.join("ggml-vocab-gpt-2.gguf"));
    data.pre = Some("gpt-2000".into());
    let message = data.into_data().expect_err("refused").to_string();
    assert!(message.starts_with("unknown pre-tokenizer \"gpt-2000\"; known: a.x-4.0,"), "{message}");
}
