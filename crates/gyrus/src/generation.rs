use std::sync::Arc;
use std::task::{Context, Poll};

use crate::Error;
use crate::choice::{Choice, Happening};
use crate::event::Event;
use crate::model::Model;
use crate::serving::Handle;

/// A running generation: a stream of [`Event`]s, read with [`Generation::next`].
///
/// It may be dropped at any time: the session keeps the tokens of choice 0 that were emitted, and the scheduler frees what
/// the generation used. Dropping it does not wait for the device.
pub struct Generation<'a> {
    choices: Choices,
    /// The session's tokens, which choice 0 continues.
    tokens: &'a mut Vec<u32>,
}

impl<'a> Generation<'a> {
    pub(crate) fn new(tokens: &'a mut Vec<u32>, choices: Choices) -> Generation<'a> {
        Generation { choices, tokens }
    }

    /// The next event; `None` after the stop of the last choice.
    ///
    /// On an error the session keeps the tokens that were emitted, and the other choices go on.
    #[allow(clippy::should_implement_trait, reason = "events borrow the generation's text")]
    pub fn next(&mut self) -> Result<Option<Event<'_>>, Error> {
        self.choices.next(self.tokens)
    }
}

/// The choices of a generation that runs.
pub(crate) struct Choices {
    handle: Arc<Handle>,
    /// The first one is the session's.
    choices: Vec<Choice>,
    /// The choice whose event comes next if it has one.
    turn: usize,
    /// Tokens of the context.
    context: usize,
}

impl Choices {
    pub(crate) fn new(model: &Model, choices: Vec<Choice>) -> Choices {
        Choices { handle: model.shared_handle(), choices, turn: 0, context: model.context().tokens }
    }

    /// Waits for the next event; `None` after the last one. Tokens of choice 0 are appended to `tokens`.
    pub(crate) fn next(&mut self, tokens: &mut Vec<u32>) -> Result<Option<Event<'_>>, Error> {
        let (at, happening) = loop {
            if let Some(found) = self.poll(tokens)? {
                break found;
            }
            let mut running = self.choices.iter().filter(|choice| !choice.is_done());
            let Some(first) = running.next() else { return Ok(None) };
            let is_single = running.next().is_none();
            let choices = &self.choices;
            self.handle.wait(first.events(), is_single, || choices.iter().any(Choice::has_events));
        };
        Ok(Some(self.event(at, happening, tokens)))
    }

    /// The next event if it has come. Else the task is woken when one comes.
    pub(crate) fn poll_next(
        &mut self,
        tokens: &mut Vec<u32>,
        context: &Context<'_>,
    ) -> Poll<Result<Option<Event<'_>>, Error>> {
        let (at, happening) = loop {
            match self.poll(tokens) {
                Ok(Some(found)) => break found,
                Ok(None) => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
            let mut is_done = true;
            let mut is_ready = false;
            for choice in self.choices.iter().filter(|choice| !choice.is_done()) {
                is_done = false;
                // An event may have come since the poll.
                is_ready |= !choice.events().register(context.waker());
            }
            match (is_done, is_ready) {
                (true, _) => return Poll::Ready(Ok(None)),
                (false, true) => {}
                (false, false) => return Poll::Pending,
            }
        };
        Poll::Ready(Ok(Some(self.event(at, happening, tokens))))
    }

    fn event(&self, at: usize, happening: Happening, tokens: &mut Vec<u32>) -> Event<'_> {
        let choice = &self.choices[at];
        match happening {
            Happening::Progress { done } => {
                Event::PrefillProgress { choice: at, done, total: choice.usage().prompt_tokens }
            }
            Happening::Prompt => {
                let usage = choice.usage();
                Event::Prompt { choice: at, tokens: usage.prompt_tokens, cached: usage.cached_tokens }
            }
            Happening::Token { id, logprob } => {
                if at == 0 {
                    tokens.push(id);
                }
                Event::Token { choice: at, id, logprob, top: choice.top() }
            }
            Happening::Text => Event::Text { choice: at, text: choice.text() },
            Happening::Reasoning => Event::Reasoning { choice: at, text: choice.text() },
            Happening::Call => match choice.call() {
                Some(call) => Event::ToolCall { choice: at, call },
                None => Event::Text { choice: at, text: choice.text() },
            },
            Happening::Stop(reason) => Event::Stop { choice: at, reason, usage: choice.usage() },
        }
    }

    /// What has happened to a choice, if anything has. A choice whose context is full goes on with fewer tokens, which waits
    /// for the scheduler.
    fn poll(&mut self, tokens: &mut Vec<u32>) -> Result<Option<(usize, Happening)>, Error> {
        loop {
            let n = self.choices.len();
            for at in (0..n).map(|i| (self.turn + i) % n.max(1)) {
                if let Some(happening) = self.choices[at].poll()? {
                    // A choice tells all of a token before the next choice has its turn.
                    self.turn = if self.choices[at].is_between_tokens() { at + 1 } else { at };
                    return Ok(Some((at, happening)));
                }
            }
            if !self.shift(tokens)? {
                return Ok(None);
            }
        }
    }

    /// Drops tokens of a choice whose context is full, and lets it go on. `false` if there is none.
    fn shift(&mut self, tokens: &mut Vec<u32>) -> Result<bool, Error> {
        let Some(at) = self.choices.iter().position(|choice| choice.full().is_some()) else {
            return Ok(false);
        };
        let Some((id, keep)) = self.choices[at].full() else { return Ok(false) };
        let dropped = self.handle.exclusively(|backend, scheduler| scheduler.shift(id, keep, backend))?;
        let is_shorter = dropped.is_some();
        if let Some(range) = dropped {
            tokens.drain(range);
        }
        self.choices[at].go_on(is_shorter.then_some(&tokens[..]), self.context);
        Ok(true)
    }
}
