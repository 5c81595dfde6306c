//! Steady decoding allocates nothing.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use gyrus::{Event, Model, Options, Request, Sampler};
use gyrus_testkit::data;

struct Counting;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call is passed on to the system's allocator; calls are only counted beside it.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's contract is the system allocator's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's contract is the system allocator's.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn steady_decoding_allocates_nothing() {
    let Some(path) = data("tales/tales-7m-q8_0.gguf") else { return };
    let model = Model::open(&path, &Options { threads: Some(2), ..Options::default() }).unwrap();
    let sampled = Sampler { temperature: 0.8, top_k: 40, top_p: 0.95, seed: 1, ..Sampler::default() };
    for sampler in [Sampler::default(), sampled] {
        let mut session = model.session();
        let request = Request::text("Once upon a time").sampler(sampler).max_tokens(600).ignore_end(true);
        let mut generation = session.generate(request).unwrap();
        let mut before = 0;
        let mut tokens = 0;
        while let Some(event) = generation.next().unwrap() {
            if matches!(event, Event::Token { .. }) {
                tokens += 1;
            }
            // By now every kernel, also those for long texts, has run on every thread.
            if tokens == 300 {
                before = ALLOCATIONS.load(Ordering::Relaxed);
            }
            if tokens == 600 {
                break;
            }
        }
        let during = ALLOCATIONS.load(Ordering::Relaxed) - before;
        assert_eq!(during, 0, "allocations in 300 steps");
    }
}
