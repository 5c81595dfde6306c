//! Parses statements into a tree. Expressions are in [`super::parse_expr`].

use std::sync::Arc;

use super::ast::{Expr, ExprKind, ForLoop, Macro, Stmt, Target};
use super::error::{Fault, Limit, Outcome, offset};
use super::lexer::{Tok, Token};

/// The maximum height of an expression's tree. Jinja compiles to Python, whose parser rejects 200 nested parentheses.
/// This limit and the next two keep recursion within a small stack and reject no working template.
pub(crate) const MAX_EXPR_HEIGHT: u16 = 200;
/// The maximum nesting of brackets.
pub(crate) const MAX_NESTING: u16 = 64;
/// The maximum nesting of blocks.
const MAX_BLOCK_DEPTH: usize = 48;

/// Parses the tokens of a whole template.
pub(crate) fn parse(tokens: Vec<Token>) -> Outcome<Vec<Stmt>> {
    let mut parser = Parser { tokens, at: 0, blocks: 0, loops: 0, height: 0, names: Names::default() };
    parser.body(&[])
}

/// The special names used so far; a macro checks whether its body added to them.
#[derive(Clone, Copy, Default)]
pub(super) struct Names {
    pub(super) varargs: u32,
    pub(super) kwargs: u32,
    pub(super) caller: u32,
}

pub(super) struct Parser {
    pub(super) tokens: Vec<Token>,
    pub(super) at: usize,
    /// Open blocks.
    blocks: usize,
    /// Open loops, within the innermost macro.
    loops: usize,
    /// Open expressions.
    pub(super) height: u16,
    pub(super) names: Names,
}

impl Parser {
    pub(super) fn peek(&self) -> &Tok {
        self.tokens.get(self.at).map_or(&Tok::End, |token| &token.kind)
    }

    pub(super) fn peek_at(&self, ahead: usize) -> &Tok {
        self.tokens.get(self.at + ahead).map_or(&Tok::End, |token| &token.kind)
    }

    pub(super) fn here(&self) -> usize {
        self.tokens.get(self.at).or(self.tokens.last()).map_or(0, |token| token.at)
    }

    pub(super) fn is_op(&self, op: &str) -> bool {
        matches!(self.peek(), Tok::Op(found) if *found == op)
    }

    pub(super) fn is_name(&self, name: &str) -> bool {
        matches!(self.peek(), Tok::Name(found) if &**found == name)
    }

    pub(super) fn skip_op(&mut self, op: &str) -> bool {
        let found = self.is_op(op);
        self.at += usize::from(found);
        found
    }

    pub(super) fn skip_name(&mut self, name: &str) -> bool {
        let found = self.is_name(name);
        self.at += usize::from(found);
        found
    }

    pub(super) fn unexpected<T>(&self, wanted: &str) -> Outcome<T> {
        Err(Fault::syntax(self.here(), format!("found {}, expected {wanted}", self.peek().describe())))
    }

    pub(super) fn expect_op(&mut self, op: &str) -> Outcome<()> {
        if self.skip_op(op) { Ok(()) } else { self.unexpected(&format!("'{op}'")) }
    }

    fn expect_name(&mut self, name: &str) -> Outcome<()> {
        if self.skip_name(name) { Ok(()) } else { self.unexpected(&format!("'{name}'")) }
    }

    pub(super) fn identifier(&mut self) -> Outcome<Arc<str>> {
        let Tok::Name(name) = self.peek() else { return self.unexpected("a name") };
        let name = name.clone();
        self.at += 1;
        Ok(name)
    }

    fn statement_end(&mut self) -> Outcome<()> {
        if *self.peek() != Tok::StatementEnd {
            return self.unexpected("'%}'");
        }
        self.at += 1;
        Ok(())
    }

    /// Statements up to one whose name is in `ends`; its `{%` is consumed, its name is not.
    fn body(&mut self, ends: &[&str]) -> Outcome<Vec<Stmt>> {
        let mut body = Vec::new();
        loop {
            let at = self.here();
            match self.peek().clone() {
                Tok::Text(text) => {
                    self.at += 1;
                    body.push(Stmt::Text(text));
                }
                Tok::PrintBegin => {
                    self.at += 1;
                    let expr = self.tuple(true)?;
                    if *self.peek() != Tok::PrintEnd {
                        return self.unexpected("'}}'");
                    }
                    self.at += 1;
                    body.push(Stmt::Print(expr));
                }
                Tok::StatementBegin => {
                    self.at += 1;
                    if ends.iter().any(|end| self.is_name(end)) {
                        return Ok(body);
                    }
                    body.push(self.statement(at)?);
                }
                Tok::End if ends.is_empty() => return Ok(body),
                _ => return self.unexpected(&format!("'{{% {} %}}'", ends.join(" %}' or '{% "))),
            }
        }
    }

