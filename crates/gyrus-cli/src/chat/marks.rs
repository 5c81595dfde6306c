//! Messages of several lines: a line that ends with a backslash goes on, and three quotation marks begin and end a block.

const BLOCK: &str = "\"\"\"";

/// Whether a message goes on in the next line.
pub(crate) fn goes_on(text: &str) -> bool {
    match text.trim_start().strip_prefix(BLOCK) {
        Some(inside) => !inside.trim_end().ends_with(BLOCK),
        None => {
            let line = text.strip_suffix('\n').unwrap_or(text);
            let line = line.strip_suffix('\r').unwrap_or(line);
            line.bytes().rev().take_while(|byte| *byte == b'\\').count() % 2 == 1
        }
    }
}

/// Whether it is a block, in which a slash begins no command.
pub(crate) fn is_block(text: &str) -> bool {
    text.trim_start().starts_with(BLOCK)
}

/// The message without marks.
pub(crate) fn unmarked(text: &str) -> String {
    if let Some(inside) = text.trim_start().strip_prefix(BLOCK) {
        let inside = inside.trim_end();
        return inside.strip_suffix(BLOCK).unwrap_or(inside).trim_matches(['\n', '\r']).to_owned();
    }
    text.replace("\\\r\n", "\n").replace("\\\n", "\n").trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backslashes_and_blocks_go_on() {
        for (text, message) in [
            ("one", "one"),
            ("one\\\ntwo", "one\ntwo"),
            ("one\\\r\ntwo\r\n", "one\ntwo"),
            ("a\\\nb\\\nc", "a\nb\nc"),
            ("C:\\\\", "C:\\\\"),
            ("\"\"\"one\"\"\"", "one"),
            ("\"\"\"\n  one\n\n\"two\"\n\"\"\"", "  one\n\n\"two\""),
            ("\"\"\"/help\"\"\"", "/help"),
            ("\"\"\"\"\"\"", ""),
        ] {
            assert!(!goes_on(text), "{text:?}");
            assert_eq!(unmarked(text), message, "{text:?}");
        }
        for text in ["one\\", "one\\\n", "\"\"\"", "\"\"\"one", "\"\"\"one\ntwo\"", "a\\\nb\\\r\n", "x\\\\\\"]
        {
            assert!(goes_on(text), "{text:?}");
        }
        assert!(is_block(" \"\"\"x") && !is_block("\"x"));
        // A pipe that ends in the middle.
        assert_eq!(unmarked("\"\"\"one\ntwo"), "one\ntwo");
    }
}
