//! From registers: heads that fill whole lines, with AVX-512.
//!
//! A register is a line's worth of a head, but begins somewhere within a line; so a line is put together from the end of
//! one register and the beginning of the next.

use std::arch::x86_64::*;

use gyrus_kernels::Pairing;

use super::super::element::Element;
use super::super::lanes::{Avx512, Lanes};
use super::super::rotate::{Phases, Rotation, prefetch};
use super::{LINE, PREFETCH_BYTES, Run};
use crate::isa::Level;

/// Whether heads are such: turned as a whole, in two halves of some pairs of registers, to lines all cut alike.
pub(super) fn fits<T: Element>(rotation: &Rotation, runs: &[Run<T>]) -> bool {
    let skip = |run: &Run<T>| run.to.addr() % LINE;
    rotation.isa.level() == Level::Avx512Vnni
        && rotation.pairing == Pairing::Split
        && rotation.rope_dim == rotation.head_dim
        && matches!(rotation.head_dim, 64 | 128 | 256)
        && runs.iter().all(|run| skip(run) == skip(&runs[0]) && skip(run).is_multiple_of(4))
}

/// # Safety
/// As [`Rotation::rotate`] asks, of every run; they [`fits`].
pub(super) unsafe fn rotate_runs<T: Element>(
    rotation: &Rotation,
    runs: &[Run<T>],
    count: usize,
    phases: Phases<'_>,
) {
    // SAFETY: the caller upholds the contract; `K` registers are half a head.
    unsafe {
        match rotation.head_dim {
            64 => runs_of::<T, 2>(runs, count, phases),
            128 => runs_of::<T, 4>(runs, count, phases),
            _ => runs_of::<T, 8>(runs, count, phases),
        }
    }
}

/// # Safety
/// As [`rotate_runs`]; `K` registers are half a head.
unsafe fn runs_of<T: Element, const K: usize>(runs: &[Run<T>], count: usize, phases: Phases<'_>) {
    // SAFETY: the caller upholds the contract; `P` is how many runs there are.
    unsafe {
        match *runs {
            [a] => heads::<T, K, 1>([a], count, phases),
            [a, b] => heads::<T, K, 2>([a, b], count, phases),
            [a, b, c] => heads::<T, K, 3>([a, b, c], count, phases),
            _ => unreachable!("there are from one to three"),
        }
    }
}

/// Where a run has got to.
#[derive(Clone, Copy)]
struct At<T> {
    from: *const T,
    line: *mut __m512i,
    /// What was turned last; its end is the beginning of the next line.
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
    // Of the last register and the next the 32-bit words that are a line.
    let words = (skip / 4) as u32;
    let index: [u32; 16] = std::array::from_fn(|i| 16 - words + i as u32);
    // SAFETY: the array is as long as a register.
    let index = unsafe { _mm512_loadu_si512(index.as_ptr().cast()) };
    let mut runs = runs.map(|run| At {
        from: run.from,
        line: run.to.cast::<u8>().wrapping_sub(skip).cast(),
        last: _mm512_setzero_si512(),
    });
    // Words of the first line that are the run's, and of the last.
    let (first, last) = (u16::MAX << words, !(u16::MAX << words));
    // SAFETY: there are as many heads, each of `2·K` registers of numbers, and `K` registers of cosines and of sines for
    // it. As many lines begin within a run; words before its beginning and after its end are masked.
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

/// Turns a head of each run. `FIRST`: its first line is not the run's alone.
///
/// # Safety
/// As [`heads`], which it compiles into.
#[inline(always)]
unsafe fn head<T: Element, const K: usize, const P: usize, const FIRST: bool>(
    runs: &mut [At<T>; P],
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
            let rotated = |k: usize| L::sub(L::mul(x[k], cosines[k]), L::mul(y[k], sines[k]));
            for k in (0..K).step_by(2) {
                T::lines(rotated(k), rotated(k + 1), &mut send);
            }
            let rotated = |k: usize| L::add(L::mul(x[k], sines[k]), L::mul(y[k], cosines[k]));
            for k in (0..K).step_by(2) {
                T::lines(rotated(k), rotated(k + 1), &mut send);
            }
        }
    }
}
