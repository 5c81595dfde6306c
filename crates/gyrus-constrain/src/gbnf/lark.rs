//! The grammar in Lark.

use std::fmt::Write;

use super::follow::Node;
use super::lexemes::Lexeme;
use crate::{Error, Limits};

/// Groups inside one another in a rule. The engine's parser of Lark has a bound of 28, and writing may add one.
const MAX_GROUPS: usize = 24;

/// Writes rules in lexemes. The first one is the start.
pub(super) fn text(nodes: &[Node], lexemes: &[Lexeme], limits: &Limits) -> Result<String, Error> {
    let mut writer = Writer { rules: vec![Body::default(); nodes.len()] };
    let used = |node: &Node| !matches!(node, Node::Seq(parts) if parts.is_empty());
    for (index, node) in nodes.iter().enumerate().filter(|(index, node)| *index == 0 || used(node)) {
        writer.rules[index] = writer.body(node);
    }
    if !is_shallow(&writer.rules, limits.chain) {
        let reason = "the groups and rules of the grammar refer to one another in a longer chain".to_owned();
        return Err(limits.exceeded("chain", limits.chain, reason));
    }
    let mut out = String::from("start: r0\n");
    // Writing to a string cannot fail.
    for (index, rule) in writer.rules.iter().enumerate().filter(|(_, rule)| !rule.text.is_empty()) {
        let _ = writeln!(out, "r{index}: {}", rule.text);
    }
    for (index, lexeme) in lexemes.iter().enumerate() {
        let nonempty = if lexeme.nullable { " & /(?s:.)+/" } else { "" };
        let _ = writeln!(out, "T{index}: /{}/{nonempty}", lexeme.regex);
    }
    Ok(out)
}

/// A rule or a part of one.
#[derive(Debug, Clone, Default)]
struct Body {
    text: String,
    /// How many groups are inside one another.
    groups: usize,
    /// The rules that it uses, in order, with the number of groups around each.
    uses: Vec<(usize, usize)>,
}

impl Body {
    /// Parts in a group.
    fn group(parts: Vec<Body>, between: &str, suffix: &str) -> Body {
        let mut all = Body { text: "(".to_owned(), ..Body::default() };
        for (at, part) in parts.into_iter().enumerate() {
            all.text.push_str(if at > 0 { between } else { "" });
            all.text.push_str(&part.text);
            all.groups = all.groups.max(part.groups);
            all.uses.extend(part.uses.into_iter().map(|(rule, groups)| (rule, groups + 1)));
        }
        all.groups += 1;
        all.text.push(')');
        all.text.push_str(suffix);
        all
    }
}

struct Writer {
    rules: Vec<Body>,
}

impl Writer {
    fn body(&mut self, node: &Node) -> Body {
        let leaf = |text: String, uses| Body { text, groups: 0, uses };
        match node {
            Node::Lexeme(index) => leaf(format!("T{index}"), Vec::new()),
            Node::Rule(index) => leaf(format!("r{index}"), vec![(*index, 0)]),
            Node::Seq(parts) if parts.is_empty() => leaf("\"\"".into(), Vec::new()),
            Node::Seq(parts) => Body::group(self.parts(parts), " ", ""),
            Node::Alt(parts) => Body::group(self.parts(parts), " | ", ""),
            Node::Repeat { body, min, max } => {
                let suffix = match (min, max) {
                    (0, None) => "*".to_owned(),
                    (0, Some(1)) => "?".to_owned(),
                    (min, None) => format!("{{{min},}}"),
                    (min, Some(max)) => format!("{{{min},{max}}}"),
                };
                Body::group(self.parts(std::slice::from_ref(body)), "", &suffix)
            }
        }
    }

    /// The parts of a group. One with too many groups inside one another becomes a rule of its own.
    fn parts(&mut self, nodes: &[Node]) -> Vec<Body> {
        let mut parts = Vec::with_capacity(nodes.len());
        for node in nodes {
            let mut part = self.body(node);
            if part.groups >= MAX_GROUPS {
                let index = self.rules.len();
                self.rules.push(part);
                part = Body { text: format!("r{index}"), groups: 0, uses: vec![(index, 0)] };
            }
            parts.push(part);
        }
        parts
    }
}

/// Whether the engine's recursion over groups and the rules in them stays within `most` levels. It follows each rule
/// where it is used first, from the start on; so does this, with a stack of its own.
fn is_shallow(rules: &[Body], most: usize) -> bool {
    let mut seen = vec![false; rules.len()];
    let mut path: Vec<(usize, usize, usize)> = vec![(0, 0, 1)];
    while let Some((rule, next, level)) = path.last_mut() {
        let (body, level) = (&rules[*rule], *level);
        if !std::mem::replace(&mut seen[*rule], true) && level + body.groups > most {
            return false;
        }
        match body.uses.get(*next) {
            None => drop(path.pop()),
            Some(&(to, groups)) => {
                *next += 1;
                if !seen[to] {
                    path.push((to, 0, level + groups + 1));
                }
            }
        }
    }
    true
}
