use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use gyrus_constrain::Source;
use gyrus_dialog::{ToolChoice, Tools};
use gyrus_kernels::{MAX_TOP, Sampler};
use serde_json::{Map, Value};

use crate::cancel::Cancel;
use crate::message::Message;
use crate::speculation::Speculation;

/// The most choices of a request.
pub(crate) const MAX_CHOICES: usize = 128;

/// The longest text that a constraint waits for, in bytes.
pub(crate) const MAX_TRIGGER: usize = 256;

/// The prompt of a generation.
#[derive(Debug, Clone, PartialEq)]
pub enum Prompt {
    /// Text to append to the session's tokens. Special tokens in it are encoded as plain text.
    Text(String),
    /// Token ids to append to the session's tokens.
    Ids(Vec<u32>),
    /// Token ids that replace the session's tokens, such as a conversation with new messages. The KV cache of the
    /// common prefix is reused.
    Whole(Vec<u32>),
    /// A conversation that replaces the session's tokens, in the model's chat format. The KV cache of the common prefix
    /// is reused. The answer is split into reasoning, text and tool calls.
    Messages(Vec<Message>),
    /// No new tokens: continue the session's tokens.
    Continue,
}

/// The parameters of a generation.
#[derive(Debug, Clone)]
pub struct Request {
    pub(crate) prompt: Prompt,
    pub(crate) sampler: Sampler,
    pub(crate) dry_breakers: Option<Vec<String>>,
    pub(crate) max_tokens: Option<usize>,
    pub(crate) stop: Vec<String>,
    pub(crate) ignore_end: bool,
    pub(crate) stop_at_repetition: bool,
    pub(crate) logprobs: Option<usize>,
    pub(crate) client: u64,
    pub(crate) priority: i32,
    pub(crate) tenant: u64,
    pub(crate) time_limit: Option<Duration>,
    pub(crate) cancel: Cancel,
    pub(crate) choices: usize,
    pub(crate) constraint: Option<Source>,
    pub(crate) constraint_after: Option<String>,
    pub(crate) tools: Option<Tools>,
    pub(crate) tool_choice: ToolChoice,
    pub(crate) parallel_calls: bool,
    pub(crate) reasoning: Option<bool>,
    pub(crate) variables: Map<String, Value>,
    pub(crate) context_shift: Option<usize>,
    pub(crate) speculation: Option<Speculation>,
}

impl Request {
    /// Greedy decoding until an end-of-sequence token.
    pub fn new(prompt: Prompt) -> Request {
        Request {
            prompt,
            sampler: Sampler::default(),
            dry_breakers: None,
            max_tokens: None,
            stop: Vec::new(),
            ignore_end: false,
            stop_at_repetition: false,
            logprobs: None,
            client: 0,
            priority: 0,
            tenant: 0,
            time_limit: None,
            cancel: Cancel::new(),
            choices: 1,
            constraint: None,
            constraint_after: None,
            tools: None,
            tool_choice: ToolChoice::Auto,
            parallel_calls: true,
            reasoning: None,
            variables: Map::new(),
            context_shift: None,
            speculation: None,
        }
    }

    /// A request with a text prompt.
    pub fn text(text: impl Into<String>) -> Request {
        Request::new(Prompt::Text(text.into()))
    }

    /// A request with a prompt of token ids.
    pub fn ids(ids: impl Into<Vec<u32>>) -> Request {
        Request::new(Prompt::Ids(ids.into()))
    }

    /// A request with a conversation.
    pub fn messages(messages: impl Into<Vec<Message>>) -> Request {
        Request::new(Prompt::Messages(messages.into()))
    }

    /// Whether end tokens are like others. Text that a constraint leaves complete can only end.
    pub(crate) fn ignores_end(&self) -> bool {
        self.ignore_end && self.constraint.is_none()
    }

    /// Sets the sampler.
    pub fn sampler(mut self, sampler: Sampler) -> Request {
        self.sampler = sampler;
        self
    }

    /// Texts that repetitions do not reach over, if the sampler has DRY. The default is a line break, a colon, a quotation
    /// mark and an asterisk, unless the sampler has [`Breakers`](crate::Breakers) of its own.
    pub fn dry_breakers(mut self, texts: impl IntoIterator<Item = String>) -> Request {
        self.dry_breakers = Some(texts.into_iter().collect());
        self
    }

    /// Stops after this many tokens.
    pub fn max_tokens(mut self, tokens: usize) -> Request {
        self.max_tokens = Some(tokens);
        self
    }

    /// Stops before any of these strings. Empty strings are ignored.
    pub fn stop(mut self, strings: impl IntoIterator<Item = String>) -> Request {
        self.stop = strings.into_iter().filter(|s| !s.is_empty()).collect();
        self
    }

