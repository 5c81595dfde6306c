use crate::cancel::Cancel;
use gyrus_kernels::Sampler;

/// What a generation continues from.
#[derive(Debug, Clone, PartialEq)]
pub enum Prompt {
    /// Text behind what the session holds. Special tokens in it are plain text.
    Text(String),
    /// Token ids behind what the session holds.
    Ids(Vec<u32>),
    /// Token ids in place of what the session holds, as a conversation that has grown gives them. The part
    /// they share is not computed again.
    Whole(Vec<u32>),
    /// Nothing new: go on where the text ends.
    Continue,
}

/// A generation to be run.
#[derive(Debug, Clone)]
pub struct Request {
    pub(crate) prompt: Prompt,
    pub(crate) sampler: Sampler,
    pub(crate) max_tokens: Option<usize>,
    pub(crate) stop: Vec<String>,
    pub(crate) ignore_end: bool,
    pub(crate) stop_at_repetition: bool,
    pub(crate) logprobs: bool,
    pub(crate) cancel: Cancel,
}

impl Request {
    /// A greedy generation until the model ends it.
    pub fn new(prompt: Prompt) -> Request {
        Request {
            prompt,
            sampler: Sampler::default(),
            max_tokens: None,
            stop: Vec::new(),
            ignore_end: false,
            stop_at_repetition: false,
            logprobs: false,
            cancel: Cancel::new(),
        }
    }

    /// Continues text.
    pub fn text(text: impl Into<String>) -> Request {
        Request::new(Prompt::Text(text.into()))
    }

    /// Continues ids.
    pub fn ids(ids: impl Into<Vec<u32>>) -> Request {
        Request::new(Prompt::Ids(ids.into()))
    }

    /// How tokens are chosen.
    pub fn sampler(mut self, sampler: Sampler) -> Request {
        self.sampler = sampler;
        self
    }

    /// Stops after this many tokens.
    pub fn max_tokens(mut self, tokens: usize) -> Request {
        self.max_tokens = Some(tokens);
        self
    }

    /// Stops before any of these strings. Empty ones are ignored.
    pub fn stop(mut self, strings: impl IntoIterator<Item = String>) -> Request {
        self.stop = strings.into_iter().filter(|s| !s.is_empty()).collect();
        self
    }

    /// Treats end tokens as any other, for benchmarks.
    pub fn ignore_end(mut self, ignore: bool) -> Request {
        self.ignore_end = ignore;
        self
    }

    /// Stops a generation that repeats one short cycle of tokens many times over, which small models fall
    /// into and do not leave: at least 20 times, at least 160 tokens, a cycle of at most 32.
    pub fn stop_at_repetition(mut self, stop: bool) -> Request {
        self.stop_at_repetition = stop;
        self
    }

    /// Gives each token's log-probability, which takes a pass over the vocabulary.
    pub fn logprobs(mut self, wanted: bool) -> Request {
        self.logprobs = wanted;
        self
    }

    /// Listens to this switch.
    pub fn cancel(mut self, cancel: Cancel) -> Request {
        self.cancel = cancel;
        self
    }
}
