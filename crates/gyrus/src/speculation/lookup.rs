//! Look-up of the last tokens in the prompt and the output.

use super::Drafter;
use super::automaton::SuffixAutomaton;

/// The most tokens that are searched. Memory is bounded by it: about 100 bytes a token.
const MOST_TOKENS: usize = 1 << 16;

/// Guesses that the text goes on as it did after the longest suffix that occurred before.
#[derive(Debug)]
pub struct Lookup {
    tokens: Vec<u32>,
    automaton: SuffixAutomaton,
    most: usize,
}

impl Lookup {
    /// Of a sequence that has these tokens. It takes time in proportion to them.
    pub fn new(tokens: &[u32]) -> Lookup {
        Lookup::with_most(tokens, MOST_TOKENS)
    }

    fn with_most(tokens: &[u32], most: usize) -> Lookup {
        // As many tokens can follow before the oldest are dropped.
        let tokens = &tokens[tokens.len().saturating_sub(most / 2)..];
        let mut lookup = Lookup { tokens: Vec::new(), automaton: SuffixAutomaton::new(), most };
        tokens.iter().for_each(|token| lookup.push(*token));
        lookup
    }
}

impl Drafter for Lookup {
    fn push(&mut self, token: u32) {
        if self.tokens.len() == self.most {
            // The older half is forgotten.
            self.tokens.drain(..self.most / 2);
            self.automaton.clear();
            self.tokens.iter().for_each(|token| self.automaton.push(*token));
        }
        self.tokens.push(token);
        self.automaton.push(token);
    }

    fn evidence(&self) -> usize {
        self.automaton.found().length
    }

    fn guess(&mut self, most: usize, guesses: &mut Vec<u32>) {
        let found = self.automaton.found();
        if found.length == 0 {
            return;
        }
        let first = guesses.len();
        for i in 0..most {
            // A text that repeats itself goes on to do so.
            let at = found.next + i;
            let token = self.tokens.get(at).copied();
            guesses.push(token.unwrap_or_else(|| guesses[first + at - self.tokens.len()]));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guess(lookup: &mut Lookup, most: usize) -> Vec<u32> {
        let mut guesses = Vec::new();
        lookup.guess(most, &mut guesses);
        guesses
    }

    #[test]
    fn the_text_goes_on_as_before() {
        let mut lookup = Lookup::new(&[1, 2, 3, 4, 5, 9, 2, 3]);
        assert_eq!((lookup.evidence(), guess(&mut lookup, 3)), (2, vec![4, 5, 9]));
        // Beyond the end of the text the guesses go on.
        assert_eq!(guess(&mut lookup, 8), [4, 5, 9, 2, 3, 4, 5, 9]);
        lookup.push(7);
        assert_eq!((lookup.evidence(), guess(&mut lookup, 3)), (0, vec![]));
        let mut cycle = Lookup::new(&[5, 6, 5, 6, 5, 6]);
        assert_eq!((cycle.evidence(), guess(&mut cycle, 5)), (4, vec![5, 6, 5, 6, 5]));
    }

    /// Of several continuations, that of the last time counts.
    #[test]
    fn recent_text_is_preferred() {
        let mut lookup = Lookup::new(&[1, 2, 3, 8, 1, 2, 4, 9, 1, 2]);
        assert_eq!(guess(&mut lookup, 2), [4, 9]);
    }

    /// With a bound on the tokens, guesses are those of the tokens that are kept.
    #[test]
    fn old_tokens_are_forgotten() {
        let text: Vec<u32> = (0..500u32).map(|i| i * i % 23 + i / 100).collect();
        let mut lookup = Lookup::with_most(&[], 64);
        for (i, token) in text.iter().enumerate() {
            lookup.push(*token);
            assert!(lookup.tokens.len() <= 64 && lookup.tokens.len() >= 32.min(i + 1));
            assert_eq!(lookup.tokens[..], text[i + 1 - lookup.tokens.len()..=i]);
            let mut again = Lookup::new(&lookup.tokens.clone());
            assert_eq!(lookup.evidence(), again.evidence());
            assert_eq!(guess(&mut lookup, 1), guess(&mut again, 1));
        }
    }
}
