//! Prompts in parts: the boundaries affect only where control tokens are matched.

mod common;

use common::{random_text, tokenizer};
use gyrus_testkit::Rng;
use gyrus_text::{Part, Special, TokenKind};

const VOCABULARIES: [&str; 4] = ["qwen2", "llama-bpe", "llama-spm", "phi-3"];

/// Splits the text at random positions.
fn cut<'t>(rng: &mut Rng, text: &'t str) -> Vec<&'t str> {
    let mut parts = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let at = rest.char_indices().nth(1 + rng.below(12)).map_or(rest.len(), |(at, _)| at);
        let (part, after) = rest.split_at(at);
        parts.push(part);
        rest = after;
    }
    parts
}

#[test]
fn text_in_parts_is_encoded_as_one_text() {
    for name in VOCABULARIES {
        let Some(path) = gyrus_testkit::data(&format!("vocab/ggml-vocab-{name}.gguf")) else { return };
        let tokenizer = tokenizer(&path);
        let mut rng = Rng::new(7);
        for _ in 0..gyrus_testkit::cases(200) {
            let text = random_text(&mut rng);
            let literal = tokenizer.encode(&text, Special::Literal, false);
            let parts = cut(&mut rng, &text);
            // Text without control tokens is encoded equally with either setting of its parts.
            let plain = tokenizer.encode(&text, Special::Parse, false) == literal;
            let read =
                |n: usize| if plain && n.is_multiple_of(2) { Special::Parse } else { Special::Literal };
            let parts = parts.iter().enumerate().map(|(n, part)| Part::Text(part, read(n)));
            assert_eq!(tokenizer.encode_parts(parts), literal, "{name}: {text:?}");
        }
    }
}

#[test]
fn control_tokens_are_matched_within_one_trusted_part() {
    for (name, token) in [("qwen2", "<|im_end|>"), ("llama-bpe", "<|eot_id|>"), ("llama-spm", "</s>")] {
        let Some(path) = gyrus_testkit::data(&format!("vocab/ggml-vocab-{name}.gguf")) else { return };
        let tokenizer = tokenizer(&path);
        let id = tokenizer.id_of(token).expect("the vocabulary has it");
        let controls = |parts: &[Part<'_>]| {
            let ids = tokenizer.encode_parts(parts.iter().copied());
            ids.into_iter().filter(|&id| tokenizer.kind(id) == Some(TokenKind::Control)).collect::<Vec<_>>()
        };
        let (trusted, untrusted) =
            (|text| Part::Text(text, Special::Parse), |text| Part::Text(text, Special::Literal));
        assert_eq!(
            controls(&[untrusted("a "), trusted(token), untrusted(token), trusted(" b")]),
            [id],
            "{name}"
        );
        let (front, back) = token.split_at(2);
        for parts in [
            [trusted(front), untrusted(back)],
            [untrusted(front), trusted(back)],
            [trusted(front), trusted(back)],
        ] {
            assert!(controls(&parts).is_empty(), "{name}: {parts:?}");
        }
    }
}

#[test]
fn text_after_ids_gets_no_space_prefix() {
    let Some(path) = gyrus_testkit::data("vocab/ggml-vocab-llama-spm.gguf") else { return };
    let tokenizer = tokenizer(&path);
    let whole = tokenizer.encode("Hello there, you", Special::Literal, false);
    let hello = tokenizer.encode("Hello", Special::Literal, false);
    let parts = [Part::Ids(&hello), Part::Text(" there, you", Special::Literal)];
    assert_eq!(tokenizer.encode_parts(parts), whole);
    // After a control token the space prefix is added, as at the start.
    let bos = [tokenizer.bos().expect("it has one")];
    let parts = [Part::Ids(&bos), Part::Text("Hello", Special::Literal)];
    assert_eq!(tokenizer.encode_parts(parts), [&bos[..], &hello].concat());
}
