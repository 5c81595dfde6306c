//! Lines from the user: with editing and history on a terminal, plain from a pipe.

use std::io::{BufRead, ErrorKind, IsTerminal};
use std::path::PathBuf;

use anyhow::{Context, Result, anyhow};
use rustyline::error::ReadlineError;

use crate::cache::contents::HISTORY;
use crate::environment::Environment;
use crate::text::NAME;

/// What was typed.
pub(crate) enum Input {
    Line(String),
    /// A line that cannot be taken, and why.
    Refused(anyhow::Error),
    End,
}

pub(crate) struct Lines {
    terminal: Option<rustyline::DefaultEditor>,
    history: Option<PathBuf>,
    /// Lines read from a pipe so far.
    count: usize,
}

impl Lines {
    pub(crate) fn new() -> Lines {
        let interactive = std::io::stdin().is_terminal() && std::io::stdout().is_terminal();
        let mut terminal = interactive.then(rustyline::DefaultEditor::new).and_then(Result::ok);
        let history = Environment::of_process().cache().ok().map(|folder| folder.join(HISTORY));
        if let (Some(editor), Some(path)) = (&mut terminal, &history) {
            // No history yet is the usual first time.
            let _ = editor.load_history(path);
        }
        Lines { terminal, history, count: 0 }
    }

    pub(crate) fn is_interactive(&self) -> bool {
        self.terminal.is_some()
    }

    /// The next line. Ctrl-C on a terminal only clears the line.
    pub(crate) fn next(&mut self) -> Result<Input> {
        let Some(editor) = &mut self.terminal else {
            self.count += 1;
            return piped(&mut std::io::stdin().lock(), self.count);
        };
        // The editor writes to the terminal itself, so the choice about colour is made here.
        let colour = anstream::AutoStream::choice(&std::io::stdout()) != anstream::ColorChoice::Never;
        let style = if colour { NAME } else { anstyle::Style::new() };
        let prompt = format!("{}>{} ", style.render(), style.render_reset());
        loop {
            match editor.readline(&prompt) {
                Ok(line) => {
                    let _ = editor.add_history_entry(&line);
                    return Ok(Input::Line(line));
                }
                Err(ReadlineError::Interrupted) => {}
                Err(ReadlineError::Eof) => return Ok(Input::End),
                Err(ReadlineError::Io(error)) if error.kind() == ErrorKind::InvalidData => {
                    return Ok(Input::Refused(anyhow!("the line is not UTF-8")));
                }
                Err(error) => return Err(error).context("the terminal"),
            }
        }
    }

    /// Keeps the lines for the next chat on a terminal.
    pub(crate) fn save(&mut self) {
        if let (Some(editor), Some(path)) = (&mut self.terminal, &self.history) {
            if let Some(folder) = path.parent() {
                let _ = std::fs::create_dir_all(folder);
            }
            let _ = editor.save_history(path);
        }
    }
}

/// Line `number` of a pipe.
fn piped(pipe: &mut impl BufRead, number: usize) -> Result<Input> {
    let mut bytes = Vec::new();
    if pipe.read_until(b'\n', &mut bytes).context("stdin")? == 0 {
        return Ok(Input::End);
    }
    Ok(match String::from_utf8(bytes) {
        Ok(line) => Input::Line(line),
        Err(error) => {
            let byte = error.utf8_error().valid_up_to() + 1;
            Input::Refused(anyhow!("line {number} of stdin is not UTF-8 at byte {byte}; it was skipped"))
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_that_is_no_text_is_refused_and_the_next_is_read() {
        let mut pipe = &b"one\nt\xc3\x28o\nthree"[..];
        let mut read = |number| match piped(&mut pipe, number).unwrap() {
            Input::Line(line) => line,
            Input::Refused(error) => error.to_string(),
            Input::End => "end".to_owned(),
        };
        assert_eq!(read(1), "one\n");
        assert_eq!(read(2), "line 2 of stdin is not UTF-8 at byte 2; it was skipped");
        assert_eq!((read(3), read(4)), ("three".to_owned(), "end".to_owned()));
    }
}
