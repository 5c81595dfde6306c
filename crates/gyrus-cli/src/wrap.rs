//! Text that arrives in pieces, wrapped at words to the width of a terminal.

use std::io::{self, IsTerminal, Write};

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// Opens and closes a code block.
const FENCE: &str = "```";
const TAB: usize = 8;
/// Narrower terminals wrap by themselves.
const NARROWEST: usize = 20;

/// A writer that breaks lines between words. A word is held back until it is whole.
///
/// Fenced code blocks are not wrapped, and nothing is if there is no width.
pub(crate) struct Wrap<W> {
    out: W,
    width: Option<usize>,
    /// Columns of the present line that are written.
    column: usize,
    /// Blanks in front of the word, and the word, both not written yet.
    blanks: String,
    word: String,
    line: Line,
    in_code: bool,
}

/// What is known of the line at hand, as the text has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Line {
    /// Blank so far.
    Blank,
    /// So many backticks, and blanks.
    Ticks(usize),
    /// It opens a code block: a fence that no backtick follows.
    Opening,
    Other,
}

impl Line {
    fn after(self, c: char) -> Line {
        match (self, c) {
            (Line::Blank, ' ' | '\t') => Line::Blank,
            (Line::Blank, '`') => Line::Ticks(1),
            (Line::Ticks(n), '`') => Line::Ticks(n + 1),
            (Line::Ticks(_) | Line::Opening, ' ' | '\t' | '\r') => self,
            (Line::Ticks(n), _) if n >= FENCE.len() => Line::Opening,
            (Line::Opening, c) if c != '`' => Line::Opening,
            _ => Line::Other,
        }
    }

    /// Whether a code block continues after this line.
    fn leads_to_code(self, in_code: bool) -> bool {
        match self {
            Line::Ticks(n) if n >= FENCE.len() => !in_code,
            Line::Opening => true,
            _ => in_code,
        }
    }
}

/// The width of the terminal that stdout is; `None` if it is none.
pub(crate) fn terminal_width() -> Option<usize> {
    if !io::stdout().is_terminal() {
        return None;
    }
    let (terminal_size::Width(columns), _) = terminal_size::terminal_size_of(io::stdout())?;
    Some(usize::from(columns)).filter(|&columns| columns >= NARROWEST)
}

impl<W: Write> Wrap<W> {
    pub(crate) fn new(out: W, width: Option<usize>) -> Wrap<W> {
        let (blanks, word) = (String::new(), String::new());
        Wrap { out, width, column: 0, blanks, word, line: Line::Blank, in_code: false }
    }

    /// Takes the next piece and writes all of it whose line is decided.
    pub(crate) fn push(&mut self, text: &str) -> io::Result<()> {
        if self.width.is_none() {
            self.out.write_all(text.as_bytes())?;
        } else {
            text.chars().try_for_each(|c| self.take(c))?;
        }
        self.out.flush()
    }

    /// Ends the text: writes the held-back word and a newline.
    pub(crate) fn finish(mut self) -> io::Result<()> {
        self.put_word()?;
        self.out.write_all(self.blanks.as_bytes())?;
        self.out.write_all(b"\n")?;
        self.out.flush()
    }

    fn take(&mut self, c: char) -> io::Result<()> {
        if c == '\n' {
            self.put_word()?;
            self.out.write_all(self.blanks.as_bytes())?;
            self.out.write_all(b"\n")?;
            self.blanks.clear();
            self.column = 0;
            self.in_code = self.line.leads_to_code(self.in_code);
            self.line = Line::Blank;
            return Ok(());
        }
        self.line = self.line.after(c);
        if self.in_code {
            return write!(self.out, "{c}");
        }
        if c == ' ' || c == '\t' {
            self.put_word()?;
            self.blanks.push(c);
            return Ok(());
        }
        if self.breaks_before(c) {
            self.put_word()?;
        }
        self.word.push(c);
        Ok(())
    }

    /// Scripts without blanks between words may break at any wide character, but not in front of one that
    /// closes or modifies what is before it.
    fn breaks_before(&self, c: char) -> bool {
        let Some(last) = self.word.chars().last() else { return false };
        let is_wide = |c: char| c.width() == Some(2);
        let stays = matches!(
            c,
            '、' | '。' | '，' | '．' | '！' | '？' | '：' | '；' | '）' | '」' | '』' | '】' | '》' | '〉'
        ) || matches!(c, '\u{1f3fb}'..='\u{1f3ff}')
            || c.width().unwrap_or(0) == 0;
        let opens = matches!(last, '（' | '「' | '『' | '【' | '《' | '〈' | '\u{200d}');
        (is_wide(c) || is_wide(last)) && !stays && !opens
    }

