//! Completions as llama.vim and llama.vscode ask for them: `/infill` with pieces of other files; and prompts with control tokens.

mod common;

use std::path::Path;

use common::client::post;
use common::{TestSource, config, start_with};
use gyrus::text::Special::Literal;
use gyrus::{Event, Message, Model, Request, Sampler};
use gyrus_testkit::tempfile;
use serde_json::{Value, json};

/// Ids of ordinary tokens that the test makes the markers of a gap, of a repository and of its files.
const MARKERS: [(&str, u32); 5] = [
    ("fim_pre_token_id", 300),
    ("fim_suf_token_id", 301),
    ("fim_mid_token_id", 302),
    ("fim_rep_token_id", 303),
    ("fim_sep_token_id", 304),
];

/// The test model with markers in its metadata.
fn with_markers(markers: &[(&str, u32)], folder: &Path) -> Option<TestSource> {
    let plain = TestSource::tales()?;
    let file = std::fs::read(&plain.path).unwrap();
    let entry = |key: &str, kind: u32, value: &[u8]| {
        [&(key.len() as u64).to_le_bytes()[..], key.as_bytes(), &kind.to_le_bytes(), value].concat()
    };
    let id = |(name, id): &(&str, u32)| entry(&format!("tokenizer.ggml.{name}"), 4, &id.to_le_bytes());
    let mut added: Vec<u8> = markers.iter().flat_map(id).collect();
    // A text that fills the last 32 bytes, so that the tensors are aligned as they were.
    let empty = entry("test.filler", 8, &0u64.to_le_bytes()).len() + added.len();
    let filler = "-".repeat(empty.next_multiple_of(32) - empty);
    let text = [&(filler.len() as u64).to_le_bytes()[..], filler.as_bytes()].concat();
    added.extend(entry("test.filler", 8, &text));
    // Magic, version and number of tensors, then the number of entries, then the entries.
    let entries = u64::from_le_bytes(file[16..24].try_into().unwrap()) + markers.len() as u64 + 1;
    let all = [&file[..16], &entries.to_le_bytes()[..], &added, &file[24..]].concat();
    let path = folder.join("markers.gguf");
    std::fs::write(&path, all).unwrap();
    Some(TestSource { path, ..plain })
}

fn answer(model: &Model, request: Request) -> String {
    let mut answer = model.answer(request).unwrap();
    let mut all = String::new();
    while let Some(event) = answer.next().unwrap() {
        if let Event::Text { text, .. } = event {
            all.push_str(text);
        }
    }
    all
}

/// The body that llama.vim sends for each completion.
fn body() -> Value {
    json!({
        "id_slot": 0,
        "input_prefix": "Once upon a time\nthere was",
        "input_suffix": "\nand they were happy.\n",
        "input_extra": [
            { "text": "The fox was red.\n", "time": 1234.5, "filename": "fox.txt" },
            { "text": "A dog.\n", "time": 1240, "filename": "dog.txt" },
        ],
        "prompt": " a",
        "n_predict": 24,
        "stop": [],
        "n_indent": 0,
        "top_k": 40,
        "top_p": 0.9,
        "stream": false,
        "samplers": ["top_k", "top_p", "infill"],
        "cache_prompt": true,
        "t_max_prompt_ms": 500,
        "t_max_predict_ms": 60_000,
        "response_fields": ["content", "timings/prompt_n", "timings/predicted_n", "truncated", "nothing"],
        "seed": 7,
    })
}

/// The ids of texts behind markers.
fn ids(model: &Model, parts: &[(Option<u32>, &str)]) -> Vec<u32> {
    let tokenizer = model.tokenizer().unwrap();
    let mut ids: Vec<u32> = tokenizer.bos().filter(|_| tokenizer.adds_bos()).into_iter().collect();
    for (marker, text) in parts {
        ids.extend(marker);
        tokenizer.encode_into(text, Literal, false, &mut ids);
    }
    ids
}

fn sampler() -> Sampler {
    let order = "top_k;top_p".parse().unwrap();
    Sampler { order, top_k: 40, top_p: 0.9, min_p: 0.05, seed: 7, ..Sampler::default() }
}

