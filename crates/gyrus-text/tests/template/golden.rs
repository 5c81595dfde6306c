//! Our own templates with committed results, which need no Python.
//!
//! `GYRUS_BLESS=1` records the results again if the reference is available.

use std::fs;
use std::path::{Path, PathBuf};

use gyrus_text::template::Fallback;
use serde_json::{Value as Json, json};

use super::grid;
use super::oracle::{Batch, assert_none};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/template")
}

/// Each snippet, with one input that contains values of all kinds.
fn snippets() -> Batch {
    let text = fs::read_to_string(folder().join("snippets.txt")).expect("snippets are there");
    let lines = text.lines().filter(|line| !line.starts_with("# ") && !line.is_empty());
    let templates =
        lines.enumerate().map(|(i, line)| (format!("snippet {i}"), line.replace('⏎', "\n"))).collect();
    let input = json!({"messages": [{"role": "user", "content": "hi"}], "variables": {
        "d": {"a": 1, "b": {"c": [1, {"x": "<é>"}]}, "n": null}, "xs": [1, 2, 3, 4, 5], "s": "hello",
        "weird": {"items": "own", "get": 7},
        "people": [{"name": "Ann", "age": 41, "admin": true}, {"name": "bob", "age": 29},
                   {"name": "Bob", "age": 29, "admin": false}]}});
    Batch { templates, inputs: vec![input], pairs: None }
}

/// The fallback templates on a part of the grid.
fn forms() -> Batch {
    let templates = Fallback::all().map(|form| (form.name.to_string(), form.template.to_string())).collect();
    let inputs = grid::inputs().into_iter().step_by(5).collect();
    Batch { templates, inputs, pairs: None }
}

fn check(name: &str, batch: &Batch) {
    let path = folder().join(name);
    if std::env::var("GYRUS_BLESS").is_ok_and(|value| value == "1") {
        let results = batch.reference().expect("blessing needs GYRUS_ORACLE_PYTHON");
        let lines: Vec<String> = results.iter().map(Json::to_string).collect();
        fs::write(&path, lines.join("\n") + "\n").expect("the results can be written");
    }
    let text = fs::read_to_string(&path).expect("golden results are committed");
    let golden: Vec<Json> =
        text.lines().map(|line| serde_json::from_str(line).expect("a line of JSON")).collect();
    let (rendered, differences) = batch.compare(&golden);
    assert!(rendered > 0);
    assert_none(&differences);
}

#[test]
fn snippets_render_as_in_jinja() {
    check("snippets.golden", &snippets());
}

#[test]
fn fallback_templates_render_as_in_jinja() {
    check("forms.golden", &forms());
}
