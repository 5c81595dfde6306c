//! The `model` part: vocabulary, merges and options.

use std::fmt;

use serde::de::{self, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use super::problem;
use crate::data::{Bpe, MergeRule, Model, WordMarks};
use crate::error::TokenizerError;

/// The `model` object. Its lists are read without a tree of JSON values, which would be many times as large.
#[derive(Deserialize)]
pub(super) struct ModelJson {
    #[serde(rename = "type")]
    kind: Option<String>,
    vocab: Entries,
    #[serde(default)]
    merges: Option<Merges>,
    #[serde(default)]
    dropout: Value,
    #[serde(default)]
    unk_token: Option<String>,
    #[serde(default)]
    unk_id: Option<u64>,
    #[serde(default)]
    continuing_subword_prefix: Option<String>,
    #[serde(default)]
    end_of_word_suffix: Option<String>,
    #[serde(default)]
    fuse_unk: bool,
    #[serde(default)]
    byte_fallback: bool,
    #[serde(default)]
    ignore_merges: bool,
    #[serde(default)]
    max_input_chars_per_word: Option<usize>,
}

/// The tokens with their ids, or with their scores in the order of ids.
enum Entries {
    Ids(Vec<(String, u64)>),
    Scores(Vec<(String, f64)>),
}

struct Merges(Vec<MergeRule>);

/// What the model part contains.
pub(super) struct ModelParts {
    pub(super) tokens: Vec<String>,
    pub(super) scores: Vec<f64>,
    pub(super) model: Model,
    pub(super) unknown: Option<String>,
    pub(super) byte_fallback: bool,
}

/// Ids must be below this number in a file of `count` tokens, so that unused ids do not size an allocation.
pub(super) fn most_ids(count: usize) -> usize {
    count.saturating_mul(2).saturating_add(1 << 16)
}

impl ModelJson {
    pub(super) fn read(self) -> Result<ModelParts, TokenizerError> {
        let unsupported = |key: &str, what: String| Err(problem(&format!("model.{key}"), what));
        // Old files have no type.
        let kind = self.kind.as_deref().unwrap_or(match (&self.vocab, &self.merges) {
            (Entries::Scores(_), _) => "Unigram",
            (_, Some(_)) => "BPE",
            _ => "WordPiece",
        });
        if !self.dropout.is_null() && self.dropout.as_f64() != Some(0.0) {
            return unsupported("dropout", format!("{} is not supported; supported: null, 0", self.dropout));
        }
        let (tokens, scores) = match (kind, self.vocab) {
            ("BPE" | "WordPiece", Entries::Ids(entries)) => (by_id(entries)?, Vec::new()),
            ("Unigram", Entries::Scores(entries)) => entries.into_iter().unzip(),
            ("Unigram", _) => return unsupported("vocab", "it must be a list of tokens and scores".into()),
            ("BPE" | "WordPiece", _) => {
                return unsupported("vocab", "it must be an object of tokens and ids".into());
            }
            (kind, _) => {
                let what = format!("{kind:?} is not supported; supported: BPE, Unigram, WordPiece");
                return unsupported("type", what);
            }
        };
        let mut unknown = self.unk_token;
        let prefix = self.continuing_subword_prefix;
        let model = match kind {
            "BPE" => {
                for (key, text) in
                    [("continuing_subword_prefix", &prefix), ("end_of_word_suffix", &self.end_of_word_suffix)]
                {
                    if let Some(text) = text.as_ref().filter(|text| !text.is_empty()) {
                        return unsupported(
                            key,
                            format!("{text:?} is not supported in BPE; supported: null"),
                        );
                    }
                }
                Model::CharacterBpe(Bpe {
                    merges: self.merges.map_or_else(Vec::new, |merges| merges.0),
                    ignore_merges: self.ignore_merges,
                    fuse_unknown: self.fuse_unk,
                    unknown: None,
                })
            }
            "Unigram" => {
                unknown = match self.unk_id {
                    Some(id) => match usize::try_from(id).ok().and_then(|id| tokens.get(id)) {
                        Some(text) => Some(text.clone()),
                        None => {
                            let what = format!("{id} is outside the vocabulary of {} tokens", tokens.len());
                            return unsupported("unk_id", what);
                        }
                    },
                    None => None,
                };
                Model::Unigram {
                    byte_fallback: self.byte_fallback,
                    double_precision: true,
                    pieces: tokens.len(),
                }
            }
            _ => Model::WordPiece {
                words: WordMarks::Continuation(prefix.unwrap_or_else(|| "##".into())),
                longest_word: self.max_input_chars_per_word.unwrap_or(100),
            },
        };
        Ok(ModelParts { tokens, scores, model, unknown, byte_fallback: self.byte_fallback })
    }
}

/// The tokens in the order of their ids; unused ids are empty.
fn by_id(entries: Vec<(String, u64)>) -> Result<Vec<String>, TokenizerError> {
    let most = most_ids(entries.len());
    let mut tokens: Vec<String> = Vec::with_capacity(entries.len());
    for (text, id) in entries {
        let slot = usize::try_from(id).ok().filter(|&id| id < most).ok_or_else(|| {
            problem("model.vocab", format!("token {text:?} has id {id}; ids must be below {most}"))
        })?;
        if tokens.len() <= slot {
            tokens.resize(slot + 1, String::new());
        }
        if !tokens[slot].is_empty() {
            let what = format!("tokens {:?} and {text:?} both have id {id}", tokens[slot]);
            return Err(problem("model.vocab", what));
        }
        tokens[slot] = text;
    }
    Ok(tokens)
}

impl<'de> Deserialize<'de> for Entries {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;
        impl<'de> Visitor<'de> for Reader {
            type Value = Entries;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of tokens and ids, or a list of tokens and scores")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Entries, A::Error> {
                let mut entries = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    entries.push(entry);
                }
                Ok(Entries::Ids(entries))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Entries, A::Error> {
                let mut entries = Vec::new();
                while let Some(entry) = list.next_element()? {
                    entries.push(entry);
                }
                Ok(Entries::Scores(entries))
            }
        }
        deserializer.deserialize_any(Reader)
    }
}

impl<'de> Deserialize<'de> for Merges {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Rule(MergeRule);
        struct Reader;
        impl<'de> Visitor<'de> for Reader {
            type Value = Rule;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a merge: two tokens in a list, or separated by a space")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Rule, E> {
                MergeRule::parse(text.to_owned()).map(Rule).map_err(|rule| {
                    E::custom(format!("merge {rule:?} is not two tokens separated by a space"))
                })
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Rule, A::Error> {
                let mut next = || list.next_element::<String>();
                match (next()?, next()?, next()?) {
                    (Some(left), Some(right), None) => Ok(Rule(MergeRule::new(&left, &right))),
                    _ => Err(de::Error::custom("a merge is not two tokens")),
                }
            }
        }
        impl<'de> Deserialize<'de> for Rule {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                deserializer.deserialize_any(Reader)
            }
        }
        let rules = Vec::<Rule>::deserialize(deserializer)?;
        Ok(Merges(rules.into_iter().map(|rule| rule.0).collect()))
    }
}
