//! One table for each format.

pub(crate) mod cohere;
pub(crate) mod deepseek;
pub(crate) mod gemma;
pub(crate) mod generic;
pub(crate) mod harmony;
pub(crate) mod hermes;
pub(crate) mod llama3;
pub(crate) mod mistral;
pub(crate) mod nemotron;

use gyrus_constrain::template::Part;

use crate::json::{self, End};
use crate::scan::Scan;
use crate::{Error, Event, Tool, Tools, call};

/// A format.
pub(crate) struct Table {
    pub(crate) name: &'static str,
    /// A template has this format if it contains all texts of one of these lists.
    pub(crate) markers: &'static [&'static [&'static str]],
    /// The texts around reasoning.
    pub(crate) reasoning: (&'static str, &'static str),
    /// The texts that begin calls.
    pub(crate) opens: &'static [&'static str],
    /// Whether JSON at the beginning of the answer may be a call.
    pub(crate) bare: bool,
    /// Reads calls from a text that begins with one of `opens`, or with a brace.
    pub(crate) read: Read,
    /// The grammar of a call of a tool.
    pub(crate) call: fn(&Tool) -> Result<Part, Error>,
    /// The texts before, between and after calls, for a grammar.
    pub(crate) frame: [Frame; 3],
    /// Other control tokens that calls are written with.
    pub(crate) controls: &'static [&'static str],
}

/// Reads calls from the beginning of a text. `is_end`: nothing follows the text. `scan`: what is known of the text from when
/// it was shorter.
pub(crate) type Read = fn(text: &str, tools: &Tools, is_end: bool, scan: &mut Scan) -> Step;

/// Fixed texts: control tokens, where the vocabulary has them, and others.
pub(crate) type Frame = &'static [Fixed];

/// A fixed text.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Fixed {
    Marker(&'static str),
    Text(&'static str),
}

/// What became of the beginning of a text. The decision must not depend on text that may still follow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Step {
    /// More text is needed.
    More,
    /// Events, and the bytes that they were read from. Zero bytes: this is no call but text.
    Done(Vec<Event>, usize),
}

impl Step {
    /// A call, or the text that it was read from.
    pub(crate) fn one(result: Result<crate::Call, String>, text: &str, used: usize) -> Step {
        Step::Done(vec![event(result, &text[..used])], used)
    }

    /// All of the text is a call that cannot be read.
    pub(crate) fn malformed(text: &str, used: usize, reason: &str) -> Step {
        Step::one(Err(reason.to_owned()), text, used)
    }
}

pub(crate) fn event(result: Result<crate::Call, String>, text: &str) -> Event {
    match result {
        Ok(call) => Event::Call(call),
        Err(reason) => Event::Malformed { text: text.to_owned(), reason },
    }
}

/// Whether `text` begins with `expected`: `None` if it is too short to tell.
pub(crate) fn begins(text: &str, expected: &str) -> Option<bool> {
    if text.starts_with(expected) {
        Some(true)
    } else if expected.starts_with(text) {
        None
    } else {
        Some(false)
    }
}

/// Reads the events of a JSON value, an object or an array of them, in `text` from byte `start`, and `close` behind it. A
/// missing `close` is forgiven.
pub(crate) fn block(
    text: &str,
    (start, close): (usize, &'static str),
    tools: &Tools,
    is_end: bool,
    scan: &mut Scan,
) -> Step {
    let body = text[start..].trim_start();
    let at = text.len() - body.len();
    let used = match scan.json(text, at, close) {
        End::At(end) => end,
        End::More if is_end => return Step::malformed(text, text.len(), "the call has no end"),
        End::More => return Step::More,
        End::Never => {
            return until(text, (start, close), is_end, scan, |_| Err("the call is not JSON".into()));
        }
    };
    let value = &text[at..used];
    let rest = text[used..].trim_start();
    let used = match begins(rest, close) {
        _ if close.is_empty() => used,
        Some(true) => text.len() - rest.len() + close.len(),
        None if !is_end => return Step::More,
        _ => used,
    };
    let calls = match json::items(value) {
        Some(items) if json::check(value).is_ok() => items,
        _ => vec![value],
    };
    if calls.is_empty() {
        return Step::malformed(text, used, "the list of calls is empty");
    }
    let one = calls.len() == 1;
    // The markers belong to the text of a single call that cannot be read, and to none of several.
    let raw = |item| if one { &text[..used] } else { item };
    Step::Done(calls.into_iter().map(|item| event(call::from_object(item, tools), raw(item))).collect(), used)
}

/// Reads a call that ends with `close`. `body` reads what is between.
pub(crate) fn until(
    text: &str,
    (start, close): (usize, &'static str),
    is_end: bool,
    scan: &mut Scan,
    body: impl Fn(&str) -> Result<crate::Call, String>,
) -> Step {
    match scan.find(text, start, close) {
        Some(at) => Step::one(body(&text[start..at]), text, at + close.len()),
        None if is_end => Step::malformed(text, text.len(), "the call has no end"),
        None => Step::More,
    }
}

/// The schema of a tool's arguments, for a grammar.
pub(crate) fn arguments(tool: &Tool) -> Part {
    Part::Schema(tool.parameters.to_string())
}

/// A call as an object with these names for its members.
pub(crate) fn object(tool: &Tool, arguments_name: &str) -> Part {
    let head = format!("{{\"name\": \"{}\", \"{arguments_name}\": ", tool.name);
    Part::Sequence(vec![Part::Text(head), arguments(tool), Part::text("}")])
}