    /// A body that starts at `%}` and ends at `{% end %}`.
    fn block(&mut self, end: &str) -> Outcome<Vec<Stmt>> {
        self.statement_end()?;
        let body = self.body(&[end])?;
        self.expect_name(end)?;
        self.statement_end()?;
        Ok(body)
    }

    fn statement(&mut self, at: usize) -> Outcome<Stmt> {
        self.blocks += 1;
        if self.blocks > MAX_BLOCK_DEPTH {
            return Err(Fault::limit(Limit::Depth, MAX_BLOCK_DEPTH as u64).or_at(offset(at)));
        }
        let name_at = self.here();
        let name = self.identifier()?;
        let statement = match &*name {
            "if" => self.if_statement(),
            "for" => self.for_statement(at),
            "set" => self.set_statement(at),
            "macro" => self.macro_statement(),
            "call" => self.call_statement(),
            "filter" => {
                let filter = self.filters(None)?;
                Ok(Stmt::FilterBlock(filter, self.block("endfilter")?))
            }
            "with" => self.with_statement(at),
            "generation" => Ok(Stmt::Scope(self.block("endgeneration")?)),
            "autoescape" => {
                self.expression()?;
                Ok(Stmt::Scope(self.block("endautoescape")?))
            }
            "block" => self.block_statement(),
            "print" => {
                let expr = self.tuple(true)?;
                self.statement_end()?;
                Ok(Stmt::Print(expr))
            }
            "break" | "continue" => {
                if self.loops == 0 {
                    return Err(Fault::syntax(name_at, format!("'{name}' outside of a loop")));
                }
                self.statement_end()?;
                Ok(if &*name == "break" { Stmt::Break } else { Stmt::Continue })
            }
            "include" | "import" | "from" | "extends" => Err(Fault::syntax(
                name_at,
                format!("'{name}' loads another template, which a chat template cannot do"),
            )),
            _ => Err(Fault::syntax(name_at, format!("unknown statement '{name}'"))),
        }?;
        self.blocks -= 1;
        Ok(statement)
    }

    fn if_statement(&mut self) -> Outcome<Stmt> {
        let mut branches = Vec::new();
        loop {
            let test = self.tuple(false)?;
            self.statement_end()?;
            let body = self.body(&["elif", "else", "endif"])?;
            branches.push((test, body));
            match &*self.identifier()? {
                "elif" => continue,
                "else" => {
                    let otherwise = self.block("endif")?;
                    return Ok(Stmt::If { branches, otherwise });
                }
                _ => {
                    self.statement_end()?;
                    return Ok(Stmt::If { branches, otherwise: Vec::new() });
                }
            }
        }
    }

    fn for_statement(&mut self, at: usize) -> Outcome<Stmt> {
        let target = self.target(true)?;
        self.expect_name("in")?;
        let iter = self.tuple(false)?;
        let filter = if self.skip_name("if") { Some(self.expression()?) } else { None };
        let recursive = self.skip_name("recursive");
        self.statement_end()?;
        self.loops += 1;
        let body = self.body(&["endfor", "else"])?;
        self.loops -= 1;
        let otherwise = if self.skip_name("else") { self.block("endfor")? } else { self.close("endfor")? };
        Ok(Stmt::For(Box::new(ForLoop { target, iter, filter, recursive, body, otherwise, at: offset(at) })))
    }

    fn close(&mut self, end: &str) -> Outcome<Vec<Stmt>> {
        self.expect_name(end)?;
        self.statement_end()?;
        Ok(Vec::new())
    }

    fn set_statement(&mut self, at: usize) -> Outcome<Stmt> {
        let target = self.target(false)?;
        let at = offset(at);
        if self.skip_op("=") {
            let value = self.tuple(true)?;
            self.statement_end()?;
            return Ok(Stmt::Set(target, value, at));
        }
        let filter = if self.is_op("|") {
            self.at += 1;
            Some(self.filters(None)?)
        } else {
            None
        };
        Ok(Stmt::SetBlock { target, filter, body: self.block("endset")?, at })
    }

