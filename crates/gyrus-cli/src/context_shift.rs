//! `--context-shift`: which tokens stay when a full context is shifted.

use anyhow::Result;
use gyrus::{Message, Model, Request};

use crate::decoding::Decoding;

/// Tokens that come before the first message of the user: those of the system prompt and of tools.
pub(crate) fn kept(model: &Model, decoding: &Decoding, system: Option<&str>) -> Result<usize> {
    let tokens = |text: &str| {
        let messages: Vec<Message> =
            system.map(Message::system).into_iter().chain([Message::user(text)]).collect();
        model.prompt_tokens(&decoding.apply(Request::messages(messages)))
    };
    let (one, other) = (tokens("one")?, tokens("Two!")?);
    // At least the first block stays, on which much attention rests.
    Ok(one.iter().zip(&other).take_while(|(a, b)| a == b).count().max(1))
}
