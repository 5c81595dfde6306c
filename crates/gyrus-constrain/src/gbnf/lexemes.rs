//! The choice of lexemes.

use std::collections::{HashMap, HashSet};
use std::fmt::Write;

use super::ast::{Bytes, Expr, Rule, fixpoint};
use super::conflict::{RANGES_PER_UNIT, conflict};
use super::follow::{Node, follow};
use super::lark;
use super::positions::Positions;
use crate::Error;
use crate::work::Work;

/// The largest expression of one lexeme: nodes and ranges of characters, with rules copied in.
const MAX_NODES: usize = 2_000;

/// The deepest expression of one lexeme. The engine's parser of regular expressions has a bound of 250.
const MAX_NESTING: usize = 240;

/// Writes a grammar in Lark.
pub(super) fn to_lark(rules: &[Rule], work: &Work<'_>) -> Result<String, Error> {
    // Rules without recursion settle from the leaves up; the others stay unknown.
    let extents = fixpoint(rules, work, Extent::UNKNOWN, Extent::of)?;
    let nullable = fixpoint(rules, work, false, |body, known| body.is_nullable(known))?;
    let mut writer = Writer {
        rules,
        work,
        extents,
        nullable,
        split: HashSet::new(),
        lexemes: Vec::new(),
        by_regex: HashMap::new(),
    };
    if writer.extent(&rules[0].body).is_small() {
        // One lexeme cannot conflict: nothing follows it.
        let mut start = Vec::new();
        writer.lexeme(&rules[0].body, &mut start);
        return lark::text(&[one(start, Node::Seq)], &writer.lexemes, work.limits);
    }
    let mut ranges = work.limits.compile_work.saturating_mul(RANGES_PER_UNIT);
    loop {
        (writer.lexemes, writer.by_regex) = Default::default();
        let nodes = writer.nodes()?;
        let conflicts = writer.conflicts(&nodes, &mut ranges)?.ok_or_else(|| {
            let reason = "comparing the lexemes of the grammar takes more".to_owned();
            work.limits.exceeded("compile_work", work.limits.compile_work as usize, reason)
        })?;
        if conflicts.is_empty() {
            return lark::text(&nodes, &writer.lexemes, work.limits);
        }
        writer.split.extend(conflicts);
    }
}

/// How large an expression is, with the rules that it uses copied in. All of it is `usize::MAX` if one is recursive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Extent {
    /// Nodes, and ranges of their characters.
    nodes: usize,
    /// Levels of its regular expression, as the parser of the engine counts them.
    nesting: usize,
}

impl Extent {
    const UNKNOWN: Extent = Extent { nodes: usize::MAX, nesting: usize::MAX };

    fn is_small(self) -> bool {
        self.nodes <= MAX_NODES && self.nesting <= MAX_NESTING
    }

    fn of(expr: &Expr, rules: &[Extent]) -> Extent {
        let (nodes, levels) = match expr {
            Expr::Class(set) => (set.ranges(), 2),
            Expr::Ref(_) | Expr::Seq(_) => (1, 1),
            // A group and what is in it.
            Expr::Alt(_) | Expr::Repeat { .. } => (1, 2),
        };
        let inner = match expr {
            Expr::Ref(rule) => rules[*rule],
            other => other.children().iter().fold(Extent { nodes: 0, nesting: 0 }, |all, part| {
                let part = Extent::of(part, rules);
                Extent { nodes: all.nodes.saturating_add(part.nodes), nesting: all.nesting.max(part.nesting) }
            }),
        };
        Extent { nodes: inner.nodes.saturating_add(nodes), nesting: inner.nesting.saturating_add(levels) }
    }
}

/// A lexeme.
pub(super) struct Lexeme {
    pub(super) regex: String,
    pub(super) nullable: bool,
    positions: Option<Positions>,
}

struct Writer<'a> {
    rules: &'a [Rule],
    work: &'a Work<'a>,
    extents: Vec<Extent>,
    nullable: Vec<bool>,
    /// Expressions, as regular expressions, that must not be one lexeme.
    split: HashSet<String>,
    lexemes: Vec<Lexeme>,
    by_regex: HashMap<String, usize>,
}

/// A single node as it is, several in a list.
fn one(mut nodes: Vec<Node>, list: impl Fn(Vec<Node>) -> Node) -> Node {
    if nodes.len() == 1 { nodes.remove(0) } else { list(nodes) }
}

