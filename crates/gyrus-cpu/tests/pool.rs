//! The thread pool when idle, with more threads than CPUs, and with a restricted CPU affinity.

use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use gyrus_cpu::Pool;

/// Held by tests that measure pools, so they do not measure each other's threads.
static EXCLUSIVE: Mutex<()> = Mutex::new(());

/// CPU time of the pool's workers so far, if the system reports it.
#[cfg(target_os = "linux")]
fn worker_time() -> Option<Duration> {
    let mut nanoseconds = 0;
    for task in std::fs::read_dir("/proc/self/task").ok()? {
        let folder = task.ok()?.path();
        let name = std::fs::read_to_string(folder.join("comm")).ok()?;
        if name.starts_with("gyrus-cpu-") {
            let times = std::fs::read_to_string(folder.join("schedstat")).ok()?;
            nanoseconds += times.split(' ').next()?.parse::<u64>().ok()?;
        }
    }
    Some(Duration::from_nanos(nanoseconds))
}

/// Idle workers use no CPU time.
#[test]
#[cfg(target_os = "linux")]
fn an_idle_pool_uses_no_cpu_time() {
    let _exclusive = EXCLUSIVE.lock();
    let pool = Pool::new(4);
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_millis(50) {
        pool.run(16, &|_| std::hint::spin_loop());
    }
    let Some(busy) = worker_time() else {
        gyrus_testkit::skip(gyrus_testkit::Need::Extra, "the system does not report the CPU time of threads");
        return;
    };
    if busy == Duration::ZERO {
        gyrus_testkit::skip(
            gyrus_testkit::Need::Extra,
            "the system does not account the CPU time of threads",
        );
        return;
    }
    std::thread::sleep(Duration::from_millis(100));
    let before = worker_time().expect("as before");
    std::thread::sleep(Duration::from_millis(500));
    let after = worker_time().expect("as before");
    let spent = after - before;
    assert!(
        spent < Duration::from_millis(2),
        "three idle workers used {spent:?} of CPU time in half a second"
    );
}

/// Sixteen threads per CPU give the right result in reasonable time.
#[test]
fn oversubscribed_pools_are_correct_and_not_slow() {
    let _exclusive = EXCLUSIVE.lock();
    let work = |pool: &Pool| {
        let sum = AtomicUsize::new(0);
        let begin = Instant::now();
        for _ in 0..300 {
            pool.run(64, &|task| {
                let value = (0..2000).fold(task, |a, b| std::hint::black_box(a ^ b));
                sum.fetch_add(value, Ordering::Relaxed);
            });
        }
        (sum.into_inner(), begin.elapsed())
    };
    let (expected, alone) = work(&Pool::new(1));
    let (sum, crowd) = work(&Pool::new(16 * Pool::available_threads()));
    assert_eq!(sum, expected);
    // One thread takes some 50 ms. The bound allows for a busy machine, but not for waiting on descheduled
    // threads.
    assert!(crowd < 10 * alone + Duration::from_secs(2), "{alone:?} with one thread, {crowd:?} with many");
}

const CHILD: &str = "GYRUS_TEST_AVAILABLE_THREADS";

/// A process with an affinity of one CPU uses one thread.
#[test]
fn available_threads_respects_cpu_affinity() {
    if std::env::var_os(CHILD).is_some() {
        println!("available: {}", Pool::available_threads());
        return;
    }
    assert!(Pool::available_threads() >= 1);
    let test = std::env::current_exe().expect("this program");
    let child = Command::new("taskset")
        .args(["-c", "0"])
        .arg(test)
        .args(["available_threads_respects_cpu_affinity", "--exact", "--nocapture"])
        .env(CHILD, "1")
        .output();
    match child {
        Ok(output) if output.status.success() => {
            let text = String::from_utf8_lossy(&output.stdout);
            assert!(text.contains("available: 1\n"), "{text}");
        }
        _ => gyrus_testkit::skip(
            gyrus_testkit::Need::Extra,
            "taskset could not restrict this test to the first CPU",
        ),
    }
}
