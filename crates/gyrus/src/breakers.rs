//! DRY's sequence breakers: from strings to the sequences of tokens that contain them.

use std::sync::{Arc, Mutex, PoisonError};

use gyrus_kernels::Breakers;
use gyrus_text::{Special, Tokenizer};

use crate::Error;

/// What repetitions do not reach over unless a request says otherwise: lines, and marks of dialogues and lists.
pub(crate) const DEFAULT_BREAKERS: [&str; 4] = ["\n", ":", "\"", "*"];

/// The most breakers of a request, the most bytes of one, and the most tokens behind its first.
const MAX_BREAKERS: usize = 64;
const MAX_BYTES: usize = 40;
const MAX_TAIL: usize = 20;

/// The breakers of a model that were used last: the whole vocabulary is searched for them.
#[derive(Debug, Default)]
pub(crate) struct BreakerCache(Mutex<Option<(Vec<String>, Arc<Breakers>)>>);

impl BreakerCache {
    /// The breakers of these strings.
    pub(crate) fn get(&self, tokenizer: &Tokenizer, strings: &[String]) -> Result<Arc<Breakers>, Error> {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((of, breakers)) = &*last
            && of == strings
        {
            return Ok(Arc::clone(breakers));
        }
        let breakers = Arc::new(breakers(tokenizer, strings)?);
        *last = Some((strings.to_vec(), Arc::clone(&breakers)));
        Ok(breakers)
    }
}

/// Sequences of tokens whose text contains a string: tokens that have it in them, and tokens that end with its beginning,
/// followed by the tokens of the rest.
fn breakers(tokenizer: &Tokenizer, strings: &[String]) -> Result<Breakers, Error> {
    if strings.len() > MAX_BREAKERS {
        let n = strings.len();
        return Err(Error::Request(format!(
            "{n} DRY sequence breakers: a request has at most {MAX_BREAKERS}"
        )));
    }
    for text in strings {
        if text.is_empty() || text.len() > MAX_BYTES {
            return Err(Error::Request(format!(
                "the DRY sequence breaker {text:?} has {} bytes, it must have 1 to {MAX_BYTES}",
                text.len()
            )));
        }
    }
    let mut found = Vec::new();
    for id in 0..tokenizer.vocab_size() as u32 {
        let token = tokenizer.token_bytes(id);
        for text in strings {
            let text = text.as_bytes();
            if token.windows(text.len()).any(|part| part == text) {
                found.push(vec![id]);
                continue;
            }
            for common in 1..text.len().min(token.len() + 1) {
                if token.ends_with(&text[..common]) {
                    let mut sequence = vec![id];
                    tokenizer.encode_bytes_into(&text[common..], Special::Literal, false, &mut sequence);
                    sequence.truncate(1 + MAX_TAIL);
                    found.push(sequence);
                }
            }
        }
    }
    Ok(Breakers::new(found))
}