impl Writer<'_> {
    fn extent(&self, expr: &Expr) -> Extent {
        Extent::of(expr, &self.extents)
    }

    /// Whether an expression may be one lexeme.
    fn is_whole(&self, expr: &Expr) -> Result<bool, Error> {
        let extent = self.extent(expr);
        self.work.spend(expr.size() + if extent.is_small() { extent.nodes } else { 0 })?;
        let may_be =
            |expr: &Expr| matches!(expr, Expr::Class(_)) || !self.split.contains(&regex(expr, self.rules));
        Ok(extent.is_small() && may_be(expr))
    }

    /// The rules in lexemes. Those that are not used stay empty.
    fn nodes(&mut self) -> Result<Vec<Node>, Error> {
        let mut nodes = vec![Node::Seq(Vec::new()); self.rules.len()];
        let (mut seen, mut pending) = (vec![false; nodes.len()], vec![0]);
        while let Some(rule) = pending.pop() {
            if !std::mem::replace(&mut seen[rule], true) {
                nodes[rule] = self.node(&self.rules[rule].body)?;
                nodes[rule].rules(&mut pending);
            }
        }
        Ok(nodes)
    }

    /// The expression in lexemes as large as possible.
    fn node(&mut self, expr: &Expr) -> Result<Node, Error> {
        let mut nodes = Vec::new();
        if self.is_whole(expr)? {
            self.lexeme(expr, &mut nodes);
            return Ok(one(nodes, Node::Seq));
        }
        match expr {
            Expr::Class(_) => self.lexeme(expr, &mut nodes),
            Expr::Ref(rule) => return Ok(Node::Rule(*rule)),
            Expr::Seq(parts) => {
                for run in self.runs(parts)? {
                    let whole = Expr::Seq(run.to_vec());
                    if run.len() > 1 && run.len() < parts.len() && self.is_whole(&whole)? {
                        self.lexeme(&whole, &mut nodes);
                    } else {
                        for part in run {
                            nodes.push(self.node(part)?);
                        }
                    }
                }
            }
            Expr::Alt(parts) => {
                let (mut regular, mut others) = (Vec::new(), Vec::new());
                for part in parts {
                    let list = if self.is_whole(part)? { &mut regular } else { &mut others };
                    list.push(part.clone());
                }
                let whole = Expr::Alt(regular);
                if whole.children().len() > 1 && !others.is_empty() && self.is_whole(&whole)? {
                    nodes.push(self.node(&whole)?);
                } else {
                    for part in whole.children() {
                        nodes.push(self.node(part)?);
                    }
                }
                for part in &others {
                    nodes.push(self.node(part)?);
                }
                return Ok(one(nodes, Node::Alt));
            }
            Expr::Repeat { body, min, max } => {
                return Ok(Node::Repeat { body: Box::new(self.node(body)?), min: *min, max: *max });
            }
        }
        Ok(one(nodes, Node::Seq))
    }

    /// The parts of a sequence, consecutive ones that may be in lexemes together.
    fn runs<'e>(&self, parts: &'e [Expr]) -> Result<Vec<&'e [Expr]>, Error> {
        let whole = parts.iter().map(|part| self.is_whole(part)).collect::<Result<Vec<_>, _>>()?;
        let mut runs = Vec::new();
        let mut rest = parts;
        for run in whole.chunk_by(|a, b| *a && *b) {
            let (head, tail) = rest.split_at(run.len());
            runs.push(head);
            rest = tail;
        }
        Ok(runs)
    }

    /// Appends a lexeme, optional if it may be empty. The empty expression needs none.
    fn lexeme(&mut self, expr: &Expr, nodes: &mut Vec<Node>) {
        if *expr == Expr::EMPTY {
            return;
        }
        let regex = regex(expr, self.rules);
        let nullable = expr.is_nullable(&self.nullable);
        let next = self.lexemes.len();
        let index = *self.by_regex.entry(regex.clone()).or_insert(next);
        if index == next {
            let positions = Positions::new(expr, self.rules);
            self.lexemes.push(Lexeme { regex, nullable, positions });
        }
        nodes.push(if nullable {
            Node::Repeat { body: Box::new(Node::Lexeme(index)), min: 0, max: Some(1) }
        } else {
            Node::Lexeme(index)
        });
    }

    /// The lexemes to split, as regular expressions. `None` if the comparison takes too many ranges of characters.
    fn conflicts(&self, nodes: &[Node], ranges: &mut u64) -> Result<Option<Vec<String>>, Error> {
        let is_too_large = |lexeme: &&Lexeme| lexeme.positions.is_none();
        let large: Vec<String> =
            self.lexemes.iter().filter(is_too_large).map(|lexeme| lexeme.regex.clone()).collect();
        if !large.is_empty() {
            return Ok(Some(large));
        }
        let first: Vec<Bytes> = self
            .lexemes
            .iter()
            .map(|lexeme| lexeme.positions.as_ref().map_or(Bytes::default(), Positions::first_bytes))
            .collect();
        let follow = follow(nodes, &first, self.work)?;
        let mut found = Vec::new();
        for long in &self.lexemes {
            for (short, &follow) in self.lexemes.iter().zip(&follow) {
                let (Some(short), Some(automaton)) = (&short.positions, &long.positions) else { continue };
                match conflict(short, follow, automaton, ranges) {
                    None => return Ok(None),
                    Some(false) => {}
                    Some(true) => {
                        found.push(long.regex.clone());
                        break;
                    }
                }
            }
        }
        Ok(Some(found))
    }
}

/// A regular expression without recursion, in the engine's syntax.
fn regex(expr: &Expr, rules: &[Rule]) -> String {
    let mut out = String::new();
    write_regex(expr, rules, &mut out);
    out
}

fn write_regex(expr: &Expr, rules: &[Rule], out: &mut String) {
    match expr {
        Expr::Class(set) => set.write(out),
        Expr::Ref(rule) => write_regex(&rules[*rule].body, rules, out),
        Expr::Seq(parts) => parts.iter().for_each(|part| write_regex(part, rules, out)),
        Expr::Alt(parts) => {
            out.push_str("(?:");
            for (at, part) in parts.iter().enumerate() {
                if at > 0 {
                    out.push('|');
                }
                write_regex(part, rules, out);
            }
            out.push(')');
        }
        Expr::Repeat { body, min, max } => {
            out.push_str("(?:");
            write_regex(body, rules, out);
            let _ = match (min, max) {
                (0, None) => write!(out, ")*"),
                (1, None) => write!(out, ")+"),
                (0, Some(1)) => write!(out, ")?"),
                (min, None) => write!(out, "){{{min},}}"),
                (min, Some(max)) => write!(out, "){{{min},{max}}}"),
            };
        }
    }
}
