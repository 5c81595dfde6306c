use std::time::Instant;

use gyrus_kernels::{Counts, log_softmax_at};
use gyrus_text::Detokenizer;

use crate::Error;
use crate::event::{Event, StopReason, Usage};
use crate::in_flight::GenerationId;
use crate::model::Model;
use crate::repetition::Repetition;
use crate::request::Request;
use crate::sequence::Sequence;
use crate::stop_strings::StopStrings;

/// The initial capacity for a token's text in bytes; few tokens are longer.
const TOKEN_TEXT_BYTES: usize = 256;

/// A running generation: a stream of [`Event`]s, read with [`Generation::next`].
///
/// It may be dropped at any time: the session keeps the tokens that were emitted.
pub struct Generation<'a> {
    model: &'a Model,
    sequence: &'a mut Sequence,
    request: Request,
    detokenizer: Option<Detokenizer<'a>>,
    stop_strings: StopStrings,
    repetition: Option<Repetition>,
    /// The text of the current token, and of the current event. The buffers are reused.
    token_text: String,
    visible_text: String,
    counts: Counts,
    candidates: Vec<(f32, u32)>,
    /// Identifies this generation's steps in flight; `None` if tokens are sampled on the CPU.
    id: Option<GenerationId>,
    sampled: Vec<u32>,
    usage: Usage,
    started: Option<Instant>,
    first_token: Option<Instant>,
    state: State,
}

/// A sampled token and, if requested, its log-probability.
#[derive(Debug, Clone, Copy)]
struct SampledToken {
    id: u32,
    logprob: Option<f32>,
}

#[derive(Debug)]
enum State {
    Prompt,
    /// The first token is sampled from the prompt's logits and its event is pending.
    FirstToken(SampledToken),
    Tokens,
    Stop(StopReason),
    Done,
}

