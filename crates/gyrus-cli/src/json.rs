//! JSON on stdout.
//!
//! JSON escapes the control characters of ASCII only. Here all characters are escaped that act on a terminal, which
//! says the same to every reader of JSON.

use std::fmt::Write as _;
use std::io::{self, Write};

use serde::Serialize;

use crate::foreign::acts;

/// Writes a document over several lines.
pub(crate) fn pretty(out: &mut impl Write, document: &impl Serialize) -> io::Result<()> {
    writeln!(out, "{}", escaped(&serde_json::to_string_pretty(document)?))
}

/// Writes a document in one line.
pub(crate) fn line(out: &mut impl Write, document: &impl Serialize) -> io::Result<()> {
    writeln!(out, "{}", escaped(&serde_json::to_string(document)?))
}

/// Outside of strings JSON has no such characters but the newline, which inside of strings is escaped already.
fn escaped(document: &str) -> String {
    let mut text = String::with_capacity(document.len());
    for c in document.chars() {
        if c != '\n' && acts(c) {
            for unit in c.encode_utf16(&mut [0; 2]) {
                let _ = write!(text, "\\u{unit:04x}");
            }
        } else {
            text.push(c);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_are_escaped_and_say_the_same() {
        let document =
            serde_json::json!({ "a\u{9b}": ["\u{1b}[31m\n\u{202e}\u{e0041}", 1.5, null], "ü": "世界" });
        for write in [pretty as fn(&mut Vec<u8>, &serde_json::Value) -> io::Result<()>, line] {
            let mut out = Vec::new();
            write(&mut out, &document).unwrap();
            let text = String::from_utf8(out).unwrap();
            assert!(!text.contains(|c| c != '\n' && acts(c)), "{text:?}");
            assert!(
                text.contains("\\udb40\\udc41") && text.contains("世界") && text.ends_with("}\n"),
                "{text}"
            );
            assert_eq!(serde_json::from_str::<serde_json::Value>(&text).unwrap(), document);
        }
    }
}
