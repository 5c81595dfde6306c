use std::time::Duration;

use gyrus_dialog::Call;

/// An event of a generation. Those of one choice come in this order: progress of a long prefill, the prompt, tokens and
/// what they complete, the stop.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Event<'a> {
    /// A chunk of a long prompt was prefilled, and more chunks follow.
    PrefillProgress {
        /// The choice, from 0.
        choice: usize,
        /// Tokens in the KV cache so far.
        done: usize,
        /// Tokens of the sequence.
        total: usize,
    },
    /// The prompt was prefilled.
    Prompt {
        /// The choice, from 0.
        choice: usize,
        /// Tokens of the sequence, including the prompt.
        tokens: usize,
        /// How many of them were in the KV cache before.
        cached: usize,
    },
    /// A token was sampled. What it completes follows: a character may take several tokens, and text that could begin a
    /// stop string or a tool call is held back.
    Token {
        /// The choice, from 0.
        choice: usize,
        /// The token id.
        id: u32,
        /// The natural logarithm of its probability, before penalties, masks and filters, if the request asked for it.
        logprob: Option<f32>,
        /// The most likely tokens with their log-probabilities, if the request asked for them.
        top: &'a [(u32, f32)],
    },
    /// Text of the answer.
    Text {
        /// The choice, from 0.
        choice: usize,
        /// The text; it is not empty.
        text: &'a str,
    },
    /// Text of the reasoning before the answer to messages.
    Reasoning {
        /// The choice, from 0.
        choice: usize,
        /// The text; it is not empty.
        text: &'a str,
    },
    /// A tool call in the answer to messages.
    ToolCall {
        /// The choice, from 0.
        choice: usize,
        /// The tool and its arguments.
        call: &'a Call,
    },
    /// The choice ended.
    Stop {
        /// The choice, from 0.
        choice: usize,
        /// Why it ended.
        reason: StopReason,
        /// Token counts and times.
        usage: Usage,
    },
}

/// Why a generation ended.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum StopReason {
    /// The model sampled an end-of-sequence token.
    EndToken(u32),
    /// The request's `max_tokens` were generated.
    MaxTokens,
    /// The context is full.
    ContextFull,
    /// The completion contained one of the request's stop strings. The emitted text ends before it.
    StopString(String),
    /// The completion repeats a short cycle of tokens, and the request asked to stop in that case.
    Repetition,
    /// Cancelled by the caller.
    Cancelled,
    /// The request's time limit has passed.
    TimeLimit,
}

/// Token counts and times of a generation.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Usage {
    /// Tokens of the sequence when the generation began, including the prompt.
    pub prompt_tokens: usize,
    /// How many of them were in the KV cache before.
    pub cached_tokens: usize,
    /// Generated tokens.
    pub generated_tokens: usize,
    /// How many of them wrote reasoning, with the marker that begins it. The one that ends it belongs to the text.
    pub reasoning_tokens: usize,
    /// Guesses of speculation that were verified.
    pub drafted_tokens: usize,
    /// How many of them were right: tokens that took no step of their own.
    pub accepted_tokens: usize,
    /// Time from the request until the scheduler gave it a place in the batch.
    pub queue_time: Duration,
    /// Time to the first token; zero if there was no prefill.
    pub prompt_time: Duration,
    /// Time from the first token to the last.
    pub decode_time: Duration,
}

impl Usage {
    /// Prefilled tokens per second, without cached ones; `None` if there was no prefill.
    pub fn prompt_speed(&self) -> Option<f64> {
        rate(self.prompt_tokens - self.cached_tokens, self.prompt_time)
    }

    /// Decoded tokens per second. The first token is not counted because its time is part of the prefill; `None` if
    /// there was no other.
    pub fn decode_speed(&self) -> Option<f64> {
        rate(self.generated_tokens.saturating_sub(1), self.decode_time)
    }
}

/// Tokens per second; `None` if either number is zero.
fn rate(n: usize, time: Duration) -> Option<f64> {
    (n > 0 && !time.is_zero()).then(|| n as f64 / time.as_secs_f64())
}
