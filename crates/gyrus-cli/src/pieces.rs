//! The pieces of an answer as they are decoded: text goes to stdout, reasoning to stderr, calls to lines of their own.

use std::io::{self, Write};

use anyhow::Result;
use gyrus::tools::Call;
use serde_json::{Value, json};

use crate::answer::Shown;
use crate::foreign::Foreign;
use crate::text::FAINT;

/// Shows pieces. Reasoning is dimmed, and nothing of it is shown if `quiet`.
pub(crate) struct Pieces {
    quiet: bool,
    /// Whether the last piece was reasoning, so that its line is not ended.
    in_reasoning: bool,
    /// What was shown on stdout last.
    last: Option<Last>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Last {
    Text,
    Call,
}

impl Pieces {
    pub(crate) fn new(quiet: bool) -> Pieces {
        Pieces { quiet, in_reasoning: false, last: None }
    }

    /// Shows a piece; `text` writes text of the answer to stdout.
    pub(crate) fn show(&mut self, piece: Shown<'_>, mut text: impl FnMut(&str) -> Result<()>) -> Result<()> {
        match piece {
            Shown::Reasoning(_) if self.quiet => return Ok(()),
            Shown::Reasoning(piece) => self.reasoning(piece)?,
            Shown::Text(piece) => {
                self.end()?;
                let before = if self.last == Some(Last::Call) { "\n" } else { "" };
                text(&format!("{before}{piece}"))?;
                self.last = Some(Last::Text);
            }
            Shown::Call(call) => {
                self.end()?;
                let before = if self.last.is_some() { "\n" } else { "" };
                text(&format!("{before}{}", json_of(call)))?;
                self.last = Some(Last::Call);
            }
        }
        Ok(())
    }

    fn reasoning(&mut self, piece: &str) -> io::Result<()> {
        self.in_reasoning = true;
        let mut err = anstream::stderr().lock();
        // Line breaks are the reasoning's own; other control characters are not obeyed.
        for (at, line) in piece.split('\n').enumerate() {
            let newline = if at > 0 { "\n" } else { "" };
            write!(err, "{newline}{}{}{}", FAINT.render(), Foreign(line), FAINT.render_reset())?;
        }
        err.flush()
    }

    /// Ends a line of reasoning.
    pub(crate) fn end(&mut self) -> io::Result<()> {
        if std::mem::take(&mut self.in_reasoning) {
            writeln!(anstream::stderr().lock())?;
        }
        Ok(())
    }
}

/// A call as JSON, with its arguments as the model wrote them if they are JSON.
pub(crate) fn json_of(call: &Call) -> Value {
    let arguments = serde_json::from_str(&call.arguments).unwrap_or_else(|_| Value::from(&*call.arguments));
    json!({ "name": call.name, "arguments": arguments })
}
