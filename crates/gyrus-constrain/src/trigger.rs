//! The text after which a constraint begins.

use std::collections::HashMap;
use std::fmt;

use llguidance::Matcher;

use crate::Vocabulary;

/// A trigger text and what it means for each token of a vocabulary.
pub(crate) struct Trigger {
    text: Vec<u8>,
    /// For a match of `i` bytes, the length of its longest proper suffix that is a prefix of the trigger.
    fallback: Vec<usize>,
    vocabulary: Vocabulary,
    /// Tokens allowed before the trigger.
    allowed: Vec<u32>,
    /// For each number of matched bytes, tokens that complete the trigger and go on as the constraint cannot begin.
    forbidden: Vec<Vec<u32>>,
    /// From this number of matched bytes on the trigger must go on.
    certain: usize,
    /// For each number of matched bytes from `certain` on, the tokens that go on with the trigger.
    going_on: Vec<Vec<u32>>,
}

impl Trigger {
    /// Behind `begin` only `end` may follow. `None` for an empty trigger: the constraint begins at once.
    pub(crate) fn new(
        begin: &str,
        end: &str,
        vocabulary: &Vocabulary,
        prototype: &Matcher,
    ) -> Option<Trigger> {
        let text = [begin.as_bytes(), end.as_bytes()].concat();
        let &last = text.last()?;
        let mut allowed = vec![0; vocabulary.mask_words()];
        for id in 0..vocabulary.len() as u32 {
            if !vocabulary.text(id).is_empty() && !vocabulary.ends().contains(&id) {
                allowed[id as usize / 32] |= 1 << (id % 32);
            }
        }
        let forbidden = vec![Vec::new(); text.len()];
        let fallback = fallback(&text);
        let mut trigger = Trigger {
            text,
            fallback,
            vocabulary: vocabulary.clone(),
            allowed,
            forbidden,
            certain: begin.len(),
            going_on: Vec::new(),
        };
        let mut engine = prototype.deep_clone();
        let mut known: HashMap<Vec<u8>, bool> = HashMap::new();
        for id in 0..vocabulary.len() as u32 {
            let token = vocabulary.text(id);
            if !token.contains(&last) {
                continue;
            }
            for matched in 0..trigger.text.len() {
                let (_, Some(rest)) = trigger.advance(matched, token) else { continue };
                let fits = match known.get(rest) {
                    Some(&fits) => fits,
                    None => {
                        let fits = trigger.tokens(rest, &mut engine).is_some();
                        known.insert(rest.to_vec(), fits);
                        fits
                    }
                };
                if !fits {
                    trigger.forbidden[matched].push(id);
                }
            }
        }
        trigger.going_on =
            (begin.len()..trigger.text.len()).map(|matched| trigger.continuing(matched)).collect();
        Some(trigger)
    }

    /// The tokens that go on with a trigger that must go on: the one that completes it, or all that spell a part.
    fn continuing(&self, matched: usize) -> Vec<u32> {
        let rest = &self.text[matched..];
        let text = |id: &u32| self.vocabulary.text(*id);
        let is_allowed = |id: &u32| self.allowed[*id as usize / 32] >> (id % 32) & 1 == 1;
        let fits = |id: &u32| match text(id).strip_prefix(rest) {
            Some(_) => !self.forbidden[matched].contains(id),
            None => rest.starts_with(text(id)),
        };
        let fitting = || (0..self.vocabulary.len() as u32).filter(is_allowed).filter(fits);
        let whole: Vec<u32> = fitting().filter(|id| text(id) == rest).collect();
        if whole.is_empty() { fitting().collect() } else { whole }
    }

    /// The tokens that may follow this number of matched bytes, if the trigger must go on there.
    fn must(&self, matched: usize) -> Option<&[u32]> {
        matched.checked_sub(self.certain).and_then(|at| self.going_on.get(at)).map(Vec::as_slice)
    }

    /// Whether a token may follow this number of matched bytes, if the trigger must go on there.
    pub(crate) fn admits(&self, matched: usize, token: u32) -> bool {
        self.must(matched).is_none_or(|tokens| tokens.contains(&token))
    }

    /// Writes the mask of a step before the trigger.
    pub(crate) fn mask(&self, matched: usize, words: &mut [u32]) {
        if let Some(tokens) = self.must(matched) {
            words[..self.allowed.len()].fill(0);
            tokens.iter().for_each(|id| words[*id as usize / 32] |= 1 << (id % 32));
            return;
        }
        words[..self.allowed.len()].copy_from_slice(&self.allowed);
        for &id in &self.forbidden[matched] {
            words[id as usize / 32] &= !(1 << (id % 32));
        }
    }

    /// The bytes matched behind `token`, and what follows the trigger if the token completes it.
    pub(crate) fn advance<'a>(&self, mut matched: usize, token: &'a [u8]) -> (usize, Option<&'a [u8]>) {
        for (at, &byte) in token.iter().enumerate() {
            while matched > 0 && self.text[matched] != byte {
                matched = self.fallback[matched];
            }
            if self.text[matched] == byte {
                matched += 1;
            }
            if matched == self.text.len() {
                return (0, Some(&token[at + 1..]));
            }
        }
        (matched, None)
    }

    /// The tokens that the engine consumes for the text behind the trigger, `None` if the constraint cannot begin
    /// with it. White space may be dropped.
    pub(crate) fn tokens(&self, rest: &[u8], engine: &mut Matcher) -> Option<Vec<u32>> {
        let trie = self.vocabulary.inner().factory.tok_env().tok_trie();
        [rest, rest.trim_ascii_start()].into_iter().find_map(|rest| {
            let tokens = trie.greedy_tokenize(rest);
            let fits =
                tokens.is_empty() || engine.validate_tokens(&tokens).is_ok_and(|count| count == tokens.len());
            (fits && trie.decode_raw(&tokens) == rest).then_some(tokens)
        })
    }
}

/// The failure function of Knuth, Morris and Pratt.
fn fallback(text: &[u8]) -> Vec<usize> {
    let mut fallback = vec![0; text.len() + 1];
    let mut matched = 0;
    for at in 1..text.len() {
        while matched > 0 && text[matched] != text[at] {
            matched = fallback[matched];
        }
        if text[matched] == text[at] {
            matched += 1;
        }
        fallback[at + 1] = matched;
    }
    fallback
}

impl fmt::Debug for Trigger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", String::from_utf8_lossy(&self.text))
    }
}
