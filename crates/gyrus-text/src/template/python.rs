//! Python's string classification and formatting, because the output must equal Python's.

/// `str.isspace` of one character: Unicode's White_Space and the four information separators.
pub(crate) fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\x1c'..='\x1f').contains(&c)
}

/// `repr` of a float: the shortest digits that read back, with an exponent from 1e16 and below 1e-4.
pub(crate) fn float(value: f64) -> String {
    if value.is_nan() {
        return "nan".into();
    }
    if value.is_infinite() {
        return if value < 0.0 { "-inf".into() } else { "inf".into() };
    }
    let scientific = format!("{value:e}");
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..16).contains(&exponent) {
        let plain = format!("{value}");
        return if plain.contains('.') { plain } else { plain + ".0" };
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{mantissa}e{sign}{:02}", exponent.unsigned_abs())
}

/// `repr` of a string.
pub(crate) fn quote(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(quote);
    for c in text.chars() {
        match c {
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\\' => out.push_str("\\\\"),
            c if c == quote => {
                out.push('\\');
                out.push(c);
            }
            ' '..='~' => out.push(c),
            c if is_printable(c) => out.push(c),
            c => {
                let code = c as u32;
                out.push_str(&match code {
                    0..=0xff => format!("\\x{code:02x}"),
                    0x100..=0xffff => format!("\\u{code:04x}"),
                    _ => format!("\\U{code:08x}"),
                });
            }
        }
    }
    out.push(quote);
    out
}

/// `str.isprintable` of a character beyond ASCII. Rust's debug escapes agree with it. The letter before the character
/// prevents the escape of combining marks, which happens only at the start of a string.
fn is_printable(c: char) -> bool {
    let mut pair = String::with_capacity(5);
    pair.push('a');
    pair.push(c);
    pair.escape_debug().nth(1) == Some(c) && c != '\\'
}

/// `str.capitalize`.
pub(crate) fn capitalize(text: &str) -> String {
    let mut chars = text.chars();
    match chars.next() {
        Some(first) => title_char(first) + &chars.as_str().to_lowercase(),
        None => String::new(),
    }
}

/// `str.title`: a cased character after an uncased one starts a word.
pub(crate) fn title(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut inside = false;
    for c in text.chars() {
        if inside {
            out.extend(c.to_lowercase());
        } else {
            out.push_str(&title_char(c));
        }
        inside = c.is_lowercase() || c.is_uppercase();
    }
    out
}

/// Titlecase differs from uppercase where a capital expands to several letters: `ß` gives `Ss`.
fn title_char(c: char) -> String {
    match c {
        'Ǆ' | 'ǅ' | 'ǆ' => "ǅ".into(),
        'Ǉ' | 'ǈ' | 'ǉ' => "ǈ".into(),
        'Ǌ' | 'ǋ' | 'ǌ' => "ǋ".into(),
        'Ǳ' | 'ǲ' | 'ǳ' => "ǲ".into(),
        _ => {
            let mut upper = c.to_uppercase();
            let mut out: String = upper.next().into_iter().collect();
            out.extend(upper.flat_map(char::to_lowercase));
            out
        }
    }
}

/// `str.splitlines`, with or without the line ends.
pub(crate) fn split_lines(text: &str, keep_ends: bool) -> Vec<&str> {
    let mut lines = Vec::new();
    let mut start = 0;
    let mut chars = text.char_indices().peekable();
    while let Some((at, c)) = chars.next() {
        let ends =
            matches!(c, '\n' | '\r' | '\x0b' | '\x0c' | '\x1c'..='\x1e' | '\u{85}' | '\u{2028}' | '\u{2029}');
        if !ends {
            continue;
        }
        let mut next = at + c.len_utf8();
        if c == '\r' && chars.next_if(|&(_, c)| c == '\n').is_some() {
            next += 1;
        }
        lines.push(&text[start..if keep_ends { next } else { at }]);
        start = next;
    }
    if start < text.len() {
        lines.push(&text[start..]);
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_are_spelled_as_python_spells_them() {
        for (value, text) in [
            (1.0, "1.0"),
            (0.1, "0.1"),
            (-0.0, "-0.0"),
            (1e16, "1e+16"),
            (1.5e300, "1.5e+300"),
            (123456789012345680.0, "1.2345678901234568e+17"),
            (9999999999999998.0, "9999999999999998.0"),
            (0.0001, "0.0001"),
            (0.00001, "1e-05"),
            (5e-324, "5e-324"),
        ] {
            assert_eq!(float(value), text);
        }
    }

    #[test]
    fn strings_are_quoted_as_python_quotes_them() {
        for (text, quoted) in [
            ("a", "'a'"),
            ("it's", "\"it's\""),
            ("'\"", "'\\'\"'"),
            ("\n\x00é\u{200b}\u{301}😀\u{e000}", "'\\n\\x00é\\u200b\u{301}😀\\ue000'"),
        ] {
            assert_eq!(quote(text), quoted);
        }
    }
}
