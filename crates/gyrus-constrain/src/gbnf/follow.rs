//! What may follow each lexeme.

use super::ast::Bytes;
use crate::Error;
use crate::work::Work;

/// A rule in lexemes.
#[derive(Debug, Clone)]
pub(super) enum Node {
    /// A lexeme, never empty.
    Lexeme(usize),
    Rule(usize),
    Seq(Vec<Node>),
    Alt(Vec<Node>),
    Repeat {
        body: Box<Node>,
        min: u32,
        max: Option<u32>,
    },
}

impl Node {
    /// The nodes in it, and itself.
    pub(super) fn size(&self) -> usize {
        match self {
            Node::Lexeme(_) | Node::Rule(_) => 1,
            Node::Seq(parts) | Node::Alt(parts) => parts.iter().fold(1, |sum, part| sum + part.size()),
            Node::Repeat { body, .. } => body.size() + 1,
        }
    }

    /// Appends the rules that the node uses.
    pub(super) fn rules(&self, found: &mut Vec<usize>) {
        match self {
            Node::Lexeme(_) => {}
            Node::Rule(rule) => found.push(*rule),
            Node::Seq(parts) | Node::Alt(parts) => parts.iter().for_each(|part| part.rules(found)),
            Node::Repeat { body, .. } => body.rules(found),
        }
    }
}

/// For each lexeme the bytes that may come after it.
pub(super) fn follow(rules: &[Node], first: &[Bytes], work: &Work<'_>) -> Result<Vec<Bytes>, Error> {
    let size = rules.iter().map(Node::size).sum();
    let mut sets = Sets { first, rule_first: vec![(Bytes::default(), false); rules.len()] };
    // Forwards and backwards in turn: a chain of rules in either order settles at once.
    let mut order: Vec<usize> = (0..rules.len()).collect();
    loop {
        work.spend(size)?;
        order.reverse();
        let mut changed = false;
        for &rule in &order {
            let next = sets.first(&rules[rule]);
            changed |= next != sets.rule_first[rule];
            sets.rule_first[rule] = next;
        }
        if !changed {
            break;
        }
    }
    let (mut lexemes, mut after) = (vec![Bytes::default(); first.len()], vec![Bytes::default(); rules.len()]);
    loop {
        work.spend(size)?;
        order.reverse();
        let before = after.clone();
        for &rule in &order {
            sets.visit(&rules[rule], after[rule], &mut lexemes, &mut after);
        }
        if after == before {
            return Ok(lexemes);
        }
    }
}

struct Sets<'a> {
    first: &'a [Bytes],
    /// The first bytes of each rule, and whether it may be empty.
    rule_first: Vec<(Bytes, bool)>,
}

impl Sets<'_> {
    fn first(&self, node: &Node) -> (Bytes, bool) {
        match node {
            Node::Lexeme(lexeme) => (self.first[*lexeme], false),
            Node::Rule(rule) => self.rule_first[*rule],
            Node::Seq(parts) => {
                let mut all = Bytes::default();
                for part in parts {
                    let (first, nullable) = self.first(part);
                    all = all.union(first);
                    if !nullable {
                        return (all, false);
                    }
                }
                (all, true)
            }
            Node::Alt(parts) => parts
                .iter()
                .map(|part| self.first(part))
                .fold((Bytes::default(), false), |all, part| (all.0.union(part.0), all.1 || part.1)),
            Node::Repeat { body, min, .. } => {
                let (first, nullable) = self.first(body);
                (first, nullable || *min == 0)
            }
        }
    }

    /// Notes what follows the lexemes and rules in a node that is followed by `after`.
    fn visit(&self, node: &Node, after: Bytes, lexemes: &mut [Bytes], rules: &mut [Bytes]) {
        match node {
            Node::Lexeme(lexeme) => lexemes[*lexeme] = lexemes[*lexeme].union(after),
            Node::Rule(rule) => rules[*rule] = rules[*rule].union(after),
            Node::Seq(parts) => {
                let mut after = after;
                for part in parts.iter().rev() {
                    self.visit(part, after, lexemes, rules);
                    let (first, nullable) = self.first(part);
                    after = if nullable { after.union(first) } else { first };
                }
            }
            Node::Alt(parts) => parts.iter().for_each(|part| self.visit(part, after, lexemes, rules)),
            Node::Repeat { body, .. } => self.visit(body, after.union(self.first(body).0), lexemes, rules),
        }
    }
}
