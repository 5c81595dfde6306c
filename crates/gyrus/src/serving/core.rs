//! The owner of a backend: the only code that calls it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use gyrus_kernels::{Backend, BackendError, Plan, Records, Slots};

use super::blocks::BlockPool;
use super::counters::Counters;
use super::job::{Job, JobEvent, SequenceId};
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

/// Where no backend is: everything is refused, and nothing is in flight.
struct NoSlots;

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
    /// may be more to do at once.
    pub(crate) fn tick(&mut self, commands: &mut Vec<Command>, wait: Duration) -> bool {
        let done = catch_unwind(AssertUnwindSafe(|| self.try_tick(commands, wait)));
        let more = match done {
            Ok(Ok(more)) => more,
            Ok(Err(error)) => {
                self.fail(error);
                true
            }
            Err(panic) => {
                let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
                let text = text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
                if let Some(backend) = &mut self.backend {
                    backend.slots().reset();
                }
                self.scheduler.fail_running(|| Error::Panicked(text.clone()));
                true
            }
        };
        self.scheduler.count();
        more
    }

    fn try_tick(&mut self, commands: &mut Vec<Command>, wait: Duration) -> Result<bool, BackendError> {
        let Core { backend, scheduler, landing, .. } = self;
        let mut none = NoSlots;
        let slots: &mut dyn Slots = match backend {
            Some(backend) => backend.slots(),
            None => &mut none,
        };
        for command in commands.drain(..) {
            match command {
                Command::Start(id, job) => scheduler.start(id, job, slots),
                Command::Cancel => {}
                Command::Close(id) => scheduler.close(id, slots),
            }
        }
        let now = Instant::now();
        scheduler.expire(now, slots);
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
        match (self.rebuild)() {
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
        let lost = matches!(error, BackendError::Device(_) | BackendError::TimedOut { .. });
        if lost {
            // Its memory must be free before it is opened again.
            self.backend = None;
        } else if let Some(backend) = &mut self.backend {
            backend.slots().reset();
        }
        let error = Arc::new(error);
        self.scheduler.fail_running(|| Error::Backend(Arc::clone(&error)));
    }

    /// Waits until nothing is in flight, and gives the backend to `work`, with the blocks that no sequence uses.
    pub(crate) fn exclusively<T>(
        &mut self,
        work: impl FnOnce(&mut dyn Backend, &mut Scheduler) -> Result<T, Error>,
    ) -> Result<T, Error> {
        while self.scheduler.has_flights() {
            let Some(backend) = &mut self.backend else { break };
            let landed = self.scheduler.land(&mut self.landing, Duration::from_secs(1), backend.slots());
            if let Err(error) = landed {
                self.fail(error);
            }
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

    /// Fails all jobs that wait, because there is no device.
    pub(super) fn fail_waiting(&mut self, mut error: impl FnMut() -> Error) {
        for at in 0..self.sequences.len() {
            self.finish(at, JobEvent::Failed(error()), &mut NoSlots);
        }
    }
}

impl Slots for NoSlots {
    fn limits(&self) -> gyrus_kernels::Limits {
        gyrus_kernels::Limits {
            slots: 0,
            rows: 0,
            logit_rows: 0,
            steps: 0,
            draft_rows: 0,
            asynchronous: false,
            kinds_differ: false,
        }
    }

    fn open(&mut self, _: usize, _: u32) -> Result<(), BackendError> {
        Err(BackendError::UnsoundBatch)
    }

    fn extend(&mut self, _: usize, _: &[&[u32]], _: u32) -> Result<(), BackendError> {
        Err(BackendError::UnsoundBatch)
    }

    fn start(&mut self, _: usize, _: &gyrus_kernels::Decode<'_>) -> Result<(), BackendError> {
        Err(BackendError::UnsoundBatch)
    }

    fn mask(&mut self, _: usize, _: u32, _: &[u32]) -> Result<(), BackendError> {
        Err(BackendError::UnsoundBatch)
    }

    fn stop(&mut self, _: usize) -> Result<(), BackendError> {
        Err(BackendError::UnsoundBatch)
    }

    fn draft(&mut self, _: usize, _: &gyrus_kernels::Draft<'_>) -> Result<(), BackendError> {
        Err(BackendError::UnsoundBatch)
    }

    fn copy_state(&mut self, _from: Option<u32>, _to: u32) -> Result<(), BackendError> {
        Err(BackendError::UnsoundBatch)
    }

    fn close(&mut self, _: usize) {}

    fn submit(&mut self, _: &gyrus_kernels::Work<'_>) -> Result<u64, BackendError> {
        Err(BackendError::UnsoundBatch)
    }

    fn poll(&mut self, _: Duration) -> Result<Option<gyrus_kernels::Landed<'_>>, BackendError> {
        Ok(None)
    }

    fn reset(&mut self) {}
}
