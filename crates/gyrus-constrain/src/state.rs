//! The constraint of one sequence.

use std::fmt;
use std::sync::Arc;

use llguidance::Matcher;

use crate::limits::first_line;
use crate::trigger::Trigger;
use crate::{Error, Vocabulary};

/// A constraint and the tokens that a sequence has committed to it.
///
/// ```
/// use gyrus_constrain::{Limits, Piece, Source, Vocabulary};
///
/// let pieces = ["<end>", "a", "b", "ab"].map(|text| Piece::Text(text.as_bytes()));
/// let vocabulary = Vocabulary::new(pieces, &[0], None, Limits::default())?;
/// let mut state = vocabulary.compile(&Source::Regex("a+b".into()))?.start();
/// let mut mask = [0];
/// state.mask(&mut mask)?;
/// assert_eq!(mask, [0b1010]); // `a` and `ab`
/// state.commit(3)?;
/// state.mask(&mut mask)?;
/// assert_eq!(mask, [0b0001]); // the end
/// # Ok::<(), gyrus_constrain::Error>(())
/// ```
pub struct State {
    vocabulary: Vocabulary,
    engine: Matcher,
    trigger: Option<Arc<Trigger>>,
    history: Vec<Step>,
    now: Phase,
}

/// Where a sequence stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Before the trigger, of which this many bytes have been seen.
    Waiting(usize),
    /// In constrained text.
    Active,
    /// Behind an end token.
    Ended,
}

/// What a committed token has changed.
#[derive(Debug, Clone, Copy)]
struct Step {
    before: Phase,
    /// Tokens that the engine has consumed for it.
    engine: usize,
}

impl State {
    pub(crate) fn new(vocabulary: Vocabulary, engine: Matcher, trigger: Option<Arc<Trigger>>) -> State {
        let now = if trigger.is_some() { Phase::Waiting(0) } else { Phase::Active };
        State { vocabulary, engine, trigger, history: Vec::new(), now }
    }

    /// Writes the tokens that may come next: bit `i % 32` of word `i / 32` for token `i`. Words and bits beyond the
    /// vocabulary are zero.
    ///
    /// End tokens are allowed exactly when the text is complete. At least one token is allowed, or it is an error.
    pub fn mask(&mut self, words: &mut [u32]) -> Result<(), Error> {
        let (own, tokens) = (self.vocabulary.mask_words(), self.vocabulary.len());
        if words.len() < own {
            return Err(Error::MaskSize { words: words.len(), tokens });
        }
        words.fill(0);
        match (self.now, &self.trigger) {
            (Phase::Waiting(matched), Some(trigger)) => trigger.mask(matched, words),
            (Phase::Ended, _) => {
                for &end in self.vocabulary.ends() {
                    words[end as usize / 32] |= 1 << (end % 32);
                }
            }
            _ => {
                let mask =
                    self.engine.compute_mask_or_eos().map_err(|error| self.stopped(&error.to_string()))?;
                words[..own].copy_from_slice(&mask.as_slice()[..own]);
            }
        }
        Ok(())
    }

    /// Appends a token. A token that the mask does not allow is an error and changes nothing.
    pub fn commit(&mut self, token: u32) -> Result<(), Error> {
        let step = Step { before: self.now, engine: 0 };
        let step = match (self.now, self.trigger.clone()) {
            (Phase::Waiting(matched), Some(trigger)) => {
                if self.vocabulary.ends().contains(&token)
                    || self.vocabulary.text(token).is_empty()
                    || !trigger.admits(matched, token)
                {
                    return Err(self.refused(token));
                }
                let text = self.vocabulary.text(token);
                let (matched, rest) = trigger.advance(matched, text);
                let Some(rest) = rest else {
                    self.now = Phase::Waiting(matched);
                    self.history.push(step);
                    return Ok(());
                };
                let Some(tokens) = trigger.tokens(rest, &mut self.engine) else {
                    return Err(self.refused(token));
                };
                self.consume(&tokens)?;
                self.now = Phase::Active;
                Step { engine: tokens.len(), ..step }
            }
            (Phase::Ended, _) => return Err(self.refused(token)),
            _ if self.engine.is_error() => return Err(self.dead_end()),
            _ if self.engine.is_stopped() => {
                if !self.vocabulary.ends().contains(&token) {
                    return Err(self.refused(token));
                }
                self.now = Phase::Ended;
                step
            }
            _ => {
                if token as usize >= self.vocabulary.len()
                    || self.engine.validate_tokens(&[token]).unwrap_or(0) == 0
                {
                    return Err(self.refused(token));
                }
                self.consume(&[token])?;
                if self.vocabulary.ends().contains(&token) {
                    self.now = Phase::Ended;
                }
                Step { engine: 1, ..step }
            }
        };
        self.history.push(step);
        Ok(())
    }

