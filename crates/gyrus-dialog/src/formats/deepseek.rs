//! DeepSeek: R1 and V3 write `type`, the separator, the name and fenced JSON; V3.1 the name, the separator and JSON.

use gyrus_constrain::template::Part;

use super::{Fixed, Step, Table, arguments, begins, event};
use crate::json::End;
use crate::scan::Scan;
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
fn read(text: &str, tools: &Tools, is_end: bool, scan: &mut Scan) -> Step {
    if scan.calls.0.is_empty() && text.starts_with(OPEN) {
        scan.calls.1 = OPEN.len();
    }
    loop {
        let at = scan.calls.1;
        let rest = text[at..].trim_start();
        let start = text.len() - rest.len();
        let (opens, closes) = (begins(rest, CALL_OPEN), begins(rest, CLOSE));
        let is_empty = scan.calls.0.is_empty();
        if closes == Some(true) && is_empty {
            return Step::malformed(text, start + CLOSE.len(), "the list of calls is empty");
        }
        if closes == Some(true) {
            return Step::Done(std::mem::take(&mut scan.calls.0), start + CLOSE.len());
        }
        if opens != Some(true) {
            return match opens.is_none() || closes.is_none() {
                true if !is_end => Step::More,
                _ if !is_empty => Step::Done(std::mem::take(&mut scan.calls.0), at),
                true => Step::malformed(text, text.len(), "there is no call"),
                false => Step::malformed(text, start, "there is no call"),
            };
        }
        let Some((result, end)) = one(text, start, tools, is_end, scan) else { return Step::More };
        scan.advance(event(result, &text[start..end]), end);
    }
}

/// Reads the call that begins at `start`, and returns where it ends.
fn one(
    text: &str,
    start: usize,
    tools: &Tools,
    is_end: bool,
    scan: &mut Scan,
) -> Option<(Result<Call, String>, usize)> {
    let fail = |reason: &str| Some((Err(reason.to_owned()), text.len()));
    let body = start + CALL_OPEN.len();
    let close = scan.find(text, body, CALL_CLOSE);
    let closed = |at: usize| close.filter(|close| *close < at).map(|close| close + CALL_CLOSE.len());
    let separator = scan.find(text, body, SEPARATOR);
    // What is before the separator, and the beginning of the arguments.
    if let Some(end) = closed(separator.unwrap_or(text.len())) {
        return Some((Err("the call has no name".into()), end));
    }
    let Some(separator) = separator else {
        return if is_end { fail("the call has no end") } else { None };
    };
    let tail = separator + SEPARATOR.len();
    let brace = scan.find(text, tail, "{");
    if let Some(end) = closed(brace.unwrap_or(text.len())) {
        return Some((Err("the call has no arguments".into()), end));
    }
    let Some(brace) = brace else {
        return if is_end { fail("the call has no end") } else { None };
    };
    let name = match text[tail..brace].split_once('\n') {
        Some((name, _)) => name,
        None => &text[body..separator],
    };
    let end = match scan.json(text, brace, CALL_CLOSE) {
        End::At(end) => end,
        End::More if !is_end => return None,
        End::More => return fail("the arguments have no end"),
        End::Never => {
            return match scan.find(text, brace, CALL_CLOSE) {
                Some(at) => Some((Err("the arguments are not JSON".into()), at + CALL_CLOSE.len())),
                None if is_end => fail("the arguments are not JSON"),
                None => None,
            };
        }
    };
    let rest = text[end..].trim_start();
    let rest = rest.strip_prefix("```").unwrap_or(rest).trim_start();
    let used = match begins(rest, CALL_CLOSE) {
        Some(true) => text.len() - rest.len() + CALL_CLOSE.len(),
        _ if is_end => end,
        // A fence may be in the middle of its three characters.
        None => return None,
        Some(false) if "```".starts_with(rest) => return None,
        Some(false) => end,
    };
    Some((call::new(name.trim().to_owned(), &text[brace..end], None, tools), used))
}
