//! `<tool_call>` … `</tool_call>`: Hermes, Qwen, Granite with JSON; Qwen3-Coder and GLM with tags for each parameter.

use serde_json::{Map, Value};

use super::{Fixed, Frame, Step, Table, block, object, until};
use crate::scan::Scan;
use crate::{Call, Tools, call};

const OPEN: &str = "<tool_call>";
const CLOSE: &str = "</tool_call>";

pub(super) const BETWEEN: Frame =
    &[Fixed::Text("\n"), Fixed::Marker(CLOSE), Fixed::Text("\n"), Fixed::Marker(OPEN), Fixed::Text("\n")];
pub(super) const AFTER: Frame = &[Fixed::Text("\n"), Fixed::Marker(CLOSE)];

pub(crate) static TABLE: Table = Table {
    name: "hermes",
    markers: &[&[OPEN]],
    reasoning: ("<think>", "</think>"),
    opens: &[OPEN],
    bare: false,
    read,
    call: |tool| Ok(object(tool, "arguments")),
    frame: [&[Fixed::Marker(OPEN), Fixed::Text("\n")], BETWEEN, AFTER],
    controls: &["<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"],
};

pub(super) fn read(text: &str, tools: &Tools, is_end: bool, scan: &mut Scan) -> Step {
    let body = text[OPEN.len()..].trim_start();
    match body.chars().next() {
        None if !is_end => Step::More,
        Some('{' | '[') => block(text, (OPEN.len(), CLOSE), tools, is_end, scan),
        _ => until(text, (OPEN.len(), CLOSE), is_end, scan, |body| match body.trim() {
            body if body.starts_with("<function=") => functions(body, tools),
            body => pairs(body, tools),
        }),
    }
}

/// `<function=name>` with `<parameter=name>` and a value on lines of its own.
fn functions(body: &str, tools: &Tools) -> Result<Call, String> {
    let body = body.strip_prefix("<function=").ok_or("the call has no <function=")?;
    let (name, mut rest) = body.split_once('>').ok_or("the function's name has no end")?;
    let mut arguments = Map::new();
    while let Some((_, after)) = rest.split_once("<parameter=") {
        let (key, after) = after.split_once('>').ok_or("a parameter's name has no end")?;
        let (value, after) = after.split_once("</parameter>").ok_or("a parameter has no end")?;
        let value = value.strip_prefix('\n').unwrap_or(value);
        let value = value.strip_suffix('\n').unwrap_or(value);
        arguments.insert(key.to_owned(), call::parameter(tools, name, key, value));
        rest = after;
    }
    call::new(name.trim().to_owned(), &Value::Object(arguments).to_string(), None, tools)
}

/// A name, and `<arg_key>` and `<arg_value>` in turn.
fn pairs(body: &str, tools: &Tools) -> Result<Call, String> {
    let (name, mut rest) = body.split_at(body.find("<arg_key>").unwrap_or(body.len()));
    let name = name.trim();
    let mut arguments = Map::new();
    while let Some((_, after)) = rest.split_once("<arg_key>") {
        let (key, after) = after.split_once("</arg_key>").ok_or("a key has no end")?;
        let (_, after) = after.split_once("<arg_value>").ok_or("a key has no value")?;
        let (value, after) = after.split_once("</arg_value>").ok_or("a value has no end")?;
        arguments.insert(key.to_owned(), call::parameter(tools, name, key, value));
        rest = after;
    }
    call::new(name.to_owned(), &Value::Object(arguments).to_string(), None, tools)
}