    /// Writes the word, on this line if it fits, else on the next.
    fn put_word(&mut self) -> io::Result<()> {
        let Some(width) = self.width.filter(|_| !self.word.is_empty()) else { return Ok(()) };
        let after = self.blanks.chars().fold(self.column, |column, c| match c {
            '\t' => (column / TAB + 1) * TAB,
            _ => column + 1,
        });
        let columns = self.word.width();
        if self.column > 0 && after + columns > width {
            self.out.write_all(b"\n")?;
            self.column = 0;
        } else {
            self.out.write_all(self.blanks.as_bytes())?;
            self.column = after;
        }
        self.out.write_all(self.word.as_bytes())?;
        self.column += columns;
        // A word longer than a line is broken by the terminal.
        if self.column > width {
            self.column %= width;
        }
        self.blanks.clear();
        self.word.clear();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrapped(text: &str, width: Option<usize>, piece: usize) -> String {
        let mut out = Vec::new();
        let mut wrap = Wrap::new(&mut out, width);
        let chars: Vec<char> = text.chars().collect();
        for piece in chars.chunks(piece) {
            wrap.push(&piece.iter().collect::<String>()).unwrap();
        }
        wrap.finish().unwrap();
        String::from_utf8(out).unwrap()
    }

    /// Wraps to ten columns, whatever the pieces.
    fn ten(text: &str) -> String {
        let whole = wrapped(text, Some(10), usize::MAX >> 8);
        for piece in [1, 2, 3, 7] {
            assert_eq!(wrapped(text, Some(10), piece), whole, "in pieces of {piece}");
        }
        whole
    }

    #[test]
    fn lines_break_between_words() {
        assert_eq!(ten("one two three four"), "one two\nthree four\n");
        assert_eq!(ten("exactly 10 more"), "exactly 10\nmore\n");
        assert_eq!(ten("ends here\n\nnew paragraph"), "ends here\n\nnew\nparagraph\n");
        assert_eq!(ten("  indented text"), "  indented\ntext\n");
        assert_eq!(ten(""), "\n");
        assert_eq!(ten("a trailing  "), "a trailing  \n");
    }

    #[test]
    fn words_longer_than_a_line_are_left_to_the_terminal() {
        assert_eq!(ten("a https://example.org/x b"), "a\nhttps://example.org/x b\n");
    }

    #[test]
    fn wide_characters_take_two_columns_and_break_anywhere() {
        assert_eq!(ten("日本語の文章です"), "日本語の文\n章です\n");
        // No line begins with a full stop.
        assert_eq!(ten("日本語文章。です"), "日本語文\n章。です\n");
        assert_eq!(ten("ab 日本語文"), "ab 日本語\n文\n");
        // A family is one sign of two columns; accents take none.
        assert_eq!(ten("1234567 👩\u{200d}👧 x"), "1234567 👩\u{200d}👧\nx\n");
        assert_eq!(
            ten("e\u{301}e\u{301}e\u{301}e\u{301}e\u{301} abcd"),
            "e\u{301}e\u{301}e\u{301}e\u{301}e\u{301} abcd\n"
        );
    }

    #[test]
    fn code_between_fences_is_left_alone() {
        let code = "see:\n```rust\nfn main() { println!(\"hello\"); }\n  ```\nand that was it";
        assert_eq!(ten(code), "see:\n```rust\nfn main() { println!(\"hello\"); }\n  ```\nand that\nwas it\n");
        // Not closed before the end.
        assert_eq!(ten("```\nlet long = line + of + code;"), "```\nlet long = line + of + code;\n");
        // Code within a line is text.
        assert_eq!(ten("```x``` is code\nand more text"), "```x``` is\ncode\nand more\ntext\n");
        // A line of code with backticks in it does not close.
        assert_eq!(
            ten("```\n```x``` stays as it is\n```\na b c d e f"),
            "```\n```x``` stays as it is\n```\na b c d e\nf\n"
        );
    }

    #[test]
    fn without_a_width_nothing_changes() {
        let text = "one two three four five six  \n\tseven";
        assert_eq!(wrapped(text, None, 1), format!("{text}\n"));
    }
}
