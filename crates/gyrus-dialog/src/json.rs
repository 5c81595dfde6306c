//! JSON inside other text.

use serde::de::IgnoredAny;

/// Where a JSON value at the beginning of a text ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// It needs more text.
    More,
    /// Behind this many bytes.
    At(usize),
    /// The text does not begin with an object or array, its brackets do not match, or `stop` is among them.
    Never,
}

/// Finds the end of an object or array by its brackets and strings. What is inside is not checked, but a `stop` that is not
/// empty must not be outside of strings.
pub(crate) fn end(text: &str, stop: &str) -> End {
    Brackets::default().end(text, stop)
}

/// How far the brackets of an object or array have been read.
#[derive(Debug, Default)]
pub(crate) struct Brackets {
    at: usize,
    stack: Vec<u8>,
    in_string: bool,
    escaped: bool,
    end: Option<End>,
}

impl Brackets {
    /// The end of the value, as [`end`] says. A later text must go on where an earlier one ended.
    pub(crate) fn end(&mut self, text: &str, stop: &str) -> End {
        let text = text.as_bytes();
        while self.end.is_none() {
            let Some(&byte) = text.get(self.at) else { return End::More };
            if self.in_string {
                match byte {
                    _ if self.escaped => self.escaped = false,
                    b'\\' => self.escaped = true,
                    b'"' => self.in_string = false,
                    _ => {}
                }
                self.at += 1;
                continue;
            }
            let rest = &text[self.at..];
            if rest.len() < stop.len() && stop.as_bytes().starts_with(rest) {
                // The rest of the stop may follow.
                return End::More;
            }
            match byte {
                _ if !stop.is_empty() && rest.starts_with(stop.as_bytes()) => self.end = Some(End::Never),
                b'{' => self.stack.push(b'}'),
                b'[' => self.stack.push(b']'),
                _ if self.stack.is_empty() => self.end = Some(End::Never),
                b'"' => self.in_string = true,
                b'}' | b']' if self.stack.pop() != Some(byte) => self.end = Some(End::Never),
                b'}' | b']' if self.stack.is_empty() => self.end = Some(End::At(self.at + 1)),
                _ => {}
            }
            self.at += 1;
        }
        self.end.unwrap_or(End::More)
    }
}

/// Whether a text is JSON, or what is wrong with it.
pub(crate) fn check(text: &str) -> Result<(), String> {
    serde_json::from_str::<IgnoredAny>(text).map(drop).map_err(|error| format!("not JSON: {error}"))
}

/// The members of an object as they are written. The text must be JSON.
pub(crate) fn members(text: &str) -> Option<Vec<(String, &str)>> {
    let mut rest = text.trim().strip_prefix('{')?.trim_start();
    let mut members = Vec::new();
    while !rest.starts_with('}') {
        let (key, after) = rest.split_at(string_end(rest)?);
        let after = after.trim_start().strip_prefix(':')?.trim_start();
        let (value, after) = after.split_at(value_end(after)?);
        members.push((serde_json::from_str(key).ok()?, value));
        let after = after.trim_start();
        rest = after.strip_prefix(',').unwrap_or(after).trim_start();
    }
    Some(members)
}

/// The items of an array as they are written. The text must be JSON.
pub(crate) fn items(text: &str) -> Option<Vec<&str>> {
    let mut rest = text.trim().strip_prefix('[')?.trim_start();
    let mut items = Vec::new();
    while !rest.starts_with(']') {
        let (value, after) = rest.split_at(value_end(rest)?);
        items.push(value);
        let after = after.trim_start();
        rest = after.strip_prefix(',').unwrap_or(after).trim_start();
    }
    Some(items)
}

/// The end of the value at the beginning of a text.
fn value_end(text: &str) -> Option<usize> {
    match text.as_bytes().first()? {
        b'"' => string_end(text),
        b'{' | b'[' => match end(text, "") {
            End::At(at) => Some(at),
            End::More | End::Never => None,
        },
        _ => text.find([',', '}', ']', ' ', '\t', '\n', '\r']).filter(|&at| at > 0),
    }
}

/// The end of the string at the beginning of a text.
fn string_end(text: &str) -> Option<usize> {
    let mut escaped = false;
    let body = text.strip_prefix('"')?.bytes();
    let close = body.enumerate().find(|&(_, byte)| {
        let closes = byte == b'"' && !escaped;
        escaped = byte == b'\\' && !escaped;
        closes
    });
    close.map(|(at, _)| at + 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_are_found_in_spite_of_strings() {
        assert_eq!(end(r#"{"a": "}\"{", "b": [1]} x"#, ""), End::At(23));
        assert_eq!(end(r#"{"a": "}"#, ""), End::More);
        assert_eq!(end("[}", ""), End::Never);
        assert_eq!(end("x{}", ""), End::Never);
        assert_eq!(end("", ""), End::More);
        assert_eq!(end(r#"{"a": "</x>"}"#, "</x>"), End::At(13));
        assert_eq!(end(r#"{"a": 1 </x>"#, "</x>"), End::Never);
    }

    #[test]
    fn members_and_items_are_kept_as_written() {
        let text = r#" { "a" : 1.50 , "\u0062":[ {"x": "}"} ,2],"c":"\\" } "#;
        let found = members(text).unwrap();
        let found: Vec<(&str, &str)> = found.iter().map(|(key, value)| (key.as_str(), *value)).collect();
        assert_eq!(found, [("a", "1.50"), ("b", r#"[ {"x": "}"} ,2]"#), ("c", r#""\\""#)]);
        assert_eq!(items(r#"[ 1, {"a":[2]} ,"x"]"#).unwrap(), ["1", r#"{"a":[2]}"#, r#""x""#]);
        assert_eq!(members("{}").unwrap(), []);
        assert_eq!(members("[1]"), None);
    }
}
