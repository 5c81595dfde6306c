use std::time::Duration;

/// What a generation reports, in order: how far a long prompt is read, the prompt once, then tokens, then
/// the stop.
#[derive(Debug, Clone, PartialEq)]
pub enum Event<'a> {
    /// A piece of a long prompt has been read, and there is more.
    Reading {
        /// Tokens read so far, those in the cache included.
        done: usize,
        /// Tokens of the text.
        total: usize,
    },
    /// The prompt has been read.
    Prompt {
        /// Tokens of the text so far, prompt included.
        tokens: usize,
        /// How many of them were in the cache already.
        cached: usize,
    },
    /// A token was chosen. Its text may be empty: a character may take several tokens, and text that
    /// could begin a stop string waits.
    Token {
        /// Its id.
        id: u32,
        /// Natural logarithm of its probability under the model, before any penalty or filter, if the
        /// request asked for it.
        logprob: Option<f32>,
        /// The text it completes.
        text: &'a str,
    },
    /// The end.
    Stop {
        /// Why.
        reason: StopReason,
        /// Text that was still waiting.
        text: &'a str,
        /// What it took.
        usage: Usage,
    },
}

/// Why a generation ended.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum StopReason {
    /// The model chose an end token.
    EndToken(u32),
    /// As many tokens as were asked for.
    MaxTokens,
    /// The context is full.
    ContextFull,
    /// One of the request's stop strings came up; it is not part of the text.
    StopString(String),
    /// The text repeats one short cycle of tokens, and the request asked to stop there.
    Repetition,
    /// Cancelled by the caller.
    Cancelled,
}

/// What a generation took.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Usage {
    /// Tokens of the text when generation began.
    pub prompt_tokens: usize,
    /// How many of them were in the cache already.
    pub cached_tokens: usize,
    /// Tokens generated.
    pub generated_tokens: usize,
    /// Time from the start to the first token; zero if the prompt was not read.
    pub prompt_time: Duration,
    /// Time from the first token to the last.
    pub decode_time: Duration,
}

impl Usage {
    /// Prompt tokens per second, cached ones left out; `None` if none was read.
    pub fn prompt_speed(&self) -> Option<f64> {
        rate(self.prompt_tokens - self.cached_tokens, self.prompt_time)
    }

    /// Generated tokens per second, the first left out since it belongs to the prompt's time; `None` if there was no
    /// other.
    pub fn decode_speed(&self) -> Option<f64> {
        rate(self.generated_tokens.saturating_sub(1), self.decode_time)
    }
}

/// No rate of nothing, nor of no time.
fn rate(n: usize, time: Duration) -> Option<f64> {
    (n > 0 && !time.is_zero()).then(|| n as f64 / time.as_secs_f64())
}
