//! Turning heads into a tensor that no cache holds, by stores that pass the caches.
//!
//! An ordinary store reads the line it is about to change, so that a tensor that is only written moves twice. Streaming
//! stores do not, if they write a whole line at once: a part of a line that others push out of its buffer costs more
//! than the reading would have. Tensors begin where an allocator put them, rarely at a line's beginning, and halves of a
//! head are turned together; so heads are cut into lines anew, in registers where they fit and else in the first cache.

mod cache_size;
mod registers;
mod staging;

use std::arch::x86_64::_mm_sfence;

use super::element::Element;
use super::rotate::{Phases, Rotation};
use crate::isa::{Isa, Level};

/// Bytes of a line.
const LINE: usize = 64;

/// Bytes that lie side by side in the least; lines at both ends are written as usual.
const MIN_RUN_BYTES: usize = 4096;

/// How many planes are turned together at most: they share a token's phases while registers or the first cache have
/// them, and memory serves some pages faster than one. Four were slower than three for 16-bit elements.
pub(super) const MAX_RUNS: usize = 3;

/// How far ahead of what is turned memory is asked for what comes next; nearer than in place, with more planes.
const PREFETCH_BYTES: usize = 4096;

/// Whether a tensor of so many bytes, `run` of them side by side, is better sent past the caches.
pub(super) fn is_worthwhile(isa: Isa, bytes: usize, run: usize) -> bool {
    // Tests are about what is written, not where it waits meanwhile.
    let cached = if cfg!(test) { 0 } else { cache_size::last_level_cache() };
    isa.level() >= Level::Avx2 && run >= MIN_RUN_BYTES && bytes > cached
}

/// Numbers of scratch memory that turning heads of `head_dim` elements needs.
pub(super) fn scratch<T: Element>(head_dim: usize) -> usize {
    MAX_RUNS * staging::bytes::<T>(head_dim) / size_of::<f32>()
}

/// Heads that lie side by side, and where they go.
#[derive(Clone, Copy)]
struct Run<T> {
    from: *const T,
    to: *mut T,
}

/// Turns up to [`MAX_RUNS`] runs of as many heads, the same tokens of each, as [`Rotation::out_of_place`] turns one. What is written
/// is there for other threads after [`fence`].
pub(super) fn rotate_runs<'a, T: Element>(
    rotation: &Rotation,
    runs: impl IntoIterator<Item = (&'a [T], &'a mut [T])>,
    phases: Phases<'_>,
    scratch: &mut [f32],
) {
    let mut all = [Run { from: std::ptr::null(), to: std::ptr::null_mut() }; MAX_RUNS];
    let (mut planes, mut count) = (0, 0);
    for (from, to) in runs {
        let heads = rotation.count(from.len(), phases);
        assert!(from.len() == to.len() && (planes == 0 || heads == count));
        all[planes] = Run { from: from.as_ptr(), to: to.as_mut_ptr() };
        (planes, count) = (planes + 1, heads);
    }
    let runs = &all[..planes];
    if planes == 0 || count == 0 {
        return;
    }
    let staging = scratch.as_mut_ptr().cast::<u8>();
    assert!(staging.addr().is_multiple_of(LINE));
    assert!(size_of_val(scratch) >= planes * staging::bytes::<T>(rotation.head_dim));
    // SAFETY: heads and phases were counted, and the scratch memory is large enough.
    unsafe {
        if registers::fits(rotation, runs) {
            registers::rotate_runs(rotation, runs, count, phases);
        } else {
            staging::rotate_runs(rotation, runs, count, phases, staging);
        }
    }
}

/// Makes what was streamed visible before whatever this thread tells others next.
pub(super) fn fence() {
    // SAFETY: every 64-bit processor has the instruction.
    unsafe { _mm_sfence() }
}

#[cfg(test)]
mod tests {
    use gyrus_kernels::call::{Freqs, RopeCall, RopeKernel, Storage};
    use gyrus_kernels::grid::{check, rope_case};
    use gyrus_kernels::params::RoPEOpParams;
    use gyrus_kernels::{Direction, Pairing};
    use half::{bf16, f16};

