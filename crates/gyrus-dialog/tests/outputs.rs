//! Outputs of each format: whole and cut in every way, malformed, two calls, text around.

mod common;

use common::{call, call_with_id, content, every_split, malformed, reasoning};
use gyrus_dialog::{Event, Format, Parser};

fn check(format: Format, cases: &[(&str, Vec<Event>)]) {
    for (text, expected) in cases {
        assert_eq!(every_split(format, false, text), *expected, "{text}");
    }
}

const PARIS: &str = r#"{"city": "Paris"}"#;

#[test]
fn hermes() {
    let one = "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Paris\"}}\n</tool_call>";
    let two = format!(
        "Both:\n{one}\n<tool_call>{{\"name\":\"add\",\"arguments\":{{\"a\":1,\"b\":-2.50}}}}</tool_call>\nDone."
    );
    let tagged = "<tool_call>\n<function=weather>\n<parameter=city>\nNew\n York\n</parameter>\n<parameter=days>\n3\n</parameter>\n\
                  </function>\n</tool_call>";
    let pairs = "<tool_call>add\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n<arg_key>b</arg_key>\n<arg_value>2</arg_value>\n\
                 </tool_call>";
    let broken = "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": }}\n</tool_call>";
    let open = "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": 1}\n</tool_call>";
    check(
        Format::Hermes,
        &[
            ("Hello <b>world</b> < 3.", vec![content("Hello <b>world</b> < 3.")]),
            (one, vec![call("weather", PARIS)]),
            (
                &two,
                vec![
                    content("Both:"),
                    call("weather", PARIS),
                    call("add", r#"{"a":1,"b":-2.50}"#),
                    content("Done."),
                ],
            ),
            (tagged, vec![call("weather", r#"{"city":"New\n York","days":3}"#)]),
            (pairs, vec![call("add", r#"{"a":1,"b":2}"#)]),
            // The closing tag inside a string does not close the call; a missing one is forgiven.
            (
                "<tool_call>{\"name\":\"weather\",\"arguments\":{\"city\":\"</tool_call>\"}}</tool_call>!",
                vec![call("weather", r#"{"city":"</tool_call>"}"#), content("!")],
            ),
            ("<tool_call>{\"name\":\"weather\",\"arguments\":{}}", vec![call("weather", "{}")]),
            (
                "<tool_call>{\"name\":\"weather\",\"arguments\":\"{\\\"city\\\": 1}\"}</tool_call>",
                vec![call("weather", "{\"city\": 1}")],
            ),
            (broken, vec![malformed(broken, "not JSON: expected value at line 1 column 43")]),
            (open, vec![malformed(open, "the call is not JSON")]),
            (
                "a <tool_call>{\"name\": \"we",
                vec![content("a "), malformed("<tool_call>{\"name\": \"we", "the call has no end")],
            ),
            (
                "<tool_call>{\"name\":\"fly\",\"arguments\":{}}</tool_call>",
                vec![malformed(
                    "<tool_call>{\"name\":\"fly\",\"arguments\":{}}</tool_call>",
                    "there is no tool \"fly\"",
                )],
            ),
            (
                "<tool_call>\n</tool_call> ok",
                vec![malformed("<tool_call>\n</tool_call>", "there is no tool \"\""), content(" ok")],
            ),
            ("<tool_call", vec![content("<tool_call")]),
            (
                "<think>\nLet me <b>see</b>.\n</think>\n\nFine.",
                vec![reasoning("Let me <b>see</b>."), content("Fine.")],
            ),
            ("<think>\n\n</think>\n\n", vec![]),
            ("The <think> tag", vec![content("The <think> tag")]),
            ("<think>never ends ", vec![reasoning("never ends")]),
            (" \n spaces kept \n", vec![content(" \n spaces kept \n")]),
            ("", vec![]),
        ],
    );
    let both = format!("<think>hm</think>\n{one}");
    check(Format::Hermes, &[(&both, vec![reasoning("hm"), call("weather", PARIS)])]);
}

#[test]
fn llama3() {
    let one = r#"{"name": "weather", "parameters": {"city": "Paris"}}"#;
    check(
        Format::Llama3,
        &[
            (one, vec![call("weather", PARIS)]),
            (&format!("\n{one}\n"), vec![call("weather", PARIS)]),
            (&format!("<|python_tag|>{one}"), vec![call("weather", PARIS)]),
            (
                &format!("{one}; {{\"name\": \"add\", \"parameters\": {{\"a\":1}}}}"),
                vec![call("weather", PARIS), call("add", r#"{"a":1}"#)],
            ),
            (
                r#"{"type": "function", "function": {"name": "add", "arguments": {"a": 1}}}"#,
                vec![call("add", r#"{"a": 1}"#)],
            ),
            // JSON that is no call, and calls inside text, are answers.
            (r#"{"answer": 42}"#, vec![content(r#"{"answer": 42}"#)]),
            (
                r#"{"name": "Bob", "parameters": {}} is no tool"#,
                vec![content(r#"{"name": "Bob", "parameters": {}} is no tool"#)],
            ),
            (&format!("Use {one}"), vec![content(&format!("Use {one}"))]),
            (r#"{"name": "weather", "para"#, vec![content(r#"{"name": "weather", "para"#)]),
            ("<|python_tag|>print(1)", vec![malformed("<|python_tag|>print(1)", "the call is not JSON")]),
            ("Hi {name}", vec![content("Hi {name}")]),
        ],
    );
}

#[test]
fn mistral() {
    let array = r#"[TOOL_CALLS][{"name": "weather", "arguments": {"city": "Paris"}, "id": "abc123def"}, {"name": "add", "arguments": {"a": 1}}]"#;
    let named =
        r#"[TOOL_CALLS]weather[CALL_ID]abc123def[ARGS]{"city": "Paris"}[TOOL_CALLS]add[ARGS]{"a": 1}"#;
    let bad = r#"[TOOL_CALLS][{"name": "weather", "arguments": {"city": x}}]"#;
    check(
        Format::Mistral,
        &[
            (array, vec![call_with_id("weather", PARIS, "abc123def"), call("add", r#"{"a": 1}"#)]),
            (named, vec![call_with_id("weather", PARIS, "abc123def"), call("add", r#"{"a": 1}"#)]),
            (
                "I look. [TOOL_CALLS]add{\"a\":[1,2]} [1]",
                vec![content("I look."), call("add", "{\"a\":[1,2]}"), content("[1]")],
            ),
            (bad, vec![malformed(bad, "not JSON: expected value at line 1 column 44")]),
            ("[TOOL_CALLS]weather", vec![malformed("[TOOL_CALLS]weather", "the call has no arguments")]),
            ("[TOOL_CALLS][]", vec![malformed("[TOOL_CALLS][]", "the list of calls is empty")]),
            // A bracket that does not match: found by fuzzing to depend on the cuts.
            (
                "[TOOL_CALLS]add{]G} x",
                vec![malformed("[TOOL_CALLS]add{", "the arguments are not JSON"), content("]G} x")],
            ),
            ("[THINK]so[/THINK]yes [a]", vec![reasoning("so"), content("yes [a]")]),
        ],
    );
}

#[test]
fn deepseek() {
    let old = "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n{\"city\": \"Paris\"}\n```<｜tool▁call▁end｜>\n\
               <｜tool▁call▁begin｜>function<｜tool▁sep｜>add\n```json\n{\"a\":1}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>";
    let new = "Sure.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>{\"city\": \"Paris\"}<｜tool▁call▁end｜>\
               <｜tool▁call▁begin｜>add<｜tool▁sep｜>{\"a\":1}<｜tool▁call▁end｜><｜tool▁calls▁end｜>";
    let cut = "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>{\"city\": \"Par";
    let bare = "<｜tool▁call▁begin｜>weather<｜tool▁call▁end｜>";
    check(
        Format::DeepSeek,
        &[
            (old, vec![call("weather", PARIS), call("add", r#"{"a":1}"#)]),
            (new, vec![content("Sure."), call("weather", PARIS), call("add", r#"{"a":1}"#)]),
            (
                cut,
                vec![malformed(
                    "<｜tool▁call▁begin｜>weather<｜tool▁sep｜>{\"city\": \"Par",
                    "the arguments have no end",
                )],
            ),
            (bare, vec![malformed(bare, "the call has no name")]),
            (
                "<｜tool▁call▁begin｜>add<｜tool▁sep｜>{]<｜tool▁call▁end｜>x",
                vec![
                    malformed(
                        "<｜tool▁call▁begin｜>add<｜tool▁sep｜>{]<｜tool▁call▁end｜>",
                        "the arguments are not JSON",
                    ),
                    content("x"),
                ],
            ),
            (
                "<｜tool▁calls▁begin｜>oops",
                vec![malformed("<｜tool▁calls▁begin｜>", "there is no call"), content("oops")],
            ),
            ("<think>hm\n</think>\n\nYes", vec![reasoning("hm"), content("Yes")]),
        ],
    );
    assert_eq!(every_split(Format::DeepSeek, true, "hm\n</think>\n\nYes"), [reasoning("hm"), content("Yes")]);
    assert_eq!(
        every_split(Format::DeepSeek, true, "<think>\nhm</think>Yes"),
        [reasoning("hm"), content("Yes")]
    );
}

#[test]
fn gemma() {
    let one = "<|tool_call>call:weather{city:<|\"|>Paris, <tool_call|> \"}<|\"|>,days:3}<tool_call|>";
    let nested =
        "<|tool_call>call:add{a:1.5,b:-2,tags:[<|\"|>x<|\"|>,<|\"|>y<|\"|>],o:{k:true,n:null}}<tool_call|>";
    let function = "<start_function_call>call:weather{city:<escape>Rome<escape>}<end_function_call>";
    let bad = "<|tool_call>call:weather{city}<tool_call|>";
    check(
        Format::Gemma,
        &[
            (one, vec![call("weather", r#"{"city":"Paris, <tool_call|> \"}","days":3}"#)]),
            (
                &format!("Ok {nested}{one}"),
                vec![
                    content("Ok"),
                    call("add", r#"{"a":1.5,"b":-2,"tags":["x","y"],"o":{"k":true,"n":null}}"#),
                    call("weather", r#"{"city":"Paris, <tool_call|> \"}","days":3}"#),
                ],
            ),
            (function, vec![call("weather", r#"{"city":"Rome"}"#)]),
            (bad, vec![malformed(bad, "the key \"city\" has no value")]),
            (
                "<|tool_call>call:weather{city:<|\"|>P",
                vec![malformed("<|tool_call>call:weather{city:<|\"|>P", "the call has no end")],
            ),
            ("<|channel>thought\nwell\n<channel|>Yes.", vec![reasoning("well"), content("Yes.")]),
        ],
    );
}

#[test]
fn harmony() {
    let think = "<|channel|>analysis<|message|>The user wants weather.<|end|>";
    let one = "<|start|>assistant<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{\"city\": \"Paris\"}<|call|>";
    let other = "<|start|>assistant to=functions.add<|channel|>commentary json<|message|>{\"a\":1}<|call|>";
    let say = "<|start|>assistant<|channel|>final<|message|>It rains < 3 mm.<|return|>";
    let bad = "<|channel|>commentary to=functions.weather<|message|>{\"city\": }";
    check(
        Format::Harmony,
        &[
            (&format!("{think}{one}"), vec![reasoning("The user wants weather."), call("weather", PARIS)]),
            (
                &format!("{think}{one}{other}"),
                vec![reasoning("The user wants weather."), call("weather", PARIS), call("add", r#"{"a":1}"#)],
            ),
            (
                &format!("{think}{say}"),
                vec![reasoning("The user wants weather."), content("It rains < 3 mm.")],
            ),
            (" to=functions.add<|channel|>commentary<|message|>{}<|call|>", vec![call("add", "{}")]),
            ("<|channel|>commentary<|message|>I will look.<|end|>", vec![content("I will look.")]),
            (bad, vec![malformed(bad, "not JSON: expected value at line 1 column 10")]),
            ("Just text.", vec![content("Just text.")]),
            ("<|channel|>final", vec![content("<|channel|>final")]),
            ("<|channel|>final<|message|>a<|channel|>final<|message|>b", vec![content("ab")]),
        ],
    );
}

#[test]
fn others() {
    let nemotron = r#"<TOOLCALL>[{"name": "weather", "arguments": {"city": "Paris"}}, {"name": "add", "arguments": {"a": 1}}]</TOOLCALL>"#;
    check(Format::Nemotron, &[(nemotron, vec![call("weather", PARIS), call("add", r#"{"a": 1}"#)])]);
    let cohere = "<|START_THINKING|>hm<|END_THINKING|><|START_ACTION|>[\n    {\"tool_call_id\": \"0\", \"tool_name\": \"weather\", \
                  \"parameters\": {\"city\": \"Paris\"}}\n]<|END_ACTION|>";
    check(Format::Cohere, &[(cohere, vec![reasoning("hm"), call_with_id("weather", PARIS, "0")])]);
    let generic = "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Paris\"}}\n</tool_call>";
    check(
        Format::Generic,
        &[
            (generic, vec![call("weather", PARIS)]),
            (&generic[12..63], vec![call("weather", PARIS)]),
            ("{\"a\": 1}", vec![content("{\"a\": 1}")]),
        ],
    );
}

#[test]
fn without_tools_calls_are_text() {
    for format in Format::ALL.into_iter().filter(|format| *format != Format::Harmony) {
        let text =
            "{\"name\":\"add\"} <tool_call>{}</tool_call>[TOOL_CALLS][]<|tool_call>call:add{}<tool_call|>";
        let mut parser = Parser::new(format, None, false);
        let mut events = parser.push(text);
        events.extend(parser.finish());
        assert_eq!(events, [content(text)], "{format:?}");
    }
}

#[test]
fn long_calls_come_out_as_text() {
    let mut parser = Parser::new(Format::Hermes, Some(common::tools()), false);
    let mut events = parser.push("<tool_call>{\"name\": \"");
    for _ in 0..300 {
        events.extend(parser.push(&"a".repeat(1000)));
    }
    events.extend(parser.finish());
    let length: usize = events
        .iter()
        .map(|event| match event {
            Event::Malformed { text, .. } | Event::Content(text) => text.len(),
            _ => 0,
        })
        .sum();
    assert_eq!(length, 300_000 + 21, "nothing is lost");
    assert!(
        matches!(&events[0], Event::Malformed { reason, .. } if reason.contains("more than 262144 bytes"))
    );
}

/// A call of `weather` with a city of this many letters.
fn long_call(format: Format, letters: usize) -> String {
    let city = "q".repeat(letters);
    let object = |arguments: &str| format!(r#"{{"name": "weather", "{arguments}": {{"city": "{city}"}}}}"#);
    match format {
        Format::Generic | Format::Hermes => format!("<tool_call>\n{}\n</tool_call>", object("arguments")),
        Format::Llama3 => object("parameters"),
        Format::Mistral => format!(r#"[TOOL_CALLS]weather[ARGS]{{"city": "{city}"}}"#),
        Format::DeepSeek => format!(
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>{{\"city\": \"{city}\"}}<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
        ),
        Format::Gemma => format!("<|tool_call>call:weather{{city:<|\"|>{city}<|\"|>}}<tool_call|>"),
        Format::Harmony => format!(
            "<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{{\"city\": \"{city}\"}}<|call|>"
        ),
        Format::Nemotron => format!("<TOOLCALL>[{}]</TOOLCALL>", object("arguments")),
        Format::Cohere => format!("<|START_ACTION|>[{}]<|END_ACTION|>", object("parameters")),
        _ => panic!("{format:?} has no call here"),
    }
}

/// The text in parts of this many bytes, as far as characters allow.
fn parts(text: &str, length: usize) -> Vec<&str> {
    let (mut rest, mut parts) = (text, Vec::new());
    while !rest.is_empty() {
        let (part, after) = rest.split_at(rest.ceil_char_boundary(length));
        parts.push(part);
        rest = after;
    }
    parts
}

const MAX_CALL: usize = 256 << 10;

#[test]
fn the_longest_call_does_not_depend_on_how_the_output_is_cut() {
    for format in Format::ALL {
        let frame = long_call(format, 0).len();
        // In gpt-oss the header and the end of a message do not count.
        let counted = match format {
            Format::Harmony => r#"{"city": ""}"#.len(),
            _ => frame,
        };
        let mut refused = Vec::new();
        for letters in [MAX_CALL - counted, MAX_CALL - counted + 1, 300 << 10] {
            let text = format!("{} x", long_call(format, letters));
            let whole = common::parse(format, false, [&*text]);
            for length in [1 << 10, 100_000, MAX_CALL - 1, MAX_CALL, MAX_CALL + 1] {
                let cut = common::parse(format, false, parts(&text, length));
                assert!(cut == whole, "{format:?}: {letters} letters, in parts of {length}");
            }
            match &whole[0] {
                Event::Call(call) => assert_eq!(call.arguments.matches('q').count(), letters),
                Event::Malformed { reason, .. } => {
                    assert_eq!(reason, "the call has more than 262144 bytes", "{format:?}");
                    let texts = whole.iter().map(|event| match event {
                        Event::Malformed { text, .. } | Event::Content(text) => text.as_str(),
                        other => panic!("{format:?}: {other:?}"),
                    });
                    let all = texts.collect::<String>();
                    assert_eq!(all.matches('q').count(), letters, "nothing is lost");
                    refused.push(letters);
                }
                other => panic!("{format:?}: {other:?}"),
            }
        }
        // White space behind a call in JSON alone belongs to it, for a semicolon may follow.
        let most = match format {
            Format::Llama3 => vec![MAX_CALL - counted, MAX_CALL - counted + 1, 300 << 10],
            _ => vec![MAX_CALL - counted + 1, 300 << 10],
        };
        assert_eq!(refused, most, "{format:?}");
    }
}

/// Each byte is looked at a few times, not once for each part that follows it.
#[test]
fn long_calls_are_read_in_small_parts() {
    for format in Format::ALL {
        let text = long_call(format, 250 << 10);
        let events = common::parse(format, false, parts(&text, 1));
        assert!(matches!(events.as_slice(), [Event::Call(_)]), "{format:?}");
    }
    // Many strings and many calls.
    let strings =
        format!("<|tool_call>call:add{{tags:[{}]}}<tool_call|>", vec!["<|\"|>x<|\"|>"; 16_000].join(","));
    let one = "<｜tool▁call▁begin｜>add<｜tool▁sep｜>{\"a\":1}<｜tool▁call▁end｜>\n";
    let calls = format!("<｜tool▁calls▁begin｜>{}<｜tool▁calls▁end｜>", one.repeat(2_000));
    for (format, text, count) in [(Format::Gemma, strings, 1), (Format::DeepSeek, calls, 2_000)] {
        for length in [1, text.len()] {
            let events = common::parse(format, false, parts(&text, length));
            assert_eq!(events.iter().filter(|event| matches!(event, Event::Call(_))).count(), count);
            assert_eq!(events.len(), count, "{format:?}");
        }
    }
}

/// What belongs to the next call of a list is not looked for in this one.
#[test]
fn calls_without_a_name_or_arguments_end_where_they_end() {
    let good = "<｜tool▁call▁begin｜>add<｜tool▁sep｜>{\"a\":1}<｜tool▁call▁end｜>";
    for (bad, reason) in [
        ("<｜tool▁call▁begin｜>weather<｜tool▁call▁end｜>", "the call has no name"),
        ("<｜tool▁call▁begin｜>weather<｜tool▁sep｜>x<｜tool▁call▁end｜>", "the call has no arguments"),
    ] {
        let text = format!("<｜tool▁calls▁begin｜>{bad}{good}<｜tool▁calls▁end｜>");
        let events = every_split(Format::DeepSeek, false, &text);
        assert_eq!(events, [malformed(bad, reason), call("add", "{\"a\":1}")]);
    }
}
