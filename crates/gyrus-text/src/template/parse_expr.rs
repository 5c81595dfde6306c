//! Expressions: Jinja's grammar, by precedence.

use std::sync::Arc;

use super::ast::{Args, Binary, Comparison, Expr, ExprKind, Unary};
use super::error::{Fault, Limit, Outcome, offset};
use super::lexer::Tok;
use super::parser::{MAX_EXPR_HEIGHT, Parser};

/// Binds looser to tighter: sums, concatenation, products, powers.
const SUM: u8 = 0;
const CONCAT: u8 = 1;
const PRODUCT: u8 = 2;
const POWER: u8 = 3;

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
        let first = if with_choice { self.expression()? } else { self.or()? };
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
            items.push(if with_choice { self.expression()? } else { self.or()? });
        }
        let below = highest(&items);
        self.node(at, below, ExprKind::Tuple(items))
    }

    /// `a if test else b`, or anything tighter.
    pub(super) fn expression(&mut self) -> Outcome<Expr> {
        self.height += 1;
        if self.height > MAX_EXPR_HEIGHT {
            return Err(Fault::limit(Limit::Depth, u64::from(MAX_EXPR_HEIGHT)).or_at(offset(self.here())));
        }
        let at = self.here();
        let mut expr = self.or()?;
        while self.skip_name("if") {
            let test = self.or()?;
            let otherwise = if self.skip_name("else") { Some(Box::new(self.expression()?)) } else { None };
            let below = expr.height.max(test.height).max(otherwise.as_ref().map_or(0, |e| e.height));
            let kind = ExprKind::Choice { test: Box::new(test), then: Box::new(expr), otherwise };
            expr = self.node(at, below, kind)?;
        }
        self.height -= 1;
        Ok(expr)
    }

    fn or(&mut self) -> Outcome<Expr> {
        let at = self.here();
        let mut left = self.and()?;
        while self.skip_name("or") {
            let right = self.and()?;
            let below = left.height.max(right.height);
            left = self.node(at, below, ExprKind::Or(Box::new(left), Box::new(right)))?;
        }
        Ok(left)
    }

    fn and(&mut self) -> Outcome<Expr> {
        let at = self.here();
        let mut left = self.not()?;
        while self.skip_name("and") {
            let right = self.not()?;
            let below = left.height.max(right.height);
            left = self.node(at, below, ExprKind::And(Box::new(left), Box::new(right)))?;
        }
        Ok(left)
    }

    fn not(&mut self) -> Outcome<Expr> {
        let at = self.here();
        let mut negations = 0u16;
        while self.is_name("not") {
            self.at += 1;
            negations = negations.saturating_add(1);
        }
        let mut expr = self.compare()?;
        for _ in 0..negations {
            let below = expr.height;
            expr = self.node(at, below, ExprKind::Unary(Unary::Not, Box::new(expr)))?;
        }
        Ok(expr)
    }

    fn compare(&mut self) -> Outcome<Expr> {
        let at = self.here();
        let left = self.arithmetic(SUM)?;
        let mut rest = Vec::new();
        loop {
            let (comparison, length) = match self.peek() {
                Tok::Op("==") => (Comparison::Equal, 1),
                Tok::Op("!=") => (Comparison::NotEqual, 1),
                Tok::Op("<") => (Comparison::Less, 1),
                Tok::Op("<=") => (Comparison::LessOrEqual, 1),
                Tok::Op(">") => (Comparison::Greater, 1),
                Tok::Op(">=") => (Comparison::GreaterOrEqual, 1),
                Tok::Name(name) if &**name == "in" => (Comparison::In, 1),
                Tok::Name(name)
                    if &**name == "not" && matches!(self.peek_at(1), Tok::Name(next) if &**next == "in") =>
                {
                    (Comparison::NotIn, 2)
                }
                _ => break,
            };
            self.at += length;
            rest.push((comparison, self.arithmetic(SUM)?));
        }
        if rest.is_empty() {
            return Ok(left);
        }
        let below = rest.iter().map(|(_, e)| e.height).max().unwrap_or(0).max(left.height);
        self.node(at, below, ExprKind::Compare(Box::new(left), rest))
    }

    /// Binary operators that bind at least as tightly as `level`.
    fn arithmetic(&mut self, level: u8) -> Outcome<Expr> {
        if level > POWER {
            return self.unary();
        }
        let at = self.here();
        let mut left = self.arithmetic(level + 1)?;
        if level == CONCAT {
            if !self.is_op("~") {
                return Ok(left);
            }
            let mut parts = vec![left];
            while self.skip_op("~") {
                parts.push(self.arithmetic(PRODUCT)?);
            }
            let below = highest(&parts);
            return self.node(at, below, ExprKind::Concat(parts));
        }
        loop {
            let operator = match (level, self.peek()) {
                (SUM, Tok::Op("+")) => Binary::Add,
                (SUM, Tok::Op("-")) => Binary::Subtract,
                (PRODUCT, Tok::Op("*")) => Binary::Multiply,
                (PRODUCT, Tok::Op("/")) => Binary::Divide,
                (PRODUCT, Tok::Op("//")) => Binary::FloorDivide,
                (PRODUCT, Tok::Op("%")) => Binary::Remainder,
                (POWER, Tok::Op("**")) => Binary::Power,
                _ => return Ok(left),
            };
            self.at += 1;
            let right = self.arithmetic(level + 1)?;
            let below = left.height.max(right.height);
            left = self.node(at, below, ExprKind::Binary(operator, Box::new(left), Box::new(right)))?;
        }
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
            Tok::Op("(") => {
                self.at += 1;
                if self.skip_op(")") {
                    return self.node(at, 0, ExprKind::Tuple(Vec::new()));
                }
                let inner = self.tuple(true)?;
                self.expect_op(")")?;
                return Ok(inner);
            }
            Tok::Op("[") => {
                self.at += 1;
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
                return self.node(at, below, ExprKind::List(items));
            }
            Tok::Op("{") => {
                self.at += 1;
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
                return self.node(at, below, ExprKind::Dict(items));
            }
            _ => return self.unexpected("an expression"),
        };
        self.node(at, 0, kind)
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
        self.node(at, below, ExprKind::Call(Box::new(function), args))
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
            return self.node(at, below, ExprKind::Slice(Box::new(subject), parts));
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

    /// `name(args) | name(args) …`, the first `|` already read; the subject may come later.
    pub(super) fn filters(&mut self, mut subject: Option<Expr>) -> Outcome<Expr> {
        loop {
            let at = self.here();
            let name = self.dotted_name()?;
            let (args, below) = if self.is_op("(") { self.arguments()? } else { (Args::default(), 0) };
            let below = below.max(subject.as_ref().map_or(0, |e| e.height));
            let expr = self.node(at, below, ExprKind::Filter(subject.map(Box::new), name, args))?;
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
            Tok::Name(next) => !matches!(&**next, "else" | "or" | "and" | "if" | "in" | "not" | "recursive"),
            Tok::Str(_) | Tok::Int(_) | Tok::Float(_) | Tok::Op("[" | "{") => true,
            _ => false,
        };
        if takes_argument {
            let primary = self.primary()?;
            let argument = self.postfix(primary)?;
            below = below.max(argument.height);
            args.positional.push(argument);
        }
        let expr = self.node(at, below, ExprKind::Test(Box::new(subject), name, args))?;
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
            let late = |what: &str| Err(Fault::syntax(at, format!("{what} cannot stand here")));
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
                    return late("a named argument behind '**'");
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
