//! Expressions: Jinja's grammar, by precedence.

use std::sync::Arc;

use super::ast::{Args, Binary, Comparison, Expr, ExprKind, Unary};
use super::error::{Fault, Limit, Outcome, offset};
use super::lexer::Tok;
use super::parser::{MAX_EXPR_HEIGHT, MAX_NESTING, Parser};

/// Precedence levels, the loosest first.
const OR: u8 = 0;
const AND: u8 = 1;
const NOT: u8 = 2;
const COMPARE: u8 = 3;
const SUM: u8 = 4;
const CONCAT: u8 = 5;
const PRODUCT: u8 = 6;
const POWER: u8 = 7;

impl Parser {
    /// Builds a node one level above its highest child.
    fn node(&self, at: usize, below: u16, kind: ExprKind) -> Outcome<Expr> {
        if below >= MAX_EXPR_HEIGHT {
            return Err(Fault::limit(Limit::Depth, u64::from(MAX_EXPR_HEIGHT)).or_at(offset(at)));
        }
        Ok(Expr { at: offset(at), height: below + 1, kind })
    }

    /// One expression, or several separated by commas as a tuple.
    pub(super) fn tuple(&mut self, with_choice: bool) -> Outcome<Expr> {
        let at = self.here();
        let first = if with_choice { self.expression()? } else { self.binary(OR)? };
        if !self.is_op(",") {
            return Ok(first);
        }
        let mut items = vec![first];
        while self.skip_op(",") {
            let ends = matches!(self.peek(), Tok::StatementEnd | Tok::PrintEnd | Tok::End)
                || self.is_op(")")
                || self.is_name("recursive");
            if ends {
                break;
            }
            items.push(if with_choice { self.expression()? } else { self.binary(OR)? });
        }
        let below = highest(&items);
        self.node(at, below, ExprKind::Tuple(items))
    }

    /// `a if test else b`, or an expression of higher precedence.
    pub(super) fn expression(&mut self) -> Outcome<Expr> {
        self.height += 1;
        if self.height > MAX_NESTING {
            return Err(Fault::limit(Limit::Depth, u64::from(MAX_NESTING)).or_at(offset(self.here())));
        }
        let at = self.here();
        let mut expr = self.binary(OR)?;
        while self.skip_name("if") {
            let test = self.binary(OR)?;
            let otherwise = if self.skip_name("else") { Some(Box::new(self.expression()?)) } else { None };
            let below = expr.height.max(test.height).max(otherwise.as_ref().map_or(0, |e| e.height));
            let kind = ExprKind::Choice { test: Box::new(test), then: Box::new(expr), otherwise };
            expr = self.node(at, below, kind)?;
        }
        self.height -= 1;
        Ok(expr)
    }

    /// Operators of at least this precedence, by precedence climbing: nesting costs few stack frames, and a chain of
    /// operators none.
    fn binary(&mut self, level: u8) -> Outcome<Expr> {
        let at = self.here();
        let mut left = if level <= NOT && self.is_name("not") { self.not()? } else { self.unary()? };
        while let Some(found) = self.operator().filter(|&found| found >= level) {
            left = match found {
                COMPARE => self.compare(at, left)?,
                CONCAT => self.concat(at, left)?,
                _ => self.pair(at, left, found)?,
            };
        }
        Ok(left)
    }

    /// The precedence of the current binary operator.
    fn operator(&self) -> Option<u8> {
        Some(match self.peek() {
            Tok::Op("+" | "-") => SUM,
            Tok::Op("~") => CONCAT,
            Tok::Op("*" | "/" | "//" | "%") => PRODUCT,
            Tok::Op("**") => POWER,
            Tok::Name(name) if &**name == "or" => OR,
            Tok::Name(name) if &**name == "and" => AND,
            _ if self.comparison().is_some() => COMPARE,
            _ => return None,
        })
    }

