//! Cohere: `<|START_ACTION|>` and an array with `tool_name` and `parameters`.

use gyrus_constrain::template::Part;

use super::{Fixed, Table, arguments, block};

const OPEN: &str = "<|START_ACTION|>";
const CLOSE: &str = "<|END_ACTION|>";

pub(crate) static TABLE: Table = Table {
    name: "cohere",
    markers: &[&[OPEN]],
    reasoning: ("<|START_THINKING|>", "<|END_THINKING|>"),
    opens: &[OPEN],
    bare: false,
    read: |text, tools, is_end, scan| block(text, (OPEN.len(), CLOSE), tools, is_end, scan),
    call: |tool| {
        let head = format!("{{\"tool_call_id\": \"0\", \"tool_name\": \"{}\", \"parameters\": ", tool.name);
        Ok(Part::Sequence(vec![Part::Text(head), arguments(tool), Part::text("}")]))
    },
    frame: [
        &[Fixed::Marker(OPEN), Fixed::Text("[\n    ")],
        &[Fixed::Text(",\n    ")],
        &[Fixed::Text("\n]"), Fixed::Marker(CLOSE)],
    ],
    controls: &[],
};
