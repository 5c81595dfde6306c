//! Threads that compute masks. They are not those that compute kernels.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::masks::TokenMask;
use crate::Error;

/// Threads of a scheduler. A mask takes a small part of a step.
const THREADS: usize = 4;

/// The state of a constraint on its way to a worker and back.
#[derive(Debug)]
pub(super) struct MaskWork {
    sequence: usize,
    job: u64,
    state: Box<dyn TokenMask>,
    /// The mask of the next position, then those after each guess that is allowed; `each` words a mask.
    words: Vec<u32>,
    each: usize,
    /// The tokens to commit first.
    tokens: Vec<u32>,
    /// Guesses of the tokens that follow. The first `allowed` of them have masks.
    guesses: Vec<u32>,
    allowed: usize,
    /// Whether tokens without an alternative are committed without being sampled, and those that were.
    forces: bool,
    forced: Vec<u32>,
    error: Option<Error>,
}

impl MaskWork {
    /// `forces`: tokens without an alternative are committed without being sampled.
    pub(super) fn new(
        (sequence, job): (usize, u64),
        state: Box<dyn TokenMask>,
        each: usize,
        forces: bool,
    ) -> MaskWork {
        MaskWork {
            sequence,
            job,
            state,
            words: vec![0; each],
            each,
            tokens: Vec::new(),
            guesses: Vec::new(),
            allowed: 0,
            forces,
            forced: Vec::new(),
            error: None,
        }
    }

    /// The same work after these tokens, with guesses of those that follow.
    pub(super) fn after(mut self, tokens: &[u32], guesses: &[u32]) -> MaskWork {
        self.tokens.clear();
        self.tokens.extend_from_slice(tokens);
        self.guesses.clear();
        self.guesses.extend_from_slice(guesses);
        self
    }

    /// Computes the mask. A panic is an error.
    pub(super) fn compute(mut self) -> MaskWork {
        let done = catch_unwind(AssertUnwindSafe(|| {
            self.allowed = 0;
            for token in self.tokens.drain(..) {
                self.state.commit(token)?;
            }
            if self.forces {
                self.forced = self.state.forced();
                let state = &mut self.state;
                let fit = self.forced.iter().take_while(|token| state.commit(**token).is_ok()).count();
                self.forced.truncate(fit);
            }
            self.words.resize(self.each, 0);
            self.state.mask(&mut self.words)?;
            if self.forced.is_empty() { self.guess() } else { Ok(()) }
        }));
        self.error = match done {
            Ok(done) => done.err(),
            Err(_) => Some(Error::Panicked("a constraint panicked".into())),
        };
        self
    }

    /// Computes the masks after the guesses, as far as these are allowed, and takes the guesses back.
    fn guess(&mut self) -> Result<(), Error> {
        let MaskWork { state, words, each, guesses, allowed, forces, .. } = self;
        for guess in guesses.iter() {
            if state.commit(*guess).is_err() {
                break;
            }
            // The token after a guess is sampled: a guess is not verified if that one would be forced, or if there is no
            // mask for it. Where the guess is sampled, the latter is the error.
            let first = words.len();
            words.resize(first + *each, 0);
            if (*forces && !state.forced().is_empty()) || state.mask(&mut words[first..]).is_err() {
                words.truncate(first);
                state.take_back(1)?;
                break;
            }
            *allowed += 1;
        }
        state.take_back(*allowed)
    }

    pub(super) fn sequence(&self) -> usize {
        self.sequence
    }

    pub(super) fn job(&self) -> u64 {
        self.job
    }

    /// The mask of the next position.
    pub(super) fn words(&self) -> &[u32] {
        &self.words[..self.each]
    }

    /// The first masks, of this many rows of a draft.
    pub(super) fn draft_words(&self, rows: usize) -> &[u32] {
        &self.words[..(rows * self.each).min(self.words.len())]
    }

    /// Guesses that are allowed.
    pub(super) fn allowed(&self) -> usize {
        self.allowed
    }

    pub(super) fn forget_guesses(&mut self) {
        self.allowed = 0;
    }

    /// Tokens that come before the position of the mask.
    pub(super) fn forced(&self) -> &[u32] {
        &self.forced
    }

    pub(super) fn take_forced(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.forced)
    }

    pub(super) fn take_error(&mut self) -> Option<Error> {
        self.error.take()
    }
}

/// Whoever computes masks.
pub(super) trait MaskWorkers: Send {
    /// Computes a mask later.
    fn start(&mut self, work: MaskWork) -> Result<(), Error>;

    /// Waits at most this long until a mask is computed, and appends all that are.
    fn wait(&mut self, time: Duration, done: &mut Vec<MaskWork>);
}

/// Threads that begin with the first mask and end with the scheduler.
#[derive(Default)]
pub(super) struct MaskThreads(Option<Running>);

struct Running {
    work: Sender<MaskWork>,
    done: Receiver<MaskWork>,
}

impl MaskWorkers for MaskThreads {
    fn start(&mut self, work: MaskWork) -> Result<(), Error> {
        let running = match self.0.take() {
            Some(running) => running,
            None => spawn()?,
        };
        // Threads end only when the sender is dropped.
        let sent = running.work.send(work);
        self.0 = Some(running);
        sent.map_err(|_| Error::Panicked("the threads of constraints have ended".into()))
    }

    fn wait(&mut self, time: Duration, done: &mut Vec<MaskWork>) {
        let Some(running) = &self.0 else { return };
        if !time.is_zero() {
            done.extend(running.done.recv_timeout(time).ok());
        }
        done.extend(running.done.try_iter());
    }
}

fn spawn() -> Result<Running, Error> {
    let (work, queue) = mpsc::channel::<MaskWork>();
    let (finished, done) = mpsc::channel();
    let queue = Arc::new(Mutex::new(queue));
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(THREADS);
    for _ in 0..threads {
        let (queue, finished) = (Arc::clone(&queue), finished.clone());
        let run = move || {
            loop {
                let next = queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
                let Ok(work) = next else { return };
                if finished.send(work.compute()).is_err() {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name("gyrus-masks".to_owned()).stack_size(STACK_BYTES);
        thread.spawn(run).map_err(Error::Thread)?;
    }
    Ok(Running { work, done })
}

/// The engine of constraints recurses over nested grammars.
const STACK_BYTES: usize = 16 << 20;
