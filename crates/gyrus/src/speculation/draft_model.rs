//! A smaller model that guesses.
//!
//! It runs on a thread of its own, ahead of the text: it guesses while the larger model computes, and goes on behind its own
//! guesses until it is told that one was wrong. The scheduler never waits for it, but takes what it has guessed so far.

use std::collections::VecDeque;
use std::sync::mpsc::{self, Receiver, Sender, TryRecvError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{Drafter, Lookup, MODEL_EVIDENCE};
use crate::event::Event;
use crate::model::Model;
use crate::request::{Prompt, Request};
use crate::{Error, Session};

/// Guesses that the model is ahead of the text at most.
const AHEAD: usize = 12;
/// Tokens of a suffix that occurred before, from which on the look-up is asked first.
const LOOKUP_FIRST: usize = 5;

/// Guesses by a look-up where much speaks for it, else by a model.
#[derive(Debug)]
pub(super) struct DraftModel {
    lookup: Lookup,
    shared: Arc<Mutex<Ahead>>,
    /// `None` if there is no thread.
    tokens: Option<Sender<u32>>,
}

/// For whom a draft model guesses.
#[derive(Debug, Clone)]
pub(super) struct Asker {
    pub(super) client: Arc<str>,
    pub(super) tenant: Arc<str>,
}

/// What the thread and the drafter share.
#[derive(Debug, Default)]
struct Ahead {
    /// Tokens of the text that the drafter knows of, prompt included.
    known: usize,
    /// Guesses of the tokens behind those.
    guesses: VecDeque<u32>,
    /// How often the text went another way than was guessed.
    turns: u64,
}

impl Ahead {
    /// A token of the text: what was guessed behind it stays if the guess was right.
    fn push(&mut self, token: u32) {
        if self.guesses.front() == Some(&token) {
            self.guesses.pop_front();
        } else {
            self.guesses.clear();
            self.turns += 1;
        }
        self.known += 1;
    }
}

/// Whether guesses of one model are tokens of another: both have the same vocabulary.
pub(super) fn check_vocabularies(model: &Model, draft: &Model) -> Result<(), Error> {
    let (Some(own), Some(other)) = (model.tokenizer(), draft.tokenizer()) else {
        return Err(Error::NoTokenizer);
    };
    let refused =
        |what: String| Err(Error::Request(format!("the draft model has another vocabulary: {what}")));
    let tokens = own.vocab_size();
    if other.vocab_size() < tokens {
        return refused(format!("{} tokens instead of {tokens}", other.vocab_size()));
    }
    let differs =
        |id: &u32| own.kind(*id) != other.kind(*id) || own.token_bytes(*id) != other.token_bytes(*id);
    match (0..tokens as u32).find(differs) {
        None => Ok(()),
        Some(id) => {
            let text = |tokenizer: &gyrus_text::Tokenizer| {
                String::from_utf8_lossy(tokenizer.token_bytes(id)).into_owned()
            };
            refused(format!("token {id} is {:?} instead of {:?}", text(other), text(own)))
        }
    }
}

impl DraftModel {
    /// A drafter of a sequence that has these tokens. Without a thread it is a look-up.
    pub(super) fn new(draft: Model, tokens: &[u32], asker: Asker) -> DraftModel {
        let shared = Arc::new(Mutex::new(Ahead { known: tokens.len(), ..Ahead::default() }));
        let (sender, receiver) = mpsc::channel();
        let worker = Worker { text: tokens.to_vec(), receiver, shared: Arc::clone(&shared), asker };
        let thread = std::thread::Builder::new().name("gyrus-draft".to_owned());
        let spawned = thread.spawn(move || worker.run(draft.session()));
        DraftModel { lookup: Lookup::new(tokens), shared, tokens: spawned.is_ok().then_some(sender) }
    }

    /// Whether the look-up is asked.
    fn looks_up(&self) -> bool {
        self.lookup.evidence() >= LOOKUP_FIRST || lock(&self.shared).guesses.is_empty()
    }
}

impl Drafter for DraftModel {
    fn push(&mut self, token: u32) {
        self.lookup.push(token);
        lock(&self.shared).push(token);
        if self.tokens.as_ref().is_some_and(|tokens| tokens.send(token).is_err()) {
            self.tokens = None;
        }
    }

    fn evidence(&self) -> usize {
        if self.looks_up() { self.lookup.evidence() } else { MODEL_EVIDENCE }
    }

    fn guess(&mut self, most: usize, guesses: &mut Vec<u32>) {
        if self.looks_up() {
            return self.lookup.guess(most, guesses);
        }
        guesses.extend(lock(&self.shared).guesses.iter().take(most));
    }
}

/// The thread of a drafter. It ends with it.
struct Worker {
    text: Vec<u32>,
    receiver: Receiver<u32>,
    shared: Arc<Mutex<Ahead>>,
    asker: Asker,
}

impl Worker {
    /// Guesses until the drafter is dropped or the draft model fails.
    fn run(mut self, mut session: Session) {
        while self.receive() {
            let (ahead, turns): (Vec<u32>, u64) = {
                let shared = lock(&self.shared);
                // Tokens may have come meanwhile.
                if shared.known != self.text.len() {
                    continue;
                }
                (shared.guesses.iter().copied().collect(), shared.turns)
            };
            let remaining = session.model().context().tokens.saturating_sub(self.text.len() + ahead.len());
            let wanted = AHEAD.saturating_sub(ahead.len()).min(remaining);
            if wanted == 0 {
                match self.receiver.recv() {
                    Ok(token) => self.text.push(token),
                    Err(_) => return,
                }
                continue;
            }
            let tokens = [&self.text[..], &ahead].concat();
            if session.set_tokens(&tokens).is_err() || self.guess(&mut session, wanted, turns).is_err() {
                lock(&self.shared).guesses.clear();
                return;
            }
        }
    }

    /// Takes the tokens that have come. `false` if the drafter was dropped.
    fn receive(&mut self) -> bool {
        loop {
            match self.receiver.try_recv() {
                Ok(token) => self.text.push(token),
                Err(TryRecvError::Empty) => return true,
                Err(TryRecvError::Disconnected) => return false,
            }
        }
    }

    /// Guesses the tokens that follow those of a session, until the text goes another way.
    fn guess(&mut self, session: &mut Session, wanted: usize, turns: u64) -> Result<(), Error> {
        let Asker { client, tenant } = &self.asker;
        let request = Request::new(Prompt::Continue).max_tokens(wanted).ignore_end(true);
        let mut generation = session.generate(request.client(client).tenant(tenant))?;
        while let Some(event) = generation.next()? {
            let Event::Token { id, .. } = event else { continue };
            let mut shared = lock(&self.shared);
            if shared.turns != turns {
                return Ok(());
            }
            shared.guesses.push_back(id);
        }
        Ok(())
    }
}

/// Locks; the state is plain data, which a panic elsewhere does not harm.
fn lock(shared: &Mutex<Ahead>) -> MutexGuard<'_, Ahead> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn right_guesses_are_kept_and_wrong_ones_drop_all() {
        let mut ahead = Ahead { known: 4, guesses: [7, 8, 9].into(), turns: 0 };
        ahead.push(7);
        assert_eq!((ahead.known, ahead.turns, &ahead.guesses), (5, 0, &VecDeque::from([8, 9])));
        ahead.push(6);
        assert_eq!((ahead.known, ahead.turns, ahead.guesses.len()), (6, 1, 0));
    }
}
