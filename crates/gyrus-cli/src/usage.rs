//! Usage errors: arguments that are wrong for every model.

use std::fmt;

/// A usage error that the argument parser cannot detect; exit code 2.
#[derive(Debug)]
pub(crate) struct Usage(pub(crate) String);

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Usage {}

/// A usage error with this message.
pub(crate) fn usage(reason: impl fmt::Display) -> anyhow::Error {
    Usage(reason.to_string()).into()
}
