//! The constraint that a choice of tools asks for.

use gyrus_constrain::template::Part;

use crate::formats::{Fixed, Frame, harmony};
use crate::{Error, Format, Tool, Tools};

/// Which tools an answer may or must call.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum ToolChoice {
    /// No tool.
    None,
    /// The model decides.
    Auto,
    /// At least one of the tools.
    Required,
    /// This tool.
    Named(String),
}

/// The grammar of an answer that calls tools, with arguments as their schemas say. `None` where the choice asks for no call.
///
/// `parallel`: several calls are allowed. `after_reasoning`: the grammar begins behind
/// [`Format::reasoning_end`], with [`Constraint::after`](gyrus_constrain::Constraint::after).
pub fn grammar(
    format: Format,
    tools: &Tools,
    choice: &ToolChoice,
    parallel: bool,
    after_reasoning: bool,
) -> Result<Option<Part>, Error> {
    let unknown = |name: &str| Error::UnknownTool { name: name.to_owned(), known: tools.names() };
    let chosen: Vec<&Tool> = match choice {
        ToolChoice::None | ToolChoice::Auto => return Ok(None),
        ToolChoice::Required => tools.iter().collect(),
        ToolChoice::Named(name) => vec![tools.get(name).ok_or_else(|| unknown(name))?],
    };
    if chosen.is_empty() {
        return Err(unknown("any"));
    }
    let table = format.table();
    let calls = chosen.into_iter().map(|tool| (table.call)(tool)).collect::<Result<Vec<_>, _>>()?;
    let call = if calls.len() == 1 { calls.into_iter().collect() } else { vec![Part::Choice(calls)] };
    let [before, between, after] = table.frame;
    let mut parts = Vec::new();
    if format == Format::Harmony && after_reasoning {
        parts.extend(fixed(harmony::AFTER_REASONING));
    }
    parts.extend(fixed(before));
    parts.extend(call.clone());
    if parallel && format != Format::Harmony {
        let more = Part::Sequence(fixed(between).chain(call).collect());
        parts.push(Part::Repeat { part: Box::new(more), min: 0, max: None });
    }
    parts.extend(fixed(after));
    Ok(Some(Part::Sequence(parts)))
}

fn fixed(frame: Frame) -> impl Iterator<Item = Part> {
    frame.iter().map(|fixed| match *fixed {
        Fixed::Marker(name) => Part::Marker(name.into()),
        Fixed::Text(text) => Part::text(text),
    })
}
