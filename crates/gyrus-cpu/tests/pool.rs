//! The pool in company: idle, with more threads than processors, and where fewer processors may be used
//! than there are.

use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use gyrus_cpu::Pool;

/// Held by tests that run pools, so that they do not see each other's threads.
static ALONE: Mutex<()> = Mutex::new(());

/// Time on a processor of the pool's workers so far, if the system tells.
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

/// Workers that have nothing to do use no processor: an idle chat is idle.
#[test]
#[cfg(target_os = "linux")]
fn an_idle_pool_uses_no_processor_time() {
    let _alone = ALONE.lock();
    let pool = Pool::new(4);
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_millis(50) {
        pool.run(16, &|_| std::hint::spin_loop());
    }
    let Some(busy) = worker_time() else {
        gyrus_testkit::skip(gyrus_testkit::Need::Extra, "the system does not tell threads' times");
        return;
    };
    if busy == Duration::ZERO {
        gyrus_testkit::skip(gyrus_testkit::Need::Extra, "the system does not count threads' times");
        return;
    }
    std::thread::sleep(Duration::from_millis(100));
    let before = worker_time().expect("as before");
    std::thread::sleep(Duration::from_millis(500));
    let after = worker_time().expect("as before");
    let spent = after - before;
    assert!(spent < Duration::from_millis(2), "three idle workers took {spent:?} of half a second");
}

/// Sixteen threads for each processor give the right result, and not at a crawl.
#[test]
fn too_many_threads_are_correct_and_not_slow() {
    let _alone = ALONE.lock();
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
    // Alone it takes some 50 ms; the bound leaves room for a busy machine, not for waiting on threads that
    // are not running.
    assert!(crowd < 10 * alone + Duration::from_secs(2), "{alone:?} with one thread, {crowd:?} with many");
}

const CHILD: &str = "GYRUS_TEST_AVAILABLE_THREADS";

/// A process that may run on one processor alone takes one thread, however many processors there are.
#[test]
fn threads_follow_the_processors_that_may_be_used() {
    if std::env::var_os(CHILD).is_some() {
        println!("available: {}", Pool::available_threads());
        return;
    }
    assert!(Pool::available_threads() >= 1);
    let test = std::env::current_exe().expect("this program");
    let child = Command::new("taskset")
        .args(["-c", "0"])
        .arg(test)
        .args(["threads_follow_the_processors_that_may_be_used", "--exact", "--nocapture"])
        .env(CHILD, "1")
        .output();
    match child {
        Ok(output) if output.status.success() => {
            let text = String::from_utf8_lossy(&output.stdout);
            assert!(text.contains("available: 1\n"), "{text}");
        }
        _ => gyrus_testkit::skip(
            gyrus_testkit::Need::Extra,
            "taskset did not run this program on the first processor",
        ),
    }
}
