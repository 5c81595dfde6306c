//! Regular expressions of ECMAScript, as JSON Schema uses them, in the syntax of the engine.

use std::fmt::Write;
use std::iter::Peekable;
use std::str::Chars;

/// White space and line ends of ECMAScript.
const SPACE: &str =
    r"\t\n\x0B\x0C\r\x20\xA0\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F}\x{3000}\x{FEFF}";
const WORD: &str = "0-9A-Za-z_";
const DIGIT: &str = "0-9";

/// Translates a pattern. The error says what cannot be.
pub(super) fn translate(pattern: &str) -> Result<String, String> {
    let mut out = String::new();
    let mut rest = pattern.chars().peekable();
    while let Some(c) = rest.next() {
        match c {
            '\\' => match escape(&mut rest)? {
                Escape::Char(c) => push_char(&mut out, c),
                Escape::Class(class) => out.push_str(&class),
                Escape::Boundary => return Err("a word boundary".into()),
            },
            '[' => class(&mut rest, &mut out)?,
            '.' => out.push_str(r"[^\n\r\x{2028}\x{2029}]"),
            '(' => {
                if rest.next_if_eq(&'?').is_some() {
                    match (rest.next(), rest.peek()) {
                        (Some(':'), _) => {}
                        (Some('<'), Some(c)) if c.is_alphabetic() || matches!(c, '_' | '$') => {
                            // The name of a group means nothing without references to it, which are refused.
                            rest.by_ref().find(|&c| c == '>');
                        }
                        (Some('=' | '!' | '<'), _) => return Err("a look-around assertion".into()),
                        _ => return Err("an inline flag".into()),
                    }
                }
                out.push_str("(?:");
            }
            '{' => match quantifier(&rest) {
                Some(quantifier) => {
                    rest.by_ref().find(|&c| c == '}');
                    out.push_str(&quantifier);
                }
                None => out.push_str(r"\{"),
            },
            '^' | '$' | '|' | ')' | '*' | '+' | '?' => out.push(c),
            c => push_char(&mut out, c),
        }
    }
    Ok(out)
}

enum Escape {
    Char(char),
    Class(String),
    Boundary,
}

/// What follows a backslash.
fn escape(rest: &mut Peekable<Chars<'_>>) -> Result<Escape, String> {
    let c = rest.next().ok_or("a backslash at the end")?;
    let class =
        |negated: bool, set: &str| Ok(Escape::Class(format!("[{}{set}]", if negated { "^" } else { "" })));
    let one = |c| Ok(Escape::Char(c));
    match c {
        'd' | 'D' => class(c == 'D', DIGIT),
        'w' | 'W' => class(c == 'W', WORD),
        's' | 'S' => class(c == 'S', SPACE),
        'b' | 'B' => Ok(Escape::Boundary),
        'p' | 'P' => {
            let open = rest.next_if_eq(&'{').ok_or("a property without braces")?;
            let name: String = rest.by_ref().take_while(|&c| c != '}').collect();
            Ok(Escape::Class(format!("\\{c}{open}{name}}}")))
        }
        'n' => one('\n'),
        'r' => one('\r'),
        't' => one('\t'),
        'v' => one('\u{b}'),
        'f' => one('\u{c}'),
        '0' => one('\0'),
        '1'..='9' | 'k' => Err("a back-reference".into()),
        'c' => match rest.next() {
            Some(letter) if letter.is_ascii_alphabetic() => one(char::from(letter as u8 & 0x1f)),
            _ => Err("a control escape without a letter".into()),
        },
        'x' => hex(rest, 2)
            .and_then(|code| char::from_u32(code).map(Escape::Char).ok_or("a lone surrogate".into())),
        'u' => unicode(rest).map(Escape::Char),
        c if c.is_ascii_alphanumeric() => Err(format!("the escape \\{c}")),
        c => one(c),
    }
}

/// `uHHHH`, a surrogate pair of them, or `u{H…}`, after the `u`.
fn unicode(rest: &mut Peekable<Chars<'_>>) -> Result<char, String> {
    let lone = || "a lone surrogate".to_owned();
    if rest.next_if_eq(&'{').is_some() {
        let digits: String = rest.by_ref().take_while(|&c| c != '}').collect();
        return u32::from_str_radix(&digits, 16).ok().and_then(char::from_u32).ok_or_else(lone);
    }
    let high = hex(rest, 4)?;
    if !(0xD800..0xDC00).contains(&high) {
        return char::from_u32(high).ok_or_else(lone);
    }
    if rest.next() != Some('\\') || rest.next() != Some('u') {
        return Err(lone());
    }
    let low = hex(rest, 4)?.checked_sub(0xDC00).filter(|&low| low < 0x400).ok_or_else(lone)?;
    char::from_u32(0x10000 + ((high - 0xD800) << 10) + low).ok_or_else(lone)
}

