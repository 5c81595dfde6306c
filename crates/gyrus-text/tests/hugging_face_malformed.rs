//! Malformed and unsupported `tokenizer.json` files: each is an error that names the part and its place.

use gyrus_testkit::Rng;
use gyrus_text::hugging_face::{self, Files, chat_template};
use gyrus_text::{Detokenizer, Special, Tokenizer, TokenizerError};
use serde_json::{Value, json};

/// A byte-level tokenizer with an end token.
fn bpe() -> Value {
    json!({
        "added_tokens": [{"id": 4, "content": "<end>", "special": true}, {"id": 5, "content": "<user>"}],
        "normalizer": {"type": "Sequence", "normalizers": [
            {"type": "NFC"}, {"type": "Replace", "pattern": {"Regex": "x+"}, "content": "c"},
        ]},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": "a(?=b)|\\p{N}"}, "behavior": "Isolated", "invert": false},
            {"type": "ByteLevel", "add_prefix_space": false, "use_regex": true},
        ]},
        "post_processor": {"type": "TemplateProcessing",
            "single": [{"Sequence": {"id": "A"}}, {"SpecialToken": {"id": "<end>"}}],
            "special_tokens": {"<end>": {"id": "<end>", "ids": [4], "tokens": ["<end>"]}}},
        "decoder": {"type": "ByteLevel"},
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "fuse_unk": false,
            "vocab": {"a": 0, "b": 1, "c": 2, "bc": 3}, "merges": [["b", "c"]]},
    })
}

fn unigram() -> Value {
    json!({
        "added_tokens": [{"id": 0, "content": "<unk>", "special": true}, {"id": 4, "content": "New", "normalized": true}],
        "normalizer": {"type": "Sequence", "normalizers": [
            {"type": "Precompiled", "precompiled_charsmap": ""}, {"type": "Nmt"}, {"type": "Lowercase"},
        ]},
        "pre_tokenizer": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true},
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"},
            {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0},
        ]},
        "model": {"type": "Unigram", "unk_id": 0, "byte_fallback": false,
            "vocab": [["<unk>", 0.0], ["▁", -1.0], ["a", -2.5], ["▁ab", -3.0]]},
    })
}

fn wordpiece() -> Value {
    json!({
        "normalizer": {"type": "BertNormalizer", "lowercase": true},
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {"type": "BertProcessing", "sep": ["[S]", 1], "cls": ["[C]", 0]},
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": true},
        "model": {"type": "WordPiece", "unk_token": "[U]", "continuing_subword_prefix": "##",
            "vocab": {"[C]": 0, "[S]": 1, "[U]": 2, "a": 3, "##b": 4}},
    })
}

fn build(json: &Value) -> Result<Tokenizer, TokenizerError> {
    let bytes = json.to_string().into_bytes();
    hugging_face::read(&Files { tokenizer: &bytes, ..Files::default() }).and_then(Tokenizer::new)
}

/// The error after a change of one value, which a JSON pointer names.
fn error(mut json: Value, pointer: &str, value: Value) -> String {
    match pointer.rsplit_once('/') {
        Some((parent, key)) if json.pointer(pointer).is_none() => {
            json.pointer_mut(parent).expect(parent)[key] = value
        }
        _ => *json.pointer_mut(pointer).expect(pointer) = value,
    }
    build(&json).expect_err(pointer).to_string()
}

#[test]
fn sound_files_are_accepted() {
    let tokenizer = build(&bpe()).expect("sound");
    assert_eq!(tokenizer.encode("abxx<end><user>", Special::Parse, true), [0, 3, 4, 5, 4]);
    assert_eq!(tokenizer.encode("abc", Special::Literal, false), [0, 3]);
    let tokenizer = build(&unigram()).expect("sound");
    assert_eq!(tokenizer.encode("ab aNEW!", Special::Parse, false), [3, 1, 2, 4, 1, 0]);
    let tokenizer = build(&wordpiece()).expect("sound");
    assert_eq!(tokenizer.encode("Ab B", Special::Parse, true), [0, 3, 4, 2, 1]);
}

