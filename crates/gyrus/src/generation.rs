use std::sync::Arc;

use crate::Error;
use crate::choice::{Choice, Happening};
use crate::event::Event;
use crate::model::Model;
use crate::request::Request;
use crate::serving::Handle;

/// A running generation: a stream of [`Event`]s, read with [`Generation::next`].
///
/// It may be dropped at any time: the session keeps the tokens of choice 0 that were emitted, and the scheduler frees what
/// the generation used. Dropping it does not wait for the device.
pub struct Generation<'a> {
    handle: Arc<Handle>,
    /// The session's tokens, which choice 0 continues.
    tokens: &'a mut Vec<u32>,
    choices: Vec<Choice<'a>>,
    /// The choice whose event comes next if it has one.
    turn: usize,
    /// Tokens of the context.
    context: usize,
}

impl<'a> Generation<'a> {
    /// `choices`: the parts of the request that differ from choice to choice. The first one is the session's.
    pub(crate) fn new(
        model: &'a Model,
        tokens: &'a mut Vec<u32>,
        request: &Request,
        choices: Vec<Choice<'a>>,
    ) -> Generation<'a> {
        let remaining = model.context().tokens.saturating_sub(tokens.len());
        // Capacity for the whole completion, so that steady decoding does not allocate.
        tokens.reserve(request.max_tokens.map_or(remaining, |n| n.min(remaining)));
        Generation {
            handle: model.shared_handle(),
            tokens,
            choices,
            turn: 0,
            context: model.context().tokens,
        }
    }

    /// The next event; `None` after the stop of the last choice.
    ///
    /// On an error the session keeps the tokens that were emitted, and the other choices go on.
    #[allow(clippy::should_implement_trait, reason = "events borrow the generation's text")]
    pub fn next(&mut self) -> Result<Option<Event<'_>>, Error> {
        let (at, happening) = loop {
            match self.poll()? {
                Some((at, Happening::Full)) => {
                    self.shift(at)?;
                    continue;
                }
                Some(found) => break found,
                None => {}
            }
            let mut running = self.choices.iter().filter(|choice| !choice.is_done());
            let Some(first) = running.next() else { return Ok(None) };
            let is_single = running.next().is_none();
            let choices = &self.choices;
            self.handle.wait(first.events(), is_single, || choices.iter().any(Choice::has_events));
        };
        let choice = &self.choices[at];
        Ok(Some(match happening {
            Happening::Progress { done } => {
                Event::PrefillProgress { choice: at, done, total: choice.usage().prompt_tokens }
            }
            Happening::Prompt => {
                let usage = choice.usage();
                Event::Prompt { choice: at, tokens: usage.prompt_tokens, cached: usage.cached_tokens }
            }
            Happening::Token { id, logprob } => {
                if at == 0 {
                    self.tokens.push(id);
                }
                Event::Token { choice: at, id, logprob, top: choice.top() }
            }
            Happening::Text => Event::Text { choice: at, text: choice.text() },
            Happening::Reasoning => Event::Reasoning { choice: at, text: choice.text() },
            Happening::Call => match choice.call() {
                Some(call) => Event::ToolCall { choice: at, call },
                None => Event::Text { choice: at, text: choice.text() },
            },
            // It was dealt with above.
            Happening::Full => return Ok(None),
            Happening::Stop(reason) => Event::Stop { choice: at, reason, usage: choice.usage() },
        }))
    }

    /// Drops tokens of a choice whose context is full, and lets it go on.
    fn shift(&mut self, at: usize) -> Result<(), Error> {
        let Some((id, keep)) = self.choices[at].shifted() else { return Ok(()) };
        let dropped = self.handle.exclusively(|backend, scheduler| scheduler.shift(id, keep, backend))?;
        let is_shorter = dropped.is_some();
        if let Some(range) = dropped {
            self.tokens.drain(range);
        }
        self.choices[at].go_on(is_shorter.then_some(&self.tokens[..]), self.context);
        Ok(())
    }

    /// What has happened to a choice, if anything has.
    fn poll(&mut self) -> Result<Option<(usize, Happening)>, Error> {
        let n = self.choices.len();
        for at in (0..n).map(|i| (self.turn + i) % n.max(1)) {
            if let Some(happening) = self.choices[at].poll()? {
                // A choice tells all of a token before the next choice has its turn.
                self.turn = if self.choices[at].is_between_tokens() { at + 1 } else { at };
                return Ok(Some((at, happening)));
            }
        }
        Ok(None)
    }
}
