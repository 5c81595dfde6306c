//! Threads that compute masks. They are not those that compute kernels.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::masks::TokenMask;
use crate::Error;

/// Threads of a scheduler. A mask takes a small part of a step.
const THREADS: usize = 8;

/// A thread takes about as long to wake.
const SHORT: Duration = Duration::from_micros(50);

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
    /// How long the last mask took.
    took: Option<Duration>,
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
            took: None,
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
        let begun = Instant::now();
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
        self.took = Some(begun.elapsed());
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

    /// Whether the mask is expected to take less time than it takes to wake a thread.
    fn is_short(&self) -> bool {
        self.took.is_some_and(|took| took < SHORT)
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

/// Which masks the scheduler's thread computes itself: another thread takes some 50 µs to wake, and as long to wake this one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Help {
    /// None: it has other work.
    No,
    /// Those that are expected to take less time than it takes to wake a thread.
    Short,
    /// All: it could only wait.
    All,
}

impl Help {
    fn takes(self, work: &MaskWork) -> bool {
        match self {
            Help::No => false,
            Help::Short => work.is_short(),
            Help::All => true,
        }
    }
}

/// Whoever computes masks.
pub(super) trait MaskWorkers: Send {
    /// Computes a mask later. `help`: what the caller will [compute](MaskWorkers::help) before it waits.
    fn start(&mut self, work: MaskWork, help: Help) -> Result<(), Error>;

    /// Computes masks on the calling thread that no other one has begun with. Appends them.
    fn help(&mut self, help: Help, done: &mut Vec<MaskWork>);

    /// Waits at most this long until a mask is computed, and appends all that are.
    fn wait(&mut self, time: Duration, done: &mut Vec<MaskWork>);
}

/// Threads that begin with the first mask and end with the scheduler.
#[derive(Default)]
pub(super) struct MaskThreads(Option<Running>);

struct Running {
    work: Arc<WorkQueue>,
    done: Receiver<MaskWork>,
}

/// Masks to compute.
#[derive(Default)]
struct WorkQueue {
    waiting: Mutex<Waiting>,
    arrived: Condvar,
}

#[derive(Default)]
struct Waiting {
    work: VecDeque<MaskWork>,
    /// Whether the scheduler has ended.
    closed: bool,
}

impl WorkQueue {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next mask to compute; `None` if the scheduler has ended.
    fn next(&self) -> Option<MaskWork> {
        let mut waiting = self.lock();
        loop {
            if waiting.closed {
                return None;
            }
            if let Some(work) = waiting.work.pop_front() {
                return Some(work);
            }
            waiting = self.arrived.wait(waiting).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// A mask that the scheduler's thread computes and that no thread has begun with.
    fn next_for(&self, help: Help) -> Option<MaskWork> {
        let mut waiting = self.lock();
        let at = waiting.work.iter().position(|work| help.takes(work))?;
        waiting.work.remove(at)
    }
}

impl MaskWorkers for MaskThreads {
    fn start(&mut self, work: MaskWork, help: Help) -> Result<(), Error> {
        let running = match self.0.take() {
            Some(running) => running,
            None => spawn()?,
        };
        let needs_thread = !help.takes(&work);
        running.work.lock().work.push_back(work);
        if needs_thread {
            running.work.arrived.notify_one();
        }
        self.0 = Some(running);
        Ok(())
    }

    fn help(&mut self, help: Help, done: &mut Vec<MaskWork>) {
        let Some(running) = &self.0 else { return };
        while let Some(work) = running.work.next_for(help) {
            done.push(work.compute());
        }
    }

    fn wait(&mut self, time: Duration, done: &mut Vec<MaskWork>) {
        let Some(running) = &self.0 else { return };
        if !time.is_zero() {
            // What the caller wanted to compute itself, but no longer does.
            if !running.work.lock().work.is_empty() {
                running.work.arrived.notify_one();
            }
            done.extend(running.done.recv_timeout(time).ok());
        }
        done.extend(running.done.try_iter());
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.work.lock().closed = true;
        self.work.arrived.notify_all();
    }
}

fn spawn() -> Result<Running, Error> {
    let work = Arc::new(WorkQueue::default());
    let (finished, done) = mpsc::channel();
    let running = Running { work: Arc::clone(&work), done };
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(THREADS);
    for _ in 0..threads {
        let (work, finished) = (Arc::clone(&work), finished.clone());
        let run = move || {
            while let Some(next) = work.next() {
                if finished.send(next.compute()).is_err() {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name("gyrus-masks".to_owned()).stack_size(STACK_BYTES);
        thread.spawn(run).map_err(Error::Thread)?;
    }
    Ok(running)
}

/// The engine of constraints recurses over nested grammars.
const STACK_BYTES: usize = 16 << 20;
