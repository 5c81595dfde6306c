//! Answers as a whole.

use std::future::poll_fn;
use std::task::Poll;

use gyrus::tools::Call;
use gyrus::{Event, Model, StopReason, Usage};
use serde_json::{Value, json};

use crate::failure::Failure;
use crate::running::Running;

/// A generation that has ended.
#[derive(Debug)]
pub(crate) struct Collected {
    pub(crate) choices: Vec<Choice>,
}

/// One of its choices.
#[derive(Debug, Default)]
pub(crate) struct Choice {
    pub(crate) text: String,
    pub(crate) reasoning: String,
    pub(crate) calls: Vec<Call>,
    /// The tokens of the text.
    pub(crate) tokens: Vec<Token>,
    pending: Pending,
    pub(crate) stop: Option<StopReason>,
    pub(crate) usage: Usage,
}

/// A generated token, with its log-probabilities if they were asked for.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Token {
    pub(crate) id: u32,
    pub(crate) logprob: Option<f32>,
    pub(crate) top: Vec<(u32, f32)>,
}

/// Tokens of which is not known yet what they write: text, or reasoning and calls, whose log-probabilities are not told.
#[derive(Debug, Default)]
pub(crate) struct Pending {
    tokens: Vec<Token>,
    /// Whether the last that was written is no text, so that what is cut off behind it is none either.
    is_hidden: bool,
}

impl Pending {
    pub(crate) fn push(&mut self, token: Token) {
        self.tokens.push(token);
    }

    /// Those that have written a piece of text.
    pub(crate) fn take_text(&mut self) -> Vec<Token> {
        self.is_hidden = false;
        std::mem::take(&mut self.tokens)
    }

    /// Drops those that have written reasoning or a call.
    pub(crate) fn hide(&mut self) {
        self.is_hidden = true;
        self.tokens.clear();
    }

    /// Those at the end of an answer. The token that ends a text belongs to it.
    pub(crate) fn take_last(&mut self) -> Vec<Token> {
        let tokens = std::mem::take(&mut self.tokens);
        if self.is_hidden { Vec::new() } else { tokens }
    }
}

impl Collected {
    /// Waits for the end of a generation of this many choices.
    pub(crate) async fn wait(running: &mut Running, choices: usize) -> Result<Collected, Failure> {
        let mut all = Collected::wait_all(std::slice::from_mut(running), choices).await?;
        all.pop().ok_or_else(|| Failure::server("there is no answer"))
    }

    /// Waits for the end of generations of this many choices each. Events are taken from all as they come: a generation
    /// whose events nobody takes holds.
    pub(crate) async fn wait_all(running: &mut [Running], choices: usize) -> Result<Vec<Collected>, Failure> {
        let new = || (Collected { choices: (0..choices).map(|_| Choice::default()).collect() }, false);
        let mut all: Vec<(Collected, bool)> = running.iter().map(|_| new()).collect();
        poll_fn(|context| {
            let mut result = Poll::Ready(Ok(()));
            for (running, (collected, is_over)) in running.iter_mut().zip(&mut all) {
                while !*is_over {
                    match running.poll_event(context) {
                        Poll::Pending => {
                            result = Poll::Pending;
                            break;
                        }
                        Poll::Ready(Err(failure)) => return Poll::Ready(Err(failure)),
                        Poll::Ready(Ok(None)) => *is_over = true,
                        Poll::Ready(Ok(Some(event))) => add(&mut collected.choices, event),
                    }
                }
            }
            result
        })
        .await?;
        Ok(all.into_iter().map(|(collected, _)| collected).collect())
    }

    /// Tokens of the prompt, tokens of it that were cached, and generated tokens.
    pub(crate) fn usage(&self) -> Counts {
        let mut counts = Counts::default();
        for choice in &self.choices {
            counts.add(&choice.usage);
        }
        counts
    }
}

fn add(choices: &mut [Choice], event: Event<'_>) {
    match event {
        Event::Token { choice, id, logprob, top } => {
            choices[choice].pending.push(Token { id, logprob, top: top.to_vec() });
        }
        Event::Text { choice, text } => {
            let choice = &mut choices[choice];
            choice.text.push_str(text);
            choice.tokens.append(&mut choice.pending.take_text());
        }
        Event::Reasoning { choice, text } => {
            choices[choice].reasoning.push_str(text);
            choices[choice].pending.hide();
        }
        Event::ToolCall { choice, call } => {
            choices[choice].calls.push(call.clone());
            choices[choice].pending.hide();
        }
        Event::Stop { choice, reason, usage } => {
            let choice = &mut choices[choice];
            choice.tokens.append(&mut choice.pending.take_last());
            choice.stop = Some(reason);
            choice.usage = usage;
        }
        _ => {}
    }
}

/// The tokens of a request.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Counts {
    pub(crate) prompt: usize,
    pub(crate) cached: usize,
    pub(crate) generated: usize,
    /// Those of the generated that wrote reasoning.
    pub(crate) reasoning: usize,
    /// Those of the first choice, for its times.
    first: Option<Usage>,
}

impl Counts {
    /// Adds the usage of a choice. The prompt is counted once.
    pub(crate) fn add(&mut self, usage: &Usage) {
        self.prompt = usage.prompt_tokens;
        self.cached = self.cached.max(usage.cached_tokens);
        self.generated += usage.generated_tokens;
        self.reasoning += usage.reasoning_tokens;
        self.first.get_or_insert(*usage);
    }

    /// The times of the first choice, as llama.cpp writes them.
    pub(crate) fn timings(&self) -> Value {
        let usage = self.first.unwrap_or_default();
        let computed = usage.prompt_tokens - usage.cached_tokens;
        let ms = |time: std::time::Duration| time.as_secs_f64() * 1e3;
        json!({
            "cache_n": usage.cached_tokens,
            "prompt_n": computed,
            "prompt_ms": ms(usage.prompt_time),
            "prompt_per_second": usage.prompt_speed(),
            "predicted_n": usage.generated_tokens,
            "predicted_ms": ms(usage.decode_time),
            "predicted_per_second": usage.decode_speed(),
            "draft_n": usage.drafted_tokens,
            "draft_n_accepted": usage.accepted_tokens,
        })
    }
}

/// The text of a token on its own, and its bytes.
pub(crate) fn token_text(model: &Model, id: u32) -> (String, Vec<u8>) {
    let bytes = match model.tokenizer() {
        // Control tokens have a text but no bytes of an answer.
        Some(tokenizer) if (id as usize) < tokenizer.vocab_size() => tokenizer.token_bytes(id).to_vec(),
        _ => Vec::new(),
    };
    (String::from_utf8_lossy(&bytes).into_owned(), bytes)
}
