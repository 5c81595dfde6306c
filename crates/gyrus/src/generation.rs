use std::time::Instant;

use gyrus_kernels::{Counts, log_softmax_at};
use gyrus_text::Detokenizer;

use crate::Error;
use crate::engine::Run;
use crate::event::{Event, StopReason, Usage};
use crate::model::Model;
use crate::repetition::Repetition;
use crate::request::Request;
use crate::session::Text;
use crate::stops::Stops;

/// Bytes of text that one token rarely exceeds.
const LONGEST_PIECE: usize = 256;

/// A running generation: a stream of [`Event`]s, drawn with [`Generation::next`].
///
/// Dropping it in mid-stream is fine; the session holds what was emitted.
pub struct Generation<'a> {
    model: &'a Model,
    text: &'a mut Text,
    request: Request,
    detokenizer: Option<Detokenizer<'a>>,
    stops: Stops,
    repetition: Option<Repetition>,
    /// The text of the present token and of the present event, reused from one to the next.
    piece: String,
    shown: String,
    counts: Counts,
    candidates: Vec<(f32, u32)>,
    /// Set while tokens may be drawn where the model computes.
    run: Option<Run>,
    drawn: Vec<u32>,
    usage: Usage,
    started: Option<Instant>,
    first_token: Option<Instant>,
    state: State,
}

/// A chosen token and, if it was asked for, its log-probability.
#[derive(Debug, Clone, Copy)]
struct Draw {
    token: u32,
    logprob: Option<f32>,
}

#[derive(Debug)]
enum State {
    Prompt,
    /// The first token is drawn from the prompt's logits and waits for its event.
    FirstToken(Draw),
    Tokens,
    Stop(StopReason),
    Done,
}

