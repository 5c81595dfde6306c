//! Mistral: `[TOOL_CALLS]` and an array, or for each call `[TOOL_CALLS]name[CALL_ID]id[ARGS]{…}`.

use gyrus_constrain::template::Part;

use super::{Fixed, Step, Table, arguments, block};
use crate::json::End;
use crate::scan::Scan;
use crate::{Tools, call};

const OPEN: &str = "[TOOL_CALLS]";

pub(crate) static TABLE: Table = Table {
    name: "mistral",
    markers: &[&[OPEN]],
    reasoning: ("[THINK]", "[/THINK]"),
    opens: &[OPEN],
    bare: false,
    read,
    call: |tool| {
        let head = format!("{{\"name\": \"{}\", \"arguments\": ", tool.name);
        Ok(Part::Sequence(vec![Part::Text(head), arguments(tool), Part::text("}")]))
    },
    frame: [&[Fixed::Marker(OPEN), Fixed::Text("[")], &[Fixed::Text(", ")], &[Fixed::Text("]")]],
    controls: &["[CALL_ID]", "[ARGS]"],
};

fn read(text: &str, tools: &Tools, is_end: bool, scan: &mut Scan) -> Step {
    let body = text[OPEN.len()..].trim_start();
    let Some(first) = body.chars().next() else {
        return if is_end { Step::malformed(text, text.len(), "the call has no end") } else { Step::More };
    };
    if first == '[' || first == '{' {
        return block(text, (OPEN.len(), ""), tools, is_end, scan);
    }
    // A name, perhaps with an id, and the arguments from the first brace on.
    let Some(brace) = scan.find(text, OPEN.len(), "{") else {
        return if is_end {
            Step::malformed(text, text.len(), "the call has no arguments")
        } else {
            Step::More
        };
    };
    let used = match scan.json(text, brace, OPEN) {
        End::At(end) => end,
        End::More if !is_end => return Step::More,
        End::More => return Step::malformed(text, text.len(), "the arguments have no end"),
        // Where such a call would end is not known; what follows the brace is text.
        End::Never => return Step::malformed(text, brace + 1, "the arguments are not JSON"),
    };
    let head = text[OPEN.len()..brace].trim();
    let head = head.strip_suffix("[ARGS]").unwrap_or(head);
    let (name, id) = match head.split_once("[CALL_ID]") {
        Some((name, id)) => (name, Some(id.trim().to_owned())),
        None => (head, None),
    };
    Step::one(call::new(name.trim().to_owned(), &text[brace..used], id, tools), text, used)
}
