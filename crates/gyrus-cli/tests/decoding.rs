//! Constraints, tools, choices and log-probabilities from the command line, with the built-in model.

mod common;

use std::path::{Path, PathBuf};

use common::{refused, run, said, stdout};
use gyrus_testkit::tempfile::{TempDir, tempdir};
use serde_json::Value;

const SCHEMA: &str = r#"{"type":"object","properties":{"name":{"type":"string","maxLength":8},"age":{"type":"integer",
    "minimum":1,"maximum":99}},"required":["name","age"],"additionalProperties":false}"#;

const TOOLS: &str = r#"[{"type":"function","function":{"name":"weather","parameters":{"type":"object","properties":
    {"days":{"type":"integer","minimum":1,"maximum":9}},"required":["days"],"additionalProperties":false}}}]"#;

fn file(folder: &TempDir, name: &str, text: &str) -> PathBuf {
    let path = folder.path().join(name);
    std::fs::write(&path, text).unwrap();
    path
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn is_person(text: &str) -> bool {
    let value: Value = serde_json::from_str(text).unwrap();
    value["name"].is_string() && (1.0..=99.0).contains(&value["age"].as_f64().unwrap())
}

#[test]
fn answers_keep_to_schemas_grammars_and_expressions() {
    let folder = tempdir().unwrap();
    let schema = file(&folder, "person.json", SCHEMA);
    let all = ["run", "tales-7m", "A girl", "--temp", "1", "--seed", "3", "-q"];
    let with = |more: &[&str], input: &str| stdout(&[&all[..], more].concat(), input);
    assert!(is_person(&with(&["--json-schema", text(&schema)], "")));
    assert!(is_person(&with(&["--json-schema", "-"], SCHEMA)));
    let grammar = file(&folder, "colour.gbnf", "root ::= (\"red\" | \"green\") \"!\"");
    assert!(["red!\n", "green!\n"].contains(&&*with(&["--grammar", text(&grammar)], "")));
    let lark = file(&folder, "colour.lark", "start: /red|green/ \"?\"");
    assert!(["red?\n", "green?\n"].contains(&&*with(&["--grammar", text(&lark)], "")));
    let number = stdout(&["complete", "tales-7m", "It is", "--regex", "[0-9]{3}", "-q"], "");
    assert!(number.len() == 4 && number.trim().parse::<u32>().is_ok(), "{number}");
}

#[test]
fn every_answer_of_a_chat_is_constrained() {
    let output = run(&["chat", "tales-7m", "--regex", "yes|no", "-q"], "Is it red?\nIs it blue?\n");
    let answers = String::from_utf8(output.stdout).unwrap();
    let answers: Vec<&str> = answers.split_whitespace().collect();
    assert!(answers.len() == 2 && answers.iter().all(|answer| ["yes", "no"].contains(answer)), "{answers:?}");
}

#[test]
fn choices_are_printed_one_after_another() {
    let args = ["run", "tales-7m", "A dog", "--choices", "3", "--seed", "1", "--temp", "1", "-n", "4", "-q"];
    let all = stdout(&[&args[..], &["--output", "ids"]].concat(), "");
    assert_eq!(all.lines().count(), 3, "{all}");
    let one = |seed: &str| {
        let args = ["run", "tales-7m", "A dog", "--seed", seed, "--temp", "1", "-n", "4", "-q"];
        stdout(&[&args[..], &["--output", "ids"]].concat(), "")
    };
    assert_eq!(all, ["1", "2", "3"].map(one).concat());
}

#[test]
fn log_probabilities_are_in_the_json() {
    let args = ["run", "tales-7m", "Once upon a time", "--temp", "0", "-n", "2", "-q"];
    let json = stdout(&[&args[..], &["--output", "json", "--logprobs", "3"]].concat(), "");
    let json: Value = serde_json::from_str(&json).unwrap();
    let tokens = json["logprobs"].as_array().unwrap();
    assert_eq!(tokens.len(), 2);
    for token in tokens {
        let top = token["top"].as_array().unwrap();
        assert_eq!((top.len(), &top[0]["id"], &top[0]["logprob"]), (3, &token["id"], &token["logprob"]));
        assert!(token["logprob"].as_f64().unwrap() <= 0.0, "{token}");
    }
    assert!(refused(&[&args[..], &["--logprobs", "1"]].concat(), 2).contains("--output json"));
}

#[test]
fn required_calls_are_printed_as_json() {
    let folder = tempdir().unwrap();
    let tools = file(&folder, "tools.json", TOOLS);
    let args =
        ["run", "tales-7m", "How is the weather?", "--tools", text(&tools), "--tool-choice", "weather"];
    let line = stdout(&[&args[..], &["-q", "-n", "80"]].concat(), "");
    let first: Value = serde_json::from_str(line.lines().next().unwrap()).unwrap();
    assert_eq!(first["name"], "weather");
    assert!((1..=9).contains(&first["arguments"]["days"].as_i64().unwrap()), "{line}");
    let json = stdout(&[&args[..], &["-q", "-n", "80", "--output", "json"]].concat(), "");
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["tool_calls"][0]["name"], "weather");
}

