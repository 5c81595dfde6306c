//! One model and its state.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use gyrus::{Driver, Model};
use tokio::sync::{Semaphore, watch};

use super::served::Served;
use crate::failure::Failure;
use crate::keep_alive::KeepAlive;

/// A model of a server.
pub(crate) struct Entry {
    pub(crate) name: String,
    state: Mutex<State>,
    /// Counts changes of the state, for those who wait for one.
    changes: watch::Sender<u64>,
    /// Requests that hold the model.
    users: AtomicUsize,
    /// The one place of work that is no generation, for which requests wait in their order.
    pub(super) turns: Arc<Semaphore>,
}

struct State {
    phase: Phase,
    /// How often a load was tried, and why the last one failed.
    attempts: u64,
    failure: Option<Failure>,
    last_used: Instant,
    keep_alive: KeepAlive,
}

enum Phase {
    Unloaded,
    Loading,
    Ready(Loaded),
    /// Nobody new gets it; it goes when its last user has gone.
    Unloading(Loaded),
}

/// A loaded model and the thread that runs its scheduler, if it has one. The thread ends first.
pub(crate) struct Loaded {
    #[allow(dead_code, reason = "it runs the scheduler until it is dropped")]
    driver: Option<Driver>,
    pub(crate) served: Served,
    pub(crate) bytes: u64,
}

/// The state of a model, as clients are told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum StateName {
    Unloaded,
    Loading,
    Ready,
    Unloading,
}

/// What somebody who wants the model has to do.
pub(crate) enum Claim {
    /// The model is held; [`Entry::release`] gives it back.
    Held(Served),
    /// It has to be loaded, as attempt number.
    Load(u64),
    /// It is being loaded, as attempt number, or unloaded: wait for a change.
    Wait(u64),
    /// The attempt that this claim waited for has failed.
    Failed(Failure),
}

impl Loaded {
    pub(crate) fn new(served: Served) -> Result<Loaded, gyrus::Error> {
        let driver = served.model().map(Model::drive).transpose()?;
        Ok(Loaded { driver, bytes: served.bytes(), served })
    }
}

impl Entry {
    pub(crate) fn new(name: String, keep_alive: KeepAlive) -> Entry {
        let state = State {
            phase: Phase::Unloaded,
            attempts: 0,
            failure: None,
            last_used: Instant::now(),
            keep_alive,
        };
        let (changes, _) = watch::channel(0);
        Entry {
            name,
            state: Mutex::new(state),
            changes,
            users: AtomicUsize::new(0),
            turns: Arc::new(Semaphore::new(1)),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn changed(&self) {
        self.changes.send_modify(|count| *count += 1);
    }

    pub(crate) fn subscribe(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Takes the model, or says what to wait for. `waited`: the attempt that this claim waits for.
    pub(crate) fn claim(&self, waited: Option<u64>) -> Claim {
        let mut state = self.state();
        match &state.phase {
            Phase::Ready(loaded) => {
                self.users.fetch_add(1, Ordering::AcqRel);
                let served = loaded.served.clone();
                state.last_used = Instant::now();
                Claim::Held(served)
            }
            Phase::Loading => Claim::Wait(state.attempts),
            Phase::Unloading(_) => Claim::Wait(state.attempts + 1),
            Phase::Unloaded => match (&state.failure, waited) {
                (Some(failure), Some(waited)) if state.attempts >= waited => Claim::Failed(failure.clone()),
                _ => {
                    state.attempts += 1;
                    state.failure = None;
                    state.phase = Phase::Loading;
                    Claim::Load(state.attempts)
                }
            },
        }
    }

    /// Gives the model back, with the time that it is to stay.
    pub(crate) fn release(&self, keep_alive: Option<KeepAlive>) {
        let mut state = self.state();
        state.last_used = Instant::now();
        if let Some(keep_alive) = keep_alive {
            state.keep_alive = keep_alive;
        }
        drop(state);
        if self.users.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.changed();
        }
    }

    /// Ends an attempt to load.
    pub(crate) fn loaded(&self, result: Result<Loaded, Failure>, keep_alive: KeepAlive) {
        let mut state = self.state();
        state.last_used = Instant::now();
        state.keep_alive = keep_alive;
        match result {
            Ok(loaded) => state.phase = Phase::Ready(loaded),
            Err(failure) => {
                state.phase = Phase::Unloaded;
                state.failure = Some(failure);
            }
        }
        drop(state);
        self.changed();
    }

    /// Begins to unload. `only_idle`: not if it is in use. Returns whether it was begun.
    pub(crate) fn begin_unload(&self, only_idle: bool) -> bool {
        let mut state = self.state();
        if only_idle && self.users() > 0 {
            return false;
        }
        match std::mem::replace(&mut state.phase, Phase::Unloaded) {
            Phase::Ready(loaded) => {
                state.phase = Phase::Unloading(loaded);
                true
            }
            other => {
                state.phase = other;
                false
            }
        }
    }

    /// Waits for the last user of a model that is being unloaded, and takes it.
    pub(crate) async fn drained(&self) -> Option<Loaded> {
        let mut changes = self.subscribe();
        loop {
            changes.mark_unchanged();
            if self.users() == 0 {
                break;
            }
            // The sender lives as long as the entry.
            changes.changed().await.ok()?;
        }
        let mut state = self.state();
        match std::mem::replace(&mut state.phase, Phase::Loading) {
            // Marked as busy until its memory is free.
            Phase::Unloading(loaded) => Some(loaded),
            other => {
                state.phase = other;
                None
            }
        }
    }

    /// Ends an unload: the memory is free.
    pub(crate) fn unloaded(&self) {
        let mut state = self.state();
        state.phase = Phase::Unloaded;
        state.failure = None;
        drop(state);
        self.changed();
    }

    pub(crate) fn users(&self) -> usize {
        self.users.load(Ordering::Acquire)
    }

    pub(crate) fn name_of_state(&self) -> StateName {
        match self.state().phase {
            Phase::Unloaded => StateName::Unloaded,
            Phase::Loading => StateName::Loading,
            Phase::Ready(_) => StateName::Ready,
            Phase::Unloading(_) => StateName::Unloading,
        }
    }

    /// The model, if it is loaded, and the bytes that it takes.
    pub(crate) fn served(&self) -> Option<(Served, u64)> {
        match &self.state().phase {
            Phase::Ready(loaded) | Phase::Unloading(loaded) => Some((loaded.served.clone(), loaded.bytes)),
            Phase::Unloaded | Phase::Loading => None,
        }
    }

    /// The language model, if it is one and loaded, and the bytes that it takes.
    pub(crate) fn model(&self) -> Option<(Model, u64)> {
        let (served, bytes) = self.served()?;
        Some((served.model()?.clone(), bytes))
    }

    pub(crate) fn last_used(&self) -> Instant {
        self.state().last_used
    }

    /// When it goes if nobody uses it.
    pub(crate) fn expires(&self) -> Option<Instant> {
        let state = self.state();
        match (&state.phase, state.keep_alive) {
            (Phase::Ready(_), KeepAlive::For(time)) => state.last_used.checked_add(time),
            _ => None,
        }
    }
}
