//! A fork-join thread pool for loops that last microseconds.
//!
//! A layer of a small model is a dozen loops of 10 to 50 µs; the fork-join of a general pool would cost as
//! much as the work. Here the caller takes part. Workers spin for 20 µs after a loop, so the next loop finds
//! them awake, and then park, so an idle program uses no CPU.
//!
//! A worker *enters* a loop if it sees the loop while it is open. The caller never waits for a worker that
//! did not enter. A worker that is parked, or descheduled because there are more threads than CPUs, delays
//! nothing.

use std::any::Any;
use std::cell::{Cell, UnsafeCell};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::Isa;

/// How long an idle worker spins before it parks.
const SPIN: Duration = Duration::from_micros(20);

/// A fork-join thread pool. Dropping it stops and joins its threads.
pub struct Pool {
    shared: Arc<Shared>,
    workers: Vec<Worker>,
    /// Held while a loop runs, so loops of several callers run one after the other.
    run_lock: Mutex<()>,
    isa: Isa,
}

struct Worker {
    handle: Option<JoinHandle<()>>,
    parked: Arc<AtomicBool>,
}

/// The state that callers and workers share. `state` guards `job`.
struct Shared {
    /// Low 32 bits: workers inside the loop. Bit 32: workers may enter. Upper 31 bits: the loop's epoch.
    state: AtomicU64,
    /// Written only while the loop is closed and empty; read only by workers inside.
    job: UnsafeCell<Option<Job>>,
    next: AtomicUsize,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    stop: AtomicBool,
}

#[derive(Clone, Copy)]
struct Job {
    body: *const (dyn Fn(usize) + Sync),
    tasks: usize,
}

// SAFETY: `job` holds a pointer to a `Sync` closure. It is dereferenced only between entering and leaving
// an open loop, and `Pool::run` neither returns (so the closure lives) nor rewrites the cell before the
// loop is closed and the count of workers inside is zero.
unsafe impl Sync for Shared {}
// SAFETY: as above; the pointer is not tied to the thread that made it.
unsafe impl Send for Shared {}

/// Up to this many elements one thread does the work: waking others would cost more.
pub(crate) const SERIAL_ELEMS: usize = 16 << 10;

const OPEN: u64 = 1 << 32;
const EPOCH: u64 = 1 << 33;
const INSIDE: u64 = OPEN - 1;

thread_local! {
    /// Set while this thread runs a task. A loop started by a task runs inline.
    static IN_TASK: Cell<bool> = const { Cell::new(false) };
}

impl Pool {
    /// A pool of `threads` threads, the caller included; zero counts as one.
    ///
    /// The pool has fewer threads if the system refuses to start them.
    pub fn new(threads: usize) -> Pool {
        Pool::with_isa(threads, Isa::detect())
    }

    /// As [`Pool::new`], with kernels that use the given instruction set.
    pub fn with_isa(threads: usize, isa: Isa) -> Pool {
        let shared = Arc::new(Shared {
            state: AtomicU64::new(0),
            job: UnsafeCell::new(None),
            next: AtomicUsize::new(0),
            panic: Mutex::new(None),
            stop: AtomicBool::new(false),
        });
        let mut workers = Vec::new();
        for index in 1..threads.max(1) {
            let (shared, parked) = (shared.clone(), Arc::new(AtomicBool::new(false)));
            let flag = parked.clone();
            let work = move || shared.work(&flag);
            match thread::Builder::new().name(format!("gyrus-cpu-{index}")).spawn(work) {
                Ok(handle) => workers.push(Worker { handle: Some(handle), parked }),
                Err(_) => break,
            }
        }
        Pool { shared, workers, run_lock: Mutex::new(()), isa }
    }

    /// The number of CPUs this process may use, after affinity and container quotas.
    pub fn available_threads() -> usize {
        thread::available_parallelism().map_or(1, usize::from)
    }

