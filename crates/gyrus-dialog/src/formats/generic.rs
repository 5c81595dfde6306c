//! Models whose template knows no tools: `<tool_call>` as the prompt asks, or JSON alone.

use super::{Fixed, Table, hermes, llama3};

pub(crate) static TABLE: Table = Table {
    name: "generic",
    markers: &[],
    reasoning: ("<think>", "</think>"),
    opens: &["<tool_call>"],
    bare: true,
    read: |text, tools, is_end, scan| match text.starts_with('{') {
        true => llama3::read(text, tools, is_end, scan),
        false => hermes::read(text, tools, is_end, scan),
    },
    call: hermes::TABLE.call,
    frame: [&[Fixed::Marker("<tool_call>"), Fixed::Text("\n")], hermes::BETWEEN, hermes::AFTER],
    controls: &[],
};
