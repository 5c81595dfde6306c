//! The parser of GBNF.

use std::collections::HashMap;

use super::LANGUAGE;
use super::ast::{Expr, Rule, Set};
use crate::{Error, Limits};

/// A parsed grammar. The first rule is `root`.
#[derive(Debug)]
pub(super) struct Grammar {
    pub(super) rules: Vec<Rule>,
}

/// Parses a grammar. References are resolved.
pub(super) fn parse(text: &str, limits: &Limits) -> Result<Grammar, Error> {
    let mut parser = Parser { text, at: 0, limits, names: HashMap::new(), rules: Vec::new() };
    parser.index("root", 0);
    parser.space(true);
    while parser.at < text.len() {
        parser.rule()?;
    }
    let mut rules = Vec::new();
    for (name, slot) in parser.rules {
        match slot {
            Slot::Defined(rule) => rules.push(rule),
            Slot::Used(offset) if name == "root" => {
                return Err(Error::syntax(LANGUAGE, text, offset, "there is no rule \"root\""));
            }
            Slot::Used(offset) => {
                return Err(Error::syntax(LANGUAGE, text, offset, format!("rule {name:?} is not defined")));
            }
        }
    }
    Ok(Grammar { rules })
}

/// A rule by its name.
enum Slot {
    /// Used at this byte, and not yet defined.
    Used(usize),
    Defined(Rule),
}

struct Parser<'a> {
    text: &'a str,
    at: usize,
    limits: &'a Limits,
    names: HashMap<String, usize>,
    rules: Vec<(String, Slot)>,
}

