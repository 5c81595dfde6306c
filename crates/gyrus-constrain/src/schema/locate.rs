//! Lines and columns of keywords. The parser of JSON keeps none, so an error's JSON pointer is followed through the text.

use crate::Error;

/// The error with the line and column of its keyword in `text`, which is valid JSON.
///
/// Not in a text of one line: requests and tools have schemas as values, which become such a text with other spaces than
/// their author's. The pointer says where to look.
pub(super) fn located(mut error: Error, text: &str) -> Error {
    if !text.trim_end().contains('\n') {
        return error;
    }
    if let Error::Keyword { keyword, place, position, .. } | Error::Invalid { keyword, place, position, .. } =
        &mut error
    {
        *position = offset(text, place, keyword).map(|offset| Error::place(text, offset));
    }
    error
}

/// The byte where a keyword of the schema at a JSON pointer begins; where the schema itself begins if it has none.
fn offset(text: &str, pointer: &str, keyword: &str) -> Option<usize> {
    let parts = pointer.strip_prefix('#')?.split('/').skip(1);
    let mut scanner = Scanner { text, at: 0 };
    scanner.space();
    for part in parts {
        scanner.at = scanner.child(&part.replace("~1", "/").replace("~0", "~"))?.value;
    }
    let schema = scanner.at;
    Some(scanner.child(keyword).map_or(schema, |member| member.start))
}

/// A member of an object or an array.
#[derive(Clone, Copy)]
struct Member {
    /// Where its name begins, or its value in an array.
    start: usize,
    value: usize,
}

struct Scanner<'a> {
    text: &'a str,
    at: usize,
}

impl Scanner<'_> {
    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn space(&mut self) {
        while self.peek().is_some_and(|byte| byte.is_ascii_whitespace()) {
            self.at += 1;
        }
    }

    /// The member of this name or index in the value that begins here. The last one of a name counts, as it does to the
    /// parser.
    fn child(&mut self, name: &str) -> Option<Member> {
        let (mut found, mut index) = (None, 0usize);
        let close = match self.peek()? {
            b'{' => b'}',
            b'[' => b']',
            _ => return None,
        };
        self.at += 1;
        loop {
            self.space();
            if self.peek()? == close {
                return found;
            }
            let start = self.at;
            let is_it = if close == b'}' {
                self.string();
                let key: String = serde_json::from_str(self.text.get(start..self.at)?).ok()?;
                self.space();
                // The colon.
                self.at += 1;
                self.space();
                key == name
            } else {
                index += 1;
                (index - 1).to_string() == name
            };
            if is_it {
                found = Some(Member { start, value: self.at });
            }
            self.value();
            self.space();
            self.at += usize::from(self.peek()? == b',');
        }
    }

    /// Passes over a string.
    fn string(&mut self) {
        self.at += 1;
        while let Some(byte) = self.peek() {
            self.at += if byte == b'\\' { 2 } else { 1 };
            if byte == b'"' {
                return;
            }
        }
    }

    /// Passes over a value.
    fn value(&mut self) {
        let mut depth = 0usize;
        while let Some(byte) = self.peek() {
            match byte {
                b'"' => {
                    self.string();
                    if depth == 0 {
                        return;
                    }
                    continue;
                }
                b'{' | b'[' => depth += 1,
                b'}' | b']' | b',' if depth == 0 => return,
                b'}' | b']' => {
                    depth -= 1;
                    if depth == 0 {
                        self.at += 1;
                        return;
                    }
                }
                _ => {}
            }
            self.at += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::offset;

    #[test]
    fn pointers_lead_to_keywords() {
        let text = r#" {"a\u002Fb~" : [ 1, {"x":"}]\"", "not" :{}}, [[2]] ], "y":{"z":-1.5e3 } , "y": {"z" : true}, "w":[]}"#;
        let at = |pointer: &str, keyword: &str| offset(text, pointer, keyword).map(|at| &text[at..at + 3]);
        assert_eq!(at("#", "y"), Some("\"y\""));
        assert_eq!(offset(text, "#", "y"), text.rfind("\"y\""), "the last one of two");
        assert_eq!(at("#/a~1b~0/1", "not"), Some("\"no"));
        assert_eq!(at("#/a~1b~0", "0"), Some("1, "));
        assert_eq!(at("#/a~1b~0/2", "missing"), Some("[[2"));
        assert_eq!(at("#/y/z", "type"), Some("tru"));
        assert_eq!(at("#/w", "0"), Some("[]}"));
        for (pointer, keyword) in [("#/nowhere", "x"), ("#/w/0", "x"), ("#/y/z/0", "x"), ("the schema", "x")]
        {
            assert_eq!(at(pointer, keyword), None, "{pointer}");
        }
    }
}
