//! The constraints of a model: its vocabulary, and those that were compiled lately.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use gyrus_constrain::{Constraint, Limits, Piece, Source, State, Vocabulary};
use gyrus_text::{Special, TokenKind, Tokenizer};

use crate::Error;
use crate::serving::TokenMask;

/// Compiled constraints that are kept, and as many that were refused. Requests often repeat one.
const KEPT: usize = 16;

/// Compiles constraints for a model's vocabulary, which is prepared when the first one is asked for.
#[derive(Default)]
pub(crate) struct Constraints {
    vocabulary: OnceLock<Result<Vocabulary, gyrus_constrain::Error>>,
    compiled: Latest<(Source, Option<Trigger>), Constraint>,
    /// Apart from the others, so that requests that fail push none of them out.
    refused: Latest<Source, gyrus_constrain::Error>,
}

/// The text behind which a constraint begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Trigger {
    Text(String),
    /// A header in two parts: behind the first one only the second may follow.
    Header(&'static str, &'static str),
}

/// The values that were used last, with what they were made from. The latest one is the last.
struct Latest<K, V>(Mutex<Vec<(K, V)>>);

impl<K, V> Default for Latest<K, V> {
    fn default() -> Self {
        Latest(Mutex::default())
    }
}

impl<K: PartialEq, V: Clone> Latest<K, V> {
    fn get(&self, key: &K) -> Option<V> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let at = all.iter().position(|(known, _)| known == key)?;
        all[at..].rotate_left(1);
        all.last().map(|(_, value)| value.clone())
    }

    fn keep(&self, key: K, value: V) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() >= KEPT {
            all.remove(0);
        }
        all.push((key, value));
    }
}

/// Whether the same source is refused again: not for want of time, or of a thread.
fn is_lasting(error: &gyrus_constrain::Error) -> bool {
    use gyrus_constrain::Error;
    !matches!(error, Error::Limit { limit: "compile_time" | "compilations", .. } | Error::Unsupported { .. })
}

impl Constraints {
    /// The constraint of a source. It begins behind the trigger, if there is one.
    pub(crate) fn compile(
        &self,
        tokenizer: &Arc<Tokenizer>,
        source: &Source,
        trigger: Option<Trigger>,
    ) -> Result<Constraint, Error> {
        let key = (source.clone(), trigger);
        if let Some(constraint) = self.compiled.get(&key) {
            return Ok(constraint);
        }
        if let Some(error) = self.refused.get(source) {
            return Err(error.into());
        }
        let vocabulary = self.vocabulary.get_or_init(|| vocabulary(tokenizer)).clone()?;
        let constraint = vocabulary.compile(source).inspect_err(|error| {
            if is_lasting(error) {
                self.refused.keep(source.clone(), error.clone());
            }
        })?;
        let constraint = match &key.1 {
            None => constraint,
            Some(Trigger::Text(text)) => constraint.after(text),
            Some(Trigger::Header(begin, end)) => constraint.after_header(begin, end),
        };
        self.compiled.keep(key, constraint.clone());
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

#[cfg(test)]
mod tests {
    use gyrus_text::gguf;

    use super::*;

    fn tokenizer() -> Arc<Tokenizer> {
        let bytes = (0..=255u8).map(|byte| format!("<0x{byte:02X}>"));
        let tokens: Vec<String> = bytes.chain(["</s>".to_owned()]).collect();
        let mut kinds = vec![TokenKind::Byte; 256];
        kinds.push(TokenKind::Control);
        let mut data = gguf::Vocabulary { model: "llama".into(), ..gguf::Vocabulary::default() };
        (data.scores, data.kinds, data.tokens) = (vec![0.0; tokens.len()], kinds, tokens);
        (data.ids.eos, data.add_bos) = (Some(256), Some(false));
        Arc::new(Tokenizer::new(data.into_data().unwrap()).unwrap())
    }

    #[test]
    fn refusals_are_kept_apart_from_constraints() {
        let (constraints, tokenizer) = (Constraints::default(), tokenizer());
        let compile = |text: String, trigger| constraints.compile(&tokenizer, &Source::Regex(text), trigger);
        assert!(compile("yes|no".into(), None).is_ok());
        for n in 0..3 * KEPT {
            assert!(compile(format!("a{{{}}}", 20_000 + n), None).is_err());
        }
        let lengths = |constraints: &Constraints| {
            (constraints.compiled.0.lock().unwrap().len(), constraints.refused.0.lock().unwrap().len())
        };
        assert_eq!(lengths(&constraints), (1, KEPT), "the compiled one is still there");
        // A refusal that is kept is given again, without a compilation: this source would be compiled.
        let error = gyrus_constrain::Error::Vocabulary("kept".into());
        constraints.refused.keep(Source::Regex("maybe".into()), error);
        let refused = compile("maybe".into(), None).unwrap_err();
        assert_eq!(refused.to_string(), "vocabulary: kept");
        // One that was found among those kept is the latest.
        assert!(compile("no|yes".into(), None).is_ok() && compile("yes|no".into(), None).is_ok());
        let latest = constraints.compiled.0.lock().unwrap().last().map(|(key, _)| key.clone());
        assert_eq!(latest, Some((Source::Regex("yes|no".into()), None)));
    }

    #[test]
    fn what_a_busy_machine_refuses_is_not_kept() {
        let limit = |limit| gyrus_constrain::Error::Limit { limit, allowed: 1, reason: String::new() };
        assert!(!is_lasting(&limit("compile_time")) && !is_lasting(&limit("compilations")));
        assert!(is_lasting(&limit("compile_work")));
    }
}
