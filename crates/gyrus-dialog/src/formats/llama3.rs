//! Llama 3: the answer is JSON, `{"name": …, "parameters": …}`, perhaps behind `<|python_tag|>`.

use super::{Step, Table, object};
use crate::json::End;
use crate::scan::Scan;
use crate::{Event, Tools, call};

const TAG: &str = "<|python_tag|>";

pub(crate) static TABLE: Table = Table {
    name: "llama3",
    markers: &[&[TAG], &["<|start_header_id|>", "\"parameters\": "]],
    reasoning: ("<think>", "</think>"),
    opens: &[TAG],
    bare: true,
    read,
    call: |tool| Ok(object(tool, "parameters")),
    frame: [&[], &[super::Fixed::Text("; ")], &[]],
    controls: &[],
};

/// Names of a call's members. An object that begins with another is an answer in JSON.
const FIRST: [&str; 7] = ["name", "parameters", "arguments", "type", "function", "tool_name", "id"];

pub(super) fn read(text: &str, tools: &Tools, is_end: bool, scan: &mut Scan) -> Step {
    let tagged = text.starts_with(TAG);
    let body = if tagged { text[TAG.len()..].trim_start() } else { text };
    let at = text.len() - body.len();
    if body.is_empty() && !is_end {
        return Step::More;
    }
    if !tagged && !may_be_call(body) {
        return Step::Done(Vec::new(), 0);
    }
    let used = match scan.json(text, at, "") {
        End::At(end) => end,
        End::More if !is_end => return Step::More,
        // Python for the built-in tools goes to the end of the answer.
        _ if tagged && !is_end => return Step::More,
        _ if tagged => return Step::malformed(text, text.len(), "the call is not JSON"),
        _ => return Step::Done(Vec::new(), 0),
    };
    // Several calls stand one behind the other, with semicolons between.
    let rest = text[used..].trim_start();
    if rest.is_empty() && !is_end {
        return Step::More;
    }
    match call::from_object(&text[at..used], tools) {
        Ok(call) if rest.starts_with(';') => Step::Done(vec![Event::Call(call)], text.len() - rest.len() + 1),
        Ok(call) => Step::Done(vec![Event::Call(call)], used),
        Err(reason) if tagged => Step::malformed(text, used, &reason),
        Err(_) => Step::Done(Vec::new(), 0),
    }
}

/// Whether an object begins as a call does, as far as it can be seen.
fn may_be_call(text: &str) -> bool {
    let Some(rest) = text.strip_prefix('{').map(str::trim_start) else { return false };
    let Some(key) = rest.strip_prefix('"') else { return rest.is_empty() };
    match key.split_once('"') {
        Some((key, _)) => FIRST.contains(&key),
        None => FIRST.iter().any(|first| first.starts_with(key)),
    }
}
