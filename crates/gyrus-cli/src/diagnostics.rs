//! Everything that goes to stderr: errors, notes and statistics.
//!
//! A command must not fail because stderr is closed or its disk is full, so errors of writing are ignored here, and the
//! macros that panic on them are forbidden in this crate. A line may quote text from outside, so all of it is escaped; only
//! the styles are ours.

use std::fmt::Display;
use std::io::Write;

use anstyle::Style;
use gyrus::Precision;

use crate::foreign::Foreign;
use crate::text::{BAD, FAINT, NAME};

/// An error with all its causes, in one line.
pub(crate) fn error(error: &anyhow::Error) {
    line("error:", BAD, &format!("{error:#}{}", hint(error)), Style::new());
}

/// The flag that may help against an error of the engine, which does not know flags.
fn hint(error: &anyhow::Error) -> &'static str {
    match error.downcast_ref() {
        Some(gyrus::Error::NotFinite { precision: Precision::Fast, .. }) => "; try --precision exact",
        _ => "",
    }
}

/// A note.
pub(crate) fn note(message: impl Display) {
    line("note:", Style::new(), &message.to_string(), Style::new());
}

/// What happens to a thing that has a name.
pub(crate) fn about(name: impl Display, message: impl Display) {
    line(&format!("{}:", Foreign(&name.to_string())), NAME, &message.to_string(), Style::new());
}

/// A dimmed line: the model, the device, statistics.
pub(crate) fn aside(message: impl Display) {
    line("", Style::new(), &message.to_string(), FAINT);
}

/// Several lines, as for /help.
pub(crate) fn lines(text: &str) {
    text.lines().for_each(|text| line("", Style::new(), text, Style::new()));
}

fn line(label: &str, label_style: Style, message: &str, style: Style) {
    let space = if label.is_empty() { "" } else { " " };
    let _ = writeln!(
        anstream::stderr().lock(),
        "{}{label}{}{space}{}{}{}",
        label_style.render(),
        label_style.render_reset(),
        style.render(),
        Foreign(message),
        style.render_reset()
    );
}