    /// Does not stop at end-of-sequence tokens (`ignore_eos` in other engines), for benchmarks.
    pub fn ignore_end(mut self, ignore: bool) -> Request {
        self.ignore_end = ignore;
        self
    }

    /// Stops a generation that is stuck in a short cycle of tokens, as small models often are. The cycle has at most 32
    /// tokens and is repeated at least 20 times and for at least 160 tokens.
    pub fn stop_at_repetition(mut self, stop: bool) -> Request {
        self.stop_at_repetition = stop;
        self
    }

    /// Computes the log-probability of each token.
    pub fn logprobs(mut self, enabled: bool) -> Request {
        self.logprobs = enabled.then_some(0);
        self
    }

    /// Computes the log-probabilities of each token and of the `n` most likely ones, at most 20.
    pub fn top_logprobs(mut self, n: usize) -> Request {
        self.logprobs = Some(n.min(MAX_TOP));
        self
    }

    /// Who asks. Clients share the device fairly, however many requests each has.
    pub fn client(mut self, name: impl Hash) -> Request {
        self.client = hash(name);
        self
    }

    /// Requests with a higher priority are admitted first. The default is 0.
    pub fn priority(mut self, priority: i32) -> Request {
        self.priority = priority;
        self
    }

    /// Requests of different tenants do not share cached prefixes, so that none can tell from the time what others have
    /// asked.
    pub fn tenant(mut self, name: impl Hash) -> Request {
        self.tenant = hash(name);
        self
    }

    /// Stops the generation after this time, waiting included.
    pub fn time_limit(mut self, limit: Duration) -> Request {
        self.time_limit = Some(limit);
        self
    }

    /// Generates this many completions of the prompt, from 1 to 128. Choice `i` has the seed of the sampler plus `i`. The
    /// session continues with choice 0.
    pub fn choices(mut self, n: usize) -> Request {
        self.choices = n;
        self
    }

    /// Every token keeps to this constraint, and the text ends where it is complete. It begins behind the reasoning, if
    /// the model reasons. End tokens are not ignored.
    pub fn constraint(mut self, source: Source) -> Request {
        self.constraint = Some(source);
        self
    }

    /// The constraint begins behind the first occurrence of this text in the output, instead of at the beginning or behind the
    /// reasoning. Before it tokens are free, except that the output cannot end. At most 256 bytes; an empty text lets
    /// the constraint begin at once.
    pub fn constraint_after(mut self, text: impl Into<String>) -> Request {
        self.constraint_after = Some(text.into());
        self
    }

    /// Tools that the model may call. The prompt must be messages.
    pub fn tools(mut self, tools: Tools) -> Request {
        self.tools = Some(tools);
        self
    }

    /// Which tools the answer may or must call. A call that must be made is constrained by its tool's schema.
    pub fn tool_choice(mut self, choice: ToolChoice) -> Request {
        self.tool_choice = choice;
        self
    }

    /// Whether an answer that must call tools may call several. It may by default.
    pub fn parallel_calls(mut self, parallel: bool) -> Request {
        self.parallel_calls = parallel;
        self
    }

    /// Switches reasoning on or off where the chat template can; the default is the template's own. Off ends the
    /// reasoning at once where the template always begins with it.
    pub fn reasoning(mut self, enabled: bool) -> Request {
        self.reasoning = Some(enabled);
        self
    }

    /// A variable of the chat template, such as `reasoning_effort`.
    pub fn variable(mut self, name: impl Into<String>, value: Value) -> Request {
        self.variables.insert(name.into(), value);
        self
    }

    /// When the context is full, drops the older half of the tokens behind the first `keep`, in whole blocks of 32, and goes
    /// on. Keys that remain are rotated to their new positions. They have seen tokens that were dropped, so the text is
    /// another than that of a prompt without them.
    ///
    /// Models with recurrent states, with windows, or with frequencies that depend on the length are refused, and so are
    /// constraints and several choices.
    pub fn context_shift(mut self, keep: usize) -> Request {
        self.context_shift = Some(keep);
        self
    }

    /// Guesses tokens and verifies several of them in one pass where that is faster. The tokens are those without it,
    /// greedy or sampled. Models with a recurrent state decode without it.
    pub fn speculation(mut self, speculation: Speculation) -> Request {
        self.speculation = Some(speculation);
        self
    }

    /// Stops the generation when this flag is set.
    pub fn cancel(mut self, cancel: Cancel) -> Request {
        self.cancel = cancel;
        self
    }
}

fn hash(name: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    name.hash(&mut hasher);
    hasher.finish()
}
