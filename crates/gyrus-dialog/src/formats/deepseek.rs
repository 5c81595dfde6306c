//! DeepSeek: R1 and V3 write `type`, the separator, the name and fenced JSON; V3.1 the name, the separator and JSON.

use gyrus_constrain::template::Part;

use super::{Fixed, Step, Table, arguments, begins, event};
use crate::json::{self, End};
use crate::{Call, Tools, call};

const OPEN: &str = "<｜tool▁calls▁begin｜>";
const CLOSE: &str = "<｜tool▁calls▁end｜>";
const CALL_OPEN: &str = "<｜tool▁call▁begin｜>";
const CALL_CLOSE: &str = "<｜tool▁call▁end｜>";
const SEPARATOR: &str = "<｜tool▁sep｜>";

pub(crate) static TABLE: Table = Table {
    name: "deepseek",
    markers: &[&[OPEN], &["<｜Assistant｜>"]],
    reasoning: ("<think>", "</think>"),
    opens: &[OPEN, CALL_OPEN],
    bare: false,
    read,
    call: |tool| {
        let head =
            vec![Part::Marker(CALL_OPEN.into()), Part::text(&*tool.name), Part::Marker(SEPARATOR.into())];
        let tail = vec![arguments(tool), Part::Marker(CALL_CLOSE.into())];
        Ok(Part::Sequence([head, tail].concat()))
    },
    frame: [&[Fixed::Marker(OPEN)], &[], &[Fixed::Marker(CLOSE)]],
    controls: &[CALL_CLOSE, SEPARATOR],
};

/// Reads all calls up to the end of their list.
fn read(text: &str, tools: &Tools, is_end: bool) -> Step {
    let mut at = if text.starts_with(OPEN) { OPEN.len() } else { 0 };
    let mut events = Vec::new();
    loop {
        let rest = text[at..].trim_start();
        let start = text.len() - rest.len();
        let (opens, closes) = (begins(rest, CALL_OPEN), begins(rest, CLOSE));
        if closes == Some(true) && events.is_empty() {
            return Step::malformed(text, start + CLOSE.len(), "the list of calls is empty");
        }
        if closes == Some(true) {
            return Step::Done(events, start + CLOSE.len());
        }
        if opens != Some(true) {
            return match opens.is_none() || closes.is_none() {
                true if !is_end => Step::More,
                _ if !events.is_empty() => Step::Done(events, at),
                true => Step::malformed(text, text.len(), "there is no call"),
                false => Step::malformed(text, start, "there is no call"),
            };
        }
        let Some((result, length)) = one(rest, tools, is_end) else { return Step::More };
        events.push(event(result, &rest[..length]));
        at = start + length;
    }
}

/// Reads the call at the beginning of a text.
fn one(text: &str, tools: &Tools, is_end: bool) -> Option<(Result<Call, String>, usize)> {
    let fail = |reason: &str| Some((Err(reason.to_owned()), text.len()));
    let body = &text[CALL_OPEN.len()..];
    // What is before the separator, and the beginning of the arguments.
    let Some((head, tail)) = body.split_once(SEPARATOR) else {
        return match body.find(CALL_CLOSE) {
            Some(at) => Some((Err("the call has no name".into()), CALL_OPEN.len() + at + CALL_CLOSE.len())),
            None if is_end => fail("the call has no end"),
            None => None,
        };
    };
    let start = text.len() - tail.len();
    let Some(brace) = tail.find('{') else {
        return match tail.find(CALL_CLOSE) {
            Some(at) => Some((Err("the call has no arguments".into()), start + at + CALL_CLOSE.len())),
            None if is_end => fail("the call has no end"),
            None => None,
        };
    };
    let name = match tail[..brace].split_once('\n') {
        Some((name, _)) => name,
        None => head,
    };
    let length = match json::end(&tail[brace..], CALL_CLOSE) {
        End::At(length) => length,
        End::More if !is_end => return None,
        End::More => return fail("the arguments have no end"),
        End::Never => {
            return match tail.find(CALL_CLOSE) {
                Some(at) => Some((Err("the arguments are not JSON".into()), start + at + CALL_CLOSE.len())),
                None if is_end => fail("the arguments are not JSON"),
                None => None,
            };
        }
    };
    let close = start + brace + length;
    let rest = text[close..].trim_start();
    let rest = rest.strip_prefix("```").unwrap_or(rest).trim_start();
    let end = text.len() - rest.len();
    let used = match begins(rest, CALL_CLOSE) {
        Some(true) => end + CALL_CLOSE.len(),
        _ if is_end => close,
        // A fence may be in the middle of its three characters.
        None => return None,
        Some(false) if "```".starts_with(rest) => return None,
        Some(false) => close,
    };
    Some((call::new(name.trim().to_owned(), &tail[brace..brace + length], None, tools), used))
}
