//! The way from clients to the core: commands in, events out.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread::JoinHandle;
use std::time::Duration;

use gyrus_kernels::Backend;

use super::core::{Command, Core};
use super::counters::{Counters, Statistics};
use super::job::{EventQueue, Job, JobEvent, SequenceId};
use super::scheduler::Scheduler;
use crate::Error;

/// How long a tick waits for the device before it looks for commands again.
const TICK: Duration = Duration::from_millis(50);
/// How long a client waits before it looks whether somebody still drives the core.
const PATIENCE: Duration = Duration::from_millis(20);
/// The same of a client that waits for one of several queues.
const SHORT_PATIENCE: Duration = Duration::from_millis(1);

/// Clients' access to a core.
///
/// Whoever waits for an event drives the core, or a [`Driver`] does. Commands are put into an inbox: no client waits for
/// a lock while the device computes.
pub(crate) struct Handle {
    core: Mutex<Core>,
    inbox: Mutex<Vec<Command>>,
    /// Signalled when a command comes.
    arrived: Condvar,
    /// Clients that wait while another one drives.
    waiters: Mutex<Vec<Arc<EventQueue>>>,
    /// Drivers on threads of their own.
    drivers: AtomicUsize,
    /// Threads that want the core for themselves: a driver lets them go first.
    exclusive: AtomicUsize,
    counters: Arc<Counters>,
    next_id: AtomicU64,
}

impl Handle {
    pub(crate) fn new(core: Core, counters: Arc<Counters>) -> Handle {
        Handle {
            core: Mutex::new(core),
            inbox: Mutex::new(Vec::with_capacity(64)),
            arrived: Condvar::new(),
            waiters: Mutex::new(Vec::with_capacity(64)),
            drivers: AtomicUsize::new(0),
            exclusive: AtomicUsize::new(0),
            counters,
            next_id: AtomicU64::new(1),
        }
    }

    /// A new sequence. It exists in the core from its first job on.
    pub(crate) fn sequence(&self) -> SequenceId {
        SequenceId(self.next_id.fetch_add(1, Ordering::Relaxed))
    }

    pub(crate) fn send(&self, command: Command) {
        lock(&self.inbox).push(command);
        self.arrived.notify_all();
    }

    /// Starts a job. Its events come in the job's queue.
    pub(crate) fn start(&self, id: SequenceId, job: Job) {
        self.send(Command::Start(id, job));
    }

    pub(crate) fn statistics(&self) -> Statistics {
        self.counters.read()
    }

    /// The next event of a queue. Drives the core while nobody else does.
    pub(crate) fn next(&self, events: &Arc<EventQueue>) -> JobEvent {
        loop {
            if let Some(event) = events.pop() {
                return event;
            }
            self.wait(events, true, || events.waiting() > 0);
        }
    }

    /// Drives the core once if nobody else does, or waits for an event of a queue. `is_ready`: an event has come that the
    /// client wants, of this queue or another. A client of several queues waits shortly (`is_single`).
    pub(crate) fn wait(&self, events: &Arc<EventQueue>, is_single: bool, is_ready: impl Fn() -> bool) {
        let patience = if is_single { PATIENCE } else { SHORT_PATIENCE };
        if self.drivers.load(Ordering::Acquire) > 0 {
            events.wait(patience);
            return;
        }
        match self.core.try_lock() {
            Ok(mut core) => {
                // Whoever drove before may have sent the event.
                let has_more = is_ready() || self.tick(&mut core, TICK);
                drop(core);
                if is_ready() {
                    self.hand_over(events);
                } else if !has_more {
                    // Only another client can change something: one that reads, or that sends a command.
                    events.wait(patience);
                }
            }
            Err(TryLockError::Poisoned(_)) => self.core.clear_poison(),
            Err(TryLockError::WouldBlock) => {
                lock(&self.waiters).push(Arc::clone(events));
                // The driver may have left before it could see this client.
                if self.core.try_lock().is_err() {
                    events.wait(patience);
                }
                lock(&self.waiters).retain(|waiter| !Arc::ptr_eq(waiter, events));
            }
        }
    }

    /// Wakes a client that waits, so that it drives.
    fn hand_over(&self, own: &Arc<EventQueue>) {
        let waiters = lock(&self.waiters);
        if let Some(next) = waiters.iter().find(|waiter| !Arc::ptr_eq(waiter, own)) {
            next.wake();
        }
    }

    fn tick(&self, core: &mut Core, wait: Duration) -> bool {
        let mut commands = std::mem::take(&mut *lock(&self.inbox));
        let more = core.tick(&mut commands, wait);
        // The memory of the list is used again.
        let mut inbox = lock(&self.inbox);
        commands.append(&mut inbox);
        *inbox = commands;
        more
    }

    /// Runs `work` with the backend while nothing is in flight.
    pub(crate) fn exclusively<T>(
        &self,
        work: impl FnOnce(&mut dyn Backend, &mut Scheduler) -> Result<T, Error>,
    ) -> Result<T, Error> {
        self.exclusive.fetch_add(1, Ordering::AcqRel);
        let mut core = lock(&self.core);
        self.exclusive.fetch_sub(1, Ordering::AcqRel);
        // Commands that came before.
        self.tick(&mut core, Duration::ZERO);
        core.exclusively(work)
    }

    /// Runs ticks until `stop` is set.
    fn drive(&self, stop: &AtomicBool) {
        while !stop.load(Ordering::Acquire) {
            while self.exclusive.load(Ordering::Acquire) > 0 {
                std::thread::yield_now();
            }
            let mut core = lock(&self.core);
            let more = self.tick(&mut core, TICK);
            drop(core);
            if !more {
                let inbox = lock(&self.inbox);
                if inbox.is_empty() {
                    drop(self.arrived.wait_timeout(inbox, TICK));
                }
            }
        }
    }
}

/// A thread that runs a model's scheduler until it is dropped, so that clients only wait for their events: for servers.
pub struct Driver {
    handle: Arc<Handle>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Driver {
    pub(crate) fn spawn(handle: Arc<Handle>) -> Result<Driver, std::io::Error> {
        let stop = Arc::new(AtomicBool::new(false));
        let (of_thread, stopped) = (Arc::clone(&handle), Arc::clone(&stop));
        let builder = std::thread::Builder::new().name("gyrus-scheduler".to_owned());
        let thread = builder.spawn(move || of_thread.drive(&stopped))?;
        handle.drivers.fetch_add(1, Ordering::AcqRel);
        Ok(Driver { handle, stop, thread: Some(thread) })
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        self.handle.arrived.notify_all();
        if let Some(thread) = self.thread.take() {
            // A panic of a tick is caught there.
            let _ = thread.join();
        }
        self.handle.drivers.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Locks; a panic elsewhere does not matter, since ticks catch theirs and the other locks protect plain lists.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
