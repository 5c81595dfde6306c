//! The constraints of a model: its vocabulary, and those that were compiled lately.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use gyrus_constrain::{Constraint, Limits, Piece, Source, State, Vocabulary};
use gyrus_text::{Special, TokenKind, Tokenizer};

use crate::Error;
use crate::serving::TokenMask;

/// Compiled constraints that are kept. Requests often repeat one.
const KEPT: usize = 16;

/// Compiles constraints for a model's vocabulary, which is prepared when the first one is asked for.
#[derive(Default)]
pub(crate) struct Constraints {
    vocabulary: OnceLock<Result<Vocabulary, gyrus_constrain::Error>>,
    /// The latest one is the last.
    kept: Mutex<Vec<Kept>>,
}

/// The text behind which a constraint begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Trigger {
    Text(String),
    /// A header in two parts: behind the first one only the second may follow.
    Header(&'static str, &'static str),
}

struct Kept {
    source: Source,
    trigger: Option<Trigger>,
    constraint: Constraint,
}

impl Constraints {
    /// The constraint of a source. It begins behind the trigger, if there is one.
    pub(crate) fn compile(
        &self,
        tokenizer: &Arc<Tokenizer>,
        source: &Source,
        trigger: Option<Trigger>,
    ) -> Result<Constraint, Error> {
        let kept = || self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        {
            let mut kept = kept();
            let same = |one: &Kept| one.source == *source && one.trigger == trigger;
            if let Some(at) = kept.iter().position(same) {
                let one = kept.remove(at);
                let constraint = one.constraint.clone();
                kept.push(one);
                return Ok(constraint);
            }
        }
        let vocabulary = self.vocabulary.get_or_init(|| vocabulary(tokenizer)).clone()?;
        let constraint = vocabulary.compile(source)?;
        let constraint = match &trigger {
            None => constraint,
            Some(Trigger::Text(text)) => constraint.after(text),
            Some(Trigger::Header(begin, end)) => constraint.after_header(begin, end),
        };
        let mut kept = kept();
        if kept.len() >= KEPT {
            kept.remove(0);
        }
        kept.push(Kept { source: source.clone(), trigger, constraint: constraint.clone() });
        Ok(constraint)
    }
}

/// A compiled constraint with what errors call it.
pub(crate) struct ConstraintOf {
    language: &'static str,
    constraint: Constraint,
}

impl ConstraintOf {
    pub(crate) fn new(source: &Source, constraint: Constraint) -> ConstraintOf {
        ConstraintOf { language: source.language(), constraint }
    }

    /// The state of a new sequence.
    pub(crate) fn start(&self) -> Box<dyn TokenMask> {
        Box::new(Constrained { language: self.language, state: self.constraint.start() })
    }
}

/// The constraint of one completion.
#[derive(Debug)]
struct Constrained {
    language: &'static str,
    state: State,
}

impl Constrained {
    fn failed(&self, source: gyrus_constrain::Error) -> Error {
        Error::Constrained { constraint: self.language, source }
    }
}

impl TokenMask for Constrained {
    fn commit(&mut self, token: u32) -> Result<(), Error> {
        self.state.commit(token).map_err(|error| self.failed(error))
    }

    fn take_back(&mut self, tokens: usize) -> Result<(), Error> {
        self.state.rollback(tokens).map_err(|error| self.failed(error))
    }

    fn forced(&mut self) -> Vec<u32> {
        self.state.forced()
    }

    fn mask(&mut self, words: &mut [u32]) -> Result<(), Error> {
        self.state.mask(words).map_err(|error| self.failed(error))?;
        if words.iter().all(|word| *word == 0) {
            let reason = "the mask is empty".to_owned();
            let position = self.state.position();
            return Err(self.failed(gyrus_constrain::Error::DeadEnd { position, reason }));
        }
        Ok(())
    }
}

fn vocabulary(tokenizer: &Arc<Tokenizer>) -> Result<Vocabulary, gyrus_constrain::Error> {
    let ids = 0..tokenizer.vocab_size() as u32;
    let pieces = ids.map(|id| match tokenizer.kind(id) {
        Some(TokenKind::Normal | TokenKind::Byte | TokenKind::UserDefined) if !tokenizer.is_end(id) => {
            Piece::Text(tokenizer.token_bytes(id))
        }
        None | Some(TokenKind::Unused | TokenKind::Unknown) => Piece::Unused,
        _ => Piece::Control(tokenizer.token_text(id).unwrap_or_default().as_bytes()),
    });
    let encoder = Arc::clone(tokenizer);
    let encode = move |text: &[u8]| {
        let mut ids = Vec::new();
        encoder.encode_bytes_into(text, Special::Literal, false, &mut ids);
        ids
    };
    let ends: Vec<u32> = tokenizer.ends().collect();
    Vocabulary::new(pieces, &ends, Some(Box::new(encode)), Limits::default())
}