impl<'a> Generation<'a> {
    pub(crate) fn new(model: &'a Model, sequence: &'a mut Sequence, mut request: Request) -> Generation<'a> {
        let logprobs = request.logprobs;
        let stop_strings = StopStrings::new(std::mem::take(&mut request.stop));
        let detokenizer = model.tokenizer().map(|t| Detokenizer::continuing(t, false));
        // Capacity for the whole completion, so that steady decoding does not allocate.
        let remaining = model.context().tokens - sequence.tokens.len();
        sequence.tokens.reserve(request.max_tokens.map_or(remaining, |n| n.min(remaining)));
        let usage = Usage {
            prompt_tokens: sequence.tokens.len(),
            cached_tokens: sequence.cached(),
            ..Usage::default()
        };
        Generation {
            model,
            sequence,
            detokenizer,
            stop_strings,
            repetition: request.stop_at_repetition.then(Repetition::new),
            request,
            token_text: String::with_capacity(TOKEN_TEXT_BYTES),
            visible_text: String::with_capacity(TOKEN_TEXT_BYTES),
            counts: Counts::new(),
            candidates: Vec::new(),
            // Log-probabilities need the logits on the CPU.
            id: (!logprobs).then(GenerationId::new),
            sampled: Vec::new(),
            usage,
            started: None,
            first_token: None,
            state: State::Prompt,
        }
    }

    /// The next event; `None` after the stop.
    ///
    /// On an error the session keeps the tokens that were emitted.
    #[allow(clippy::should_implement_trait, reason = "events borrow the generation's text")]
    pub fn next(&mut self) -> Result<Option<Event<'_>>, Error> {
        self.visible_text.clear();
        match std::mem::replace(&mut self.state, State::Done) {
            State::Prompt => self.prompt(),
            State::FirstToken(token) => self.token(token),
            State::Tokens => self.step(),
            State::Stop(reason) => self.stop(reason),
            State::Done => Ok(None),
        }
    }

    /// Prefills the next chunk of the prompt. After the last chunk it samples the first token.
    fn prompt(&mut self) -> Result<Option<Event<'_>>, Error> {
        self.started.get_or_insert_with(Instant::now);
        if self.request.max_tokens == Some(0) {
            self.state = State::Stop(StopReason::MaxTokens);
        } else if self.request.cancel.is_cancelled() {
            self.state = State::Stop(StopReason::Cancelled);
        } else if self.sequence.tokens.len() >= self.model.context().tokens {
            self.state = State::Stop(StopReason::ContextFull);
        } else {
            match self.advance()? {
                Some(token) => {
                    self.state = State::FirstToken(token);
                    self.usage.prompt_time = self.started.map(|t| t.elapsed()).unwrap_or_default();
                }
                None => {
                    self.state = State::Prompt;
                    let (done, total) = (self.sequence.cached(), self.sequence.tokens.len());
                    return Ok(Some(Event::PrefillProgress { done, total }));
                }
            }
        }
        self.first_token = Some(Instant::now());
        let Usage { prompt_tokens: tokens, cached_tokens: cached, .. } = self.usage;
        Ok(Some(Event::Prompt { tokens, cached }))
    }

    fn step(&mut self) -> Result<Option<Event<'_>>, Error> {
        if self.request.cancel.is_cancelled() {
            return self.stop(StopReason::Cancelled);
        }
        if self.request.max_tokens.is_some_and(|max| self.usage.generated_tokens >= max) {
            return self.stop(StopReason::MaxTokens);
        }
        if self.sequence.tokens.len() >= self.model.context().tokens {
            return self.stop(StopReason::ContextFull);
        }
        // One token is uncached, so one chunk suffices; the loop also covers more.
        let token = loop {
            if let Some(token) = self.advance()? {
                break token;
            }
        };
        self.token(token)
    }

    /// Computes the next chunk. When the logits of the last token are known, it samples a token.
    fn advance(&mut self) -> Result<Option<SampledToken>, Error> {
        let remaining = self.model.context().tokens.saturating_sub(self.sequence.tokens.len());
        let remaining = self
            .request
            .max_tokens
            .map_or(remaining, |n| remaining.min(n.saturating_sub(self.usage.generated_tokens)));
        let Generation { sequence, model, request, counts, candidates, sampled, .. } = self;
        if let Some(id) = self.id {
            if let Some(id) = sequence.sample_on_device(model, id, &request.sampler, remaining, sampled)? {
                return Ok(Some(SampledToken { id, logprob: None }));
            }
            // The backend does not support the sampler, so it is not asked again.
            if sequence.cached() + 1 == sequence.tokens.len() {
                self.id = None;
            }
        }
        sequence.prefill_chunk(model, |logits, tokens| {
            let sampler = &request.sampler;
            sampler.count(tokens, counts);
            // The random numbers depend on the position, so that a continued sequence equals an uninterrupted one.
            let id = sampler.draw(logits, counts, tokens.len() as u64, candidates);
            SampledToken { id, logprob: request.logprobs.then(|| log_softmax_at(logits, id)) }
        })
    }

    fn token(&mut self, token: SampledToken) -> Result<Option<Event<'_>>, Error> {
        let ends = self.model.tokenizer().is_some_and(|t| t.is_end(token.id));
        if ends && !self.request.ignore_end {
            return self.stop(StopReason::EndToken(token.id));
        }
        self.sequence.tokens.push(token.id);
        self.usage.generated_tokens += 1;
        let repeats = self.repetition.as_mut().is_some_and(|repetition| repetition.push(token.id));
        self.state = if repeats { State::Stop(StopReason::Repetition) } else { State::Tokens };
        if let Some(detokenizer) = &mut self.detokenizer {
            self.token_text.clear();
            detokenizer.push_into(token.id, &mut self.token_text);
            if let Some(stop) = self.stop_strings.push(&self.token_text, &mut self.visible_text) {
                self.state = State::Stop(StopReason::StopString(stop.to_owned()));
                // An incomplete last character is part of the stop string.
                self.detokenizer = None;
            }
        }
        Ok(Some(Event::Token { id: token.id, logprob: token.logprob, text: &self.visible_text }))
    }

    fn stop(&mut self, mut reason: StopReason) -> Result<Option<Event<'_>>, Error> {
        self.state = State::Done;
        if let Some(detokenizer) = self.detokenizer.take() {
            let rest = detokenizer.finish();
            match self.stop_strings.push(&rest, &mut self.visible_text) {
                Some(stop) => reason = StopReason::StopString(stop.to_owned()),
                None => self.stop_strings.finish(&mut self.visible_text),
            }
        }
        self.usage.decode_time = self.first_token.map(|t| t.elapsed()).unwrap_or_default();
        Ok(Some(Event::Stop { reason, text: &self.visible_text, usage: self.usage }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Options, Prompt};
    use gyrus_testkit::data;

    #[test]
    fn a_prefill_in_several_chunks_is_not_cancelled() {
        let Some(path) = data("tales/tales-7m-q8_0.gguf") else { return };
        // Chunks of one token, so that the prompt takes several.
        let model = Model::open(&path, &Options { chunk: 1, ..Options::default() }).unwrap();
        let first = |state: State| {
            let mut session = model.session();
            let request = Request::new(Prompt::Text("Once upon a time".to_owned()));
            let mut generation = session.generate(request).unwrap();
            generation.state = state;
            loop {
                match generation.next().unwrap() {
                    Some(Event::Token { id, .. }) => return id,
                    Some(Event::Stop { reason, .. }) => panic!("stopped: {reason:?}"),
                    Some(_) => {}
                    None => panic!("no token"),
                }
            }
        };
        assert_eq!(first(State::Tokens), first(State::Prompt));
    }
}