#[test]
fn unsupported_parts_are_named_with_their_place() {
    let cases = [
        (
            bpe(),
            "/model/type",
            json!("WordLevel"),
            "model.type: \"WordLevel\" is not supported; supported: BPE",
        ),
        (bpe(), "/model/dropout", json!(0.1), "model.dropout: 0.1 is not supported"),
        (
            bpe(),
            "/model/end_of_word_suffix",
            json!("</w>"),
            "model.end_of_word_suffix: \"</w>\" is not supported",
        ),
        (bpe(), "/model/continuing_subword_prefix", json!("##"), "model.continuing_subword_prefix"),
        (
            bpe(),
            "/normalizer/normalizers/0/type",
            json!("Stem"),
            "normalizer.normalizers[0].type: \"Stem\" is not",
        ),
        (
            bpe(),
            "/pre_tokenizer/pretokenizers/1/type",
            json!("UnicodeScripts"),
            "pre_tokenizer.pretokenizers[1].type",
        ),
        (
            bpe(),
            "/pre_tokenizer/pretokenizers/0/behavior",
            json!("Thrown"),
            "pretokenizers[0].behavior: \"Thrown\"",
        ),
        (bpe(), "/post_processor/type", json!("Other"), "post_processor.type: \"Other\" is not supported"),
        (
            bpe(),
            "/decoder/type",
            json!("CTC"),
            "decoder.type: \"CTC\" is not supported; supported: ByteFallback",
        ),
        (
            unigram(),
            "/decoder/decoders/3/stop",
            json!(1),
            "decoder.decoders[3]: Strip is supported for spaces",
        ),
        (unigram(), "/pre_tokenizer/prepend_scheme", json!("last"), "pre_tokenizer.prepend_scheme: \"last\""),
    ];
    for (json, pointer, value, expected) in cases {
        let message = error(json, pointer, value);
        assert!(
            message.starts_with("tokenizer.json: ") && message.contains(expected),
            "{pointer}: {message}"
        );
    }
}