    use super::*;
    use crate::{CpuRunner, Pool, thread_scratch};

    fn runs_of<'a, T>(
        from: &'a [T],
        to: &'a mut [T],
        len: usize,
        skip: usize,
    ) -> [(&'a [T], &'a mut [T]); 2] {
        let (a, b) = to[skip..].split_at_mut(len + skip);
        [(&from[..len], &mut a[..len]), (&from[skip + len..], &mut b[..len])]
    }

    /// Streamed heads are those that ordinary stores write, wherever they begin, and nothing beside them is.
    fn same<T: Element + PartialEq + std::fmt::Debug>() {
        let values = |n: usize| (0..n).map(|i| ((i * 7919 % 2003) as f32 - 1001.0) / 512.0);
        for isa in Isa::supported().filter(|isa| isa.level() >= Level::Avx2) {
            for (head_dim, rope_dim, offset) in [
                (128, 128, 0),
                (64, 64, 0),
                (256, 256, 0),
                (2, 2, 0),
                (80, 32, 48),
                (24, 10, 3),
                (7, 4, 1),
                (320, 256, 64),
            ] {
                let rotation =
                    Rotation { isa, pairing: Pairing::Split, head_dim, rope_dim, offset, scale: 0.75 };
                for (tokens, skip) in [(1, 0), (3, 1), (8, 5), (9, 8), (16, 31), (77, 13), (100, 24)] {
                    let phases: Vec<f32> = values(tokens * rope_dim).collect();
                    let phases = Phases { values: &phases, step: rope_dim };
                    let from: Vec<T> = values(2 * tokens * head_dim + skip).map(T::from_f32).collect();
                    let mut to = vec![T::from_f32(9.0); 2 * (tokens * head_dim + skip) + 3];
                    let mut expected = to.clone();
                    let len = tokens * head_dim;
                    for count in [1, 2] {
                        let runs = runs_of(&from, &mut expected, len, skip).into_iter().take(count);
                        runs.for_each(|(from, to)| rotation.out_of_place(from, to, phases));
                        let runs = runs_of(&from, &mut to, len, skip).into_iter().take(count);
                        thread_scratch::with(scratch::<T>(head_dim), |scratch| {
                            rotate_runs(&rotation, runs, phases, scratch)
                        });
                        fence();
                        assert_eq!(to, expected, "{rotation:?} {tokens} {skip} {count}");
                    }
                }
            }
        }
    }

    /// Every number of heads, alone and over threads, through the call.
    #[test]
    fn calls_stream_what_the_twin_says() {
        for isa in Isa::supported().filter(|isa| isa.level() >= Level::Avx2) {
            let mut runner = CpuRunner::new(Pool::with_isa(2, isa));
            for (n_heads, seq_len, head_dim, rope_dim) in
                [(1, 70, 128, 128), (3, 300, 64, 64), (4, 70, 128, 128), (5, 520, 80, 32), (8, 33, 256, 256)]
            {
                let params = RoPEOpParams {
                    batch: 1,
                    n_heads,
                    seq_len,
                    head_dim,
                    rope_dim,
                    freqs_dim: rope_dim / 2,
                    output_scale: 0.75,
                    _pad0: 0,
                };
                for storage in [Storage::F32, Storage::F16, Storage::Bf16] {
                    for direction in [Direction::Forward, Direction::Inverse] {
                        let kernel = RopeKernel::Op { params };
                        let call = RopeCall { kernel, storage, direction, freqs: Freqs::Turns, positions: 0 };
                        let case = rope_case(call, 3).expect("a good call");
                        check(&mut runner, &case).unwrap_or_else(|error| panic!("{isa:?} {call:?}: {error}"));
                    }
                }
            }
        }
    }

    #[test]
    fn streamed_heads_are_the_same() {
        same::<f32>();
        same::<f16>();
        same::<bf16>();
    }
}
