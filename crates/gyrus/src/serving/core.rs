//! The owner of a backend: the only code that calls it.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use gyrus_kernels::{Backend, BackendError, Plan, Records, Slots};

use super::blocks::BlockPool;
use super::counters::Counters;
use super::failure::{Failure, NoSlots};
use super::job::{Job, SequenceId};
use super::kv::{SequenceKv, Shortage};
use super::landing::Landing;
use super::records::SequenceState;
use super::scheduler::{Scheduler, Settings};
use crate::Error;

/// Opens the device again after it was lost.
pub(crate) type Rebuild = Box<dyn Fn() -> Result<Box<dyn Backend>, Error> + Send>;

/// What clients ask for.
#[derive(Debug)]
pub(crate) enum Command {
    /// Start a job on a sequence.
    Start(SequenceId, Job),
    /// Look for jobs whose clients have gone.
    Cancel,
    /// Remove a sequence.
    Close(SequenceId),
}

/// A backend and its scheduler.
pub(crate) struct Core {
    backend: Option<Box<dyn Backend>>,
    pub(super) scheduler: Scheduler,
    landing: Landing,
    rebuild: Rebuild,
    counters: Arc<Counters>,
}

impl Core {
    pub(crate) fn new(
        mut backend: Box<dyn Backend>,
        plan: Arc<Plan>,
        settings: Settings,
        counters: Arc<Counters>,
        rebuild: Rebuild,
    ) -> Core {
        let limits = backend.slots().limits();
        let blocks = backend.kv_blocks().to_vec();
        let size = (&blocks[..], backend.records());
        let scheduler = Scheduler::new(plan, size, limits, settings, Arc::clone(&counters));
        Core { backend: Some(backend), scheduler, landing: Landing::default(), rebuild, counters }
    }

    /// Deals with commands, submits work, waits for the device at most this long, and sends events. Returns whether there
    /// may be more to do at once. Commands are left if one of them panicked.
    pub(crate) fn tick(&mut self, commands: &mut Vec<Command>, wait: Duration) -> bool {
        // Taken from the end one by one, so that a panic does not drop those that are left.
        commands.reverse();
        let more = self.guard(|core| core.try_tick(commands, wait)).unwrap_or(true);
        commands.reverse();
        self.scheduler.count();
        more
    }

    /// Runs `work`, and deals with its error or panic.
    fn guard<T>(&mut self, work: impl FnOnce(&mut Core) -> Result<T, BackendError>) -> Option<T> {
        match catch_unwind(AssertUnwindSafe(|| work(self))) {
            Ok(Ok(done)) => Some(done),
            Ok(Err(error)) => {
                self.fail(error);
                None
            }
            Err(panic) => {
                let text = panic_text(panic);
                self.reset();
                self.scheduler.fail_running(Failure::Scheduler, || Error::Panicked(text.clone()));
                None
            }
        }
    }

    fn try_tick(&mut self, commands: &mut Vec<Command>, wait: Duration) -> Result<bool, BackendError> {
        let Core { backend, scheduler, landing, .. } = self;
        let mut none = NoSlots;
        let slots: &mut dyn Slots = match backend {
            Some(backend) => backend.slots(),
            None => &mut none,
        };
        while let Some(command) = commands.pop() {
            match command {
                Command::Start(id, job) => scheduler.start(id, job, slots),
                Command::Cancel => {}
                Command::Close(id) => scheduler.close(id, slots),
            }
        }
        let now = Instant::now();
        scheduler.expire(now, slots);
        scheduler.resume_read();
        if backend.is_none() {
            return Ok(self.open_again());
        }
        let Some(backend) = backend else { return Ok(false) };
        let slots = backend.slots();
        scheduler.admit(slots)?;
        let submitted = scheduler.submit(now, slots)?;
        let wait = scheduler.next_deadline(now).map_or(wait, |deadline| deadline.min(wait));
        let landed = scheduler.land(landing, wait, slots)?;
        if !submitted && !landed && !scheduler.has_flights() {
            scheduler.wait_for_masks(wait);
        }
        Ok(submitted || landed || scheduler.has_flights() || scheduler.masks.is_waiting())
    }