    /// The current comparison operator, and its length in tokens.
    fn comparison(&self) -> Option<(Comparison, usize)> {
        Some(match self.peek() {
            Tok::Op("==") => (Comparison::Equal, 1),
            Tok::Op("!=") => (Comparison::NotEqual, 1),
            Tok::Op("<") => (Comparison::Less, 1),
            Tok::Op("<=") => (Comparison::LessOrEqual, 1),
            Tok::Op(">") => (Comparison::Greater, 1),
            Tok::Op(">=") => (Comparison::GreaterOrEqual, 1),
            Tok::Name(name) if &**name == "in" => (Comparison::In, 1),
            Tok::Name(name) if &**name == "not" => match self.peek_at(1) {
                Tok::Name(next) if &**next == "in" => (Comparison::NotIn, 2),
                _ => return None,
            },
            _ => return None,
        })
    }

    fn pair(&mut self, at: usize, left: Expr, level: u8) -> Outcome<Expr> {
        let operator = self.peek().clone();
        self.at += 1;
        let right = self.binary(level + 1)?;
        let below = left.height.max(right.height);
        let (left, right) = (Box::new(left), Box::new(right));
        let kind = match operator {
            Tok::Op("+") => ExprKind::Binary(Binary::Add, left, right),
            Tok::Op("-") => ExprKind::Binary(Binary::Subtract, left, right),
            Tok::Op("*") => ExprKind::Binary(Binary::Multiply, left, right),
            Tok::Op("/") => ExprKind::Binary(Binary::Divide, left, right),
            Tok::Op("//") => ExprKind::Binary(Binary::FloorDivide, left, right),
            Tok::Op("%") => ExprKind::Binary(Binary::Remainder, left, right),
            Tok::Op("**") => ExprKind::Binary(Binary::Power, left, right),
            _ if level == AND => ExprKind::And(left, right),
            _ => ExprKind::Or(left, right),
        };
        self.node(at, below, kind)
    }

    fn concat(&mut self, at: usize, left: Expr) -> Outcome<Expr> {
        let mut parts = vec![left];
        while self.skip_op("~") {
            parts.push(self.binary(PRODUCT)?);
        }
        let below = highest(&parts);
        self.node(at, below, ExprKind::Concat(parts))
    }

    fn compare(&mut self, at: usize, left: Expr) -> Outcome<Expr> {
        let mut rest = Vec::new();
        while let Some((comparison, length)) = self.comparison() {
            self.at += length;
            rest.push((comparison, self.binary(SUM)?));
        }
        let below = rest.iter().map(|(_, e)| e.height).max().unwrap_or(0).max(left.height);
        self.node(at, below, ExprKind::Compare(Box::new(left), rest))
    }

    fn not(&mut self) -> Outcome<Expr> {
        let at = self.here();
        let mut negations = 0usize;
        while self.skip_name("not") {
            negations += 1;
        }
        let mut expr = self.binary(COMPARE)?;
        for _ in 0..negations {
            let below = expr.height;
            expr = self.node(at, below, ExprKind::Unary(Unary::Not, Box::new(expr)))?;
        }
        Ok(expr)
    }

    fn unary(&mut self) -> Outcome<Expr> {
        let at = self.here();
        let mut signs = Vec::new();
        loop {
            match self.peek() {
                Tok::Op("-") => signs.push(Unary::Minus),
                Tok::Op("+") => signs.push(Unary::Plus),
                _ => break,
            }
            self.at += 1;
        }
        let primary = self.primary()?;
        let mut expr = self.postfix(primary)?;
        for sign in signs.into_iter().rev() {
            let below = expr.height;
            expr = self.node(at, below, ExprKind::Unary(sign, Box::new(expr)))?;
        }
        self.filters_and_tests(expr)
    }

    fn primary(&mut self) -> Outcome<Expr> {
        let at = self.here();
        let kind = match self.peek().clone() {
            Tok::Name(name) => {
                self.at += 1;
                match &*name {
                    "true" | "True" => ExprKind::Bool(true),
                    "false" | "False" => ExprKind::Bool(false),
                    "none" | "None" => ExprKind::None,
                    other => {
                        match other {
                            "varargs" => self.names.varargs += 1,
                            "kwargs" => self.names.kwargs += 1,
                            "caller" => self.names.caller += 1,
                            _ => {}
                        }
                        ExprKind::Name(name)
                    }
                }
            }
            Tok::Str(text) => {
                self.at += 1;
                let mut text = text;
                while let Tok::Str(more) = self.peek() {
                    text = format!("{text}{more}").into();
                    self.at += 1;
                }
                ExprKind::Str(text)
            }
            Tok::Int(value) => {
                self.at += 1;
                ExprKind::Int(value)
            }
            Tok::Float(value) => {
                self.at += 1;
                ExprKind::Float(value)
            }
            Tok::Op("(") => return self.parenthesised(at),
            Tok::Op("[") => return self.list(at),
            Tok::Op("{") => return self.dict(at),
            _ => return self.unexpected("an expression"),
        };
        self.node(at, 0, kind)
    }

