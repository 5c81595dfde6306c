//! Models that SentencePiece trains during the test; both tokenizers encode the same texts.

mod common;

use std::ffi::OsStr;

use common::{Request, ids, random_requests, tokenizer, write_requests};
use gyrus_text::Special;

/// Random words, some of them frequent, so that the training finds pieces.
fn requests(seed: u64, count: usize) -> Vec<Request> {
    let mut rng = gyrus_testkit::Rng::new(seed);
    let syllables = ["ka", "to", "mi", "ren", "sol", "the", "ing", "ßü", "漢字", "ｶﾀ", "ﬁ", "Ⅳ", "e\u{301}"];
    let mut requests = random_requests(seed, count);
    for request in &mut requests {
        if rng.below(2) == 0 {
            for _ in 0..2 + rng.below(12) {
                for _ in 0..1 + rng.below(4) {
                    request.text.push_str(syllables[rng.below(syllables.len())]);
                }
                request.text.push_str(["", " ", "  ", "\u{3000}", "\t"][rng.below(5)]);
            }
        }
    }
    requests
}

fn check(kind: &str, seed: u64) {
    let requests = requests(seed, gyrus_testkit::cases(600).min(10_000));
    let folder = gyrus_testkit::tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("requests");
    let model = folder.path().join("model.gguf");
    write_requests(&file, &requests);
    let args = [OsStr::new(kind), model.as_os_str(), file.as_os_str()];
    let Some(answer) = gyrus_testkit::oracle("sentencepiece_model.py", &args) else { return };
    let tokenizer = tokenizer(&model);
    let lines: Vec<_> = answer.lines().collect();
    assert_eq!(lines.len(), requests.len());
    let mut wrong = 0;
    for (request, line) in requests.iter().zip(lines) {
        let found = tokenizer.encode(&request.text, Special::Literal, false);
        let expected = ids(line);
        if found != expected {
            wrong += 1;
            if wrong <= 5 {
                let texts = |ids: &[u32]| {
                    ids.iter()
                        .map(|&id| tokenizer.token_text(id).unwrap_or("?"))
                        .collect::<Vec<_>>()
                        .join("|")
                };
                eprintln!(
                    "{:?}\n  found    {}\n  expected {}",
                    request.text,
                    texts(&found),
                    texts(&expected)
                );
            }
        }
    }
    assert_eq!(wrong, 0, "of {} texts, {kind}", requests.len());
}

#[test]
fn unigram_with_normalisation() {
    check("unigram", 30);
}

#[test]
fn unigram_with_byte_fallback() {
    check("unigram-bytes", 31);
}

#[test]
fn unigram_with_spaces_after_words() {
    check("unigram-suffix", 32);
}

#[test]
fn bpe() {
    check("bpe", 33);
}