    /// Opens the device again if a job waits for it. If that fails, the jobs that wait fail too.
    fn open_again(&mut self) -> bool {
        if self.scheduler.is_idle() {
            return false;
        }
        let rebuild = &self.rebuild;
        let opened = catch_unwind(AssertUnwindSafe(rebuild))
            .unwrap_or_else(|panic| Err(Error::Panicked(panic_text(panic))));
        match opened {
            Ok(backend) => {
                self.backend = Some(backend);
                self.counters.rebuilds(1);
            }
            Err(error) => {
                let text = error.to_string();
                self.scheduler.fail_waiting(|| Error::DeviceGone(text.clone()));
            }
        }
        true
    }

    /// Deals with an error of the backend. Those of the device end it; a mistake of the scheduler ends the jobs that run.
    fn fail(&mut self, error: BackendError) {
        let failure = match error {
            BackendError::Device(_) | BackendError::TimedOut { .. } => {
                self.drop_backend();
                Failure::Device
            }
            _ => {
                self.reset();
                Failure::Scheduler
            }
        };
        let error = Arc::new(error);
        self.scheduler.fail_running(failure, || Error::Backend(Arc::clone(&error)));
    }

    /// Closes all slots. A backend that panics is opened again.
    fn reset(&mut self) {
        let Some(backend) = &mut self.backend else { return };
        if catch_unwind(AssertUnwindSafe(|| backend.slots().reset())).is_err() {
            self.drop_backend();
        }
    }

    /// Frees the memory of the device, so that it can be opened again.
    fn drop_backend(&mut self) {
        let backend = self.backend.take();
        // What a panic leaves is not used again.
        let _ = catch_unwind(AssertUnwindSafe(|| drop(backend)));
    }

    /// Waits until nothing is in flight, and gives the backend to `work`, with the blocks that no sequence uses.
    pub(crate) fn exclusively<T>(
        &mut self,
        work: impl FnOnce(&mut dyn Backend, &mut Scheduler) -> Result<T, Error>,
    ) -> Result<T, Error> {
        while self.scheduler.has_flights() && self.backend.is_some() {
            self.guard(|core| match &mut core.backend {
                Some(backend) => {
                    core.scheduler.land(&mut core.landing, Duration::from_secs(1), backend.slots())
                }
                None => Ok(false),
            });
        }
        if self.backend.is_none() {
            self.backend = Some((self.rebuild)()?);
        }
        match &mut self.backend {
            Some(backend) => work(&mut **backend, &mut self.scheduler),
            None => Err(Error::DeviceGone(String::new())),
        }
    }
}

/// What a panic says.
fn panic_text(panic: Box<dyn Any + Send>) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default()
}

impl Scheduler {
    /// Blocks of each KV group that no sequence uses and that hold nothing.
    pub(crate) fn free_blocks(&self) -> Vec<Vec<u32>> {
        self.kv.pools().iter().map(|pool| pool.free().to_vec()).collect()
    }

    /// Publishes what is going on now.
    fn count(&self) {
        let running = self.slots.iter().flatten().count();
        let blocks = self.kv.pools().iter().map(BlockPool::len).sum::<usize>();
        let available = self.kv.pools().iter().map(BlockPool::available).sum::<usize>();
        self.counters.now(running, self.queue.len(), (blocks - available, blocks));
    }

    /// Takes blocks and records for a sequence that does not run here. Returns the records of rows from its end to
    /// `positions`, if the plan has a state.
    pub(crate) fn reserve(
        &mut self,
        kv: &mut SequenceKv,
        state: &mut SequenceState,
        positions: usize,
    ) -> Result<Option<Records>, Error> {
        let shortage =
            |shortage: Shortage| Error::CacheFull { needed: shortage.needed, free: shortage.available };
        self.kv.reserve(kv, positions).map_err(shortage)?;
        if !self.records.acquire(state) {
            return Err(Error::Trace("other sequences use all records of the recurrent state".to_owned()));
        }
        let from = (kv.len() > 0).then(|| self.records.at(state, kv.len()));
        let to = self.records.at(state, positions);
        Ok(self.records.is_used().then_some(Records { from, to }))
    }

    /// Returns the blocks and records of a sequence that does not run here.
    pub(crate) fn release(&mut self, kv: &mut SequenceKv, state: &mut SequenceState) {
        self.kv.release(kv);
        self.records.release(state);
    }
}
