//! A suffix automaton over tokens: where the longest suffix that occurred before was followed by what.

use std::collections::HashMap;

const NONE: u32 = u32::MAX;
const ROOT: u32 = 0;

/// The suffix automaton of a text that grows. A token takes amortised constant time, and a text of `n` tokens has at most
/// `2n` states and `3n` transitions.
///
/// Each state stands for the substrings that end at the same positions. The suffix link of the state of the whole text is
/// the state of its longest suffix that also ends at an earlier position.
#[derive(Debug)]
pub(crate) struct SuffixAutomaton {
    states: Vec<State>,
    edges: Vec<Edge>,
    /// Edges by state and token.
    by_token: HashMap<(u32, u32), u32>,
    /// The state of the whole text.
    last: u32,
    /// Tokens of the text.
    len: u32,
    found: Found,
}

/// The longest suffix of the text that occurred before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Found {
    /// Its tokens; 0 if even the last token is new.
    pub(crate) length: usize,
    /// The position after an earlier occurrence: the last one at which it was the longest suffix, or the first one.
    pub(crate) next: usize,
}

#[derive(Debug, Clone, Copy)]
struct State {
    /// The length of its longest substring.
    length: u32,
    link: u32,
    /// The position after one of its occurrences.
    end: u32,
    first_edge: u32,
}

#[derive(Debug, Clone, Copy)]
struct Edge {
    token: u32,
    target: u32,
    /// The next edge of the same state.
    next: u32,
}

impl SuffixAutomaton {
    pub(crate) fn new() -> SuffixAutomaton {
        SuffixAutomaton {
            states: vec![State { length: 0, link: NONE, end: 0, first_edge: NONE }],
            edges: Vec::new(),
            by_token: HashMap::new(),
            last: ROOT,
            len: 0,
            found: Found::default(),
        }
    }

    /// Forgets the text, and keeps the memory.
    pub(crate) fn clear(&mut self) {
        self.states.truncate(1);
        self.states[0].first_edge = NONE;
        self.edges.clear();
        self.by_token.clear();
        (self.last, self.len, self.found) = (ROOT, 0, Found::default());
    }

    /// The longest suffix that occurred before.
    pub(crate) fn found(&self) -> Found {
        self.found
    }

    /// Appends a token.
    pub(crate) fn push(&mut self, token: u32) {
        self.len += 1;
        let whole = self.state(self.states[self.last as usize].length + 1, NONE, self.len);
        let mut at = self.last;
        while at != NONE && !self.by_token.contains_key(&(at, token)) {
            self.add_edge(at, token, whole);
            at = self.states[at as usize].link;
        }
        let link = match self.target(at, token) {
            None => ROOT,
            Some(next) if self.length(at) + 1 == self.length(next) => next,
            Some(next) => self.divide(at, token, next),
        };
        self.states[whole as usize].link = link;
        self.last = whole;
        let suffix = &mut self.states[link as usize];
        self.found = Found { length: suffix.length as usize, next: suffix.end as usize };
        if link != ROOT {
            suffix.end = self.len;
        }
    }

    /// Divides the state `next` that is reached from `at`: the substrings up to one token longer than those of `at` end at
    /// more positions than the others now.
    fn divide(&mut self, at: u32, token: u32, next: u32) -> u32 {
        let State { link, end, mut first_edge, .. } = self.states[next as usize];
        let shorter = self.state(self.length(at) + 1, link, end);
        while first_edge != NONE {
            let Edge { token, target, next } = self.edges[first_edge as usize];
            self.add_edge(shorter, token, target);
            first_edge = next;
        }
        let mut at = at;
        while at != NONE {
            match self.by_token.get(&(at, token)) {
                Some(&edge) if self.edges[edge as usize].target == next => {
                    self.edges[edge as usize].target = shorter;
                }
                _ => break,
            }
            at = self.states[at as usize].link;
        }
        self.states[next as usize].link = shorter;
        shorter
    }

    fn state(&mut self, length: u32, link: u32, end: u32) -> u32 {
        self.states.push(State { length, link, end, first_edge: NONE });
        self.states.len() as u32 - 1
    }

    fn length(&self, state: u32) -> u32 {
        self.states[state as usize].length
    }

    fn target(&self, state: u32, token: u32) -> Option<u32> {
        self.by_token.get(&(state, token)).map(|edge| self.edges[*edge as usize].target)
    }

    fn add_edge(&mut self, state: u32, token: u32, target: u32) {
        let number = self.edges.len() as u32;
        let first = &mut self.states[state as usize].first_edge;
        self.edges.push(Edge { token, target, next: *first });
        *first = number;
        self.by_token.insert((state, token), number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gyrus_testkit::Rng;

    /// The length of the longest suffix of a text that also ends earlier.
    fn longest(text: &[u32]) -> usize {
        let ends_at = |end: usize| {
            let pairs = text[..end].iter().rev().zip(text.iter().rev());
            pairs.take_while(|(a, b)| a == b).count()
        };
        (1..text.len()).map(ends_at).max().unwrap_or(0)
    }

    /// The automaton finds what a comparison with every earlier position finds, at every length of random texts over small
    /// alphabets, of periodic texts and of texts without a repetition.
    #[test]
    fn suffixes_are_those_that_occurred_before() {
        let mut rng = Rng::new(7);
        let mut texts: Vec<Vec<u32>> = Vec::new();
        for alphabet in [1, 2, 3, 4, 7, 20, 300] {
            for length in [1, 2, 3, 5, 8, 13, 40, 120, 250] {
                texts.extend((0..6).map(|_| (0..length).map(|_| rng.below(alphabet) as u32).collect()));
            }
        }
        texts.extend((1..12).map(|period| (0..150).map(|i| i * i % period).collect()));
        texts.push((0..100).collect());
        let mut automaton = SuffixAutomaton::new();
        for text in &texts {
            automaton.clear();
            for (i, token) in text.iter().enumerate() {
                automaton.push(*token);
                let (so_far, Found { length, next }) = (&text[..=i], automaton.found());
                assert_eq!(length, longest(so_far), "{so_far:?}");
                if length > 0 {
                    assert!(next <= i, "{so_far:?}");
                    assert_eq!(so_far[next - length..next], so_far[i + 1 - length..], "{so_far:?}");
                }
            }
            assert!(automaton.states.len() <= 2 * text.len().max(1) + 1);
            assert!(automaton.edges.len() <= 3 * text.len() + 1);
        }
    }
}