    /// The number of threads, the caller included.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// The instruction set of the kernels that run on this pool.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// Calls `body(0)`, …, `body(tasks - 1)` once each, on any thread and in any order, and returns when all
    /// have finished. Allocates nothing.
    ///
    /// If a task panics, tasks that have not started may be skipped, and the panic resumes on the caller.
    /// A call from inside a task runs its loop on the current thread.
    pub fn run(&self, tasks: usize, body: &(dyn Fn(usize) + Sync)) {
        if tasks <= 1 || self.workers.is_empty() || IN_TASK.get() {
            (0..tasks).for_each(body);
            return;
        }
        // A poisoned lock means that a task panicked; the state below is still consistent.
        let run_lock = self.run_lock.lock().unwrap_or_else(PoisonError::into_inner);
        let shared = &*self.shared;
        // SAFETY: only the lifetime changes. Only workers inside the loop below read the pointer, and `close`
        // returns after they have left, while `body` is still borrowed.
        let erased: &'static (dyn Fn(usize) + Sync) = unsafe { std::mem::transmute(body) };
        // SAFETY: the previous `close` left the loop closed and empty, and we hold `run_lock`, so no other
        // thread accesses the cell.
        unsafe { *shared.job.get() = Some(Job { body: erased, tasks }) };
        shared.next.store(0, Ordering::Relaxed);
        let closed = shared.state.load(Ordering::Relaxed) & !(OPEN | INSIDE);
        shared.state.store(closed.wrapping_add(EPOCH) | OPEN, Ordering::SeqCst);
        for worker in self.workers.iter().take(tasks - 1) {
            if worker.parked.load(Ordering::SeqCst)
                && let Some(handle) = &worker.handle
            {
                handle.thread().unpark();
            }
        }
        shared.take_tasks(body, tasks);
        shared.close();
        let panic = shared.panic.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(run_lock);
        if let Some(payload) = panic {
            resume_unwind(payload);
        }
    }

    /// Calls `body(row)` once for each of `rows` rows, in at most four tasks per thread; in one task if the rows
    /// have no more than [`SERIAL_ELEMS`] elements in total.
    pub(crate) fn run_rows(&self, rows: usize, elems: usize, body: impl Fn(usize) + Sync) {
        let per_task = if elems <= SERIAL_ELEMS { rows.max(1) } else { rows.div_ceil(self.threads() * 4) };
        self.run(rows.div_ceil(per_task), &|task| {
            for row in task * per_task..rows.min((task + 1) * per_task) {
                body(row);
            }
        });
    }
}

impl Shared {
    /// Runs tasks until none is left. Never unwinds: a panic is stored for the caller.
    fn take_tasks(&self, body: &(dyn Fn(usize) + Sync), tasks: usize) {
        IN_TASK.set(true);
        let result = catch_unwind(AssertUnwindSafe(|| {
            loop {
                let task = self.next.fetch_add(1, Ordering::Relaxed);
                if task >= tasks {
                    break;
                }
                body(task);
            }
        }));
        IN_TASK.set(false);
        if let Err(payload) = result {
            self.next.store(tasks, Ordering::Relaxed);
            self.panic.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(payload);
        }
    }

    /// Closes the loop and waits for the workers inside.
    fn close(&self) {
        let mut state = self.state.fetch_and(!OPEN, Ordering::AcqRel);
        let mut spins = 0u32;
        while state & INSIDE != 0 {
            spins += 1;
            // The last task may be on a descheduled thread: yield the CPU to it.
            if spins < 2000 {
                std::hint::spin_loop()
            } else {
                thread::yield_now()
            }
            state = self.state.load(Ordering::Acquire);
        }
    }

    /// The worker's main function: wait for a new open loop, enter, run tasks, leave.
    fn work(&self, parked: &AtomicBool) {
        let mut seen = 0;
        while let Some(epoch) = self.enter(seen, parked) {
            seen = epoch;
            // SAFETY: while this worker counts as inside, `run` does not write the cell. `enter` acquired the
            // state that `run` released after its write.
            if let Some(job) = unsafe { *self.job.get() } {
                // SAFETY: `run` does not return while a worker is inside, so the closure is alive.
                self.take_tasks(unsafe { &*job.body }, job.tasks);
            }
            self.state.fetch_sub(1, Ordering::Release);
        }
    }

