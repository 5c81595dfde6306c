//! Random templates and conversations. Nothing may panic or hang, and every error must have a position.

use std::time::{Duration, Instant};

use gyrus_text::template::{ChatTemplate, Conversation, Fallback, Inputs, Limits, TemplateError};
use serde_json::{Value as Json, json};

use gyrus_testkit::cases as count;

use super::oracle::Rng;

const FUEL: u64 = 200_000;

fn limits() -> Limits {
    Limits { fuel: FUEL, output: 1 << 20, ..Limits::default() }
}

/// Renders, and checks that an error has a position.
fn feed(source: &str, inputs: &Inputs<'_>) -> bool {
    let lines = u32::try_from(source.replace("\r\n", "\n").replace('\r', "\n").split('\n').count()).unwrap();
    let start = Instant::now();
    let result = ChatTemplate::new(source).and_then(|template| template.with_limits(limits()).render(inputs));
    assert!(start.elapsed() < Duration::from_secs(10), "took {:?}: {source}", start.elapsed());
    match &result {
        Ok(text) => assert!(text.len() <= 1 << 20),
        Err(
            TemplateError::Syntax { at, message }
            | TemplateError::Render { at, message }
            | TemplateError::Raised { at, message },
        ) => {
            assert!((1..=lines).contains(&at.line) && at.column >= 1, "{at} of {lines} lines: {source}");
            assert!(!message.is_empty() || source.contains("raise_exception"), "{source}");
        }
        Err(TemplateError::Limit { at, .. }) => assert!((1..=lines).contains(&at.line)),
        Err(other) => panic!("unexpected {other} from {source}"),
    }
    result.is_ok()
}

const PIECES: &[&str] = &[
    "{{",
    "}}",
    "{%",
    "%}",
    "{#",
    "#}",
    "{%-",
    "-%}",
    "{{-",
    "-}}",
    "+%}",
    " ",
    "\n",
    "\r\n",
    "  ",
    "'",
    "\"",
    "\\",
    "(",
    ")",
    "[",
    "]",
    "{",
    "}",
    ".",
    ",",
    ":",
    "|",
    "~",
    "+",
    "-",
    "*",
    "/",
    "//",
    "**",
    "%",
    "=",
    "==",
    "!=",
    "<",
    ">=",
    "0",
    "1",
    "9999999999999999999999999999999999999999",
    "1e999",
    "0.1",
    "0x",
    "1_0",
    "if",
    "else",
    "elif",
    "endif",
    "for",
    "in",
    "endfor",
    "set",
    "endset",
    "macro",
    "endmacro",
    "call",
    "endcall",
    "filter",
    "endfilter",
    "with",
    "endwith",
    "raw",
    "endraw",
    "break",
    "continue",
    "generation",
    "endgeneration",
    "recursive",
    "is",
    "not",
    "and",
    "or",
    "x",
    "loop",
    "messages",
    "message",
    "role",
    "content",
    "tools",
    "ns",
    "namespace",
    "range",
    "join",
    "upper",
    "tojson",
    "map",
    "select",
    "sort",
    "length",
    "default",
    "defined",
    "none",
    "true",
    "strip",
    "split",
    "format",
    "replace",
    "raise_exception",
    "strftime_now",
    "é",
    "日",
    "\u{0}",
    "'%s'",
    "'{}'",
    "[::-1]",
    "caller",
    "varargs",
    "**kwargs",
    "*x",
    "dict",
    "items()",
    "block",
    "indent",
    "center",
    "truncate",
];

#[test]
fn garbage_templates_neither_panic_nor_hang() {
    let mut rng = Rng(0x6a5b_0001);
    let conversation = Conversation::new(vec![json!({"role": "user", "content": "hi"})]).unwrap();
    let inputs = Inputs::new(&conversation);
    let mut rendered = 0;
    let seeds: Vec<&str> = Fallback::all().map(|form| form.template).collect();
    for i in 0..count(6000) {
        let source = match i % 3 {
            // Random pieces, wrapped so that some of them get past the lexer.
            0 => {
                let open = *rng.pick(&["", "{{ ", "{% ", "{% set x = ", "{% for x in "]);
                let body: Vec<&str> = (0..rng.below(24)).map(|_| *rng.pick(PIECES)).collect();
                format!(
                    "{open}{}{}",
                    body.join(*rng.pick(&["", " "])),
                    rng.pick(&["", " }}", " %}", "%}{% endfor %}"])
                )
            }
            // A valid template with pieces removed, repeated or inserted.
            1 => {
                let mut chars: Vec<char> = rng.pick(&seeds).chars().collect();
                for _ in 0..1 + rng.below(4) {
                    let at = rng.below(chars.len());
                    let end = (at + rng.below(12)).min(chars.len());
                    match rng.below(3) {
                        0 => drop(chars.drain(at..end)),
                        1 => {
                            let copy = chars[at..end].to_vec();
                            chars.splice(at..at, copy);
                        }
                        _ => drop(chars.splice(at..at, rng.pick(PIECES).chars())),
                    }
                }
                chars.into_iter().collect()
            }
            // Random characters.
            _ => (0..rng.below(60))
                .map(|_| match rng.below(3) {
                    0 => *rng.pick(&['{', '}', '%', '#', '\'', '-', ' ', '\n']),
                    1 => char::from(32 + rng.below(95) as u8),
                    _ => char::from_u32(rng.below(0x11_0000) as u32).unwrap_or('\u{fffd}'),
                })
                .collect(),
        };
        rendered += usize::from(feed(&source, &inputs));
    }
    println!("{rendered} of {} garbage templates rendered", count(6000));
}