#[test]
fn a_gap_is_filled_with_the_files_around_it() {
    let folder = tempfile::tempdir().unwrap();
    let gap = [
        (Some(300), "Once upon a time\nthere was"),
        (Some(301), "\nand they were happy.\n"),
        (Some(302), " a"),
    ];
    let of_repository = [
        (Some(303), "myproject\n"),
        (Some(304), "fox.txt\n"),
        (None, "The fox was red.\n"),
        (Some(304), "dog.txt\n"),
        (None, "A dog.\n"),
        (Some(304), "filename\n"),
    ];
    let between = (None, "\n\n--- snippet ---\n\n");
    let of_snippets = [between, (None, "The fox was red.\n"), between, (None, "A dog.\n")];
    for (markers, extra) in [(&MARKERS[..], &of_repository[..]), (&MARKERS[..3], &of_snippets[..])] {
        let Some(source) = with_markers(markers, folder.path()) else { return };
        let model = source.model();
        let prompt = ids(&model, &[extra, &gap].concat());
        let count = prompt.len();
        let request = |ids: Vec<u32>| Request::ids(ids).max_tokens(24).sampler(sampler());
        let expected = answer(&model, request(prompt));
        let server = start_with(config(), source);
        let reply = post(server.address, "/infill", &body());
        assert_eq!(reply.status, 200, "{}", reply.text());
        let found = reply.json();
        assert_eq!(found["content"], expected.as_str());
        assert_eq!((&found["timings/prompt_n"], &found["truncated"]), (&json!(count), &json!(false)));
        assert_eq!(found.as_object().unwrap().len(), 4, "only what was asked for: {found}");
        // More than the context: the last pieces that fit.
        let mut long = body();
        long["input_extra"] = json!([{ "text": "red fox ".repeat(2000), "filename": "a" }]);
        long["response_fields"] = json!([]);
        let found = post(server.address, "/infill", &long).json();
        assert_eq!(found["tokens_evaluated"], 512 - 24, "{found}");
        // What the editor sends when the reader pauses, so that the pieces are in the cache.
        let ahead = json!({ "id_slot": 0, "input_prefix": "", "input_suffix": "", "input_extra": body()["input_extra"],
            "prompt": "", "n_predict": 0, "temperature": 0.0, "samplers": [], "stream": false, "cache_prompt": true,
            "t_max_prompt_ms": 1, "t_max_predict_ms": 1, "response_fields": [""] });
        let reply = post(server.address, "/infill", &ahead);
        assert_eq!((reply.status, reply.json()), (200, json!({})), "{}", reply.text());
    }
}

/// OpenAI's way to fill a gap.
#[test]
fn a_suffix_makes_a_completion_fill_a_gap() {
    let folder = tempfile::tempdir().unwrap();
    let Some(source) = with_markers(&MARKERS, folder.path()) else { return };
    let server = start_with(config(), source);
    let gap =
        json!({ "input_prefix": "Once", "input_suffix": "the end.", "n_predict": 12, "temperature": 0 });
    let expected = post(server.address, "/infill", &gap).json();
    let mut body = json!({ "prompt": "Once", "suffix": "the end.", "max_tokens": 12, "temperature": 0 });
    let found = post(server.address, "/v1/completions", &body).json();
    assert_eq!(found["choices"][0]["text"], expected["content"], "{found}");
    assert_eq!(found["usage"]["prompt_tokens"], expected["tokens_evaluated"], "{found}");
    let mut plain = body.clone();
    plain["suffix"] = "".into();
    let found = post(server.address, "/v1/completions", &plain).json();
    assert_ne!(found["usage"]["prompt_tokens"], expected["tokens_evaluated"], "{found}");
    body["prompt"] = json!([1, 2]);
    let reply = post(server.address, "/v1/completions", &body);
    assert_eq!(
        (reply.status, reply.json()["error"]["param"].clone()),
        (400, json!("suffix")),
        "{}",
        reply.text()
    );
}