fn hex(rest: &mut Peekable<Chars<'_>>, digits: usize) -> Result<u32, String> {
    (0..digits).try_fold(0, |code, _| {
        let digit = rest.next().and_then(|c| c.to_digit(16)).ok_or("an escape without hexadecimal digits")?;
        Ok(code << 4 | digit)
    })
}

/// A character class, after its bracket.
fn class(rest: &mut Peekable<Chars<'_>>, out: &mut String) -> Result<(), String> {
    let negated = rest.next_if_eq(&'^').is_some();
    if rest.next_if_eq(&']').is_some() {
        // `[^]` is any character, `[]` none.
        if !negated {
            return Err("an empty class".into());
        }
        out.push_str(r"[\x{0}-\x{10FFFF}]");
        return Ok(());
    }
    out.push_str(if negated { "[^" } else { "[" });
    loop {
        let from = match item(rest)? {
            None => break,
            Some(Escape::Char(c)) => c,
            Some(Escape::Class(class)) => {
                out.push_str(&class);
                continue;
            }
            Some(Escape::Boundary) => '\u{8}',
        };
        let mut ahead = rest.clone();
        let is_range = ahead.next() == Some('-') && ahead.next().is_some_and(|c| c != ']');
        if !is_range {
            push_char(out, from);
            continue;
        }
        rest.next();
        match item(rest)? {
            Some(Escape::Char(to)) if from <= to => {
                push_char(out, from);
                out.push('-');
                push_char(out, to);
            }
            Some(Escape::Char(_)) => return Err("a range in descending order".into()),
            _ => return Err("a range that ends in a class".into()),
        }
    }
    out.push(']');
    Ok(())
}

/// The next member of a class, `None` at its end.
fn item(rest: &mut Peekable<Chars<'_>>) -> Result<Option<Escape>, String> {
    match rest.next() {
        None => Err("a class without an end".into()),
        Some(']') => Ok(None),
        Some('\\') => escape(rest).map(Some),
        Some(c) => Ok(Some(Escape::Char(c))),
    }
}

/// The digits of a count, at most.
const DIGITS: usize = 7;

/// `{m}`, `{m,}` or `{m,n}`, if that is what follows the brace.
fn quantifier(rest: &Peekable<Chars<'_>>) -> Option<String> {
    // No further than the longest quantifier: each brace of a pattern may look ahead.
    let ahead: String = rest.clone().take(2 * DIGITS + 2).collect();
    let (body, _) = ahead.split_once('}')?;
    let number = |text: &str| (1..=DIGITS).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_digit());
    let (min, max) = body.split_once(',').unwrap_or((body, "0"));
    (number(min) && (max.is_empty() || number(max))).then(|| format!("{{{body}}}"))
}

/// A character as itself.
fn push_char(out: &mut String, c: char) {
    if c.is_ascii_alphanumeric() || (!c.is_ascii() && !c.is_control()) {
        out.push(c);
    } else {
        // Writing to a string cannot fail.
        let _ = write!(out, "\\x{{{:X}}}", c as u32);
    }
}

#[cfg(test)]
mod tests {
    use super::translate;

    #[test]
    fn patterns_keep_the_meaning_of_ecmascript() {
        let cases = [
            (r"^\d+$", r"^[0-9]+$"),
            (r"a.b", r"a[^\n\r\x{2028}\x{2029}]b"),
            (r"[\d-]", r"[[0-9]\x{2D}]"),
            (r"[a-f&&~]", r"[a-f\x{26}\x{26}\x{7E}]"),
            (r"[[]", r"[\x{5B}]"),
            (r"x{2,}y{,3}", r"x{2,}y\{\x{2C}3\x{7D}"),
            (r"(?<year>\d)\/", r"(?:[0-9])\x{2F}"),
            (r"\cC\x41\u{1F432}\uD83D\uDC32", "\\x{3}A🐲🐲"),
            (r"[\b]", r"[\x{8}]"),
        ];
        for (pattern, expected) in cases {
            assert_eq!(translate(pattern).as_deref(), Ok(expected), "{pattern}");
        }
    }

    #[test]
    fn what_the_engine_lacks_is_named() {
        let cases = [
            (r"\bword", "a word boundary"),
            (r"(?=a)", "a look-around assertion"),
            (r"(?<!a)b", "a look-around assertion"),
            (r"(a)\1", "a back-reference"),
            (r"(?i)a", "an inline flag"),
            (r"\Z", r"the escape \Z"),
            (r"[b-a]", "a range in descending order"),
            (r"[a", "a class without an end"),
            (r"\uD83D", "a lone surrogate"),
        ];
        for (pattern, expected) in cases {
            assert_eq!(translate(pattern), Err(expected.to_owned()), "{pattern}");
        }
    }
}