#[test]
fn malformed_values_are_named_with_their_place() {
    let many = |step: Value| json!({"type": "Sequence", "normalizers": vec![step; 65]});
    let cases = [
        (
            bpe(),
            "/model/vocab",
            json!({"a": 0, "b": 0}),
            "model.vocab: tokens \"a\" and \"b\" both have id 0",
        ),
        (
            bpe(),
            "/model/vocab",
            json!({"a": 4_000_000_000_u64}),
            "model.vocab: token \"a\" has id 4000000000; ids must",
        ),
        (bpe(), "/model/vocab", json!({"a": -1}), "line 1, column"),
        (bpe(), "/model/vocab", json!({}), "merge 0 (\"b c\") needs token \"bc\""),
        (bpe(), "/model/vocab", json!([["a", 1.0]]), "model.vocab: it must be an object"),
        (bpe(), "/model/merges", json!(["bc"]), "merge \"bc\" is not two tokens"),
        (bpe(), "/model/merges", json!([["a", "b", "c"]]), "a merge is not two tokens"),
        (bpe(), "/model/merges", json!([["a", "c"]]), "merge 0 (\"a c\") needs token \"ac\""),
        (
            bpe(),
            "/model/unk_token",
            json!("<none>"),
            "model.unk_token: the unknown token \"<none>\" is not in",
        ),
        (
            bpe(),
            "/added_tokens/0/id",
            json!(1),
            "added_tokens[0]: id 1 is \"<end>\" here and \"b\" elsewhere",
        ),
        (
            bpe(),
            "/added_tokens/0/id",
            json!(1_u64 << 40),
            "added_tokens[0]: token \"<end>\" has id 1099511627776",
        ),
        (bpe(), "/added_tokens/0/content", json!("a"), "token \"a\" has two ids, 0 and 4"),
        (bpe(), "/added_tokens/0/content", json!(""), "added_tokens[0]: the token with id 4 is empty"),
        (bpe(), "/normalizer", many(json!({"type": "NFC"})), "normalizer: 65 steps; at most 64"),
        (bpe(), "/normalizer/normalizers", json!(3), "normalizer.normalizers: it must be a list"),
        (
            bpe(),
            "/normalizer/normalizers/1/pattern",
            json!({"Regex": "("}),
            "the pattern \"(\" is not usable",
        ),
        (
            bpe(),
            "/normalizer/normalizers/1/pattern",
            json!({"String": ""}),
            "the pattern \"\" is not usable: it is empty",
        ),
        (
            bpe(),
            "/normalizer/normalizers/1/pattern",
            json!({"Regex": "a".repeat(20_000)}),
            "20000 bytes, at most",
        ),
        (bpe(), "/post_processor/single", json!([]), "post_processor.single: it must contain the text once"),
        (bpe(), "/post_processor/special_tokens/<end>/ids/0", json!(99), "added token id 99 is outside"),
        (unigram(), "/model/unk_id", json!(9), "model.unk_id: 9 is outside the vocabulary of 4 tokens"),
        (unigram(), "/model/vocab/1/1", json!("x"), "line 1, column"),
        (unigram(), "/model/vocab/1/0", json!("a"), "token \"a\" has two ids"),
        (
            unigram(),
            "/normalizer/normalizers/0/precompiled_charsmap",
            json!("!"),
            "precompiled_charsmap: it is not base64",
        ),
        (
            unigram(),
            "/normalizer/normalizers/0/precompiled_charsmap",
            json!("////AAA="),
            "precompiled character map",
        ),
        (
            unigram(),
            "/pre_tokenizer/replacement",
            json!("ab"),
            "pre_tokenizer.replacement: it must be one character",
        ),
        (
            wordpiece(),
            "/post_processor/cls",
            json!(["[C]"]),
            "post_processor: \"cls\" must be a token and its id",
        ),
        (wordpiece(), "/model/unk_token", json!("[V]"), "model.unk_token"),
    ];
    for (json, pointer, value, expected) in cases {
        let message = error(json, pointer, value);
        assert!(message.contains(expected), "{pointer}: {message}");
    }
    let deep = format!("{}null{}", "[".repeat(100_000), "]".repeat(100_000));
    for text in
        ["", "{", "[]", "{\"model\":{}}", "\u{0}", &format!("{{\"normalizer\":{deep},\"model\":{{}}}}")]
    {
        let files = Files { tokenizer: text.as_bytes(), ..Files::default() };
        let message = hugging_face::read(&files).expect_err(text).to_string();
        assert!(message.starts_with("tokenizer.json: line "), "{message}");
    }
}

#[test]
fn the_configuration_names_special_tokens() {
    let tokenizer = bpe().to_string().into_bytes();
    let read = |config: Value, map: Value| {
        let (config, map) = (config.to_string(), map.to_string());
        let (config, special_tokens_map) = (Some(config.as_bytes()), Some(map.as_bytes()));
        hugging_face::read(&Files { tokenizer: &tokenizer, config, special_tokens_map })
    };
    let config = json!({"bos_token": {"content": "<user>"}, "eos_token": "<end>", "pad_token": null, "add_bos_token": true});
    let data = read(config, json!({"eos_token": "a", "unk_token": "b", "sep_token": "none"})).expect("sound");
    let ids = data.ids;
    assert_eq!((ids.bos, ids.eos, ids.unk, ids.sep, ids.pad), (Some(5), Some(4), Some(1), None, None));
    assert_eq!((data.prefix, data.suffix), (vec![5], vec![4]));
    let data = read(json!({"eos_token": "<end>", "add_eos_token": false}), json!({})).expect("sound");
    assert_eq!((data.prefix, data.suffix), (vec![], vec![]));
    let fail = |config| read(config, json!({})).expect_err("refused").to_string();
    assert_eq!(fail(json!({"add_bos_token": true})), "add_bos_token is set but there is no bos token");
    assert_eq!(fail(json!({"bos_token": 3})), "tokenizer_config.json: $.bos_token: it must be a string");
    assert_eq!(
        fail(json!({"add_eos_token": 1})),
        "tokenizer_config.json: $.add_eos_token: it must be true or false"
    );
}

