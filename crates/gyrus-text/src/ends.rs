//! Which tokens end a generation.
//!
//! Files name one end token, yet many models end turns with another, so the well-known names are
//! looked for as well.

use std::collections::BTreeSet;

use crate::data::{SpecialIds, TokenKind};
use crate::vocab::Vocab;

/// Texts that end a turn, a message or a document in the models that have them.
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

/// Also the HTML tag that ends struck-out text, so it counts only where the file calls it a control.
const SENTENCE_END: &str = "</s>";

/// Whether a token of this text ends a generation wherever it is not plain text.
pub(crate) fn is_end_name(text: &str) -> bool {
    NAMES.contains(&text)
}

/// The end tokens. `is_text` says whether a normal token is a piece of text rather than a marker that
/// the file forgot to mark.
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
    // Where a message has its own end, "<|end|>" only closes a part of it.
    let has = |name: &str| vocab.id_of(name).is_some_and(|id| ends.contains(&id));
    if has("<|return|>") && has("<|call|>") || has("<|flush|>") && has("<|calls|>") {
        let named = [ids.eos, ids.eot, ids.eom];
        if let Some(id) = vocab.id_of("<|end|>").filter(|&id| !named.contains(&Some(id))) {
            ends.remove(&id);
        }
    }
    ends
}
