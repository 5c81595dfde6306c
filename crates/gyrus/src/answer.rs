use std::task::{Context, Poll};

use crate::Error;
use crate::event::Event;
use crate::generation::Choices;
use crate::model::Model;
use crate::session::Session;

/// A running generation that owns its session: a stream of [`Event`]s for servers, where hundreds of them must not need a
/// thread each.
///
/// It may be dropped at any time, also while its request waits: the scheduler frees what it used. Dropping it does not wait
/// for the device.
pub struct Answer {
    // Dropped before the session, so that its jobs have ended when the sequence is closed.
    choices: Choices,
    session: Session,
}

impl Answer {
    pub(crate) fn new(session: Session, choices: Choices) -> Answer {
        Answer { choices, session }
    }

    /// The model.
    pub fn model(&self) -> &Model {
        self.session.model()
    }

    /// The tokens so far: the prompt and those of choice 0.
    pub fn tokens(&self) -> &[u32] {
        self.session.tokens()
    }

    /// Waits for the next event; `None` after the stop of the last choice. After an error the other choices go on.
    #[allow(clippy::should_implement_trait, reason = "events borrow the answer's text")]
    pub fn next(&mut self) -> Result<Option<Event<'_>>, Error> {
        self.choices.next(self.session.tokens_mut())
    }

    /// The next event if it has come; `None` after the stop of the last choice. Else the task is woken when it comes, for
    /// which a [`Driver`](crate::Driver) must run the scheduler.
    pub fn poll_next(&mut self, context: &Context<'_>) -> Poll<Result<Option<Event<'_>>, Error>> {
        self.choices.poll_next(self.session.tokens_mut(), context)
    }
}
