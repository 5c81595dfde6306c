//! Errors in tools and choices.

use thiserror::Error;

/// Why tools cannot be used.
#[derive(Debug, Error, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// The tools are not JSON.
    #[error("tools, line {line}, column {column}: {message}")]
    Syntax {
        /// Line, from 1.
        line: usize,
        /// Column, from 1.
        column: usize,
        /// What is wrong there.
        message: String,
    },
    /// The tools are not a list of tools.
    #[error("tools: {message}")]
    List {
        /// What is wrong.
        message: String,
    },
    /// A tool lacks something, or has it in another form.
    #[error("tool {index}{}: {message}", named(name))]
    Tool {
        /// The tool's place in the list, from 0.
        index: usize,
        /// Its name, if it has one.
        name: Option<String>,
        /// What is wrong.
        message: String,
    },
    /// The choice names a tool that was not given.
    #[error("there is no tool {name:?}; the tools are {known}")]
    UnknownTool {
        /// The name.
        name: String,
        /// The tools that were given.
        known: String,
    },
    /// Calls of this format have no JSON that a schema could constrain.
    #[error("calls in the format {format} cannot be constrained: {reason}")]
    Unconstrained {
        /// The format.
        format: &'static str,
        /// Why.
        reason: String,
    },
}

/// A name behind the place of a tool, as far as it is one.
fn named(name: &Option<String>) -> String {
    let shown = |name: &String| format!(" ({:?})", name.chars().take(64).collect::<String>());
    name.as_ref().map(shown).unwrap_or_default()
}
