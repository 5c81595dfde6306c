//! The heap of a process that runs for long. Alone in its process, whose allocator it sets.

#![cfg(all(target_os = "linux", target_env = "gnu"))]

use std::collections::BTreeSet;
use std::sync::Barrier;

/// glibc's arenas other than the main arena lie in regions of this size, aligned to it.
const ARENA: usize = 64 << 20;

const THREADS: usize = 32;

#[test]
fn threads_share_the_arenas_that_exist() {
    gyrus_cpu::limit_heap();
    let all = Barrier::new(THREADS);
    let allocate = || {
        let buffer = vec![0_u8; 4 << 10];
        // The arena of a thread that has ended is given to the next one.
        all.wait();
        buffer.as_ptr().addr() / ARENA
    };
    let regions: BTreeSet<usize> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(allocate)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    // The main arena may cross a border. The harness started the thread of this test before.
    assert!(regions.len() <= 3, "{} regions", regions.len());
}
