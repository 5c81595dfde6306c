//! Wrong usage: arguments that no model could make right.

use std::fmt;

/// The command was called wrongly, as clap would have said had it known: exit code 2.
#[derive(Debug)]
pub(crate) struct Usage(pub(crate) String);

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Usage {}

/// An error that says what was wrong with the arguments.
pub(crate) fn usage(reason: impl fmt::Display) -> anyhow::Error {
    Usage(reason.to_string()).into()
}
