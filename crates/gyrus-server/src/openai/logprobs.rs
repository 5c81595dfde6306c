//! Log-probabilities in OpenAI's formats.

use gyrus::Model;
use serde_json::{Map, Value, json};

use crate::collected::{Token, token_text};

/// What is written for a token that cannot come: JSON has no infinity.
const LEAST: f32 = -9999.0;

fn finite(logprob: f32) -> f32 {
    if logprob.is_finite() { logprob } else { LEAST }
}

/// A token of a chat.
pub(crate) fn of_chat(model: &Model, token: &Token) -> Value {
    let one = |id: u32, logprob: f32| {
        let (text, bytes) = token_text(model, id);
        json!({ "token": text, "logprob": finite(logprob), "bytes": bytes })
    };
    let mut value = one(token.id, token.logprob.unwrap_or(LEAST));
    value["top_logprobs"] = token.top.iter().map(|(id, logprob)| one(*id, *logprob)).collect();
    value
}

/// The characters that begin in these bytes: the parts of one that is divided between tokens count once.
fn characters(bytes: &[u8]) -> usize {
    bytes.iter().filter(|byte| **byte & 0xc0 != 0x80).count()
}

/// The tokens of a completion. `offset` is the character at which the text of the first begins; it is moved to the end.
pub(super) fn of_completion(model: &Model, tokens: &[Token], offset: &mut usize) -> Value {
    let mut offsets = Vec::new();
    let mut texts = Vec::new();
    let mut tops = Vec::new();
    for token in tokens {
        let (text, bytes) = token_text(model, token.id);
        offsets.push(*offset);
        *offset += characters(&bytes);
        let top = token.top.iter().map(|(id, logprob)| (token_text(model, *id).0, finite(*logprob).into()));
        tops.push(Value::Object(top.collect::<Map<String, Value>>()));
        texts.push(text);
    }
    let logprobs: Vec<f32> = tokens.iter().map(|token| finite(token.logprob.unwrap_or(LEAST))).collect();
    json!({ "tokens": texts, "token_logprobs": logprobs, "top_logprobs": tops, "text_offset": offsets })
}

#[cfg(test)]
mod tests {
    use super::characters;

    #[test]
    fn offsets_are_those_of_characters() {
        let text = "naïve 日本 🦀";
        assert_eq!(characters(text.as_bytes()), text.chars().count());
        for at in 0..=text.len() {
            let (a, b) = text.as_bytes().split_at(at);
            assert_eq!(characters(a) + characters(b), text.chars().count());
        }
    }
}