    fn parenthesised(&mut self, at: usize) -> Outcome<Expr> {
        self.expect_op("(")?;
        if self.skip_op(")") {
            return self.node(at, 0, ExprKind::Tuple(Vec::new()));
        }
        let inner = self.tuple(true)?;
        self.expect_op(")")?;
        Ok(inner)
    }

    fn list(&mut self, at: usize) -> Outcome<Expr> {
        self.expect_op("[")?;
        let mut items = Vec::new();
        while !self.skip_op("]") {
            if !items.is_empty() {
                self.expect_op(",")?;
                if self.skip_op("]") {
                    break;
                }
            }
            items.push(self.expression()?);
        }
        let below = highest(&items);
        self.node(at, below, ExprKind::List(items))
    }

    fn dict(&mut self, at: usize) -> Outcome<Expr> {
        self.expect_op("{")?;
        let mut items: Vec<(Expr, Expr)> = Vec::new();
        while !self.skip_op("}") {
            if !items.is_empty() {
                self.expect_op(",")?;
                if self.skip_op("}") {
                    break;
                }
            }
            let key = self.expression()?;
            self.expect_op(":")?;
            items.push((key, self.expression()?));
        }
        let below = items.iter().map(|(k, v)| k.height.max(v.height)).max().unwrap_or(0);
        self.node(at, below, ExprKind::Dict(items))
    }

    fn postfix(&mut self, mut expr: Expr) -> Outcome<Expr> {
        loop {
            let at = self.here();
            if self.skip_op(".") {
                let below = expr.height;
                expr = match self.peek().clone() {
                    Tok::Name(name) => {
                        self.at += 1;
                        self.node(at, below, ExprKind::Attribute(Box::new(expr), name))?
                    }
                    Tok::Int(index) => {
                        self.at += 1;
                        let index = self.node(at, 0, ExprKind::Int(index))?;
                        self.node(at, below, ExprKind::Item(Box::new(expr), Box::new(index)))?
                    }
                    _ => return self.unexpected("a name or number"),
                };
            } else if self.skip_op("[") {
                expr = self.subscript(expr, at)?;
            } else if self.is_op("(") {
                expr = self.call(expr)?;
            } else {
                return Ok(expr);
            }
        }
    }

    fn call(&mut self, function: Expr) -> Outcome<Expr> {
        let at = function.at as usize;
        let (args, below) = self.arguments()?;
        let below = below.max(function.height);
        self.node(at, below, ExprKind::Call(Box::new(function), Box::new(args)))
    }

    fn subscript(&mut self, subject: Expr, at: usize) -> Outcome<Expr> {
        let mut parts: [Option<Box<Expr>>; 3] = [None, None, None];
        let mut part = 0;
        let mut below = subject.height;
        while !self.is_op("]") {
            if self.skip_op(":") {
                part += 1;
                if part > 2 {
                    return self.unexpected("']'");
                }
            } else if parts[part].is_some() {
                return self.unexpected("':' or ']'");
            } else {
                let expr = self.expression()?;
                below = below.max(expr.height);
                parts[part] = Some(Box::new(expr));
            }
        }
        self.expect_op("]")?;
        if part > 0 {
            return self.node(at, below, ExprKind::Slice(Box::new(subject), Box::new(parts)));
        }
        match parts {
            [Some(index), ..] => self.node(at, below, ExprKind::Item(Box::new(subject), index)),
            _ => Err(Fault::syntax(at, "expected an index between the brackets")),
        }
    }

