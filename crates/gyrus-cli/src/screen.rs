//! A model's output on stdout: byte by byte in a file or a pipe, with control characters escaped on a terminal.
//!
//! A model's text is data from outside like its file. On a terminal its control characters would be obeyed, so all but
//! the newline and the tab are shown escaped there. Other programs get every byte.

use std::borrow::Cow;
use std::io::{self, IsTerminal, StdoutLock, Write};

/// Stdout for the text of a model; what is written to it through [`Write`] is ours and not escaped.
pub(crate) struct Screen<W = StdoutLock<'static>> {
    out: W,
    terminal: bool,
}

impl Screen {
    /// Stdout, locked.
    pub(crate) fn stdout() -> Screen {
        let out = io::stdout().lock();
        Screen { terminal: out.is_terminal(), out }
    }
}

impl<W: Write> Screen<W> {
    /// Writes text of a model and flushes.
    pub(crate) fn text(&mut self, text: &str) -> io::Result<()> {
        let shown = if self.terminal { escaped(text) } else { Cow::Borrowed(text) };
        self.out.write_all(shown.as_bytes())?;
        self.out.flush()
    }

    /// Writes bytes that a model generated, which may end within a character.
    pub(crate) fn bytes(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.terminal {
            return self.text(&String::from_utf8_lossy(bytes));
        }
        self.out.write_all(bytes)?;
        self.out.flush()
    }
}

/// Text of a model as it should appear on stdout.
pub(crate) fn shown(text: &str) -> Cow<'_, str> {
    if io::stdout().is_terminal() { escaped(text) } else { Cow::Borrowed(text) }
}

/// Text with its control characters escaped.
fn escaped(text: &str) -> Cow<'_, str> {
    if !text.contains(is_obeyed) {
        return Cow::Borrowed(text);
    }
    let mut escaped = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        if is_obeyed(c) { escaped.extend(c.escape_default()) } else { escaped.push(c) }
    }
    Cow::Owned(escaped)
}

/// Whether a terminal does something at this character that no text asks for. Joiners and marks of direction stay:
/// emoji and whole scripts are written with them.
fn is_obeyed(c: char) -> bool {
    c.is_control() && !matches!(c, '\n' | '\t')
}

impl<W: Write> Write for Screen<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.out.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(terminal: bool, bytes: &[u8]) -> Vec<u8> {
        let mut screen = Screen { out: Vec::new(), terminal };
        screen.bytes(bytes).unwrap();
        screen.out
    }

    #[test]
    fn a_terminal_gets_text_and_a_pipe_every_byte() {
        let text = "one\n\ttwo \u{1b}]0;title\u{7}\r\u{9b}2J 👩\u{200d}🚀 שלום\u{200f}";
        assert_eq!(shown(false, text.as_bytes()), text.as_bytes());
        let expected = "one\n\ttwo \\u{1b}]0;title\\u{7}\\r\\u{9b}2J 👩\u{200d}🚀 שלום\u{200f}";
        assert_eq!(String::from_utf8(shown(true, text.as_bytes())).unwrap(), expected);
        assert_eq!(shown(false, b"half \xe4\xb8"), b"half \xe4\xb8");
        assert_eq!(shown(true, b"half \xe4\xb8\x9b"), "half 丛".as_bytes());
        assert_eq!(shown(true, b"\x9b1m"), "\u{fffd}1m".as_bytes());
    }
}
