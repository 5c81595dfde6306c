//! The automaton of a regular expression: a state for each class in it (Glushkov).

use super::ast::{Bytes, Expr, Rule, Set};

/// States that may follow one another.
#[derive(Debug, Default)]
pub(super) struct Positions {
    /// The characters of each state.
    pub(super) sets: Vec<Set>,
    /// The first bytes of those characters.
    pub(super) leads: Vec<Bytes>,
    /// The states that may come after each state.
    pub(super) next: Vec<Vec<usize>>,
    /// The states that may come first.
    pub(super) first: Vec<usize>,
    /// Whether a text may end with each state.
    pub(super) is_last: Vec<bool>,
    /// Whether the empty text matches.
    pub(super) nullable: bool,
}

/// Repetitions up to this count are copied; larger ones are taken for unlimited, which finds conflicts too many rather
/// than too few.
const COPIES: u32 = 24;

/// Parts of an automaton, and edges between its states.
const MAX_EDGES: usize = 20_000;

/// A part of the expression in construction.
struct Part {
    first: Vec<usize>,
    last: Vec<usize>,
    nullable: bool,
}

impl Positions {
    /// The automaton of a regular expression, `None` if it is too large.
    pub(super) fn new(expr: &Expr, rules: &[Rule]) -> Option<Positions> {
        let mut positions = Positions::default();
        let mut edges = 0;
        let part = positions.add(expr, rules, &mut edges)?;
        positions.is_last = vec![false; positions.sets.len()];
        for &state in &part.last {
            positions.is_last[state] = true;
        }
        for next in &mut positions.next {
            next.sort_unstable();
            next.dedup();
        }
        positions.first = part.first;
        positions.nullable = part.nullable;
        Some(positions)
    }

    /// The first bytes of its texts.
    pub(super) fn first_bytes(&self) -> Bytes {
        self.first.iter().fold(Bytes::default(), |bytes, &state| bytes.union(self.leads[state]))
    }

    fn link(&mut self, from: &[usize], to: &[usize], edges: &mut usize) -> Option<()> {
        *edges += from.len() * to.len();
        if *edges > MAX_EDGES {
            return None;
        }
        for &state in from {
            self.next[state].extend_from_slice(to);
        }
        Some(())
    }

    fn add(&mut self, expr: &Expr, rules: &[Rule], edges: &mut usize) -> Option<Part> {
        // Parts without a character count, too: nested repetitions of them are copied as often.
        *edges += 1;
        if *edges > MAX_EDGES {
            return None;
        }
        match expr {
            Expr::Class(set) => {
                self.leads.push(set.lead_bytes());
                self.sets.push(set.clone());
                self.next.push(Vec::new());
                let state = self.sets.len() - 1;
                Some(Part { first: vec![state], last: vec![state], nullable: false })
            }
            Expr::Ref(rule) => self.add(&rules[*rule].body, rules, edges),
            Expr::Seq(parts) => {
                let mut all = Part { first: Vec::new(), last: Vec::new(), nullable: true };
                for part in parts {
                    let part = self.add(part, rules, edges)?;
                    all = self.join(all, part, edges)?;
                }
                Some(all)
            }
            Expr::Alt(parts) => {
                let mut all = Part { first: Vec::new(), last: Vec::new(), nullable: false };
                for part in parts {
                    let part = self.add(part, rules, edges)?;
                    all.first.extend(part.first);
                    all.last.extend(part.last);
                    all.nullable |= part.nullable;
                }
                Some(all)
            }
            Expr::Repeat { body, min, max } => {
                let copies = max.unwrap_or(*min).max(1);
                if copies > COPIES || max.is_none() && *min <= 1 {
                    let mut part = self.add(body, rules, edges)?;
                    let (first, last) = (part.first.clone(), part.last.clone());
                    self.link(&last, &first, edges)?;
                    part.nullable |= *min == 0;
                    return Some(part);
                }
                let mut all = Part { first: Vec::new(), last: Vec::new(), nullable: true };
                for copy in 0..copies {
                    let mut part = self.add(body, rules, edges)?;
                    if max.is_none() && copy + 1 == copies {
                        let (first, last) = (part.first.clone(), part.last.clone());
                        self.link(&last, &first, edges)?;
                    }
                    part.nullable |= copy >= *min;
                    all = self.join(all, part, edges)?;
                }
                Some(all)
            }
        }
    }

    fn join(&mut self, a: Part, b: Part, edges: &mut usize) -> Option<Part> {
        self.link(&a.last, &b.first, edges)?;
        let mut joined = Part { first: a.first, last: b.last, nullable: a.nullable && b.nullable };
        if a.nullable {
            joined.first.extend(b.first);
        }
        if b.nullable {
            joined.last.extend(a.last);
        }
        Some(joined)
    }
}
