//! A fork-join pool for loops that last microseconds.
//!
//! A small model's layer is a dozen loops of 10 to 50 µs; a general pool's fork-join would cost as much
//! as the work. Here the caller takes part, workers spin for some 20 µs after a loop so that the next one
//! finds them awake, and then park, so that an idle program uses no CPU.
//!
//! A worker *enters* a loop if it comes by while the loop is open. The caller never waits for a worker
//! that did not: one that is parked, or that the system has put aside because there are more threads than
//! processors, costs nothing but its help.

use std::any::Any;
use std::cell::{Cell, UnsafeCell};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::Isa;

/// How long an idle worker looks for work before it parks.
const SPIN: Duration = Duration::from_micros(20);

/// Threads that run loops together. Dropping the pool ends and joins them.
pub struct Pool {
    shared: Arc<Shared>,
    workers: Vec<Worker>,
    /// Held while a loop runs: callers on several threads take turns.
    run_lock: Mutex<()>,
    isa: Isa,
}

struct Worker {
    handle: Option<JoinHandle<()>>,
    parked: Arc<AtomicBool>,
}

/// What callers and workers share. `state` is the only door to `job`.
struct Shared {
    /// Low 32 bits: workers inside the loop. Bit 32: the loop is open to enter. Above: its number.
    state: AtomicU64,
    /// Written only while the loop is closed and nobody is inside; read only from inside.
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

const OPEN: u64 = 1 << 32;
const EPOCH: u64 = 1 << 33;
const INSIDE: u64 = OPEN - 1;

thread_local! {
    /// Set while this thread runs a task: a loop started from within one runs inline.
    static IN_TASK: Cell<bool> = const { Cell::new(false) };
}

impl Pool {
    /// A pool of `threads` threads, the caller included; zero is taken as one.
    ///
    /// Threads that the system refuses to start are done without.
    pub fn new(threads: usize) -> Pool {
        Pool::with_isa(threads, Isa::detect())
    }

    /// As [`Pool::new`], with kernels on the given instruction set.
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

    /// The number of processors this process may use, quotas of its container included.
    pub fn available_threads() -> usize {
        thread::available_parallelism().map_or(1, usize::from)
    }

    /// Threads that take part in a loop, the caller included.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// The instruction set of the kernels run on this pool.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// Calls `body(0)`, …, `body(tasks - 1)`, each once, on any thread and in any order, and returns when
    /// all are done. Allocates nothing.
    ///
    /// If a task panics, tasks not yet begun may be skipped, and the panic continues on the caller.
    /// A call from inside a task runs its loop on the thread it is on.
    pub fn run(&self, tasks: usize, body: &(dyn Fn(usize) + Sync)) {
        if tasks <= 1 || self.workers.is_empty() || IN_TASK.get() {
            (0..tasks).for_each(body);
            return;
        }
        // A poisoned lock only tells that a task panicked; the state below is whole all the same.
        let run_lock = self.run_lock.lock().unwrap_or_else(PoisonError::into_inner);
        let shared = &*self.shared;
        // SAFETY: only the lifetime changes. The pointer is read by workers inside the loop opened below,
        // and `close` returns when none is left, before `body` can go.
        let erased: &'static (dyn Fn(usize) + Sync) = unsafe { std::mem::transmute(body) };
        // SAFETY: the loop is closed and empty (the last `close` saw to that, and we hold `turn`), so no
        // other thread reads the cell.
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
}

impl Shared {
    /// Runs tasks until none is left. Never unwinds: a panic is kept for the caller.
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

    /// Lets nobody in any more and waits for those inside.
    fn close(&self) {
        let mut state = self.state.fetch_and(!OPEN, Ordering::AcqRel);
        let mut spins = 0u32;
        while state & INSIDE != 0 {
            spins += 1;
            // If the last task sits on a thread that is not running, give it our processor.
            if spins < 2000 {
                std::hint::spin_loop()
            } else {
                thread::yield_now()
            }
            state = self.state.load(Ordering::Acquire);
        }
    }

    /// A worker's life: find an open loop it has not seen, enter, help, leave.
    fn work(&self, parked: &AtomicBool) {
        let mut seen = 0;
        while let Some(epoch) = self.enter(seen, parked) {
            seen = epoch;
            // SAFETY: between `enter` and leaving, the count keeps `run` from rewriting the cell, and
            // `enter` acquired what `run` released after writing it.
            if let Some(job) = unsafe { *self.job.get() } {
                // SAFETY: `run` does not return while we are inside, so the closure is alive.
                self.take_tasks(unsafe { &*job.body }, job.tasks);
            }
            self.state.fetch_sub(1, Ordering::Release);
        }
    }

    /// Waits for a loop other than number `seen` and enters it; `None` when the pool is being dropped.
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
            // Announce first, look once more, then park: `run` publishes the loop first and looks at the
            // flag then, all sequentially consistent, so one of the two sees the other.
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
    fn every_task_runs_once_whatever_the_threads() {
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
    fn parked_workers_wake_and_many_short_loops_add_up() {
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
    fn a_panic_reaches_the_caller_and_the_pool_lives_on() {
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
    fn loops_nest_and_callers_take_turns() {
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

    /// Workers must have parked, not spin, once nothing has been asked of them for a while.
    #[test]
    fn idle_workers_park() {
        let pool = Pool::new(3);
        pool.run(8, &|_| {});
        let deadline = Instant::now() + Duration::from_secs(5);
        while !pool.workers.iter().all(|w| w.parked.load(Ordering::SeqCst)) {
            assert!(Instant::now() < deadline, "a worker still spins");
            thread::sleep(Duration::from_millis(1));
        }
    }
}