impl<'a> Generation<'a> {
    pub(crate) fn new(model: &'a Model, text: &'a mut Text, mut request: Request) -> Generation<'a> {
        let logprobs = request.logprobs;
        let stops = Stops::new(std::mem::take(&mut request.stop));
        let detokenizer = model.tokenizer().map(|t| Detokenizer::continuing(t, false));
        // Room for all that may come, so that steady decoding does not allocate.
        let most = model.context().tokens - text.tokens.len();
        text.tokens.reserve(request.max_tokens.map_or(most, |n| n.min(most)));
        let usage =
            Usage { prompt_tokens: text.tokens.len(), cached_tokens: text.cached(), ..Usage::default() };
        Generation {
            model,
            text,
            detokenizer,
            stops,
            repetition: request.stop_at_repetition.then(Repetition::new),
            request,
            piece: String::with_capacity(LONGEST_PIECE),
            shown: String::with_capacity(LONGEST_PIECE),
            counts: Counts::new(),
            candidates: Vec::new(),
            // Log-probabilities need the logits here.
            run: (!logprobs).then(Run::new),
            drawn: Vec::new(),
            usage,
            started: None,
            first_token: None,
            state: State::Prompt,
        }
    }

    /// The next event; `None` after the stop.
    ///
    /// On an error the session holds the text as far as it was emitted.
    #[allow(clippy::should_implement_trait, reason = "events borrow the generation's text")]
    pub fn next(&mut self) -> Result<Option<Event<'_>>, Error> {
        self.shown.clear();
        match std::mem::replace(&mut self.state, State::Done) {
            State::Prompt => self.prompt(),
            State::FirstToken(draw) => self.token(draw),
            State::Tokens => self.step(),
            State::Stop(reason) => self.stop(reason),
            State::Done => Ok(None),
        }
    }

    /// Runs the next piece of the prompt; with the last it draws the first token.
    fn prompt(&mut self) -> Result<Option<Event<'_>>, Error> {
        self.started.get_or_insert_with(Instant::now);
        if self.request.max_tokens == Some(0) {
            self.state = State::Stop(StopReason::MaxTokens);
        } else if self.request.cancel.is_cancelled() {
            self.state = State::Stop(StopReason::Cancelled);
        } else if self.text.tokens.len() >= self.model.context().tokens {
            self.state = State::Stop(StopReason::ContextFull);
        } else {
            match self.advance()? {
                Some(draw) => {
                    self.state = State::FirstToken(draw);
                    self.usage.prompt_time = self.started.map(|t| t.elapsed()).unwrap_or_default();
                }
                None => {
                    self.state = State::Prompt;
                    let (done, total) = (self.text.cached(), self.text.tokens.len());
                    return Ok(Some(Event::Reading { done, total }));
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
        if self.request.max_tokens.is_some_and(|most| self.usage.generated_tokens >= most) {
            return self.stop(StopReason::MaxTokens);
        }
        if self.text.tokens.len() >= self.model.context().tokens {
            return self.stop(StopReason::ContextFull);
        }
        // The cache lacks one token, which is one piece; were it more, it would take more pieces.
        let draw = loop {
            if let Some(draw) = self.advance()? {
                break draw;
            }
        };
        self.token(draw)
    }

    /// Computes the next piece and, when the logits are there, draws.
    fn advance(&mut self) -> Result<Option<Draw>, Error> {
        let most = self.model.context().tokens.saturating_sub(self.text.tokens.len());
        let most =
            self.request.max_tokens.map_or(most, |n| most.min(n.saturating_sub(self.usage.generated_tokens)));
        let Generation { text, model, request, counts, candidates, drawn, .. } = self;
        if let Some(run) = self.run {
            if let Some(token) = text.draw(model, run, &request.sampler, most, drawn)? {
                return Ok(Some(Draw { token, logprob: None }));
            }
            // Should it be for the sampler's sake, it will not be otherwise later on.
            if text.cached() + 1 == text.tokens.len() {
                self.run = None;
            }
        }
        text.advance(model, |logits, tokens| {
            let sampler = &request.sampler;
            sampler.count(tokens, counts);
            // Draws are numbered by position, so that a text continued is a text uninterrupted.
            let token = sampler.draw(logits, counts, tokens.len() as u64, candidates);
            Draw { token, logprob: request.logprobs.then(|| log_softmax_at(logits, token)) }
        })
    }

    fn token(&mut self, draw: Draw) -> Result<Option<Event<'_>>, Error> {
        let ends = self.model.tokenizer().is_some_and(|t| t.is_end(draw.token));
        if ends && !self.request.ignore_end {
            return self.stop(StopReason::EndToken(draw.token));
        }
        self.text.tokens.push(draw.token);
        self.usage.generated_tokens += 1;
        let repeats = self.repetition.as_mut().is_some_and(|repetition| repetition.push(draw.token));
        self.state = if repeats { State::Stop(StopReason::Repetition) } else { State::Tokens };
        if let Some(detokenizer) = &mut self.detokenizer {
            self.piece.clear();
            detokenizer.push_into(draw.token, &mut self.piece);
            if let Some(stop) = self.stops.push(&self.piece, &mut self.shown) {
                self.state = State::Stop(StopReason::StopString(stop.to_owned()));
                // What is left of the last character belongs to the stop string.
                self.detokenizer = None;
            }
        }
        Ok(Some(Event::Token { id: draw.token, logprob: draw.logprob, text: &self.shown }))
    }

    fn stop(&mut self, mut reason: StopReason) -> Result<Option<Event<'_>>, Error> {
        self.state = State::Done;
        if let Some(detokenizer) = self.detokenizer.take() {
            let rest = detokenizer.finish();
            match self.stops.push(&rest, &mut self.shown) {
                Some(stop) => reason = StopReason::StopString(stop.to_owned()),
                None => self.stops.finish(&mut self.shown),
            }
        }
        self.usage.decode_time = self.first_token.map(|t| t.elapsed()).unwrap_or_default();
        Ok(Some(Event::Stop { reason, text: &self.shown, usage: self.usage }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Options, Prompt};
    use gyrus_testkit::data;

    #[test]
    fn nothing_is_cancelled_that_nobody_cancelled() {
        let Some(path) = data("tales/tales-7m-q8_0.gguf") else { return };
        // One token at a time, so that a prompt takes several pieces.
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
