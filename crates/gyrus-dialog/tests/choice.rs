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

/// The grammar of a tool `t` with these parameters in Gemma's notation.
fn gemma(parameters: &str) -> Result<Constraint, String> {
    let tools = Tools::from_json(&format!(r#"[{{"name": "t", "parameters": {parameters}}}]"#)).unwrap();
    let part = grammar(Format::Gemma, &tools, &ToolChoice::Required, false, false);
    let part = part.map_err(|error| error.to_string())?.unwrap();
    vocabulary().compile(&Source::Template(part)).map_err(|error| error.to_string())
}

fn accepts(constraint: &Constraint, value: &str) -> bool {
    let text = format!("<|tool_call>call:t{{p:{value}}}<tool_call|>");
    let mut state = constraint.start();
    text.bytes().all(|byte| state.commit(u32::from(byte)).is_ok()) && state.is_complete()
}

#[test]
fn gemma_enforces_what_a_schema_says() {
    const A: &str = "<|\"|>a<|\"|>";
    const LONG: &str = "<|\"|>abcd<|\"|>";
    for (schema, yes, no) in [
        // What pydantic writes for optional parameters, enums and models.
        (
            r#"{"anyOf": [{"type": "string"}, {"type": "null"}], "default": null, "title": "P"}"#,
            &[A, "null"][..],
            &["1", ""][..],
        ),
        (r#"{"type": ["integer", "null"]}"#, &["12", "-3", "null"], &["1.5", A]),
        (r#"{"type": ["number", "integer", "boolean"]}"#, &["12", "1.5", "true"], &["null"]),
        (r##"{"$ref": "#/$defs/Colour", "description": "c"}"##, &[A, "<|\"|>b c<|\"|>"], &[LONG, "a"]),
        (
            r##"{"allOf": [{"$ref": "#/$defs/Point"}], "default": {"x": 1}}"##,
            &["{x:1}", "{x:-1,y:2}"],
            &["{y:2}", "{x:null}"],
        ),
        (
            r##"{"type": "array", "items": {"$ref": "#/$defs/Point"}, "maxItems": 2}"##,
            &["[]", "[{x:1}]", "[{x:1},{x:2}]"],
            &["[{x:1},{x:2},{x:3}]"],
        ),
        (
            r#"{"oneOf": [{"type": "integer"}, {"type": "string"}, {"const": null}]}"#,
            &["1", A, "null"],
            &["true"],
        ),
        (r#"{"oneOf": [{"enum": ["a", 1]}, {"const": "abcd"}]}"#, &[A, LONG, "1"], &["2"]),
        (r#"{"const": "a"}"#, &[A], &[LONG]),
        (r#"{"type": "string", "enum": ["a", null, 3]}"#, &[A], &["null", "3"]),
        (r#"{"type": "string", "nullable": true}"#, &[A, "null"], &["1"]),
        (
            r#"{"type": "integer", "minimum": 3, "maximum": 12}"#,
            &["3", "9", "12"],
            &["2", "13", "-3", "100", "3.5"],
        ),
        (r#"{"type": "integer", "exclusiveMinimum": 0, "multipleOf": 5}"#, &["5", "100"], &["0", "7", "-5"]),
        (r#"{"type": "number", "minimum": 0, "exclusiveMaximum": 1}"#, &["0", "0.25"], &["1", "-0.5", "1.5"]),
        (
            r#"{"type": "string", "minLength": 2, "maxLength": 4}"#,
            &[LONG, "<|\"|>éü<|\"|>"],
            &[A, "<|\"|>abcde<|\"|>"],
        ),
        (
            r#"{"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 3}"#,
            &["[true,false]", "[true,true,true]"],
            &["[]", "[true]", "[true,true,true,true]"],
        ),
        (r#"{"type": "array", "items": {"type": "null"}, "maxItems": 0}"#, &["[]"], &["[null]"]),
    ] {
        let parameters = format!(
            r#"{{"type": "object", "properties": {{"p": {schema}}}, "required": ["p"], "$defs": {{
                "Colour": {{"enum": ["a", "b c"], "type": "string"}},
                "Point": {{"type": "object", "properties": {{"x": {{"type": "integer"}}, "y": {{"type": "integer"}}}},
                    "required": ["x"]}}}}}}"#
        );
        let constraint = gemma(&parameters).unwrap_or_else(|error| panic!("{schema}: {error}"));
        yes.iter().for_each(|value| assert!(accepts(&constraint, value), "{schema}: {value}"));
        no.iter().for_each(|value| assert!(!accepts(&constraint, value), "{schema}: {value} is accepted"));
        for seed in 0..3 {
            let text = generate(&constraint, seed);
            assert!(text.starts_with("<|tool_call>call:t{p:"), "{text}");
        }
    }
}

#[test]
fn gemma_refuses_the_rest_by_name() {
    for (schema, named) in [
        (r#"{"type": "string", "pattern": "a+"}"#, "the keyword \"pattern\""),
        (r#"{"type": "string", "format": "date"}"#, "the keyword \"format\""),
        (r#"{"type": "string", "minimum": 1}"#, "the keyword \"minimum\""),
        (
            r#"{"type": "array", "items": {"type": "null"}, "uniqueItems": true}"#,
            "the keyword \"uniqueItems\"",
        ),
        (r#"{"anyOf": [{"type": "string"}], "minLength": 1}"#, "the keyword \"minLength\""),
        (r#"{"allOf": [{"type": "string"}, {"minLength": 1}]}"#, "the keyword \"allOf\""),
        (r#"{"oneOf": [{"type": "integer"}, {"type": "number"}]}"#, "alternatives that may overlap"),
        (r#"{"oneOf": [{"type": "string"}, {"const": "a"}]}"#, "alternatives that may overlap"),
        (r#"{"oneOf": [{"const": 1}, {"const": 1.0}]}"#, "alternatives that may overlap"),
        (r#"{"not": {"type": "string"}}"#, "the keyword \"not\""),
        (r#"{"enum": [[1]]}"#, "an enum of arrays or objects"),
        (r#"{"type": "string", "enum": [1]}"#, "an enum without a value"),
        (r#"{"type": "text"}"#, "the type \"text\""),
        (r#"{"description": "anything"}"#, "a schema without a type"),
        (r##"{"$ref": "#/$defs/None"}"##, "the reference \"#/$defs/None\""),
        (r#"{"$ref": "https://example.com/x"}"#, "the reference \"https://example.com/x\""),
        (r##"{"$ref": "#"}"##, "nested more than 64 deep"),
        (r#"{"type": "object", "required": ["x"]}"#, "the required property \"x\" without a schema"),
        (r#"{"type": "string", "minLength": 3, "maxLength": 2}"#, "\"minLength\" above \"maxLength\""),
        (r#"{"type": "array", "items": {"type": "null"}, "minItems": -1}"#, "\"minItems\" that is no count"),
    ] {
        let parameters = format!(r#"{{"type": "object", "properties": {{"p": {schema}}}}}"#);
        let error = gemma(&parameters).unwrap_err();
        assert!(error.contains(named) && error.ends_with("in the parameters of \"t\""), "{schema}: {error}");
    }
}

/// What a schema repeats is counted before it is written: each level of these would double the grammar.
#[test]
fn gemma_bounds_what_a_schema_repeats() {
    let of = |inner: &str, levels: usize, before: &str, after: &str| {
        format!("{}{inner}{}", before.repeat(levels), after.repeat(levels))
    };
    let list = |levels| of(r#"{"type": "null"}"#, levels, r#"{"type": "array", "items": "#, "}");
    let object = r#"{"type": "object", "properties": {"a": {"type": "null"}, "b": "#;
    let object = |levels| of(r#"{"type": "null"}"#, levels, object, "}}");
    let text = |schema: String| format!(r#"{{"type": "object", "properties": {{"p": {schema}}}}}"#);
    for schema in [list(40), object(25)] {
        let error = gemma(&text(schema)).unwrap_err();
        assert!(error.contains("repeat more than 200000 parts"), "{error}");
    }
    for schema in [list(8), object(6)] {
        gemma(&text(schema)).unwrap();
    }
    // A tool with many properties that may be left out.
    let many: Vec<String> = (0..80).map(|n| format!(r#""p{n}": {{"type": "integer"}}"#)).collect();
    gemma(&format!(r#"{{"type": "object", "properties": {{{}}}}}"#, many.join(","))).unwrap();
    let values = |from: usize| (from..from + 1100).map(|n| n.to_string()).collect::<Vec<_>>().join(",");
    let apart = format!(r#"{{"oneOf": [{{"enum": [{}]}}, {{"enum": [{}]}}]}}"#, values(0), values(2000));
    let error = gemma(&text(apart)).unwrap_err();
    assert!(error.contains("more than 1000000 pairs"), "{error}");
}