    fn filters_and_tests(&mut self, mut expr: Expr) -> Outcome<Expr> {
        loop {
            if self.skip_op("|") {
                expr = self.filters(Some(expr))?;
            } else if self.skip_name("is") {
                expr = self.test(expr)?;
            } else if self.is_op("(") {
                // A filter's result can be called.
                expr = self.call(expr)?;
            } else {
                return Ok(expr);
            }
        }
    }

    /// `name(args) | name(args) …` after the first `|`; the subject may come later.
    pub(super) fn filters(&mut self, mut subject: Option<Expr>) -> Outcome<Expr> {
        loop {
            let at = self.here();
            let name = self.dotted_name()?;
            let (args, below) = if self.is_op("(") { self.arguments()? } else { (Args::default(), 0) };
            let below = below.max(subject.as_ref().map_or(0, |e| e.height));
            let expr = self.node(at, below, ExprKind::Filter(subject.map(Box::new), name, Box::new(args)))?;
            if !self.skip_op("|") {
                return Ok(expr);
            }
            subject = Some(expr);
        }
    }

    fn dotted_name(&mut self) -> Outcome<Arc<str>> {
        let mut name = self.identifier()?;
        while self.skip_op(".") {
            name = format!("{name}.{}", self.identifier()?).into();
        }
        Ok(name)
    }

    fn test(&mut self, subject: Expr) -> Outcome<Expr> {
        let at = self.here();
        let negated = self.skip_name("not");
        let name = self.dotted_name()?;
        let mut below = subject.height;
        let mut args = Args::default();
        let takes_argument = match self.peek() {
            Tok::Op("(") => {
                let inner;
                (args, inner) = self.arguments()?;
                below = below.max(inner);
                false
            }
            Tok::Name(next) if &**next == "is" => {
                return Err(Fault::syntax(self.here(), "tests cannot be chained with 'is'"));
            }
            // Any other name is the argument, even `if` and `not`, as in Jinja.
            Tok::Name(next) => !matches!(&**next, "else" | "or" | "and"),
            Tok::Str(_) | Tok::Int(_) | Tok::Float(_) | Tok::Op("[" | "{") => true,
            _ => false,
        };
        if takes_argument {
            let primary = self.primary()?;
            let argument = self.postfix(primary)?;
            below = below.max(argument.height);
            args.positional.push(argument);
        }
        let expr = self.node(at, below, ExprKind::Test(Box::new(subject), name, Box::new(args)))?;
        if negated {
            let below = expr.height;
            return self.node(at, below, ExprKind::Unary(Unary::Not, Box::new(expr)));
        }
        Ok(expr)
    }

    /// Arguments in parentheses, and the height of the highest.
    fn arguments(&mut self) -> Outcome<(Args, u16)> {
        self.expect_op("(")?;
        let mut args = Args::default();
        let mut below = 0;
        let mut first = true;
        while !self.skip_op(")") {
            if !std::mem::take(&mut first) {
                self.expect_op(",")?;
                if self.skip_op(")") {
                    break;
                }
            }
            let at = self.here();
            let late = |what: &str| Err(Fault::syntax(at, format!("{what} is not allowed here")));
            if self.skip_op("**") {
                if args.dict.is_some() {
                    return late("a second '**'");
                }
                let value = self.expression()?;
                below = below.max(value.height);
                args.dict = Some(Box::new(value));
            } else if self.skip_op("*") {
                if args.list.is_some() || args.dict.is_some() {
                    return late("this '*'");
                }
                let value = self.expression()?;
                below = below.max(value.height);
                args.list = Some(Box::new(value));
            } else if matches!(self.peek(), Tok::Name(_)) && *self.peek_at(1) == Tok::Op("=") {
                if args.dict.is_some() {
                    return late("a named argument after '**'");
                }
                let name = self.identifier()?;
                self.expect_op("=")?;
                let value = self.expression()?;
                below = below.max(value.height);
                args.named.push((name, value));
            } else {
                if args.list.is_some() || args.dict.is_some() || !args.named.is_empty() {
                    return late("a positional argument");
                }
                let value = self.expression()?;
                below = below.max(value.height);
                args.positional.push(value);
            }
        }
        Ok((args, below))
    }
}

fn highest(items: &[Expr]) -> u16 {
    items.iter().map(|item| item.height).max().unwrap_or(0)
}
