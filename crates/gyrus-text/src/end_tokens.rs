//! The tokens that end a generation.
//!
//! A file defines one EOS token, but many models end a message with another one. Therefore tokens with well-known names
//! count too.

use std::collections::BTreeSet;

use crate::data::{SpecialIds, TokenKind};
use crate::vocab::Vocab;

/// Token texts that end a turn, a message or a document.
const NAMES: &[&str] = &[
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|flush|>",
    "<|calls|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<end_of_utterance>",
    "<eos>",
    "<turn|>",
    "<|tool_response>",
    "<\u{FF5C}end\u{2581}of\u{2581}sentence\u{FF5C}>",
    "[e~[",
];

/// Also an HTML tag (end of struck-out text), so it counts only if the file marks it as a control token.
const SENTENCE_END: &str = "</s>";

/// Whether a token with this text ends a generation unless it is plain text.
pub(crate) fn is_end_name(text: &str) -> bool {
    NAMES.contains(&text)
}

/// The end tokens. `is_text` returns whether a normal token is text rather than a special token that the file does not
/// mark.
pub(crate) fn end_tokens(vocab: &Vocab, ids: &SpecialIds, is_text: impl Fn(u32) -> bool) -> BTreeSet<u32> {
    let mut ends: BTreeSet<u32> = [ids.eos, ids.eot, ids.eom].into_iter().flatten().collect();
    for name in NAMES {
        if let Some(id) = vocab.id_of(name) {
            let counts = match vocab.kinds[id as usize] {
                TokenKind::Control | TokenKind::UserDefined | TokenKind::Unknown => true,
                TokenKind::Normal => !is_text(id),
                TokenKind::Unused | TokenKind::Byte => false,
            };
            if counts {
                ends.insert(id);
            }
        }
    }
    if let Some(id) = vocab.id_of(SENTENCE_END)
        && vocab.kinds[id as usize] == TokenKind::Control
    {
        ends.insert(id);
    }
    // If the model has another end-of-message token, "<|end|>" only closes a part of the message.
    let has = |name: &str| vocab.id_of(name).is_some_and(|id| ends.contains(&id));
    if has("<|return|>") && has("<|call|>") || has("<|flush|>") && has("<|calls|>") {
        let named = [ids.eos, ids.eot, ids.eom];
        if let Some(id) = vocab.id_of("<|end|>").filter(|&id| !named.contains(&Some(id))) {
            ends.remove(&id);
        }
    }
    ends
}
