//! Parsing of whole outputs, cut in every way.

#![allow(dead_code, unreachable_pub)]

use gyrus_dialog::{Call, Event, Format, Parser, Tools};
use gyrus_testkit::Rng;

pub fn tools() -> Tools {
    let text = r#"[
        {"type": "function", "function": {"name": "weather", "description": "The weather in a city.", "parameters":
            {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}, "required": ["city"]}}},
        {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {"a": {"type":
            "number"}, "b": {"type": "number"}, "tags": {"type": "array", "items": {"type": "string"}}}, "required": ["a", "b"]}}}
    ]"#;
    Tools::from_json(text).unwrap()
}

/// Parses the chunks and joins neighbours of the same kind.
pub fn parse<'a>(format: Format, reasoning: bool, chunks: impl IntoIterator<Item = &'a str>) -> Vec<Event> {
    let mut parser = Parser::new(format, Some(tools()), reasoning);
    let mut events = Vec::new();
    chunks.into_iter().for_each(|chunk| events.extend(parser.push(chunk)));
    events.extend(parser.finish());
    Event::joined(events)
}

/// Parses the text whole, and asserts that every split gives the same.
pub fn every_split(format: Format, reasoning: bool, text: &str) -> Vec<Event> {
    let whole = parse(format, reasoning, [text]);
    let cuts: Vec<usize> = text.char_indices().map(|(at, _)| at).collect();
    for &cut in &cuts {
        let (a, b) = text.split_at(cut);
        assert_eq!(parse(format, reasoning, [a, b]), whole, "{a:?} then {b:?}");
    }
    let single: Vec<&str> = text.char_indices().map(|(at, c)| &text[at..at + c.len_utf8()]).collect();
    assert_eq!(parse(format, reasoning, single), whole, "character by character: {text:?}");
    let mut rng = Rng::new(text.len() as u64);
    for _ in 0..50 {
        let mut at = 0;
        let mut chunks = Vec::new();
        while at < text.len() {
            let next = (at + 1 + rng.below(12)..=text.len())
                .find(|&next| text.is_char_boundary(next))
                .unwrap_or(text.len());
            chunks.push(&text[at..next]);
            at = next;
        }
        assert_eq!(parse(format, reasoning, chunks.iter().copied()), whole, "{chunks:?}");
    }
    whole
}

pub fn content(text: &str) -> Event {
    Event::Content(text.into())
}

pub fn reasoning(text: &str) -> Event {
    Event::Reasoning(text.into())
}

pub fn call(name: &str, arguments: &str) -> Event {
    Event::Call(Call { name: name.into(), arguments: arguments.into(), id: None })
}

pub fn call_with_id(name: &str, arguments: &str, id: &str) -> Event {
    Event::Call(Call { name: name.into(), arguments: arguments.into(), id: Some(id.into()) })
}

pub fn malformed(text: &str, reason: &str) -> Event {
    Event::Malformed { text: text.into(), reason: reason.into() }
}
