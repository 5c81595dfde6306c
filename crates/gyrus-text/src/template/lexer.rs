//! Splits a template into text, statements and expressions.
//!
//! The white-space rules are those of Jinja with `trim_blocks` and `lstrip_blocks`, as in transformers: the newline
//! after a statement or comment is removed, blanks between the start of a line and a statement or comment are removed,
//! `-` strips all white space on its side, `+` keeps it.

use std::sync::Arc;

use super::error::{Fault, Outcome};
use super::python::is_space;

/// One token and the byte offset at which it starts.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Token {
    pub(crate) at: usize,
    pub(crate) kind: Tok,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Tok {
    Text(Arc<str>),
    StatementBegin,
    StatementEnd,
    PrintBegin,
    PrintEnd,
    Name(Arc<str>),
    Str(Arc<str>),
    Int(i128),
    Float(f64),
    Op(&'static str),
    End,
}

impl Tok {
    /// The token in an error message.
    pub(crate) fn describe(&self) -> String {
        match self {
            Tok::Text(_) => "text".into(),
            Tok::StatementBegin => "'{%'".into(),
            Tok::StatementEnd => "'%}'".into(),
            Tok::PrintBegin => "'{{'".into(),
            Tok::PrintEnd => "'}}'".into(),
            Tok::Name(name) => format!("'{name}'"),
            Tok::Str(_) => "a string".into(),
            Tok::Int(_) | Tok::Float(_) => "a number".into(),
            Tok::Op(op) => format!("'{op}'"),
            Tok::End => "the end of the template".into(),
        }
    }
}

/// Normalises line ends to `\n` and removes one newline at the end.
pub(crate) fn normalise(source: &str) -> String {
    let mut text = source.replace("\r\n", "\n").replace('\r', "\n");
    if text.ends_with('\n') {
        text.pop();
    }
    text
}

/// Tokens of a normalised source, ending with [`Tok::End`].
pub(crate) fn tokens(source: &str) -> Outcome<Vec<Token>> {
    let mut lexer = Lexer { source, at: 0, line_starting: true, out: Vec::new() };
    while lexer.at < source.len() {
        lexer.section()?;
    }
    lexer.push(source.len(), Tok::End);
    Ok(lexer.out)
}

/// Longest first, so that `**` is not lexed as two `*`.
const OPERATORS: [&str; 25] = [
    "//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[", "]", "(", ")", "{", "}", ">", "<",
    "=", ".", ":", "|", ",",
];

struct Lexer<'s> {
    source: &'s str,
    at: usize,
    /// Whether the last match ended a line, so that the text after it starts one.
    line_starting: bool,
    out: Vec<Token>,
}

impl<'s> Lexer<'s> {
    fn push(&mut self, at: usize, kind: Tok) {
        self.out.push(Token { at, kind });
    }

