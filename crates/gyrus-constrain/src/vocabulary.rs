//! A vocabulary as a trie of bytes.

use std::fmt;
use std::sync::Arc;

use llguidance::ParserFactory;
use toktrie::{InferenceCapabilities, TokEnv, TokRxInfo, TokTrie, TokenId, TokenizerEnv};

use crate::work::Running;
use crate::{Constraint, Error, Limits, Source};

/// What a token of a vocabulary prints.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Piece<'a> {
    /// Text. The bytes need not be whole characters.
    Text(&'a [u8]),
    /// A control token with its name, such as `<|im_end|>`. Constrained text never has one, unless a Lark grammar
    /// names it.
    Control(&'a [u8]),
    /// An id that the model must not emit.
    Unused,
}

/// Encodes text to the ids that the model's tokenizer gives it.
pub type Encode = dyn Fn(&[u8]) -> Vec<u32> + Send + Sync;

/// The tokens of a model, prepared for masks. Cheap to clone.
#[derive(Clone)]
pub struct Vocabulary {
    inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) factory: ParserFactory,
    pub(crate) limits: Limits,
    pub(crate) running: Running,
    /// The text of each token, also of control tokens.
    texts: Texts,
    pub(crate) ends: Vec<u32>,
}

/// The longest token; longer ones are never allowed by a mask. A node of the trie has ten bits for its depth.
const MAX_TOKEN_BYTES: usize = 1000;
/// Bytes of all tokens. A node of the trie has 22 bits for the size of its subtree.
const MAX_BYTES: usize = (1 << 22) - 1;
const MAX_TOKENS: usize = 1 << 21;

/// Byte strings, one after another.
#[derive(Default)]
struct Texts {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl Texts {
    fn push(&mut self, text: &[u8]) {
        self.bytes.extend_from_slice(text);
        self.ends.push(self.bytes.len());
    }

    fn get(&self, id: u32) -> Option<&[u8]> {
        let id = id as usize;
        let end = *self.ends.get(id)?;
        let start = if id == 0 { 0 } else { self.ends[id - 1] };
        Some(&self.bytes[start..end])
    }
}

struct Env {
    trie: TokTrie,
    encode: Option<Box<Encode>>,
}

impl TokenizerEnv for Env {
    fn tok_trie(&self) -> &TokTrie {
        &self.trie
    }

    fn tokenize_bytes(&self, text: &[u8]) -> Vec<TokenId> {
        if let Some(encode) = &self.encode {
            let ids = encode(text);
            // An encoding that prints another text (an added prefix space, a normalised character) cannot be forced.
            if self.trie.decode_raw(&ids) == text {
                return ids;
            }
        }
        self.trie.greedy_tokenize(text)
    }

    fn tokenize_is_canonical(&self) -> bool {
        self.encode.is_some()
    }
}

impl Vocabulary {
    /// A vocabulary of `pieces` in the order of their ids. `ends` are the ids that end a text.
    ///
    /// `encode` is the model's tokenizer. With it, text that the constraint leaves no choice about is forced in the
    /// tokens of that encoding ([`State::forced`](crate::State::forced)).
    pub fn new<'a>(
        pieces: impl IntoIterator<Item = Piece<'a>>,
        ends: &[u32],
        encode: Option<Box<Encode>>,
        limits: Limits,
    ) -> Result<Vocabulary, Error> {
        let (mut words, mut texts) = (Vec::new(), Texts::default());
        for piece in pieces {
            let (word, text) = match piece {
                Piece::Text(text) if usable(text) => (text.to_vec(), text),
                Piece::Control(name) if usable(name) => {
                    ([&[TokTrie::SPECIAL_TOKEN_MARKER], name].concat(), name)
                }
                Piece::Text(text) => (Vec::new(), text),
                Piece::Control(_) | Piece::Unused => (Vec::new(), &[][..]),
            };
            words.push(word);
            texts.push(text);
            if texts.bytes.len() + words.len() > MAX_BYTES || words.len() > MAX_TOKENS {
                let most = format!("more than {MAX_BYTES} bytes or {MAX_TOKENS} tokens");
                return Err(Error::Vocabulary(most));
            }
        }
        if words.is_empty() {
            return Err(Error::Vocabulary("no tokens".into()));
        }
        if let Some(end) = ends.iter().find(|&&end| end as usize >= words.len()) {
            return Err(Error::Vocabulary(format!("end token {end} of {} tokens", words.len())));
        }
        let Some(&first) = ends.first() else {
            return Err(Error::Vocabulary("no end token, so constrained text could not end".into()));
        };
        let trie = TokTrie::from(&TokRxInfo::new(words.len() as u32, first), &words).with_eos_tokens(ends);
        let env: TokEnv = Arc::new(Env { trie, encode });
        let mut factory = ParserFactory::new(&env, InferenceCapabilities::default(), &slices())
            .map_err(|error| Error::Vocabulary(error.to_string()))?;
        factory.quiet();
        *factory.limits_mut() = limits.engine();
        Ok(Vocabulary {
            inner: Arc::new(Inner {
                factory,
                limits,
                running: Running::default(),
                texts,
                ends: ends.to_vec(),
            }),
        })
    }

    /// Compiles a constraint.
    pub fn compile(&self, source: &Source) -> Result<Constraint, Error> {
        Constraint::new(self, source)
    }

    /// The number of tokens.
    pub fn len(&self) -> usize {
        self.inner.texts.ends.len()
    }

    /// Whether there are no tokens. Never true of a vocabulary that was made.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The words of a mask.
    pub fn mask_words(&self) -> usize {
        self.len().div_ceil(32)
    }

    /// The text of a token, for control tokens their name. Empty for ids outside the vocabulary.
    pub fn text(&self, id: u32) -> &[u8] {
        self.inner.texts.get(id).unwrap_or_default()
    }

    /// The ids that end a text.
    pub fn ends(&self) -> &[u32] {
        &self.inner.ends
    }

    pub(crate) fn inner(&self) -> &Inner {
        &self.inner
    }
}

/// Sets of tokens that a mask takes or leaves as a whole: white space, and text inside JSON strings by its length, since a
/// string with a `maxLength` has room for the shorter ones until its end.
fn slices() -> Vec<String> {
    let most = ["{1,5}", "{1,10}", "{1,18}", "{1,30}", "+"];
    let in_strings = most.map(|most| format!(r#"[^"\\\x00-\x1F\x7F]{most}"#));
    [r"[\x20\x0A\x0D\x09]+".to_owned()].into_iter().chain(in_strings).collect()
}

fn usable(text: &[u8]) -> bool {
    // The marker is no byte of UTF-8. A token that begins with it would pass for a control token.
    !text.is_empty() && text.len() < MAX_TOKEN_BYTES && text[0] != TokTrie::SPECIAL_TOKEN_MARKER
}

impl fmt::Debug for Vocabulary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Vocabulary").field("tokens", &self.len()).field("ends", &self.inner.ends).finish()
    }
}