    fn block_statement(&mut self) -> Outcome<Stmt> {
        self.identifier()?;
        while matches!(self.peek(), Tok::Name(_)) {
            self.at += 1; // `scoped` and `required` mean nothing without inheritance.
        }
        self.statement_end()?;
        let body = self.body(&["endblock"])?;
        self.expect_name("endblock")?;
        if matches!(self.peek(), Tok::Name(_)) {
            self.at += 1;
        }
        self.statement_end()?;
        Ok(Stmt::Scope(body))
    }

    fn with_statement(&mut self, at: usize) -> Outcome<Stmt> {
        let mut bindings = Vec::new();
        while *self.peek() != Tok::StatementEnd {
            if !bindings.is_empty() {
                self.expect_op(",")?;
            }
            let target = self.single_target()?;
            self.expect_op("=")?;
            bindings.push((target, self.expression()?));
        }
        Ok(Stmt::With(bindings, self.block("endwith")?, offset(at)))
    }

    fn macro_statement(&mut self) -> Outcome<Stmt> {
        let name = self.identifier()?;
        let parameters = self.parameters()?;
        Ok(Stmt::Macro(self.macro_body(name, parameters, "endmacro")?))
    }

    fn call_statement(&mut self) -> Outcome<Stmt> {
        let parameters = if self.is_op("(") { self.parameters()? } else { Vec::new() };
        let call = self.expression()?;
        if !matches!(call.kind, ExprKind::Call(..)) {
            return Err(Fault::syntax(call.at as usize, "expected a call"));
        }
        let caller = self.macro_body("caller".into(), parameters, "endcall")?;
        Ok(Stmt::CallBlock { call, caller })
    }

    fn parameters(&mut self) -> Outcome<Vec<(Arc<str>, Option<Expr>)>> {
        self.expect_op("(")?;
        let mut parameters: Vec<(Arc<str>, Option<Expr>)> = Vec::new();
        while !self.skip_op(")") {
            if !parameters.is_empty() {
                self.expect_op(",")?;
            }
            let at = self.here();
            let name = self.identifier()?;
            if parameters.iter().any(|(other, _)| *other == name) {
                return Err(Fault::syntax(at, format!("parameter '{name}' appears twice")));
            }
            let default = if self.skip_op("=") { Some(self.expression()?) } else { None };
            if default.is_none() && parameters.last().is_some_and(|(_, default)| default.is_some()) {
                return Err(Fault::syntax(
                    at,
                    format!("parameter '{name}' needs a default like those before it"),
                ));
            }
            parameters.push((name, default));
        }
        Ok(parameters)
    }

    fn macro_body(
        &mut self,
        name: Arc<str>,
        parameters: Vec<(Arc<str>, Option<Expr>)>,
        end: &str,
    ) -> Outcome<Box<Macro>> {
        let before = self.names;
        let loops = std::mem::take(&mut self.loops);
        let body = self.block(end)?;
        self.loops = loops;
        Ok(Box::new(Macro {
            name,
            parameters,
            body,
            takes_varargs: self.names.varargs > before.varargs,
            takes_kwargs: self.names.kwargs > before.kwargs,
            takes_caller: self.names.caller > before.caller,
        }))
    }

    /// `a`, `a, b`, `(a, b)`, `ns.a`.
    fn target(&mut self, is_loop: bool) -> Outcome<Target> {
        let first = self.single_target()?;
        if !self.is_op(",") {
            return Ok(first);
        }
        let mut targets = vec![first];
        while self.skip_op(",") {
            if self.is_op("=") || (is_loop && self.is_name("in")) {
                break;
            }
            targets.push(self.single_target()?);
        }
        Ok(Target::Tuple(targets))
    }

    fn single_target(&mut self) -> Outcome<Target> {
        let at = self.here();
        if self.skip_op("(") {
            self.height += 1;
            if self.height > MAX_NESTING {
                return Err(Fault::limit(Limit::Depth, u64::from(MAX_NESTING)).or_at(offset(at)));
            }
            let target = self.target(false)?;
            self.expect_op(")")?;
            self.height -= 1;
            return Ok(target);
        }
        let name = self.identifier()?;
        if matches!(&*name, "true" | "false" | "none" | "True" | "False" | "None") {
            return Err(Fault::syntax(at, format!("cannot assign to '{name}'")));
        }
        if self.skip_op(".") {
            let member = self.identifier()?;
            return Ok(Target::Member(name, member, offset(at)));
        }
        Ok(Target::Name(name))
    }
}
