//! Runs a generation to its end for `run` and `chat`.

use anyhow::{Context, Result};
use gyrus::{Event, Generation, StopReason, Usage};

use crate::progress::Progress;

/// A finished answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) text: String,
    pub(crate) ids: Vec<u32>,
    pub(crate) reason: StopReason,
    pub(crate) usage: Usage,
}

/// Runs a generation to its end. `show` gets each piece of text as it is decoded; unless `quiet`, a progress bar shows
/// the prefill of a long prompt.
pub(crate) fn generate(
    mut generation: Generation<'_>,
    quiet: bool,
    mut show: impl FnMut(&str) -> Result<()>,
) -> Result<Answer> {
    let (mut text, mut ids) = (String::new(), Vec::new());
    let mut prefill = (!quiet).then(|| Progress::new("prefill"));
    loop {
        let event =
            generation.next()?.context("internal error: the generation ended without a stop reason")?;
        let piece = match event {
            Event::PrefillProgress { done, total } => {
                prefill.as_ref().inspect(|bar| bar.set(done as u64, total as u64));
                continue;
            }
            Event::Prompt { .. } => {
                prefill = None;
                continue;
            }
            Event::Token { id, text, .. } => {
                ids.push(id);
                text
            }
            Event::Stop { text, .. } => text,
        };
        show(piece)?;
        text.push_str(piece);
        if let Event::Stop { reason, usage, .. } = event {
            return Ok(Answer { text, ids, reason, usage });
        }
    }
}

impl Answer {
    /// One line with token counts, speeds and the stop reason.
    pub(crate) fn statistics(&self) -> String {
        let usage = &self.usage;
        let fresh = usage.prompt_tokens - usage.cached_tokens;
        format!(
            "{fresh} prompt tokens at {}/s · {} tokens at {}/s · {}",
            rate(usage.prompt_speed(), 0),
            usage.generated_tokens,
            rate(usage.decode_speed(), 1),
            match &self.reason {
                StopReason::EndToken(_) => "end token".to_owned(),
                StopReason::MaxTokens => "token limit reached".to_owned(),
                StopReason::ContextFull => "context full".to_owned(),
                StopReason::StopString(text) => format!("stopped at {text:?}"),
                StopReason::Repetition =>
                    "stopped: the answer loops (--allow-repetition disables this)".to_owned(),
                StopReason::Cancelled => "interrupted".to_owned(),
                _ => "stopped".to_owned(),
            }
        )
    }

    /// The stop reason as JSON names it.
    pub(crate) fn reason_name(&self) -> &'static str {
        match self.reason {
            StopReason::EndToken(_) => "end",
            StopReason::MaxTokens => "max_tokens",
            StopReason::ContextFull => "context_full",
            StopReason::StopString(_) => "stop_string",
            StopReason::Repetition => "repetition",
            StopReason::Cancelled => "cancelled",
            _ => "other",
        }
    }
}

/// A speed with this many decimals, or a dash if nothing was measured.
fn rate(speed: Option<f64>, decimals: usize) -> String {
    speed.map_or_else(|| "-".to_owned(), |speed| format!("{speed:.decimals$}"))
}