impl Parser<'_> {
    fn fail<T>(&self, offset: usize, message: impl Into<String>) -> Result<T, Error> {
        Err(Error::syntax(LANGUAGE, self.text, offset, message))
    }

    /// Says what was expected, and what is there.
    fn expected<T>(&self, what: &str) -> Result<T, Error> {
        match self.peek() {
            Some(c) => self.fail(self.at, format!("expected {what}, found {c:?}")),
            None => self.fail(self.at, format!("expected {what}, found the end")),
        }
    }

    fn peek(&self) -> Option<char> {
        self.text[self.at..].chars().next()
    }

    fn next(&mut self) -> Option<char> {
        let c = self.peek()?;
        self.at += c.len_utf8();
        Some(c)
    }

    fn eat(&mut self, text: &str) -> bool {
        let found = self.text[self.at..].starts_with(text);
        if found {
            self.at += text.len();
        }
        found
    }

    /// Skips spaces and comments, and ends of lines if asked.
    fn space(&mut self, lines: bool) {
        while let Some(c) = self.peek() {
            match c {
                ' ' | '\t' => self.at += 1,
                '\n' | '\r' if lines => self.at += 1,
                '#' => {
                    self.at += self.text[self.at..].find(['\n', '\r']).unwrap_or(self.text.len() - self.at)
                }
                _ => break,
            }
        }
    }

    fn name(&mut self) -> Option<String> {
        let rest = &self.text[self.at..];
        let end =
            rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '-' && c != '_').unwrap_or(rest.len());
        self.at += end;
        (end > 0).then(|| rest[..end].to_owned())
    }

    /// The index of a rule that is used at `offset`.
    fn index(&mut self, name: &str, offset: usize) -> usize {
        if let Some(&index) = self.names.get(name) {
            return index;
        }
        self.rules.push((name.to_owned(), Slot::Used(offset)));
        self.names.insert(name.to_owned(), self.rules.len() - 1);
        self.rules.len() - 1
    }

    fn rule(&mut self) -> Result<(), Error> {
        if self.rules.len() > self.limits.rules {
            return Err(self.limits.exceeded(
                "rules",
                self.limits.rules,
                "the grammar has more rules".into(),
            ));
        }
        let offset = self.at;
        let Some(name) = self.name() else { return self.expected("the name of a rule") };
        self.space(false);
        if !self.eat("::=") {
            return self.expected("\"::=\"");
        }
        self.space(true);
        let (body, _) = self.alternatives(0)?;
        if !matches!(self.peek(), None | Some('\n' | '\r')) {
            return self.expected("an element or the end of the line");
        }
        self.space(true);
        let index = self.index(&name, offset);
        if matches!(self.rules[index].1, Slot::Defined(_)) {
            return self.fail(offset, format!("rule {name:?} is defined twice"));
        }
        self.rules[index].1 = Slot::Defined(Rule { name, offset, body });
        Ok(())
    }

    /// The expression, and how deeply groups and repetitions are nested in it.
    fn alternatives(&mut self, depth: usize) -> Result<(Expr, usize), Error> {
        self.check_depth(depth)?;
        let (first, mut height) = self.sequence(depth)?;
        let mut all = vec![first];
        while self.eat("|") {
            self.space(true);
            let (next, inner) = self.sequence(depth)?;
            all.push(next);
            height = height.max(inner);
        }
        Ok((if all.len() == 1 { all.remove(0) } else { Expr::Alt(all) }, height))
    }

    fn sequence(&mut self, depth: usize) -> Result<(Expr, usize), Error> {
        let (mut parts, mut height) = (Vec::new(), 0);
        while let Some((part, inner)) = self.element(depth)? {
            let (part, inner) = self.repetitions(part, inner, depth)?;
            parts.push(part);
            height = height.max(inner);
            self.space(depth > 0);
        }
        Ok((if parts.len() == 1 { parts.remove(0) } else { Expr::Seq(parts) }, height))
    }

    /// Refuses what is nested too deeply at this place: all that follows recurses over the tree.
    fn check_depth(&self, depth: usize) -> Result<(), Error> {
        self.limits.check_depth_at(depth, self.text, self.at)
    }

    fn element(&mut self, depth: usize) -> Result<Option<(Expr, usize)>, Error> {
        let start = self.at;
        let mut height = 0;
        let expr = match self.peek() {
            Some('"') => self.literal()?,
            Some('[') => self.class()?,
            Some('.') => {
                self.at += 1;
                Expr::Class(Set::any())
            }
            Some('(') => {
                self.at += 1;
                self.space(true);
                let (group, inner) = self.alternatives(depth + 1)?;
                height = inner + 1;
                if !self.eat(")") {
                    return match self.peek() {
                        None => self.fail(start, "the group has no end"),
                        Some(_) => self.expected("an element or \")\""),
                    };
                }
                group
            }
            _ => match self.name() {
                Some(name) => Expr::Ref(self.index(&name, start)),
                None => return Ok(None),
            },
        };
        Ok(Some((expr, height)))
    }

    fn literal(&mut self) -> Result<Expr, Error> {
        let start = self.at;
        self.at += 1;
        let mut chars = Vec::new();
        while !self.eat("\"") {
            if self.peek().is_none() {
                return self.fail(start, "the literal has no end");
            }
            chars.push(Expr::Class(Set::one(self.char()?)));
        }
        Ok(if chars.len() == 1 { chars.remove(0) } else { Expr::Seq(chars) })
    }

    fn class(&mut self) -> Result<Expr, Error> {
        let start = self.at;
        self.at += 1;
        let negated = self.eat("^");
        let mut ranges = Vec::new();
        while !self.eat("]") {
            if self.peek().is_none() {
                return self.fail(start, "the class has no end");
            }
            let (at, from) = (self.at, self.char()?);
            let rest = &self.text[self.at..];
            let to = if rest.starts_with('-') && !rest.starts_with("-]") && rest.len() > 1 {
                self.at += 1;
                self.char()?
            } else {
                from
            };
            if from > to {
                return self.fail(at, format!("the range {from:?}-{to:?} is in descending order"));
            }
            ranges.push((from, to));
        }
        let set = Set::new(ranges);
        let set = if negated { set.complement() } else { set };
        if set.is_empty() {
            return self.fail(start, "the class has no character");
        }
        self.limits.check_class(set.ranges() as u64, self.text, start)?;
        Ok(Expr::Class(set))
    }

    /// A character of a literal or class.
    fn char(&mut self) -> Result<char, Error> {
        let start = self.at;
        match self.next() {
            Some('\\') => {}
            Some(c) => return Ok(c),
            None => return self.expected("a character"),
        }
        let hex = |parser: &mut Self, digits: usize| {
            let end = parser.at + digits;
            let code =
                parser.text.get(parser.at..end).filter(|code| code.bytes().all(|b| b.is_ascii_hexdigit()));
            let code = code.and_then(|code| u32::from_str_radix(code, 16).ok());
            match code.and_then(char::from_u32) {
                Some(c) => {
                    parser.at = end;
                    Ok(c)
                }
                None => {
                    parser.fail(start, format!("the escape needs {digits} hexadecimal digits of a character"))
                }
            }
        };
        match self.next() {
            Some('x') => hex(self, 2),
            Some('u') => hex(self, 4),
            Some('U') => hex(self, 8),
            Some('n') => Ok('\n'),
            Some('r') => Ok('\r'),
            Some('t') => Ok('\t'),
            Some('a') => Ok('\u{7}'),
            Some('b') => Ok('\u{8}'),
            Some('f') => Ok('\u{c}'),
            Some('v') => Ok('\u{b}'),
            Some('0') => Ok('\0'),
            Some(c @ ('\\' | '"' | '\'' | '[' | ']' | '-' | '^' | '/')) => Ok(c),
            Some(c) => self.fail(start, format!("unknown escape \\{c}")),
            None => self.fail(start, "a backslash at the end"),
        }
    }

    /// Applies the repetitions that follow an element, of which `height` levels are nested in one another.
    fn repetitions(
        &mut self,
        mut expr: Expr,
        mut height: usize,
        depth: usize,
    ) -> Result<(Expr, usize), Error> {
        loop {
            let (min, max) = match self.peek() {
                Some('{') => self.range()?,
                _ if self.eat("*") => (0, None),
                _ if self.eat("+") => (1, None),
                _ if self.eat("?") => (0, Some(1)),
                _ => return Ok((expr, height)),
            };
            let most = self.limits.repetition as u64;
            expr = match expr.folded(min, max, most) {
                Ok(folded) => folded,
                Err(inner) => {
                    height += usize::from(matches!(inner, Expr::Repeat { .. }));
                    self.check_depth(depth + height)?;
                    Expr::repeat(inner, min, max)
                }
            };
        }
    }

    /// `{m}`, `{m,}`, `{m,n}` or `{,n}`.
    fn range(&mut self) -> Result<(u32, Option<u32>), Error> {
        let start = self.at;
        self.at += 1;
        self.space(false);
        let min = self.number()?;
        self.space(false);
        let comma = self.eat(",");
        self.space(false);
        let max = if comma { self.number()? } else { min };
        self.space(false);
        if !self.eat("}") {
            return self.expected("a number, \",\" or \"}\"");
        }
        match (min, max) {
            (None, None) => self.fail(start, "the repetition has no number"),
            (Some(min), Some(max)) if min > max => {
                self.fail(start, format!("the repetition {min} to {max} is empty"))
            }
            (min, max) => Ok((min.unwrap_or(0), max)),
        }
    }

    fn number(&mut self) -> Result<Option<u32>, Error> {
        let rest = &self.text[self.at..];
        let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        self.at += end;
        if end == 0 {
            return Ok(None);
        }
        let number = rest[..end].parse::<u64>().unwrap_or(u64::MAX);
        self.limits.check_repetition(number, "a count of the grammar")?;
        Ok(u32::try_from(number).ok())
    }
}
