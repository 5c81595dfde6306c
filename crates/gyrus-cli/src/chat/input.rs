//! Messages from the user: with editing and history on a terminal, plain lines from a pipe.

use std::io::{BufRead, ErrorKind, IsTerminal};
use std::path::PathBuf;

use anyhow::{Context, Result, anyhow};
use rustyline::completion::Completer;
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::DefaultHistory;
use rustyline::validate::{ValidationContext, ValidationResult, Validator};
use rustyline::{
    Cmd, ConditionalEventHandler, Config, Editor, Event, EventContext, EventHandler, Helper, KeyCode,
    KeyEvent, Modifiers, Movement, RepeatCount,
};

use super::{commands, marks};
use crate::cache::contents::HISTORY;
use crate::diagnostics;
use crate::environment::Environment;
use crate::text::NAME;

/// Messages that are kept for the next chat.
const MOST_KEPT: usize = 1000;

/// What was typed.
pub(crate) enum Input {
    /// A message of one or more lines, or a command.
    Text(String),
    /// A line that cannot be taken, and why.
    Refused(anyhow::Error),
    End,
}

pub(crate) struct Lines {
    terminal: Option<Editor<Typing, DefaultHistory>>,
    history: Option<PathBuf>,
    /// Lines read from a pipe so far.
    count: usize,
}

impl Lines {
    /// `keeps_history`: what is typed is kept in the cache folder, for the user alone.
    pub(crate) fn new(keeps_history: bool) -> Lines {
        let interactive = std::io::stdin().is_terminal() && std::io::stdout().is_terminal();
        let mut terminal = interactive.then(editor).and_then(Result::ok);
        let environment = Environment::of_process();
        let folder = environment.cache().ok().filter(|_| keeps_history);
        let history = folder.map(|folder| folder.join(HISTORY));
        if let (Some(editor), Some(path)) = (&mut terminal, &history) {
            // No history yet is the usual first time.
            let _ = editor.load_history(path);
        }
        Lines { terminal, history, count: 0 }
    }

    pub(crate) fn is_interactive(&self) -> bool {
        self.terminal.is_some()
    }

    /// The next message. On a terminal Ctrl-C clears what was typed; twice where there is nothing it ends the chat.
    pub(crate) fn next(&mut self) -> Result<Input> {
        let Some(editor) = &mut self.terminal else {
            return piped(&mut std::io::stdin().lock(), &mut self.count);
        };
        // The editor writes to the terminal itself, so the choice about colour is made here.
        let colour = anstream::AutoStream::choice(&std::io::stdout()) != anstream::ColorChoice::Never;
        let style = if colour { NAME } else { anstyle::Style::new() };
        let prompt = format!("{}>{} ", style.render(), style.render_reset());
        let mut interrupted = false;
        loop {
            match editor.readline(&prompt) {
                Ok(text) => {
                    let _ = editor.add_history_entry(&text);
                    self.keep();
                    return Ok(Input::Text(text));
                }
                Err(ReadlineError::Interrupted) if interrupted => return Ok(Input::End),
                Err(ReadlineError::Interrupted) => {
                    interrupted = true;
                    diagnostics::aside("Ctrl-C again, Ctrl-D or /exit ends the chat");
                }
                Err(ReadlineError::Eof) => return Ok(Input::End),
                Err(ReadlineError::Io(error)) if error.kind() == ErrorKind::InvalidData => {
                    return Ok(Input::Refused(anyhow!("the line is not UTF-8")));
                }
                Err(error) => return Err(error).context("the terminal"),
            }
        }
    }

    /// Keeps what was typed for the next chat, at once: a chat may end at any time, and several may run.
    fn keep(&mut self) {
        if let (Some(editor), Some(path)) = (&mut self.terminal, &self.history) {
            if let Some(folder) = path.parent() {
                let _ = std::fs::create_dir_all(folder);
            }
            // The file is made readable for its owner only.
            let _ = editor.append_history(path);
        }
    }
}

fn editor() -> rustyline::Result<Editor<Typing, DefaultHistory>> {
    let config = Config::builder().max_history_size(MOST_KEPT)?.history_ignore_space(true).build();
    let mut editor = Editor::with_config(config)?;
    editor.set_helper(Some(Typing));
    editor.bind_sequence(KeyEvent::ctrl('C'), EventHandler::Conditional(Box::new(Clear)));
    editor.bind_sequence(KeyEvent(KeyCode::Enter, Modifiers::ALT), EventHandler::Simple(Cmd::Newline));
    Ok(editor)
}

/// Ctrl-C where something was typed.
struct Clear;

impl ConditionalEventHandler for Clear {
    fn handle(&self, _: &Event, _: RepeatCount, _: bool, context: &EventContext) -> Option<Cmd> {
        (!context.line().is_empty()).then_some(Cmd::Kill(Movement::WholeBuffer))
    }
}

/// Knows when a message is complete, and the names of commands.
struct Typing;

impl Validator for Typing {
    fn validate(&self, context: &mut ValidationContext<'_>) -> rustyline::Result<ValidationResult> {
        Ok(match marks::goes_on(context.input()) {
            true => ValidationResult::Incomplete,
            false => ValidationResult::Valid(None),
        })
    }
}

impl Completer for Typing {
    type Candidate = String;

    fn complete(
        &self,
        line: &str,
        at: usize,
        _: &rustyline::Context<'_>,
    ) -> rustyline::Result<(usize, Vec<String>)> {
        let names = commands::NAMES.iter().filter(|name| at > 0 && name.starts_with(&line[..at]));
        Ok((0, names.map(|name| format!("{name} ")).collect()))
    }
}

impl Hinter for Typing {
    type Hint = String;
}

impl Highlighter for Typing {}

impl Helper for Typing {}

/// The next message of a pipe, of which `count` lines were read.
fn piped(pipe: &mut impl BufRead, count: &mut usize) -> Result<Input> {
    let mut text = String::new();
    loop {
        let mut bytes = Vec::new();
        if pipe.read_until(b'\n', &mut bytes).context("stdin")? == 0 {
            return Ok(if text.is_empty() { Input::End } else { Input::Text(text) });
        }
        *count += 1;
        match std::str::from_utf8(&bytes) {
            Ok(line) => text.push_str(line),
            Err(error) => {
                let (number, byte) = (*count, error.valid_up_to() + 1);
                let why = anyhow!("line {number} of stdin is not UTF-8 at byte {byte}; it was skipped");
                return Ok(Input::Refused(why));
            }
        }
        if !marks::goes_on(&text) {
            return Ok(Input::Text(text));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(mut pipe: &[u8]) -> Vec<String> {
        let mut count = 0;
        let mut read = Vec::new();
        loop {
            match piped(&mut pipe, &mut count).unwrap() {
                Input::Text(text) => read.push(text),
                Input::Refused(error) => read.push(error.to_string()),
                Input::End => return read,
            }
        }
    }

    #[test]
    fn a_line_that_is_no_text_is_refused_and_the_next_is_read() {
        let refused = "line 2 of stdin is not UTF-8 at byte 2; it was skipped";
        assert_eq!(all(b"one\nt\xc3\x28o\nthree"), ["one\n", refused, "three"]);
    }

    #[test]
    fn a_message_of_several_lines_is_one() {
        assert_eq!(
            all(b"one\\\ntwo\n\"\"\"\nthree\n\n\"\"\"\nfour\\"),
            ["one\\\ntwo\n", "\"\"\"\nthree\n\n\"\"\"\n", "four\\"]
        );
    }
}
