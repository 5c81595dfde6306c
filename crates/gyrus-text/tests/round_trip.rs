//! Encoding and decoding gives the text again, in one call or as a stream.

mod common;

use std::path::PathBuf;

use common::{random_requests, tokenizer};
use gyrus_testkit::Rng;
use gyrus_text::gguf::Vocabulary;
use gyrus_text::{Detokenizer, Special, Tokenizer};

fn vocabulary(name: &str) -> Option<PathBuf> {
    gyrus_testkit::data(&format!("vocab/ggml-vocab-{name}.gguf"))
}

/// The text of a stream of ids, pushed one by one.
fn stream(mut detokenizer: Detokenizer<&Tokenizer>, ids: &[u32]) -> String {
    let mut text = String::new();
    for &id in ids {
        text.push_str(&detokenizer.push(id));
        assert!(detokenizer.pending().len() < 4);
    }
    text + &detokenizer.finish()
}

#[test]
fn byte_level_vocabularies_encode_any_bytes() {
    // Without the vocabulary that normalises its text. The third one has no tokens for bytes that never occur in UTF-8.
    for (name, any) in [("gpt-2", true), ("llama-bpe", true), ("deepseek-llm", false)] {
        let Some(path) = vocabulary(name) else { return };
        let tokenizer = tokenizer(&path);
        let mut rng = Rng::new(40);
        for case in 0..gyrus_testkit::cases(300) {
            let mut bytes = common::random_text(&mut rng).into_bytes();
            if any && case % 2 == 0 {
                for _ in 0..1 + rng.below(5) {
                    let at = rng.below(bytes.len() + 1);
                    let noise_len = 1 + rng.below(4);
                    let noise = rng.bytes(noise_len);
                    bytes.splice(at..at, noise);
                }
            }
            let mut ids = Vec::new();
            tokenizer.encode_bytes_into(&bytes, Special::Literal, false, &mut ids);
            assert_eq!(tokenizer.decode_bytes(&ids, true), bytes, "{name}");
            let lossy = String::from_utf8_lossy(&bytes);
            assert_eq!(stream(Detokenizer::new(&tokenizer, true), &ids), lossy, "{name}");
            assert_eq!(tokenizer.decode(&ids, true), lossy);
        }
    }
}

/// A vocabulary of all bytes and `é`.
fn bytes_and_accent(rule: &str) -> Tokenizer {
    let printable = |byte: u32| matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    let mut others = 0x100..;
    let letters = (0..256).map(|byte| if printable(byte) { byte } else { others.next().unwrap() });
    let mut tokens: Vec<String> = letters.map(|code| char::from_u32(code).unwrap().to_string()).collect();
    tokens.push("Ã©".to_owned());
    let merges = vec!["Ã ©".to_owned()];
    let (model, pre, add_bos) = ("gpt2".to_owned(), Some(rule.to_owned()), Some(false));
    let vocabulary = Vocabulary { model, pre, tokens, merges, add_bos, ..Vocabulary::default() };
    Tokenizer::new(vocabulary.into_data().unwrap()).unwrap()
}

#[test]
fn decomposed_accents_are_composed_as_in_the_reference_tokenizer() {
    for (rule, composes) in [("qwen2", true), ("qwen35", true), ("llama-bpe", false), ("gpt-2", false)] {
        let ids = bytes_and_accent(rule).encode("e\u{301}", Special::Literal, false);
        assert_eq!(ids == [256], composes, "{rule}: {ids:?}");
    }
}

#[test]
fn normalising_vocabularies_decode_to_form_c() {
    let Some(path) = vocabulary("qwen2") else { return };
    let tokenizer = tokenizer(&path);
    let ids = tokenizer.encode("e\u{301} 가", Special::Literal, false);
    assert_eq!(tokenizer.decode(&ids, false), "é 가");
    for request in random_requests(41, gyrus_testkit::cases(300)) {
        let once = tokenizer.decode(&tokenizer.encode(&request.text, Special::Literal, false), true);
        let twice = tokenizer.decode(&tokenizer.encode(&once, Special::Literal, false), true);
        assert_eq!(once, twice);
    }
}

#[test]
fn sentencepiece_decodes_without_the_added_space() {
    for name in ["vocab/ggml-vocab-llama-spm.gguf", "stories260K/stories260K.gguf"] {
        let Some(path) = gyrus_testkit::data(name) else { return };
        let tokenizer = tokenizer(&path);
        for request in random_requests(42, gyrus_testkit::cases(300)) {
            // A typed U+2581 decodes to a space, which it stands for.
            let expected = request.text.replace('\u{2581}', " ");
            let ids = tokenizer.encode(&request.text, Special::Literal, false);
            assert_eq!(stream(Detokenizer::new(&tokenizer, false), &ids), expected);
            let continued = stream(Detokenizer::continuing(&tokenizer, false), &ids);
            assert_eq!(continued, format!(" {expected}"));
        }
    }
}

fn bytes_vocabulary() -> Tokenizer {
    let mut data = Vocabulary { model: "llama".into(), ..Default::default() };
    data.tokens = (0..=255_u8).map(|byte| format!("<0x{byte:02X}>")).collect();
    data.kinds = vec![gyrus_text::TokenKind::Byte; 256];
    data.tokens.extend(["▁He", "<end>"].map(String::from));
    data.kinds.extend([gyrus_text::TokenKind::Normal, gyrus_text::TokenKind::Control]);
    data.scores = vec![0.0; 258];
    data.add_bos = Some(false);
    Tokenizer::new(data.into_data().expect("known names")).expect("a vocabulary")
}

#[test]
fn characters_are_never_split() {
    let tokenizer = bytes_vocabulary();
    let mut detokenizer = Detokenizer::new(&tokenizer, false);
    assert_eq!(detokenizer.push(0xE4), "");
    assert_eq!(detokenizer.push(0xBD), "");
    assert_eq!(detokenizer.pending(), [0xE4, 0xBD]);
    assert_eq!(detokenizer.push(0xA0), "你");
    // A control token between the bytes of a character renders as nothing and does not interrupt the character.
    assert_eq!(detokenizer.push(0xF0), "");
    assert_eq!(detokenizer.push(257), "");
    assert_eq!(detokenizer.push(0x9F), "");
    assert_eq!(detokenizer.push(0x91), "");
    assert_eq!(detokenizer.push(0x8D), "👍");
    assert_eq!(detokenizer.push(9999), "");
    // Bytes that cannot be completed are replaced as soon as that is certain.
    assert_eq!(detokenizer.push(0xC3), "");
    assert_eq!(detokenizer.push(b'a'.into()), "\u{FFFD}a");
    assert_eq!(detokenizer.push(0x80), "\u{FFFD}");
    assert_eq!(detokenizer.push(0xE0), "");
    assert_eq!(detokenizer.push(0x80), "\u{FFFD}\u{FFFD}");
    assert_eq!(detokenizer.push(0xF0), "");
    assert_eq!(detokenizer.finish(), "\u{FFFD}");
}

#[test]
fn the_leading_space_is_removed_once() {
    let tokenizer = bytes_vocabulary();
    assert_eq!(stream(Detokenizer::new(&tokenizer, false), &[257, 256, 256]), "He He");
    assert_eq!(stream(Detokenizer::new(&tokenizer, true), &[257, 256]), "<end>He");
    assert_eq!(stream(Detokenizer::continuing(&tokenizer, false), &[256]), " He");
    assert_eq!(tokenizer.decode_bytes(&[257, 256, 256], false), b"He He");
}
