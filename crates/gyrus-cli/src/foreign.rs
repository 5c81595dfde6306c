//! Text from outside the program: files, file names, drivers and servers.
//!
//! A terminal obeys control characters, and some invisible ones reorder or hide what stands beside them. Whatever is
//! shown to a person and did not originate here therefore passes through [`Foreign`]; what a model says passes through
//! [`Screen`](crate::screen::Screen).

use std::fmt;
use std::path::Path;

/// Text from outside, shown with the characters escaped that could do more than be read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Foreign<'a>(pub(crate) &'a str);

impl fmt::Display for Foreign<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = self.0;
        // In pieces as long as possible: nearly all text has nothing to escape.
        while let Some((at, c)) = rest.char_indices().find(|(_, c)| acts(*c)) {
            f.write_str(&rest[..at])?;
            write!(f, "{}", c.escape_default())?;
            rest = &rest[at + c.len_utf8()..];
        }
        f.write_str(rest)
    }
}

/// Whether a character acts on a terminal or on the text beside it: controls, line separators, and what is invisible
/// and reorders or joins.
pub(crate) fn acts(c: char) -> bool {
    c.is_control()
        || matches!(
            c,
            '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}'
                | '\u{e0000}'..='\u{e007f}'
        )
}

/// Text from outside on one line: escaped, and at most `longest` of its characters.
pub(crate) fn one_line(text: &str, longest: usize) -> String {
    match text.char_indices().nth(longest) {
        Some((end, _)) => format!("{}…", Foreign(&text[..end])),
        None => Foreign(text).to_string(),
    }
}

/// A path as a person reads it. What is not UTF-8 in it is replaced.
pub(crate) fn path(path: &Path) -> String {
    Foreign(&path.to_string_lossy()).to_string()
}

/// Text from outside as a cell of a Markdown table.
pub(crate) fn markdown(text: &str) -> String {
    one_line(text, 80).replace('|', "\\|")
}

/// Text from outside as a field of comma-separated values, quoted.
pub(crate) fn csv(text: &str) -> String {
    format!("\"{}\"", Foreign(text).to_string().replace('"', "\"\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_from_files_cannot_play_tricks_on_a_terminal() {
        assert_eq!(one_line("a\x1b[31mred\r\n\u{202e}b", 80), "a\\u{1b}[31mred\\r\\n\\u{202e}b");
        assert_eq!(one_line("abcdef", 3), "abc…");
        assert_eq!(one_line("abc", 3), "abc");
        assert_eq!(one_line("Grüße 世界", 80), "Grüße 世界");
        assert_eq!(Foreign("\u{9b}1m\t\u{7f}\u{e0041}").to_string(), "\\u{9b}1m\\t\\u{7f}\\u{e0041}");
    }

    #[test]
    fn tables_keep_their_columns() {
        assert_eq!(markdown("a|b\nc"), "a\\|b\\nc");
        assert_eq!(csv("a \"b\",\nc"), "\"a \"\"b\"\",\\nc\"");
    }
}