    /// The tokens that must come next, in the order in which they must be committed. Empty where there is a choice,
    /// and for a vocabulary without an encoder.
    pub fn forced(&mut self) -> Vec<u32> {
        if self.now != Phase::Active || self.engine.is_stopped() {
            Vec::new()
        } else {
            self.engine.compute_ff_tokens()
        }
    }

    /// Whether the text may end here.
    pub fn is_complete(&mut self) -> bool {
        match self.now {
            Phase::Waiting(_) => false,
            Phase::Ended => true,
            Phase::Active => {
                !self.engine.is_error()
                    && (self.engine.is_stopped() || self.engine.is_accepting().unwrap_or(false))
            }
        }
    }

    /// Whether the text is complete and nothing but an end token may follow.
    pub fn is_finished(&self) -> bool {
        match self.now {
            Phase::Waiting(_) => false,
            Phase::Ended => true,
            Phase::Active => self.engine.is_stopped() && !self.engine.is_error(),
        }
    }

    /// Whether the trigger is still awaited, so that text is not constrained yet.
    pub fn is_waiting(&self) -> bool {
        matches!(self.now, Phase::Waiting(_))
    }

    /// How many of the tokens could be committed one after the other.
    pub fn accepted(&mut self, tokens: &[u32]) -> usize {
        let count = tokens.iter().take_while(|&&token| self.commit(token).is_ok()).count();
        match self.rollback(count) {
            Ok(()) => count,
            Err(_) => 0,
        }
    }

    /// Takes back the last `count` tokens.
    pub fn rollback(&mut self, count: usize) -> Result<(), Error> {
        let committed = self.history.len();
        let Some(keep) = committed.checked_sub(count) else {
            return Err(Error::Rollback { asked: count, committed });
        };
        let engine = self.history[keep..].iter().map(|step| step.engine).sum();
        if engine > 0 {
            self.engine.rollback(engine).map_err(|error| self.stopped(&error.to_string()))?;
        }
        if let Some(step) = self.history.get(keep) {
            self.now = step.before;
        }
        self.history.truncate(keep);
        Ok(())
    }

    /// The tokens committed so far.
    pub fn position(&self) -> usize {
        self.history.len()
    }

    fn consume(&mut self, tokens: &[u32]) -> Result<(), Error> {
        self.engine.consume_tokens(tokens).map_err(|error| self.stopped(&error.to_string()))
    }

    fn refused(&self, token: u32) -> Error {
        let text = String::from_utf8_lossy(self.vocabulary.text(token)).into_owned();
        Error::Token { token, text, position: self.position() }
    }

    fn dead_end(&self) -> Error {
        self.stopped(&self.engine.get_error().unwrap_or_default())
    }

    fn stopped(&self, message: &str) -> Error {
        let reason = first_line(message);
        let limit = self.vocabulary.inner().limits.step(&reason);
        limit.unwrap_or(Error::DeadEnd { position: self.position(), reason })
    }
}

impl Clone for State {
    fn clone(&self) -> State {
        State {
            vocabulary: self.vocabulary.clone(),
            engine: self.engine.deep_clone(),
            trigger: self.trigger.clone(),
            history: self.history.clone(),
            now: self.now,
        }
    }
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("State").field("position", &self.position()).field("now", &self.now).finish()
    }
}