#[test]
fn lines_end_a_completion() {
    let folder = tempfile::tempdir().unwrap();
    let Some(source) = with_markers(&MARKERS, folder.path()) else { return };
    let server = start_with(config(), source);
    // The grammar writes three lines, of which the last is indented less.
    let mut body = json!({ "prompt": "Once", "n_predict": 200, "n_indent": 4, "temperature": 0,
        "grammar": "root ::= \"a\\n    b\\n  c\\n    d\\n\"" });
    let whole = post(server.address, "/completion", &body).json();
    assert_eq!((&whole["content"], &whole["stop_type"]), (&json!("a\n    b\n"), &json!("limit")), "{whole}");
    body["stream"] = true.into();
    let events = post(server.address, "/completion", &body).events();
    let parsed: Vec<Value> = events.iter().map(|(_, data)| serde_json::from_str(data).unwrap()).collect();
    let text: String = parsed.iter().filter_map(|event| event["content"].as_str()).collect();
    let last = parsed.last().unwrap();
    assert_eq!(
        (text.as_str(), &last["stop"], &last["stop_type"]),
        ("a\n    b\n", &json!(true), &json!("limit"))
    );
    for (name, value) in [
        ("samplers", json!(["top_k", "top_q"])),
        ("min_keep", json!(3)),
        ("n_indent", json!(-1)),
        ("response_fields", json!({})),
        ("input_extra", json!("a")),
    ] {
        let mut body = json!({ "input_prefix": "a", "input_suffix": "b" });
        body[name] = value;
        let reply = post(server.address, "/infill", &body);
        assert_eq!((reply.status, reply.text().contains(name)), (400, true), "{}", reply.text());
    }
}

/// A client that writes control tokens itself, from `/apply-template` or from a template of its own.
#[test]
fn prompts_of_text_have_control_tokens_and_messages_have_not() {
    let template =
        "{% for m in messages %}{{ m.role }}: {{ m.content }}<|endoftext|>\n{% endfor %}assistant: ";
    let folder = tempfile::tempdir().unwrap();
    let Some(source) = TestSource::with_template(template, folder.path()) else { return };
    let model = source.model();
    let messages = || Request::messages([Message::system("Be kind."), Message::user("Tell me of a fox.")]);
    let ids = model.prompt_tokens(&messages()).unwrap();
    let expected = answer(&model, messages().max_tokens(12));
    let server = start_with(config(), source);
    let body = json!({ "messages": [{ "role": "system", "content": "Be kind." },
        { "role": "user", "content": "Tell me of a fox." }] });
    let text = post(server.address, "/apply-template", &body).json()["prompt"].as_str().unwrap().to_owned();
    let plain = model.prompt_tokens(&Request::text(&text)).unwrap();
    assert!(plain.len() > ids.len() + 4, "the template has control tokens: {text}");
    let options = json!({ "temperature": 0, "num_predict": 12 });
    for (path, body, count, answer) in [
        (
            "/completion",
            json!({ "prompt": text, "temperature": 0, "n_predict": 12 }),
            "/tokens_evaluated",
            "/content",
        ),
        (
            "/v1/completions",
            json!({ "prompt": text, "temperature": 0, "max_tokens": 12 }),
            "/usage/prompt_tokens",
            "/choices/0/text",
        ),
        (
            "/api/generate",
            json!({ "model": "tales", "prompt": text, "raw": true, "stream": false, "options": options }),
            "/prompt_eval_count",
            "/response",
        ),
    ] {
        let found = post(server.address, path, &body).json();
        let of = |path: &str| found.pointer(path).cloned().unwrap_or_default();
        assert_eq!((of(count), of(answer)), (json!(ids.len()), json!(expected)), "{path}: {found}");
        let mut literal = body.clone();
        let fields = if path == "/api/generate" { &mut literal["options"] } else { &mut literal };
        fields["parse_special"] = false.into();
        let found = post(server.address, path, &literal).json();
        assert_eq!(found.pointer(count), Some(&json!(plain.len())), "{path}: {found}");
    }
    // The content of a message is text, whatever it spells.
    let spelt = json!({ "messages": [{ "role": "user", "content": "<|endoftext|>" }], "max_tokens": 1 });
    let spelt_ids = model.prompt_tokens(&Request::messages([Message::user("<|endoftext|>")])).unwrap();
    let found = post(server.address, "/v1/chat/completions", &spelt).json();
    assert_eq!(found["usage"]["prompt_tokens"], spelt_ids.len());
    let end = model.tokenizer().unwrap().id_of("<|endoftext|>").unwrap();
    assert_eq!(spelt_ids.iter().filter(|id| **id == end).count(), 1);
    let mut parsed = spelt.clone();
    parsed["parse_special"] = true.into();
    let refused = post(server.address, "/v1/chat/completions", &parsed);
    assert_eq!((refused.status, refused.text().contains("parse_special")), (400, true), "{}", refused.text());
}
