//! Malformed vocabularies, as from attackers and from broken converters.

use gyrus_text::gguf::Vocabulary;
use gyrus_text::{Special, TokenKind, Tokenizer, TokenizerError as Error};

fn byte_level() -> Vocabulary {
    let mut data = Vocabulary { model: "gpt2".into(), pre: Some("gpt-2".into()), ..Default::default() };
    data.tokens = ["a", "b", "ab", "<end>"].map(String::from).to_vec();
    data.kinds = vec![TokenKind::Normal, TokenKind::Normal, TokenKind::Normal, TokenKind::Control];
    data.merges = vec!["a b".into()];
    data.ids.eos = Some(3);
    data
}

fn build(data: Vocabulary) -> Result<Tokenizer, Error> {
    data.into_data().and_then(Tokenizer::new)
}

fn error(change: impl FnOnce(&mut Vocabulary)) -> Error {
    let mut data = byte_level();
    change(&mut data);
    build(data).expect_err("refused")
}

#[test]
fn a_valid_vocabulary_is_accepted() {
    let tokenizer = build(byte_level()).expect("sound");
    assert_eq!(tokenizer.encode("abab<end>", Special::Parse, false), [2, 2, 3]);
    // Bytes without a token are dropped before merging, as in Hugging Face tokenizers.
    assert_eq!(tokenizer.encode("axb", Special::Parse, false), [2]);
}

#[test]
fn names() {
    assert!(matches!(error(|d| d.model = "gpt3".into()), Error::UnknownModel { name, .. } if name == "gpt3"));
    assert!(matches!(error(|d| d.pre = Some("x".into())), Error::UnknownPre { name, .. } if name == "x"));
    let message = error(|d| d.model = String::new()).to_string();
    assert_eq!(message, "unknown tokenizer model \"\"; known: bert, gemma4, gpt2, llama, t5");
}

#[test]
fn lengths() {
    assert!(matches!(error(|d| d.tokens.clear()), Error::TokenCount { count: 0, .. }));
    assert_eq!(error(|d| d.scores = vec![0.0; 3]), Error::Length { list: "scores", len: 3, tokens: 4 });
    assert_eq!(
        error(|d| d.kinds.push(TokenKind::Normal)),
        Error::Length { list: "token kinds", len: 5, tokens: 4 }
    );
    assert!(matches!(error(|d| d.scores = vec![0.0, f32::NAN, 0.0, 0.0]), Error::Score { id: 1, .. }));
    assert!(matches!(error(|d| d.merges.clear()), Error::Missing { list: "merges", .. }));
    assert!(matches!(error(|d| d.model = "llama".into()), Error::Missing { list: "scores", .. }));
    assert!(matches!(error(|d| d.model = "t5".into()), Error::Missing { list: "scores", .. }));
}

#[test]
fn ids() {
    let expected = |name| Error::IdRange { name, id: 4, tokens: 4 };
    assert_eq!(error(|d| d.ids.eos = Some(4)), expected("eos"));
    assert_eq!(error(|d| d.ids.fim_pad = Some(4)), expected("fim_pad"));
    assert_eq!(error(|d| d.ids.unk = Some(4)), expected("unknown"));
    assert!(matches!(error(|d| d.ids.bos = Some(u32::MAX)), Error::IdRange { name: "bos", .. }));
    assert_eq!(error(|d| d.add_bos = Some(true)), Error::NoId { flag: "add_bos", name: "bos" });
    let no_eos = |d: &mut Vocabulary| {
        d.ids.eos = None;
        d.add_eos = Some(true);
    };
    assert_eq!(error(no_eos), Error::NoId { flag: "add_eos", name: "eos" });
}

#[test]
fn merges() {
    for rule in ["", " ", "ab", "a ", " b", "  "] {
        let error = error(|d| d.merges.push(rule.into()));
        assert!(
            matches!(&error, Error::MergeForm { index: 1, .. } | Error::MergeToken { index: 1, .. }),
            "{error}"
        );
    }
    assert_eq!(
        error(|d| d.merges.push("b a".into())),
        Error::MergeToken { index: 1, rule: "b a".into(), token: "ba".into() }
    );
    assert!(matches!(error(|d| d.merges.push("a b b".into())), Error::MergeToken { index: 1, .. }));
}

#[test]
fn tokens() {
    assert!(matches!(error(|d| d.tokens[1] = "a".into()), Error::DuplicateToken { first: 0, second: 1, .. }));
    assert!(matches!(error(|d| d.kinds[1] = TokenKind::Byte), Error::ByteToken { id: 1, .. }));
}

#[test]
fn charsmaps() {
    let map = |bytes: &[u8]| {
        error(|d| {
            d.model = "t5".into();
            d.scores = vec![0.0; 4];
            d.precompiled_charsmap = bytes.to_vec();
        })
    };
    assert!(matches!(map(&[1]), Error::Charsmap { len: 1, .. }));
    assert!(matches!(map(&[0xFF, 0xFF, 0xFF, 0xFF, 0]), Error::Charsmap { len: 5, .. }));
}

#[test]
fn long_runs_take_linear_time() {
    // Every power of two of the letter is a token: the worst case for merging.
    let mut data = byte_level();
    for power in 1..16 {
        data.tokens.push("c".repeat(1 << (power - 1)));
        data.kinds.push(TokenKind::Normal);
        if power > 1 {
            let half = "c".repeat(1 << (power - 2));
            data.merges.push(format!("{half} {half}"));
        }
    }
    let begin = std::time::Instant::now();
    let ids = build(data.clone()).expect("sound").encode(&"c".repeat(1 << 20), Special::Parse, false);
    assert_eq!(ids.len(), (1 << 20) >> 14);
    data.model = "llama".into();
    data.scores = (0..data.tokens.len()).map(|id| id as f32).collect();
    data.add_bos = Some(false);
    data.add_space_prefix = Some(false);
    let ids = build(data).expect("sound").encode(&"c".repeat(1 << 20), Special::Parse, false);
    assert_eq!(ids.len(), (1 << 20) >> 14);
    assert!(begin.elapsed().as_secs() < 20, "{:?}", begin.elapsed());
}

#[test]
fn end_tokens_that_a_file_does_not_mark_are_control_tokens() {
    let mut data = byte_level();
    data.tokens.push("<|im_end|>".into());
    data.kinds.push(TokenKind::Normal);
    data.tokens.push("<|eot_id|>".into());
    data.kinds.push(TokenKind::UserDefined);
    let tokenizer = build(data.clone()).expect("sound");
    assert_eq!(tokenizer.end_tokens().collect::<Vec<_>>(), [3, 4, 5]);
    assert_eq!(tokenizer.kind(4), Some(TokenKind::Control));
    assert_eq!(tokenizer.encode("<|im_end|>", Special::Parse, false), [4]);
    assert!(tokenizer.encode("<|im_end|><|eot_id|>", Special::Literal, false).iter().all(|&id| id < 3));
    // Old files have no token types.
    data.kinds.clear();
    let tokenizer = build(data).expect("sound");
    assert_eq!(tokenizer.encode("<|im_end|>", Special::Parse, false), [4]);
}