    /// Waits for a loop with another epoch than `seen` and enters it; `None` when the pool is being dropped.
    fn enter(&self, seen: u64, parked: &AtomicBool) -> Option<u64> {
        let mut since = Instant::now();
        loop {
            for _ in 0..32 {
                if let Some(epoch) = self.try_enter(seen) {
                    return Some(epoch);
                }
                std::hint::spin_loop();
            }
            if self.stop.load(Ordering::SeqCst) {
                return None;
            }
            if since.elapsed() < SPIN {
                continue;
            }
            // Set the flag, check again, then park. `run` publishes the loop and then reads the flag. All are
            // sequentially consistent, so either the worker sees the loop or `run` sees the flag.
            parked.store(true, Ordering::SeqCst);
            let state = self.state.load(Ordering::SeqCst);
            let open_loop = state & OPEN != 0 && state / EPOCH != seen;
            if !open_loop && !self.stop.load(Ordering::SeqCst) {
                thread::park();
            }
            parked.store(false, Ordering::SeqCst);
            since = Instant::now();
        }
    }

    fn try_enter(&self, seen: u64) -> Option<u64> {
        let state = self.state.load(Ordering::Relaxed);
        let fresh = state & OPEN != 0 && state / EPOCH != seen;
        let entered = fresh
            && self
                .state
                .compare_exchange_weak(state, state + 1, Ordering::Acquire, Ordering::Relaxed)
                .is_ok();
        entered.then_some(state / EPOCH)
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        for worker in &mut self.workers {
            if let Some(handle) = worker.handle.take() {
                handle.thread().unpark();
                // Workers catch every panic, so the join cannot report one.
                let _ = handle.join();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_task_runs_once_on_any_number_of_threads() {
        for threads in [0, 1, 2, 3, 9] {
            let pool = Pool::new(threads);
            for tasks in [0, 1, 2, 3, 100] {
                let counts: Vec<AtomicUsize> = (0..tasks).map(|_| AtomicUsize::new(0)).collect();
                for _ in 0..50 {
                    pool.run(tasks, &|i| {
                        counts[i].fetch_add(1, Ordering::Relaxed);
                    });
                }
                assert!(counts.iter().all(|c| c.load(Ordering::Relaxed) == 50), "{threads} {tasks}");
            }
        }
    }

    #[test]
    fn parked_workers_wake_for_later_loops() {
        let pool = Pool::new(4);
        let sum = AtomicUsize::new(0);
        for round in 0..2000 {
            if round % 500 == 0 {
                thread::sleep(Duration::from_millis(2));
            }
            pool.run(7, &|i| {
                sum.fetch_add(i, Ordering::Relaxed);
            });
        }
        assert_eq!(sum.into_inner(), 2000 * 21);
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_pool_stays_usable() {
        let pool = Pool::new(3);
        for guilty in [0, 5, 63] {
            let result = catch_unwind(AssertUnwindSafe(|| {
                pool.run(64, &|i| assert!(i != guilty, "task {i}"));
            }));
            let payload = result.expect_err("the panic is not lost");
            assert_eq!(payload.downcast_ref::<String>(), Some(&format!("task {guilty}")));
        }
        let sum = AtomicUsize::new(0);
        pool.run(10, &|i| {
            sum.fetch_add(i, Ordering::Relaxed);
        });
        assert_eq!(sum.into_inner(), 45);
    }

    #[test]
    fn loops_nest_and_concurrent_callers_serialise() {
        let pool = Pool::new(2);
        let sum = AtomicUsize::new(0);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..100 {
                        pool.run(4, &|_| {
                            pool.run(3, &|_| {
                                sum.fetch_add(1, Ordering::Relaxed);
                            });
                        });
                    }
                });
            }
        });
        assert_eq!(sum.into_inner(), 4 * 100 * 12);
    }

    /// Workers park instead of spinning when the pool is idle.
    #[test]
    fn idle_workers_park() {
        let pool = Pool::new(3);
        pool.run(8, &|_| {});
        let deadline = Instant::now() + Duration::from_secs(5);
        while !pool.workers.iter().all(|w| w.parked.load(Ordering::SeqCst)) {
            assert!(Instant::now() < deadline, "a worker still spins after five seconds of idleness");
            thread::sleep(Duration::from_millis(1));
        }
    }
}
