//! A SafeTensors model with the tokenizer files of Hugging Face beside it.

use gyrus::text::Special;
use gyrus::{Model, Options};

/// The alphabet of bytes, one merge, and two special tokens.
fn tokenizer_json() -> String {
    let mut tokens: Vec<String> = ["<pad>", "<s>", "</s>", "<turn>"].map(String::from).to_vec();
    tokens.extend((b'!'..=b'~').map(|byte| char::from(byte).to_string()));
    tokens.extend(["Ġ", "hi"].map(String::from));
    let vocab: serde_json::Map<_, _> =
        tokens.iter().enumerate().map(|(id, token)| (token.clone(), id.into())).collect();
    let added: Vec<_> = (0..4)
        .map(|id| serde_json::json!({"id": id, "content": tokens[id], "special": true, "normalized": false}))
        .collect();
    serde_json::json!({
        "added_tokens": added,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false},
        "decoder": {"type": "ByteLevel"},
        "model": {"type": "BPE", "vocab": vocab, "merges": ["h i"]},
    })
    .to_string()
}

#[test]
fn the_tokenizer_and_template_beside_a_model_are_used() {
    let Some(source) = gyrus_testkit::data("tiny/llama") else { return };
    let folder = gyrus_testkit::tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    for name in ["model.safetensors", "config.json"] {
        std::fs::copy(source.join(name), folder.path().join(name)).unwrap();
    }
    let open = || Model::open(folder.path(), &Options { context: Some(64), ..Options::default() });
    assert!(open().unwrap().tokenizer().is_none());

    write("tokenizer.json", &tokenizer_json());
    write(
        "tokenizer_config.json",
        r#"{"bos_token": "<s>", "add_bos_token": true, "chat_template": "{{ bos_token }}old"}"#,
    );
    // The last id is beyond the vocabulary.
    let sampling = r#"{"eos_token_id": [2, 3, 5, 6, 7, 700], "temperature": 0.7, "top_k": 20}"#;
    write("generation_config.json", sampling);
    let model = open().unwrap();
    let tokenizer = model.tokenizer().unwrap();
    let ids = tokenizer.encode("hi h", Special::Literal, true);
    let id = |text| tokenizer.id_of(text).unwrap();
    assert_eq!(ids, [1, id("hi"), id("Ġ"), id("h")]);
    assert_eq!(tokenizer.decode(&ids, false), "hi h");
    assert_eq!((tokenizer.bos(), tokenizer.eos()), (Some(1), Some(2)));
    assert_eq!(tokenizer.end_tokens().collect::<Vec<_>>(), [2, 3, 5, 6, 7]);
    assert_eq!((model.sampling().temperature, model.sampling().top_k), (Some(0.7), Some(20)));
    assert!(model.has_chat_template());

    write("chat_template.jinja", "{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}");
    let conversation = r#"[{"role": "user", "content": "hi </s>"}]"#;
    let conversation = gyrus::text::template::Conversation::from_json(conversation).unwrap();
    let model = open().unwrap();
    assert_eq!(model.chat_format().unwrap().render(&conversation, false).unwrap(), "<s>hi </s>");

    write("tokenizer.json", r#"{"model": {"type": "WordLevel", "vocab": {"a": 0}}}"#);
    let message = open().err().unwrap().to_string();
    assert!(message.contains("tokenizer.json: model.type: \"WordLevel\" is not supported"), "{message}");
}
