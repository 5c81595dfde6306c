//! Grammars in the engine's dialect of Lark: bounds on what the engine recurses over.

use crate::{Error, Limits};

/// What comes before a value in JSON, in which colons define nothing.
const JSON: [&[u8]; 3] = [b"%json", b"%regex", b"%llguidance"];

/// Refuses brackets that are nested too deeply, and more brackets and definitions than a chain may have: the engine
/// recurses over groups and over the rules in them.
pub(crate) fn check(text: &str, limits: &Limits) -> Result<(), Error> {
    limits.check_source(text)?;
    let bytes = text.as_bytes();
    let (mut at, mut depth, mut levels) = (0, 0usize, 0);
    // The depth outside a value in JSON.
    let mut json = None;
    while let Some(&byte) = bytes.get(at) {
        let rest = &bytes[at..];
        match byte {
            b'"' | b'/' | b'#' | b'<' => {
                at += quoted(rest);
                continue;
            }
            b'%' if json.is_none() && opens_json(rest) => json = Some(depth),
            b'(' | b'[' | b'{' => {
                depth += 1;
                limits.check_depth_at(depth, text, at)?;
                levels += usize::from(json.is_none());
            }
            b')' | b']' | b'}' => {
                depth = depth.saturating_sub(1);
                json = json.filter(|&outside| depth > outside);
            }
            b':' => levels += usize::from(json.is_none()),
            _ => {}
        }
        if levels > limits.chain {
            let (line, column) = Error::place(text, at);
            let reason =
                format!("the grammar has more groups and definitions, at line {line}, column {column}");
            return Err(limits.exceeded("chain", limits.chain, reason));
        }
        at += 1;
    }
    Ok(())
}

/// Whether a list or an object in JSON begins here. Other values have neither brackets nor colons outside strings, and nothing
/// would end them.
fn opens_json(rest: &[u8]) -> bool {
    let values = JSON.iter().filter_map(|name| rest.strip_prefix(*name));
    values.map(<[u8]>::trim_ascii_start).any(|value| matches!(value.first(), Some(b'{' | b'[')))
}

/// The length of the string, regular expression, comment or name of a token that begins here, or one byte.
fn quoted(rest: &[u8]) -> usize {
    let line = || rest.iter().position(|&byte| byte == b'\n').unwrap_or(rest.len());
    match rest {
        [b'#', ..] | [b'/', b'/', ..] => line(),
        [b'<', name @ ..] => {
            let end = name.iter().position(|byte| b"<>".contains(byte) || byte.is_ascii_whitespace());
            end.filter(|&end| end > 0 && name[end] == b'>').map_or(1, |end| end + 2)
        }
        [quote, ..] => {
            let mut at = 1;
            while let Some(&byte) = rest.get(at) {
                match byte {
                    b'\\' => at += 1,
                    byte if byte == *quote => return at + 1,
                    _ => {}
                }
                at += 1;
            }
            rest.len()
        }
        [] => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_brackets_and_colons_of_the_grammar_count() {
        let limits = Limits { depth: 2, chain: 8, ..Limits::default() };
        let sound = [
            "start: \"(((((::::::::::\" /[(]{((((((:::::::::/ # ((((((((:::::::::\n // ((((\nb: <|((((|>",
            "start: %json {\"a\": {\"b\":1,\"c\":1,\"d\":1,\"e\":1,\"f\":1,\"g\":1,\"h\":1}}\nb: (\"x\" (b))",
            "start: \"\\\"((((\" /\\/((((/",
        ];
        for text in sound {
            assert_eq!(check(text, &limits), Ok(()), "{text}");
        }
        let message = |text: &str| check(text, &limits).unwrap_err().to_string();
        assert_eq!(
            message("start: a\na: (\"x\" [(\"y\")])"),
            "the constraint exceeds the limit `depth` of 2: line 2, column 10 is nested more deeply"
        );
        let chain = "a: b\n".repeat(9);
        assert_eq!(
            message(&chain),
            "the constraint exceeds the limit `chain` of 8: the grammar has more groups and definitions, at line 9, column 2"
        );
        assert!(message("a: <\"> (((").contains("`depth`"), "the quote is part of a token's name");
        assert!(message("a: %json {} b:::::::::").contains("`chain`"), "a value in JSON ends");
        for value in ["true", "1", "null", "\":\""] {
            let text = format!("a: %json {value}\n{}", "b: c\n".repeat(9));
            assert!(message(&text).contains("`chain`"), "{value} is no list or object");
        }
    }
}
