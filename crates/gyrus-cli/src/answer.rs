//! Runs a generation to its end for `run` and `chat`.

use anyhow::{Result, ensure};
use gyrus::tools::Call;
use gyrus::{Event, Generation, StopReason, Usage};
use serde_json::{Value, json};

use crate::pieces;
use crate::progress::Progress;

/// A finished answer.
#[derive(Debug, Default)]
pub(crate) struct Answer {
    pub(crate) text: String,
    pub(crate) reasoning: String,
    pub(crate) calls: Vec<Call>,
    pub(crate) ids: Vec<u32>,
    /// Log-probabilities of the tokens, if they were asked for.
    pub(crate) logprobs: Vec<Logprob>,
    pub(crate) reason: Option<StopReason>,
    pub(crate) usage: Usage,
}

/// The log-probability of a token, and those of the most likely ones.
#[derive(Debug)]
pub(crate) struct Logprob {
    pub(crate) id: u32,
    pub(crate) logprob: f32,
    pub(crate) top: Vec<(u32, f32)>,
}

/// A piece of an answer as it is decoded.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Shown<'a> {
    Text(&'a str),
    Reasoning(&'a str),
    Call(&'a Call),
}

/// Runs a generation to its end and returns one answer for each choice. `show` gets each piece of the first choice as it
/// is decoded; unless `quiet`, a progress bar shows the prefill of a long prompt.
pub(crate) fn generate(
    mut generation: Generation<'_>,
    quiet: bool,
    mut show: impl FnMut(Shown<'_>) -> Result<()>,
) -> Result<Vec<Answer>> {
    let mut answers: Vec<Answer> = Vec::new();
    let mut prefill = (!quiet).then(|| Progress::new("prefill"));
    while let Some(event) = generation.next()? {
        let (choice, shown) = match &event {
            Event::PrefillProgress { choice: 0, done, total } => {
                prefill.as_ref().inspect(|bar| bar.set(*done as u64, *total as u64));
                continue;
            }
            Event::Prompt { choice, .. } => {
                prefill = None;
                (*choice, None)
            }
            Event::Token { choice, .. } | Event::Stop { choice, .. } => (*choice, None),
            Event::Text { choice, text } => (*choice, Some(Shown::Text(text))),
            Event::Reasoning { choice, text } => (*choice, Some(Shown::Reasoning(text))),
            Event::ToolCall { choice, call } => (*choice, Some(Shown::Call(call))),
            _ => continue,
        };
        if answers.len() <= choice {
            answers.resize_with(choice + 1, Answer::default);
        }
        if let Some(shown) = shown.filter(|_| choice == 0) {
            show(shown)?;
        }
        answers[choice].add(event);
    }
    let ended = answers.iter().all(|answer| answer.reason.is_some());
    ensure!(ended && !answers.is_empty(), "internal error: the generation ended without a stop reason");
    Ok(answers)
}

impl Answer {
    fn add(&mut self, event: Event<'_>) {
        match event {
            Event::Token { id, logprob, top, .. } => {
                self.ids.push(id);
                self.logprobs.extend(logprob.map(|logprob| Logprob { id, logprob, top: top.to_vec() }));
            }
            Event::Text { text, .. } => self.text.push_str(text),
            Event::Reasoning { text, .. } => self.reasoning.push_str(text),
            Event::ToolCall { call, .. } => self.calls.push(call.clone()),
            Event::Stop { reason, usage, .. } => (self.reason, self.usage) = (Some(reason), usage),
            _ => {}
        }
    }

    /// One line with token counts, speeds and the stop reason.
    pub(crate) fn statistics(&self) -> String {
        let usage = &self.usage;
        let fresh = usage.prompt_tokens - usage.cached_tokens;
        let guesses = match usage.drafted_tokens {
            0 => String::new(),
            drafted => format!(", {} of {drafted} guesses right", usage.accepted_tokens),
        };
        format!(
            "{fresh} prompt tokens at {}/s · {} tokens at {}/s{guesses} · {}",
            rate(usage.prompt_speed(), 0),
            usage.generated_tokens,
            rate(usage.decode_speed(), 1),
            match &self.reason {
                Some(StopReason::EndToken(_)) => "end token".to_owned(),
                Some(StopReason::MaxTokens) => "token limit reached".to_owned(),
                Some(StopReason::ContextFull) => "context full".to_owned(),
                Some(StopReason::StopString(text)) => format!("stopped at {text:?}"),
                Some(StopReason::Repetition) =>
                    "stopped: the answer loops (--allow-repetition disables this)".to_owned(),
                Some(StopReason::Cancelled) => "interrupted".to_owned(),
                _ => "stopped".to_owned(),
            }
        )
    }

    /// The answer as JSON. Reasoning, calls and log-probabilities are there if the answer has any.
    pub(crate) fn to_json(&self) -> Value {
        let usage = &self.usage;
        let mut document = json!({
            "text": self.text,
            "ids": self.ids,
            "stop": self.reason_name(),
            "prompt_tokens": usage.prompt_tokens,
            "generated_tokens": usage.generated_tokens,
            "prompt_tokens_per_second": usage.prompt_speed(),
            "tokens_per_second": usage.decode_speed(),
        });
        if usage.drafted_tokens > 0 {
            document["drafted_tokens"] = Value::from(usage.drafted_tokens);
            document["accepted_tokens"] = Value::from(usage.accepted_tokens);
        }
        if !self.reasoning.is_empty() {
            document["reasoning"] = Value::from(&*self.reasoning);
        }
        if !self.calls.is_empty() {
            document["tool_calls"] = self.calls.iter().map(pieces::json_of).collect();
        }
        if !self.logprobs.is_empty() {
            let entry = |(id, logprob): &(u32, f32)| json!({ "id": id, "logprob": logprob });
            let each = |token: &Logprob| {
                let top: Vec<Value> = token.top.iter().map(entry).collect();
                json!({ "id": token.id, "logprob": token.logprob, "top": top })
            };
            document["logprobs"] = self.logprobs.iter().map(each).collect();
        }
        document
    }

    /// The stop reason as JSON names it.
    pub(crate) fn reason_name(&self) -> &'static str {
        match self.reason {
            Some(StopReason::EndToken(_)) => "end",
            Some(StopReason::MaxTokens) => "max_tokens",
            Some(StopReason::ContextFull) => "context_full",
            Some(StopReason::StopString(_)) => "stop_string",
            Some(StopReason::Repetition) => "repetition",
            Some(StopReason::Cancelled) => "cancelled",
            _ => "other",
        }
    }
}

/// A speed with this many decimals, or a dash if nothing was measured.
fn rate(speed: Option<f64>, decimals: usize) -> String {
    speed.map_or_else(|| "-".to_owned(), |speed| format!("{speed:.decimals$}"))
}
