//! Rotates heads into a tensor larger than the last-level cache, with non-temporal stores.
//!
//! An ordinary store first reads the cache line that it changes, so a tensor that is only written crosses the memory
//! bus twice. Non-temporal stores avoid the read if they write whole lines; a partial line that is evicted from the
//! write-combining buffer costs more than the read. Tensors rarely start at a cache line, and the two halves of a head
//! are rotated together. So the output is realigned to cache lines: in registers for common shapes ([`registers`]),
//! otherwise in a staging buffer in the L1 cache ([`staging`]).

mod cache_size;
mod registers;
mod staging;

use std::arch::x86_64::_mm_sfence;

use super::element::Element;
use super::rotate::{Phases, Rotation};
use crate::isa::{Isa, Level};

/// Bytes of a cache line.
const LINE: usize = 64;

/// The fewest contiguous bytes of a run. Ordinary stores write the partial lines at both ends.
const MIN_RUN_BYTES: usize = 4096;

/// The most runs that are processed together. They share a token's phases while registers or the L1 cache hold them,
/// and several pages have more memory bandwidth than one. Four were slower than three for 16-bit elements.
pub(super) const MAX_RUNS: usize = 3;

/// The prefetch distance in bytes; shorter than in place, because there are several runs.
const PREFETCH_BYTES: usize = 4096;

/// Whether non-temporal stores are faster for a tensor of `bytes` bytes in contiguous runs of `run` bytes.
pub(super) fn is_worthwhile(isa: Isa, bytes: usize, run: usize) -> bool {
    // Tests use small tensors, so they ignore the cache size.
    let cached = if cfg!(test) { 0 } else { cache_size::last_level_cache() };
    isa.level() >= Level::Avx2 && run >= MIN_RUN_BYTES && bytes > cached
}

/// Elements of scratch memory for heads of `head_dim` elements.
pub(super) fn scratch<T: Element>(head_dim: usize) -> usize {
    MAX_RUNS * staging::bytes::<T>(head_dim) / size_of::<f32>()
}

/// Contiguous heads (the tokens of one head) and their destination.
#[derive(Clone, Copy)]
struct Run<T> {
    from: *const T,
    to: *mut T,
}

/// Rotates up to [`MAX_RUNS`] runs of the same tokens, each like [`Rotation::out_of_place`]. Other threads see the
/// output after [`fence`].
pub(super) fn rotate_runs<'a, T: Element>(
    rotation: &Rotation,
    runs: impl IntoIterator<Item = (&'a [T], &'a mut [T])>,
    phases: Phases<'_>,
    scratch: &mut [f32],
) {
    let mut all = [Run { from: std::ptr::null(), to: std::ptr::null_mut() }; MAX_RUNS];
    let (mut used, mut count) = (0, 0);
    for (from, to) in runs {
        let heads = rotation.count(from.len(), phases);
        assert!(from.len() == to.len() && (used == 0 || heads == count));
        all[used] = Run { from: from.as_ptr(), to: to.as_mut_ptr() };
        (used, count) = (used + 1, heads);
    }
    let runs = &all[..used];
    if used == 0 || count == 0 {
        return;
    }
    let staging = scratch.as_mut_ptr().cast::<u8>();
    assert!(staging.addr().is_multiple_of(LINE));
    assert!(size_of_val(scratch) >= used * staging::bytes::<T>(rotation.head_dim));
    // SAFETY: `count` checked heads and phases, and the assertions checked the scratch memory.
    unsafe {
        if registers::fits(rotation, runs) {
            registers::rotate_runs(rotation, runs, count, phases);
        } else {
            staging::rotate_runs(rotation, runs, count, phases, staging);
        }
    }
}

/// Orders the non-temporal stores before later stores of this thread.
pub(super) fn fence() {
    // SAFETY: every x86-64 CPU has the instruction.
    unsafe { _mm_sfence() }
}

#[cfg(test)]
mod tests {
    use gyrus_kernels::call::{Freqs, RopeCall, RopeKernel, Storage};
    use gyrus_kernels::grid::{check, rope_case};
    use gyrus_kernels::params::RoPEOpParams;
    use gyrus_kernels::shader::Rungs;
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

    /// Streamed output equals that of ordinary stores at any alignment, and nothing outside it changes.
    fn check_streamed<T: Element + PartialEq + std::fmt::Debug>() {
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

    /// Different numbers of heads, on one and two threads, through `rope` calls.
    #[test]
    fn streamed_calls_match_the_scalar_reference() {
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
                        let case = rope_case(call, Rungs::NONE, 3).expect("a good call");
                        check(&mut runner, &case).unwrap_or_else(|error| panic!("{isa:?} {call:?}: {error}"));
                    }
                }
            }
        }
    }

    #[test]
    fn streamed_heads_equal_ordinary_stores() {
        check_streamed::<f32>();
        check_streamed::<f16>();
        check_streamed::<bf16>();
    }
}
