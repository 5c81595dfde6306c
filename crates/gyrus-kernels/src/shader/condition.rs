//! The expressions behind `#if`: names, numbers and words, compared and combined.

use std::collections::BTreeMap;
use std::iter::Peekable;

/// The values of names in a shader's source.
pub(crate) type Constants = BTreeMap<String, String>;

/// Evaluates a condition such as `STORAGE == f16 && !(LANES > 4)`.
///
/// An undefined name is an error unless it is the right side of a comparison: a misspelt switch would otherwise
/// silently choose the other branch.
pub(crate) fn holds(text: &str, constants: &Constants) -> Result<bool, String> {
    let tokens = scan(text)?;
    let mut parser = Parser { tokens: tokens.into_iter().peekable(), constants };
    let value = parser.either()?;
    match parser.tokens.next() {
        None => Ok(value),
        Some(token) => Err(format!("'{}' is left over", token.text())),
    }
}

#[derive(Debug, Clone, PartialEq)]
enum Token {
    Word(String),
    Symbol(&'static str),
}

impl Token {
    fn text(&self) -> &str {
        match self {
            Token::Word(word) => word,
            Token::Symbol(symbol) => symbol,
        }
    }
}

const SYMBOLS: [&str; 11] = ["==", "!=", "<=", ">=", "&&", "||", "<", ">", "!", "(", ")"];

fn scan(text: &str) -> Result<Vec<Token>, String> {
    let mut tokens = Vec::new();
    let mut rest = text.trim();
    while let Some(first) = rest.chars().next() {
        let length = if first.is_ascii_alphanumeric() || first == '_' {
            let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len());
            tokens.push(Token::Word(rest[..end].to_owned()));
            end
        } else if let Some(symbol) = SYMBOLS.iter().find(|symbol| rest.starts_with(**symbol)) {
            tokens.push(Token::Symbol(symbol));
            symbol.len()
        } else {
            return Err(format!("'{first}' has no meaning in a condition"));
        };
        rest = rest[length..].trim_start();
    }
    Ok(tokens)
}

struct Parser<'a> {
    tokens: Peekable<std::vec::IntoIter<Token>>,
    constants: &'a Constants,
}

impl Parser<'_> {
    fn takes(&mut self, symbol: &str) -> bool {
        self.tokens.next_if(|token| matches!(token, Token::Symbol(s) if *s == symbol)).is_some()
    }

    fn either(&mut self) -> Result<bool, String> {
        let mut value = self.both()?;
        while self.takes("||") {
            let right = self.both()?;
            value = value || right;
        }
        Ok(value)
    }

    fn both(&mut self) -> Result<bool, String> {
        let mut value = self.comparison()?;
        while self.takes("&&") {
            let right = self.comparison()?;
            value = value && right;
        }
        Ok(value)
    }

    fn comparison(&mut self) -> Result<bool, String> {
        if self.takes("!") {
            return Ok(!self.comparison()?);
        }
        if self.takes("(") {
            let value = self.either()?;
            return if self.takes(")") { Ok(value) } else { Err("a ')' is missing".to_owned()) };
        }
        let name = self.word()?;
        let left = self.value(&name)?;
        let symbol = match self.tokens.peek() {
            Some(Token::Symbol(s)) if ["==", "!=", "<=", ">=", "<", ">"].contains(s) => *s,
            _ => {
                return left
                    .parse::<i64>()
                    .map(|number| number != 0)
                    .map_err(|_| format!("{name} is '{left}', not a number: compare it with something"));
            }
        };
        self.tokens.next();
        let word = self.word()?;
        let right = self.constants.get(&word).unwrap_or(&word).clone();
        let order = match (left.parse::<i64>(), right.parse::<i64>()) {
            (Ok(a), Ok(b)) => a.cmp(&b),
            _ if symbol == "==" || symbol == "!=" => left.cmp(&right),
            _ => return Err(format!("'{left}' {symbol} '{right}' compares something that is not a number")),
        };
        Ok(match symbol {
            "==" => order.is_eq(),
            "!=" => order.is_ne(),
            "<=" => order.is_le(),
            ">=" => order.is_ge(),
            "<" => order.is_lt(),
            _ => order.is_gt(),
        })
    }

    fn word(&mut self) -> Result<String, String> {
        match self.tokens.next() {
            Some(Token::Word(word)) => Ok(word),
            Some(Token::Symbol(symbol)) => Err(format!("'{symbol}' where a name or number belongs")),
            None => Err("the condition ends where a name or number belongs".to_owned()),
        }
    }

    fn value(&self, word: &str) -> Result<String, String> {
        if word.starts_with(|c: char| c.is_ascii_digit()) {
            return Ok(word.to_owned());
        }
        self.constants.get(word).cloned().ok_or_else(|| format!("{word} is not defined"))
    }
}

