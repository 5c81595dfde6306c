//! The choice of lexemes, and the grammar in Lark.

use std::collections::{HashMap, HashSet};
use std::fmt::Write;

use super::ast::{Bytes, Expr, Rule, fixpoint};
use super::conflict::{MAX_STEPS, conflict};
use super::follow::{Node, follow};
use super::positions::Positions;
use crate::{Error, Limits};

/// The largest expression of one lexeme, in nodes with rules copied in.
const MAX_NODES: usize = 2_000;

/// Writes a grammar in Lark.
pub(super) fn to_lark(rules: &[Rule], limits: &Limits) -> Result<String, Error> {
    let sizes = sizes(rules);
    let nullable = fixpoint(rules, |body, known| body.is_nullable(known));
    let mut writer = Writer {
        rules,
        sizes,
        nullable,
        split: HashSet::new(),
        lexemes: Vec::new(),
        by_regex: HashMap::new(),
    };
    if writer.size(&rules[0].body) <= MAX_NODES {
        // One lexeme cannot conflict: nothing follows it.
        let mut start = Vec::new();
        writer.lexeme(&rules[0].body, &mut start);
        return Ok(writer.text(&[one(start, Node::Seq)]));
    }
    let mut steps = 0;
    loop {
        (writer.lexemes, writer.by_regex) = Default::default();
        let nodes = writer.nodes();
        let conflicts = writer.conflicts(&nodes, &mut steps).ok_or_else(|| {
            limits.exceeded(
                "grammar_size",
                MAX_STEPS,
                "comparing the grammar's lexemes takes more steps".into(),
            )
        })?;
        if conflicts.is_empty() {
            return Ok(writer.text(&nodes));
        }
        writer.split.extend(conflicts);
    }
}

/// The sizes of rules with all others copied in; `usize::MAX` for rules that reach a recursive one.
fn sizes(rules: &[Rule]) -> Vec<usize> {
    fn size(expr: &Expr, known: &[usize]) -> usize {
        let of = match expr {
            Expr::Ref(rule) => known[*rule],
            other => other.children().iter().fold(0usize, |sum, part| sum.saturating_add(size(part, known))),
        };
        of.saturating_add(1)
    }
    // Rules without recursion settle from the leaves up; the others stay unknown.
    let mut known = vec![usize::MAX; rules.len()];
    loop {
        let next: Vec<usize> = rules.iter().map(|rule| size(&rule.body, &known)).collect();
        if next == known {
            return known;
        }
        known = next;
    }
}

/// A lexeme.
struct Lexeme {
    regex: String,
    nullable: bool,
    positions: Option<Positions>,
}