#[test]
fn what_is_wrong_has_a_file_a_line_and_a_column() {
    let folder = tempdir().unwrap();
    let bad = |name: &str, content: &str| file(&folder, name, content);
    let refused = |flag: &str, path: &Path| refused(&["run", "tales-7m", "x", flag, text(path), "-q"], 1);
    for (flag, path, expected) in [
        ("--json-schema", bad("a.json", "{\n  \"type\": }"), "a.json: JSON schema, line 2, column 11: "),
        ("--json-schema", bad("b.json", r#"{"not":{}}"#), "keyword \"not\" at # is not supported"),
        ("--grammar", bad("c.gbnf", "root ::= \"a\" |\n  b"), "c.gbnf: GBNF, line 2, column 3: "),
        ("--grammar", bad("d.gbnf", "root ::= root"), "rule \"root\" is left-recursive"),
        ("--grammar", bad("e.lark", "start: \"a"), "e.lark: "),
        ("--tools", bad("f.json", "[\n{]"), "f.json: tools, line 2, column 2: "),
        ("--tools", bad("g.json", "[{}]"), "g.json: tool 0: it has no name"),
    ] {
        let said = refused(flag, &path);
        assert!(said.contains(expected), "{flag}: {said}");
    }
    let regex = common::refused(&["run", "tales-7m", "x", "--regex", "a(", "-q"], 1);
    assert!(regex.contains("--regex: regex, line 1, column 2"), "{regex}");
    let missing = folder.path().join("none.json");
    assert!(refused("--json-schema", &missing).contains("none.json"));
}

#[test]
fn flags_that_exclude_each_other_are_refused() {
    let folder = tempdir().unwrap();
    let (schema, tools) = (file(&folder, "s.json", SCHEMA), file(&folder, "t.json", TOOLS));
    let (schema, tools) = (text(&schema), text(&tools));
    for args in [
        &["run", "tales-7m", "x", "--regex", "a", "--json-schema", schema][..],
        &["run", "tales-7m", "x", "--tool-choice", "auto"],
        &["run", "tales-7m", "x", "--tools", tools, "--tool-choice", "required", "--regex", "a"],
        &["complete", "tales-7m", "x", "--tools", tools],
        &["complete", "tales-7m", "x", "--think", "off"],
        &["run", "tales-7m", "--json-schema", "-"],
        &["chat", "tales-7m", "--grammar", "-"],
        &["run", "tales-7m", "x", "--choices", "0"],
        &["run", "tales-7m", "x", "--choices", "129"],
        &["run", "tales-7m", "x", "--think", "maybe"],
        &["run", "tales-7m", "x", "--output", "json", "--logprobs", "21"],
    ] {
        refused(args, 2);
    }
    let unknown = run(&["run", "tales-7m", "x", "--tools", tools, "--tool-choice", "fly", "-q"], "");
    assert!(said(&unknown).contains("there is no tool \"fly\"; the tools are weather"), "{}", said(&unknown));
}
