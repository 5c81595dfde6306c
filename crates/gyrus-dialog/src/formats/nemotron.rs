//! Nemotron: `<TOOLCALL>` and an array.

use super::{Fixed, Table, block, object};

const OPEN: &str = "<TOOLCALL>";
const CLOSE: &str = "</TOOLCALL>";

pub(crate) static TABLE: Table = Table {
    name: "nemotron",
    markers: &[&[OPEN]],
    reasoning: ("<think>", "</think>"),
    opens: &[OPEN],
    bare: false,
    read: |text, tools, is_end, scan| block(text, (OPEN.len(), CLOSE), tools, is_end, scan),
    call: |tool| Ok(object(tool, "arguments")),
    frame: [
        &[Fixed::Marker(OPEN), Fixed::Text("[")],
        &[Fixed::Text(", ")],
        &[Fixed::Text("]"), Fixed::Marker(CLOSE)],
    ],
    controls: &[],
};
