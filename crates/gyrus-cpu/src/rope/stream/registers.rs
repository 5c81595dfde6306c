//! Realignment in registers, with AVX-512, for heads of whole cache lines.
//!
//! A register holds 64 bytes of output that start within a cache line. A line is therefore merged from the end of one
//! register and the start of the next.

use std::arch::x86_64::*;

use gyrus_kernels::Pairing;

use super::super::element::Element;
use super::super::lanes::{Avx512, Lanes};
use super::super::rotate::{Phases, Rotation, prefetch};
use super::{LINE, PREFETCH_BYTES, Run};
use crate::isa::Level;

/// Whether this path applies: AVX-512, split pairing over the whole head, 64, 128 or 256 elements, and the same
/// alignment of all destinations within a cache line.
pub(super) fn fits<T: Element>(rotation: &Rotation, runs: &[Run<T>]) -> bool {
    let skip = |run: &Run<T>| run.to.addr() % LINE;
    rotation.isa.level() == Level::Avx512Vnni
        && rotation.pairing == Pairing::Split
        && rotation.rope_dim == rotation.head_dim
        && matches!(rotation.head_dim, 64 | 128 | 256)
        && runs.iter().all(|run| skip(run) == skip(&runs[0]) && skip(run).is_multiple_of(4))
}

/// # Safety
/// The contract of [`Rotation::rotate`] for every run; [`fits`] returned `true`.
pub(super) unsafe fn rotate_runs<T: Element>(
    rotation: &Rotation,
    runs: &[Run<T>],
    count: usize,
    phases: Phases<'_>,
) {
    // SAFETY: the caller upholds the contract; `K` registers hold half a head.
    unsafe {
        match rotation.head_dim {
            64 => runs_of::<T, 2>(runs, count, phases),
            128 => runs_of::<T, 4>(runs, count, phases),
            _ => runs_of::<T, 8>(runs, count, phases),
        }
    }
}

/// # Safety
/// The contract of [`rotate_runs`]; `K` registers hold half a head.
unsafe fn runs_of<T: Element, const K: usize>(runs: &[Run<T>], count: usize, phases: Phases<'_>) {
    // SAFETY: the caller upholds the contract; `P` is the number of runs.
    unsafe {
        match *runs {
            [a] => heads::<T, K, 1>([a], count, phases),
            [a, b] => heads::<T, K, 2>([a, b], count, phases),
            [a, b, c] => heads::<T, K, 3>([a, b, c], count, phases),
            _ => unreachable!("there are one to three runs"),
        }
    }
}

/// The progress of a run.
#[derive(Clone, Copy)]
struct Progress<T> {
    from: *const T,
    line: *mut __m512i,
    /// The last register of output; its end is the start of the next line.
    last: __m512i,
}

/// # Safety
/// The contract of [`rotate_runs`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx2,fma,f16c")]
unsafe fn heads<T: Element, const K: usize, const P: usize>(
    runs: [Run<T>; P],
    count: usize,
    phases: Phases<'_>,
) {
    let skip = runs[0].to.addr() % LINE;
    // The 32-bit words of the previous and the next register that make a line.
    let words = (skip / 4) as u32;
    let index: [u32; 16] = std::array::from_fn(|i| 16 - words + i as u32);
    // SAFETY: the array has the size of a register.
    let index = unsafe { _mm512_loadu_si512(index.as_ptr().cast()) };
    let mut runs = runs.map(|run| Progress {
        from: run.from,
        line: run.to.cast::<u8>().wrapping_sub(skip).cast(),
        last: _mm512_setzero_si512(),
    });
    // Masks of the words in the first and the last line that belong to the run.
    let (first, last) = (u16::MAX << words, !(u16::MAX << words));
    // SAFETY: there are `count` heads of `2·K` registers, with `K` registers of cosines and `K` of sines. Lines stay
    // within the run; words before its start and after its end are masked.
    unsafe {
        for i in 0..count {
            let phases = phases.values.as_ptr().add(i * phases.step);
            if i == 0 {
                head::<T, K, P, true>(&mut runs, index, first, phases);
            } else {
                head::<T, K, P, false>(&mut runs, index, first, phases);
            }
        }
        for run in runs {
            let line = _mm512_permutex2var_epi32(run.last, index, run.last);
            _mm512_mask_storeu_epi32(run.line.cast(), last, line);
        }
    }
}

/// Rotates one head of each run. `FIRST`: the first line is shared with memory before the run.
///
/// # Safety
/// The contract of [`heads`], into which it is inlined.
#[inline(always)]
unsafe fn head<T: Element, const K: usize, const P: usize, const FIRST: bool>(
    runs: &mut [Progress<T>; P],
    index: __m512i,
    first: u16,
    phases: *const f32,
) {
    type L = Avx512;
    // SAFETY: the caller upholds the contract.
    unsafe {
        let cosines: [__m512; K] = std::array::from_fn(|k| L::load_f32(phases.add(16 * k)));
        let sines: [__m512; K] = std::array::from_fn(|k| L::load_f32(phases.add(16 * (K + k))));
        for run in runs {
            prefetch::<T>(run.from, 32 * K, PREFETCH_BYTES);
            let x: [__m512; K] = std::array::from_fn(|k| T::load::<L>(run.from.add(16 * k)));
            let y: [__m512; K] = std::array::from_fn(|k| T::load::<L>(run.from.add(16 * (K + k))));
            run.from = run.from.add(32 * K);
            let mut shared = FIRST;
            let mut send = |next: __m512i| {
                let line = _mm512_permutex2var_epi32(run.last, index, next);
                if shared {
                    _mm512_mask_storeu_epi32(run.line.cast(), first, line);
                    shared = false;
                } else {
                    _mm512_stream_si512(run.line, line);
                }
                run.line = run.line.wrapping_add(1);
                run.last = next;
            };
            let rotated = |k: usize| L::rotated_x(x[k], y[k], cosines[k], sines[k]);
            for k in (0..K).step_by(2) {
                T::lines(rotated(k), rotated(k + 1), &mut send);
            }
            let rotated = |k: usize| L::rotated_y(x[k], y[k], cosines[k], sines[k]);
            for k in (0..K).step_by(2) {
                T::lines(rotated(k), rotated(k + 1), &mut send);
            }
        }
    }
}
