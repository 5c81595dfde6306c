//! Any text as a model's output, in every format and cut anywhere: the same events, arguments that are JSON.
//!
//! The first byte gives the format and the second where the text is cut.
#![no_main]

use gyrus_dialog::{Event, Format, Parser, Tools};
use libfuzzer_sys::fuzz_target;

fn parse(format: Format, reasoning: bool, chunks: &[&str]) -> Vec<Event> {
    let tools = Tools::from_json(r#"[{"name":"add","parameters":{"type":"object"}}]"#).unwrap();
    let mut parser = Parser::new(format, Some(tools), reasoning);
    let mut events: Vec<Event> = chunks.iter().flat_map(|chunk| parser.push(chunk)).collect();
    events.extend(parser.finish());
    Event::joined(events)
}

fuzz_target!(|data: (u8, u8, &str)| {
    let (kind, cut, text) = data;
    let format = Format::ALL[usize::from(kind) % Format::ALL.len()];
    let reasoning = kind >= 128;
    let whole = parse(format, reasoning, &[text]);
    let cut = (usize::from(cut).min(text.len())..=text.len()).find(|&at| text.is_char_boundary(at)).unwrap();
    let (a, b) = text.split_at(cut);
    assert_eq!(parse(format, reasoning, &[a, b]), whole, "{format:?} {a:?} {b:?}");
    let single: Vec<&str> = text.char_indices().map(|(at, c)| &text[at..at + c.len_utf8()]).collect();
    assert_eq!(parse(format, reasoning, &single), whole, "{format:?} {text:?}");
    for event in &whole {
        if let Event::Call(call) = event {
            assert!(serde_json::from_str::<serde_json::Value>(&call.arguments).unwrap().is_object());
        }
    }
    if !text.contains(['<', '[', '{', '｜']) && !reasoning && !text.trim_start().starts_with('t') {
        assert_eq!(whole, if text.is_empty() { vec![] } else { vec![Event::Content(text.into())] });
    }
});