    fn rest(&self) -> &'s str {
        &self.source[self.at..]
    }

    /// Text up to the next tag, and that tag.
    fn section(&mut self) -> Outcome<()> {
        let start = self.at;
        let Some(length) = next_tag(self.rest()) else {
            self.push(start, Tok::Text(self.rest().into()));
            self.at = self.source.len();
            return Ok(());
        };
        let tag = start + length;
        let text = &self.source[start..tag];
        let opener = &self.source[tag..tag + 2];
        self.at = tag + 2;
        let sign = self.sign();
        self.text(start, text, sign, opener != "{{");
        match opener {
            "{#" => self.comment(tag),
            "{{" => {
                self.push(tag, Tok::PrintBegin);
                self.inside(tag, true)
            }
            _ => {
                if let Some(end) = self.raw_begin() {
                    self.at = end;
                    return self.raw(tag);
                }
                self.push(tag, Tok::StatementBegin);
                self.inside(tag, false)
            }
        }
    }

    fn sign(&mut self) -> Option<char> {
        let sign = self.rest().chars().next().filter(|c| matches!(c, '-' | '+'));
        self.at += usize::from(sign.is_some());
        sign
    }

    /// Emits the text before a tag, stripped according to the tag's sign.
    fn text(&mut self, at: usize, text: &str, sign: Option<char>, may_lstrip: bool) {
        let kept = match sign {
            Some('-') => text.trim_end_matches(is_space),
            None if may_lstrip => {
                let line = text.rfind('\n').map_or(0, |newline| newline + 1);
                let starts_line = line > 0 || self.line_starting;
                if starts_line && text[line..].chars().all(is_space) { &text[..line] } else { text }
            }
            _ => text,
        };
        if !kept.is_empty() {
            self.push(at, Tok::Text(kept.into()));
        }
    }

    /// Ends a tag at `self.at` and consumes the white space that the tag strips.
    fn finish_tag(&mut self, stripping: bool, trim_newline: bool) {
        let start = self.at;
        if stripping {
            self.at = self.source.len() - self.rest().trim_start_matches(is_space).len();
        } else if trim_newline && self.rest().starts_with('\n') {
            self.at += 1;
        }
        self.line_starting = self.source[start..self.at].ends_with('\n');
    }

    fn comment(&mut self, tag: usize) -> Outcome<()> {
        let Some(length) = self.rest().find("#}") else {
            return Err(Fault::syntax(tag, "this comment has no '#}'"));
        };
        let body = &self.rest()[..length];
        self.at += length + 2;
        self.finish_tag(body.ends_with('-'), !body.ends_with('+'));
        Ok(())
    }

    /// The offset after `raw %}` if this is a raw statement.
    fn raw_begin(&self) -> Option<usize> {
        let rest = self.rest().trim_start_matches(is_space).strip_prefix("raw")?.trim_start_matches(is_space);
        let rest = match rest.strip_prefix("-%}") {
            Some(rest) => rest.trim_start_matches(is_space),
            None => rest.strip_prefix("%}")?,
        };
        Some(self.source.len() - rest.len())
    }

    /// Everything up to `{% endraw %}` as text.
    fn raw(&mut self, tag: usize) -> Outcome<()> {
        self.line_starting = self.source[..self.at].ends_with('\n');
        let start = self.at;
        let mut from = start;
        while let Some(found) = self.source[from..].find("{%") {
            let begin = from + found;
            self.at = begin + 2;
            let sign = self.sign();
            let rest = self.rest().trim_start_matches(is_space);
            if let Some(rest) = rest.strip_prefix("endraw") {
                let rest = rest.trim_start_matches(is_space);
                let (close, rest) = match rest.as_bytes().first() {
                    Some(c @ (b'-' | b'+')) => (Some(*c), &rest[1..]),
                    _ => (None, rest),
                };
                if rest.starts_with("%}") {
                    self.text(start, &self.source[start..begin], sign, true);
                    self.at = self.source.len() - rest.len() + 2;
                    self.finish_tag(close == Some(b'-'), close.is_none());
                    return Ok(());
                }
            }
            from = begin + 2;
        }
        Err(Fault::syntax(tag, "this raw block has no '{% endraw %}'"))
    }

    /// The tokens of one statement or expression.
    fn inside(&mut self, tag: usize, print: bool) -> Outcome<()> {
        let (close, end) = if print { ("}}", Tok::PrintEnd) } else { ("%}", Tok::StatementEnd) };
        let mut open: Vec<&'static str> = Vec::new();
        loop {
            let rest = self.rest();
            let trimmed = rest.trim_start_matches(is_space);
            self.at += rest.len() - trimmed.len();
            let at = self.at;
            let Some(first) = trimmed.chars().next() else {
                return Err(Fault::syntax(tag, format!("this tag has no '{close}'")));
            };
            // Within brackets, `}}` closes two dictionaries, not the tag.
            if open.is_empty() {
                let (sign, body) = match first {
                    '-' => (Some('-'), &trimmed[1..]),
                    '+' if !print => (Some('+'), &trimmed[1..]),
                    _ => (None, trimmed),
                };
                if body.starts_with(close) {
                    self.at = self.source.len() - body.len() + close.len();
                    self.push(at, end);
                    self.finish_tag(sign == Some('-'), !print && sign.is_none());
                    return Ok(());
                }
            }
            let kind = match first {
                '\'' | '"' => self.string(first)?,
                '0'..='9' => self.number()?,
                c if c == '_' || c.is_alphabetic() => self.name(),
                _ => self.operator(&mut open)?,
            };
            self.push(at, kind);
        }
    }

    fn name(&mut self) -> Tok {
        let rest = self.rest();
        let end = rest.find(|c: char| c != '_' && !c.is_alphanumeric()).unwrap_or(rest.len());
        self.at += end;
        Tok::Name(rest[..end].into())
    }

    fn operator(&mut self, open: &mut Vec<&'static str>) -> Outcome<Tok> {
        let at = self.at;
        let Some(op) = OPERATORS.into_iter().find(|op| self.rest().starts_with(op)) else {
            let found = self.rest().chars().next().unwrap_or(' ');
            return Err(Fault::syntax(at, format!("unexpected character {found:?}")));
        };
        match op {
            "(" => open.push(")"),
            "[" => open.push("]"),
            "{" => open.push("}"),
            ")" | "]" | "}" => match open.pop() {
                Some(expected) if expected == op => {}
                Some(expected) => {
                    return Err(Fault::syntax(at, format!("unexpected '{op}', expected '{expected}'")));
                }
                None => return Err(Fault::syntax(at, format!("unexpected '{op}'"))),
            },
            _ => {}
        }
        self.at += op.len();
        Ok(Tok::Op(op))
    }

    fn number(&mut self) -> Outcome<Tok> {
        let at = self.at;
        let rest = self.rest();
        let bad = |text: &str| Fault::syntax(at, format!("'{text}' is not a number this engine can hold"));
        let lower = rest.get(..2).map(str::to_ascii_lowercase);
        if let Some(radix) = match lower.as_deref() {
            Some("0x") => Some(16),
            Some("0o") => Some(8),
            Some("0b") => Some(2),
            _ => None,
        } {
            let body = &rest[2..];
            let end = body.find(|c: char| c != '_' && !c.is_digit(radix)).unwrap_or(body.len());
            let digits = body[..end].replace('_', "");
            if !digits.is_empty() {
                self.at += 2 + end;
                return i128::from_str_radix(&digits, radix).map(Tok::Int).map_err(|_| bad(&rest[..2 + end]));
            }
        }
        let mut end = digits(rest);
        let mut float = false;
        let after = &rest[end..];
        if let Some(fraction) = after.strip_prefix('.')
            && fraction.starts_with(|c: char| c.is_ascii_digit())
        {
            end += 1 + digits(fraction);
            float = true;
        }
        let after = &rest[end..];
        if after.starts_with(['e', 'E']) {
            let exponent = after[1..].strip_prefix(['+', '-']).unwrap_or(&after[1..]);
            if exponent.starts_with(|c: char| c.is_ascii_digit()) {
                end = rest.len() - exponent.len() + digits(exponent);
                float = true;
            }
        }
        self.at += end;
        let text = rest[..end].replace('_', "");
        if float {
            text.parse().map(Tok::Float).map_err(|_| bad(&text))
        } else if text.len() > 1 && text.starts_with('0') && text.bytes().any(|digit| digit != b'0') {
            Err(Fault::syntax(at, format!("integer '{text}' starts with a zero")))
        } else {
            text.parse().map(Tok::Int).map_err(|_| bad(&text))
        }
    }

    fn string(&mut self, quote: char) -> Outcome<Tok> {
        let begin = self.at;
        let mut value = String::new();
        let mut chars = self.source[begin + 1..].char_indices();
        while let Some((i, c)) = chars.next() {
            let here = begin + 1 + i;
            match c {
                c if c == quote => {
                    self.at = here + 1;
                    return Ok(Tok::Str(value.into()));
                }
                '\\' => {
                    let Some((_, escaped)) = chars.next() else { break };
                    let consumed = escape(escaped, chars.as_str(), &mut value)
                        .map_err(|message| Fault::syntax(here, message))?;
                    for _ in 0..consumed {
                        chars.next();
                    }
                }
                c => value.push(c),
            }
        }
        Err(Fault::syntax(begin, "this string has no closing quote"))
    }
}

