//! A thread-local `f32` scratch buffer. It stays allocated between loops, so the steady state allocates
//! nothing.

use std::cell::RefCell;

thread_local! {
    static BUFFER: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

/// Calls `body` with a buffer of `len` elements, aligned to a cache line, with arbitrary contents.
pub(crate) fn with<R>(len: usize, body: impl FnOnce(&mut [f32]) -> R) -> R {
    // `take` instead of `borrow_mut`: a nested call gets a fresh buffer instead of a panic.
    let mut buffer = BUFFER.take();
    // 16 more elements allow the slice to start on a cache line.
    if buffer.len() < len + 16 {
        buffer.resize(len + 16, 0.0);
    }
    let skip = buffer.as_ptr().align_offset(64).min(16);
    let result = body(&mut buffer[skip..skip + len]);
    BUFFER.set(buffer);
    result
}
