//! Grammars of tool choices: what they allow is read back as a call.

mod common;

use gyrus_constrain::{Constraint, Limits, Piece, Source, Vocabulary};
use gyrus_dialog::{Error, Event, Format, ToolChoice, Tools, grammar, tool_prompt};
use gyrus_testkit::Rng;

/// Single bytes; the markers of formats are text.
fn vocabulary() -> Vocabulary {
    let all: Vec<[u8; 1]> = (0..=255).map(|byte| [byte]).collect();
    let pieces = all.iter().map(|byte| Piece::Text(byte)).chain([Piece::Control(b"<end>")]);
    Vocabulary::new(pieces, &[256], None, Limits::default()).unwrap()
}

/// A random text of the constraint, in printable ASCII, that ends as soon as it may after a while.
fn generate(constraint: &Constraint, seed: u64) -> String {
    let (mut rng, mut state, mut text) = (Rng::new(seed), constraint.start(), Vec::new());
    let mut mask = vec![0; constraint.vocabulary().mask_words()];
    while !(state.is_complete() && (state.is_finished() || rng.below(2) == 0)) {
        state.mask(&mut mask).unwrap();
        let allowed = |id: &u32| mask[*id as usize / 32] >> (id % 32) & 1 == 1;
        let mut choices: Vec<u32> = (0x20..0x7f).chain([10]).filter(allowed).collect();
        // Quotes, brackets and markers end strings and lists that would go on for ever.
        if text.len() > 80 {
            let ends: Vec<u32> =
                choices.iter().copied().filter(|id| b"\"]}<".contains(&(*id as u8))).collect();
            choices = if ends.is_empty() { choices } else { ends };
        }
        // Markers may have other characters.
        let all: Vec<u32> = (0..256).filter(allowed).collect();
        let token = *rng.pick(if choices.is_empty() { &all } else { &choices });
        state.commit(token).unwrap();
        text.push(token as u8);
        assert!(text.len() < 2000, "{}", String::from_utf8_lossy(&text));
    }
    String::from_utf8(text).unwrap()
}

#[test]
fn constrained_answers_are_calls_of_every_format() {
    let (vocabulary, tools) = (vocabulary(), common::tools());
    for format in Format::ALL {
        let choice = ToolChoice::Named("weather".into());
        let part = grammar(format, &tools, &choice, false, false).unwrap().unwrap();
        let constraint =
            vocabulary.compile(&Source::Template(part)).unwrap_or_else(|error| panic!("{format:?}: {error}"));
        for seed in 0..4 {
            let text = generate(&constraint, seed);
            let events = common::parse(format, false, [text.as_str()]);
            let [Event::Call(call)] = events.as_slice() else { panic!("{format:?}: {text}\n{events:?}") };
            assert_eq!(call.name, "weather");
            let arguments: serde_json::Value = serde_json::from_str(&call.arguments).unwrap();
            assert!(arguments["city"].is_string(), "{format:?}: {text}");
        }
        let part = grammar(format, &tools, &ToolChoice::Required, true, false).unwrap().unwrap();
        let constraint = vocabulary.compile(&Source::Template(part)).unwrap();
        let text = generate(&constraint, 1);
        let events = common::parse(format, false, [text.as_str()]);
        assert!(
            !events.is_empty() && events.iter().all(|event| matches!(event, Event::Call(_))),
            "{text}\n{events:?}"
        );
    }
}

#[test]
fn control_tokens_belong_to_the_formats_that_write_them() {
    let written = |format: Format, name: &str| format.is_written_with(name);
    assert!(written(Format::Hermes, "<tool_call>") && written(Format::Hermes, "</think>"));
    assert!(written(Format::Harmony, "<|channel|>") && written(Format::Harmony, "<|constrain|>"));
    assert!(written(Format::Mistral, "[ARGS]") && written(Format::Gemma, "<escape>"));
    for format in Format::ALL {
        assert!(!written(format, "<|im_start|>") && !written(format, "<pad>") && !written(format, ""));
    }
}

#[test]
fn choices_without_a_call_have_no_grammar() {
    let tools = common::tools();
    for choice in [ToolChoice::None, ToolChoice::Auto] {
        assert_eq!(grammar(Format::Hermes, &tools, &choice, true, false), Ok(None));
    }
    let unknown =
        grammar(Format::Hermes, &tools, &ToolChoice::Named("fly".into()), false, false).unwrap_err();
    assert_eq!(unknown.to_string(), "there is no tool \"fly\"; the tools are weather, add");
    let complex = Tools::from_json(
        r#"[{"name": "x", "parameters": {"type": "object", "properties": {"a": {"anyOf": []}}}}]"#,
    );
    let refused = grammar(Format::Gemma, &complex.unwrap(), &ToolChoice::Required, false, false).unwrap_err();
    assert!(matches!(refused, Error::Unconstrained { format: "gemma", .. }), "{refused}");
}

#[test]
fn tools_are_checked_with_their_place() {
    let message = |text: &str| Tools::from_json(text).unwrap_err().to_string();
    assert_eq!(message("[\n{]"), "tools, line 2, column 2: key must be a string");
    assert_eq!(message("{}"), "tools: not an array of tools");
    assert_eq!(message(r#"[{"name":"a"},{"function":{}}]"#), "tool 1: it has no name");
    assert_eq!(message(r#"[{"name":"a"},{"name":"a"}]"#), "tool 1 (\"a\"): its name is that of another tool");
    assert_eq!(
        message(r#"[{"name":"a","parameters":[]}]"#),
        "tool 0 (\"a\"): its parameters must be a JSON schema, an object"
    );
    assert!(message(r#"[{"name":"a b"}]"#).starts_with("tool 0 (\"a b\"): its name must be 1 to 64"));
    assert_eq!(message(r#"[{"type":"web","name":"a"}]"#), "tool 0 (\"a\"): its type must be \"function\"");
    assert_eq!(message(&format!("[{}]", vec!["{}"; 513].join(","))), "tools: there are more than 512");
    let prompt = tool_prompt(&common::tools());
    assert!(
        prompt.contains("## weather\nThe weather in a city.\nParameters: {")
            && prompt.contains("<tool_call>")
    );
}
