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
    /// The mask of the next position.
    words: Vec<u32>,
    /// The token to commit first.
    token: Option<u32>,
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
        words: Vec<u32>,
        forces: bool,
    ) -> MaskWork {
        MaskWork { sequence, job, state, words, token: None, forces, forced: Vec::new(), error: None }
    }

    /// The same work after this token.
    pub(super) fn after(self, token: u32) -> MaskWork {
        MaskWork { token: Some(token), ..self }
    }

    /// Computes the mask. A panic is an error.
    pub(super) fn compute(mut self) -> MaskWork {
        let done = catch_unwind(AssertUnwindSafe(|| {
            if let Some(token) = self.token.take() {
                self.state.commit(token)?;
            }
            if self.forces {
                self.forced = self.state.forced();
                let state = &mut self.state;
                let fit = self.forced.iter().take_while(|token| state.commit(**token).is_ok()).count();
                self.forced.truncate(fit);
            }
            self.state.mask(&mut self.words)
        }));
        self.error = match done {
            Ok(done) => done.err(),
            Err(_) => Some(Error::Panicked("a constraint panicked".into())),
        };
        self
    }

    pub(super) fn sequence(&self) -> usize {
        self.sequence
    }

    pub(super) fn job(&self) -> u64 {
        self.job
    }

    pub(super) fn words(&self) -> &[u32] {
        &self.words
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
