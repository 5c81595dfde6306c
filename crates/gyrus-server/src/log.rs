//! Logs of a server, for people or for programs.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

/// How lines of the log look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LogFormat {
    /// For people.
    #[default]
    Pretty,
    /// One JSON object a line.
    Json,
}

/// Writes the log to stderr. `filter` is a level such as `info`, or a list such as `gyrus_server=debug,info`.
pub fn start(format: LogFormat, filter: &str) -> Result<(), String> {
    let filter = EnvFilter::try_new(filter).map_err(|error| error.to_string())?;
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    let started = match format {
        LogFormat::Pretty => builder.with_target(false).with_ansi(std::io::stderr().is_terminal()).try_init(),
        LogFormat::Json => builder.json().flatten_event(true).with_current_span(false).try_init(),
    };
    started.map_err(|error| error.to_string())
}