struct Writer<'a> {
    rules: &'a [Rule],
    sizes: Vec<usize>,
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
    fn size(&self, expr: &Expr) -> usize {
        match expr {
            Expr::Ref(rule) => self.sizes[*rule].saturating_add(1),
            other => other.children().iter().fold(1usize, |sum, part| sum.saturating_add(self.size(part))),
        }
    }

    /// Whether an expression may be one lexeme.
    fn is_whole(&self, expr: &Expr) -> bool {
        self.size(expr) <= MAX_NODES
            && (matches!(expr, Expr::Class(_)) || !self.split.contains(&regex(expr, self.rules)))
    }

    /// The rules in lexemes. Those that are not used stay empty.
    fn nodes(&mut self) -> Vec<Node> {
        let mut nodes = vec![Node::Seq(Vec::new()); self.rules.len()];
        let (mut seen, mut pending) = (vec![false; nodes.len()], vec![0]);
        while let Some(rule) = pending.pop() {
            if !std::mem::replace(&mut seen[rule], true) {
                nodes[rule] = self.node(&self.rules[rule].body);
                nodes[rule].rules(&mut pending);
            }
        }
        nodes
    }

    /// The expression in lexemes as large as possible.
    fn node(&mut self, expr: &Expr) -> Node {
        let mut nodes = Vec::new();
        if self.is_whole(expr) {
            self.lexeme(expr, &mut nodes);
            return one(nodes, Node::Seq);
        }
        match expr {
            Expr::Class(_) => self.lexeme(expr, &mut nodes),
            Expr::Ref(rule) => return Node::Rule(*rule),
            Expr::Seq(parts) => {
                for run in self.runs(parts) {
                    let whole = Expr::Seq(run.to_vec());
                    if run.len() > 1 && run.len() < parts.len() && self.is_whole(&whole) {
                        self.lexeme(&whole, &mut nodes);
                    } else {
                        nodes.extend(run.iter().map(|part| self.node(part)));
                    }
                }
            }
            Expr::Alt(parts) => {
                let (regular, others): (Vec<_>, Vec<_>) =
                    parts.iter().cloned().partition(|part| self.is_whole(part));
                let whole = Expr::Alt(regular.clone());
                if regular.len() > 1 && !others.is_empty() && self.is_whole(&whole) {
                    nodes.push(self.node(&whole));
                } else {
                    nodes.extend(regular.iter().map(|part| self.node(part)));
                }
                nodes.extend(others.iter().map(|part| self.node(part)));
                return one(nodes, Node::Alt);
            }
            Expr::Repeat { body, min, max } => {
                return Node::Repeat { body: Box::new(self.node(body)), min: *min, max: *max };
            }
        }
        one(nodes, Node::Seq)
    }

    /// The parts of a sequence, consecutive ones that may be in lexemes together.
    fn runs<'e>(&self, parts: &'e [Expr]) -> Vec<&'e [Expr]> {
        parts.chunk_by(|a, b| self.is_whole(a) && self.is_whole(b)).collect()
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

    /// The lexemes to split, as regular expressions. `None` if the comparison takes too long.
    fn conflicts(&self, nodes: &[Node], steps: &mut usize) -> Option<Vec<String>> {
        let is_too_large = |lexeme: &&Lexeme| lexeme.positions.is_none();
        let large: Vec<String> =
            self.lexemes.iter().filter(is_too_large).map(|lexeme| lexeme.regex.clone()).collect();
        if !large.is_empty() {
            return Some(large);
        }
        let first: Vec<Bytes> = self
            .lexemes
            .iter()
            .map(|lexeme| lexeme.positions.as_ref().map_or(Bytes::default(), Positions::first_bytes))
            .collect();
        let follow = follow(nodes, &first);
        let mut found = Vec::new();
        for long in &self.lexemes {
            for (short, &follow) in self.lexemes.iter().zip(&follow) {
                if let (Some(short), Some(automaton)) = (&short.positions, &long.positions)
                    && conflict(short, follow, automaton, steps)?
                {
                    found.push(long.regex.clone());
                    break;
                }
            }
        }
        Some(found)
    }

    /// The grammar in Lark.
    fn text(&self, nodes: &[Node]) -> String {
        let mut out = String::from("start: r0\n");
        // Writing to a string cannot fail.
        let used = |node: &Node| !matches!(node, Node::Seq(parts) if parts.is_empty());
        for (index, node) in nodes.iter().enumerate().filter(|(index, node)| *index == 0 || used(node)) {
            let _ = writeln!(out, "r{index}: {}", written(node));
        }
        for (index, lexeme) in self.lexemes.iter().enumerate() {
            let nonempty = if lexeme.nullable { " & /(?s:.)+/" } else { "" };
            let _ = writeln!(out, "T{index}: /{}/{nonempty}", lexeme.regex);
        }
        out
    }
}

fn written(node: &Node) -> String {
    let all = |parts: &[Node], between: &str| parts.iter().map(written).collect::<Vec<_>>().join(between);
    match node {
        Node::Lexeme(index) => format!("T{index}"),
        Node::Rule(index) => format!("r{index}"),
        Node::Seq(parts) if parts.is_empty() => "\"\"".into(),
        Node::Seq(parts) => format!("({})", all(parts, " ")),
        Node::Alt(parts) => format!("({})", all(parts, " | ")),
        Node::Repeat { body, min: 0, max: None } => format!("({})*", written(body)),
        Node::Repeat { body, min: 0, max: Some(1) } => format!("({})?", written(body)),
        Node::Repeat { body, min, max: None } => format!("({}){{{min},}}", written(body)),
        Node::Repeat { body, min, max: Some(max) } => format!("({}){{{min},{max}}}", written(body)),
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