#[test]
fn chat_templates_are_found() {
    let find = |config: Value| chat_template(config.to_string().as_bytes());
    assert_eq!(find(json!({"chat_template": "t"})), Ok(Some("t".into())));
    let named = json!([{"name": "tools", "template": "u"}, {"name": "default", "template": "v"}]);
    assert_eq!(find(json!({"chat_template": named})), Ok(Some("v".into())));
    assert_eq!(find(json!({})), Ok(None));
    assert!(find(json!({"chat_template": 1})).is_err());
}

/// Replaces a random value of the tree by one of the pool.
fn change(value: &mut Value, pool: &[Value], rng: &mut Rng) {
    let stop = rng.below(12) == 0;
    match value {
        Value::Array(list) if !list.is_empty() && !stop => {
            let at = rng.below(list.len());
            change(&mut list[at], pool, rng);
        }
        Value::Object(map) if !map.is_empty() && !stop => {
            let at = rng.below(map.len());
            map.values_mut().nth(at).into_iter().for_each(|value| change(value, pool, rng));
        }
        _ => *value = pool[rng.below(pool.len())].clone(),
    }
}

/// Random changes: no panic, and a tokenizer that is accepted keeps its promises.
#[test]
fn random_changes() {
    let mut rng = Rng::new(9);
    let sound = [bpe(), unigram(), wordpiece()];
    let mut pool: Vec<Value> =
        ["", "a", "▁", "##", "\\s+", "(a*)*b", "<end>", "Isolated", "Removed", "MergedWithNext", "first"]
            .into_iter()
            .map(Value::from)
            .collect();
    pool.extend([
        json!(null),
        json!(0),
        json!(3),
        json!(-1),
        json!(1e99),
        json!(u64::MAX),
        json!(true),
        json!([]),
        json!({}),
    ]);
    for json in &sound {
        pool.extend(
            ["normalizer", "pre_tokenizer", "post_processor", "decoder", "model"]
                .map(|part| json[part].clone()),
        );
    }
    let mut accepted = 0;
    for _ in 0..gyrus_testkit::cases(4000) {
        let mut json = sound[rng.below(3)].clone();
        (0..1 + rng.below(2)).for_each(|_| change(&mut json, &pool, &mut rng));
        let Ok(tokenizer) = build(&json) else { continue };
        accepted += 1;
        for text in ["", "ab abc NEW <end> 12\u{301}", " \n", "\u{3000}\u{fb01}"] {
            for special in [Special::Parse, Special::Literal] {
                let ids = tokenizer.encode(text, special, true);
                assert!(ids.iter().all(|&id| (id as usize) < tokenizer.vocab_size()), "{json}");
                let mut stream = Detokenizer::new(&tokenizer, true);
                let shown: String = ids.iter().map(|&id| stream.push(id)).collect();
                assert_eq!(shown + &stream.finish(), tokenizer.decode(&ids, true), "{json}");
            }
        }
    }
    assert!(accepted > gyrus_testkit::cases(4000) / 50, "{accepted} accepted");
}

/// A file cut off at any byte is an error.
#[test]
fn truncated_files() {
    for json in [bpe(), unigram(), wordpiece()].map(|json| json.to_string()) {
        for end in 0..json.len() {
            let files = Files { tokenizer: &json.as_bytes()[..end], ..Files::default() };
            assert!(hugging_face::read(&files).is_err(), "{end} bytes");
        }
    }
}
