//! The overhead of a parallel loop: `cargo run --release -p gyrus-cpu --example pool_bench`.
//!
//! A loop with one empty task per thread measures fork and join. Back to back, the workers are still spinning;
//! after a pause they have parked and must be woken. The median shows a quiet machine, the 99th percentile the
//! interference of other processes. The last column is the share of loops that all threads joined.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use gyrus_cpu::Pool;

fn main() {
    println!("threads   loop                      median        p99   joined");
    let most = Pool::available_threads().max(2);
    let mut counts = vec![1, 2];
    counts.extend((2..).map(|n| 1usize << n).take_while(|n| *n <= most));
    for threads in counts {
        let pool = Pool::new(threads);
        show(&pool, "back to back", 200_000, None);
        show(&pool, "after 200 µs of idle", 1_000, Some(Duration::from_micros(200)));
    }
}

fn show(pool: &Pool, name: &str, loops: usize, pause: Option<Duration>) {
    let caller = std::thread::current().id();
    let mut joined = 0;
    let mut times = Vec::with_capacity(loops);
    for i in 0..loops + loops / 10 {
        if let Some(pause) = pause {
            std::thread::sleep(pause);
        }
        // The caller waits in its task until the other threads have started theirs. Otherwise it would run all
        // tasks before a worker enters the loop, and the join would not be measured.
        let (arrived, others) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let begin = Instant::now();
        pool.run(pool.threads(), &|_| {
            arrived.fetch_add(1, Ordering::AcqRel);
            if std::thread::current().id() != caller {
                others.fetch_add(1, Ordering::Relaxed);
            }
            while arrived.load(Ordering::Acquire) < pool.threads() {
                std::hint::spin_loop();
            }
        });
        // The first loops are warm-up.
        if i >= loops / 10 {
            times.push(begin.elapsed().as_secs_f64() * 1e6);
            joined += usize::from(others.into_inner() + 1 == pool.threads());
        }
    }
    times.sort_by(f64::total_cmp);
    let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize];
    println!(
        "{:>7}   {name:<22} {:>6.2} µs  {:>6.2} µs   {:>5.1} %",
        pool.threads(),
        at(0.5),
        at(0.99),
        100.0 * joined as f64 / times.len() as f64
    );
}