fn next_tag(text: &str) -> Option<usize> {
    text.as_bytes().windows(2).position(|pair| matches!(pair, b"{{" | b"{%" | b"{#"))
}

/// The length in bytes of the digits, with underscores between them, at the start of `text`.
fn digits(text: &str) -> usize {
    let bytes = text.as_bytes();
    let digit = |i: usize| bytes.get(i).is_some_and(u8::is_ascii_digit);
    let mut end = 0;
    while digit(end) || (end > 0 && bytes.get(end) == Some(&b'_') && digit(end + 1)) {
        end += 1;
    }
    end
}

/// Decodes one escape of a Python string literal; returns the number of further characters it consumed.
fn escape(c: char, rest: &str, out: &mut String) -> Result<usize, String> {
    let hex = |length: usize| -> Result<char, String> {
        let code = rest
            .get(..length)
            .filter(|digits| digits.bytes().all(|b| b.is_ascii_hexdigit()))
            .and_then(|digits| u32::from_str_radix(digits, 16).ok())
            .ok_or_else(|| format!("'\\{c}' needs {length} hexadecimal digits"))?;
        char::from_u32(code).ok_or_else(|| format!("'\\{c}' names U+{code:X}, which is not a character"))
    };
    match c {
        '\n' => {}
        '\\' | '\'' | '"' => out.push(c),
        'a' => out.push('\x07'),
        'b' => out.push('\x08'),
        'f' => out.push('\x0c'),
        'n' => out.push('\n'),
        'r' => out.push('\r'),
        't' => out.push('\t'),
        'v' => out.push('\x0b'),
        'x' | 'u' | 'U' => {
            let length = match c {
                'x' => 2,
                'u' => 4,
                _ => 8,
            };
            out.push(hex(length)?);
            return Ok(length);
        }
        'N' => return Err("characters by name are not supported".into()),
        '0'..='7' => {
            let more = rest.bytes().take(2).take_while(|b| (b'0'..=b'7').contains(b)).count();
            let code = rest[..more].bytes().fold(c as u32 - 48, |code, b| code * 8 + u32::from(b - b'0'));
            out.extend(char::from_u32(code));
            return Ok(more);
        }
        other => {
            out.push('\\');
            out.push(other);
        }
    }
    Ok(0)
}