fn random_json(rng: &mut Rng, depth: usize) -> Json {
    match rng.below(if depth == 0 { 6 } else { 9 }) {
        0 => Json::Null,
        1 => json!(rng.below(2) == 0),
        2 => json!(rng.next() as i64 - (1 << 52)),
        3 => json!((rng.next() as f64 - 4e15) / 1e9),
        4 | 5 => json!(rng.pick(&[
            "",
            "user",
            "text",
            "<think>x</think>",
            "{\"a\": 1}",
            "é\u{0}日",
            "{{ x }}",
            " \n"
        ])),
        6 => Json::Array((0..rng.below(4)).map(|_| random_json(rng, depth - 1)).collect()),
        _ => random_object(rng, depth - 1),
    }
}

fn random_object(rng: &mut Rng, depth: usize) -> Json {
    let keys = [
        "role",
        "content",
        "tool_calls",
        "function",
        "name",
        "arguments",
        "type",
        "text",
        "parameters",
        "properties",
        "required",
        "description",
        "reasoning_content",
        "thinking",
        "tool_call_id",
        "items",
        "enum",
        "keys",
    ];
    let object = (0..rng.below(6)).map(|_| (rng.pick(&keys).to_string(), random_json(rng, depth)));
    Json::Object(object.collect())
}

/// A valid message with random values.
fn random_message(rng: &mut Rng) -> Json {
    let mut message = random_object(rng, 3);
    message["role"] = json!(rng.pick(&["system", "user", "assistant", "tool", "developer", "ipython", "x"]));
    message["content"] = match rng.below(4) {
        0 => Json::Null,
        1 => Json::Array((0..rng.below(3)).map(|_| random_object(rng, 2)).collect()),
        _ => json!(rng.pick(&["", "hello", " <tool_call> ", "</think>a", "é日"])),
    };
    message
}

#[test]
fn random_conversations_neither_panic_nor_hang() {
    let mut sources: Vec<String> = Fallback::all().map(|form| form.template.to_string()).collect();
    if let Some(folder) = gyrus_testkit::data("templates") {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|extension| extension == "jinja") {
                sources.push(std::fs::read_to_string(path).unwrap());
            }
        }
    }
    let mut rng = Rng(0x6a5b_0002);
    let mut rendered = 0;
    for _ in 0..count(3000) {
        let messages = (0..rng.below(6)).map(|_| random_message(&mut rng)).collect();
        let mut conversation = Conversation::new(messages).expect("made to be valid");
        if rng.below(2) == 0 {
            conversation.tools = Some((0..rng.below(3)).map(|_| random_object(&mut rng, 4)).collect());
        }
        let mut inputs = Inputs::new(&conversation);
        inputs.add_generation_prompt = rng.below(2) == 0;
        for name in ["bos_token", "enable_thinking", "x", "builtin_tools"] {
            inputs.variables.insert(name.into(), random_json(&mut rng, 2));
        }
        rendered += usize::from(feed(rng.pick::<String>(&sources), &inputs));
    }
    println!("{rendered} of {} random conversations rendered", count(3000));
    assert!(rendered * 10 > count(3000), "too few conversations render");
}

#[test]
fn malformed_json_is_an_error_with_a_position() {
    let valid = r#"{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": [{"type": "text"}]}],
 "tools": [{"type": "function"}]}"#;
    assert!(Conversation::from_json(valid).is_ok());
    let mut rng = Rng(0x6a5b_0003);
    for _ in 0..count(3000) {
        let mut chars: Vec<char> = valid.chars().collect();
        for _ in 0..1 + rng.below(3) {
            let at = rng.below(chars.len());
            match rng.below(3) {
                _ if chars.is_empty() => {}
                0 => drop(chars.remove(at)),
                1 => chars[at] = *rng.pick(&['{', '}', '[', ']', '"', ',', ':', '1', 'n', '\u{0}', 'é']),
                _ => chars.truncate(at.max(1)),
            }
        }
        let text: String = chars.into_iter().collect();
        match Conversation::from_json(&text) {
            Ok(_) => {}
            Err(TemplateError::Json { line, message, .. }) => {
                assert!(line >= 1 && !message.is_empty(), "{text}")
            }
            Err(TemplateError::Conversation { path, .. }) => assert!(!path.is_empty(), "{text}"),
            Err(other) => panic!("unexpected {other}"),
        }
    }
    for depth in [100, 127, 200, 100_000] {
        let nested = format!("[{{\"role\": \"user\", \"x\": {}1{}}}]", "[".repeat(depth), "]".repeat(depth));
        assert_eq!(Conversation::from_json(&nested).is_ok(), depth < 126, "{depth}");
    }
}
