//! Temporary `f32` buffers of a task, one per thread and kept between loops, so that steady work
//! allocates nothing.

use std::cell::RefCell;

thread_local! {
    static BUFFER: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

/// Gives `body` a buffer of `len` elements with arbitrary contents.
pub(crate) fn with<R>(len: usize, body: impl FnOnce(&mut [f32]) -> R) -> R {
    // Taken out rather than borrowed: a nested use gets a fresh buffer instead of a panic.
    let mut buffer = BUFFER.take();
    // A margin lets `body` see a slice that begins on a cache line.
    if buffer.len() < len + 16 {
        buffer.resize(len + 16, 0.0);
    }
    let skip = buffer.as_ptr().align_offset(64).min(16);
    let result = body(&mut buffer[skip..skip + len]);
    BUFFER.set(buffer);
    result
}