/// Replaces every defined name in a line of source by its value; `##` between two words then joins them. Results are
/// not expanded again.
pub(crate) fn substitute(line: &str, constants: &Constants) -> String {
    let of_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let mut out = String::with_capacity(line.len());
    let mut rest = line;
    while let Some(c) = rest.chars().next() {
        if of_word(c) {
            let (word, after) = rest.split_at(rest.find(|c| !of_word(c)).unwrap_or(rest.len()));
            out.push_str(constants.get(word).map_or(word, String::as_str));
            let joined = after.strip_prefix("##").filter(|next| next.starts_with(of_word));
            rest = joined.unwrap_or(after);
        } else if rest.starts_with("//") {
            // Names in comments are not replaced.
            out.push_str(rest);
            break;
        } else {
            out.push(c);
            rest = &rest[c.len_utf8()..];
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn constants() -> Constants {
        [("STORAGE", "f16"), ("LANES", "8"), ("OFF", "0")]
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .into()
    }

    #[test]
    fn conditions_compare_and_combine() {
        for (text, expected) in [
            ("LANES", true),
            ("OFF", false),
            ("!OFF", true),
            ("STORAGE == f16", true),
            ("STORAGE != f16", false),
            ("STORAGE == f32 || LANES >= 8", true),
            ("STORAGE == f16 && LANES < 8", false),
            ("!(STORAGE == f16 && OFF)", true),
            ("LANES == 8", true),
            ("10 > LANES", true),
        ] {
            assert_eq!(holds(text, &constants()), Ok(expected), "{text}");
        }
    }

    #[test]
    fn what_is_not_a_condition_is_named() {
        for (text, part) in [
            ("STORGE == f16", "STORGE is not defined"),
            ("STORAGE", "STORAGE is 'f16', not a number"),
            ("STORAGE < 4", "compares something that is not a number"),
            ("(LANES", "')' is missing"),
            ("LANES ==", "ends where"),
            ("LANES 8", "'8' is left over"),
            ("LANES + 1", "'+' has no meaning"),
            ("", "ends where"),
            ("&& LANES", "'&&' where a name"),
        ] {
            let error = holds(text, &constants()).unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    #[test]
    fn names_are_replaced_whole_and_not_in_comments() {
        assert_eq!(
            substitute("let x = LANES * MY_LANES; // LANES", &constants()),
            "let x = 8 * MY_LANES; // LANES"
        );
    }
    #[test]
    fn words_are_joined_after_they_are_replaced() {
        for (line, expected) in [
            ("a##LANES = LANES##u;", "a8 = 8u;"),
            ("a##OFF##LANES", "a08"),
            // Undefined words are joined too, and the result is not replaced.
            ("x##y", "xy"),
            ("LAN##ES", "LANES"),
            // `##` joins only if there is a word on either side.
            ("a ##LANES a## LANES a##", "a ##8 a## 8 a##"),
            ("(a)##LANES", "(a)##8"),
            ("a // b##LANES", "a // b##LANES"),
        ] {
            assert_eq!(substitute(line, &constants()), expected, "{line}");
        }
    }
}
