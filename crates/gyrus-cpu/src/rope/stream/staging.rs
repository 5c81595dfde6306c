//! Realignment in a staging buffer, for any shape and instruction set.

use gyrus_kernels::Pairing;

use super::super::element::Element;
use super::super::lanes::{Avx2, Avx512, Lanes};
use super::super::rotate::{Phases, Rotation, prefetch, rotate_head};
use super::{LINE, MAX_RUNS, PREFETCH_BYTES, Run};
use crate::isa::Level;

/// Heads that the staging buffer holds. A line is flushed one head after it was written: an immediate load would wait
/// for the stores to the line.
const HEADS: usize = 8;

/// Bytes of the staging buffer of a run: a partial line, [`HEADS`] heads, and padding to copy whole lines.
pub(super) fn bytes<T: Element>(head_dim: usize) -> usize {
    (LINE + HEADS * head_dim * size_of::<T>()).next_multiple_of(LINE)
}

/// # Safety
/// The contract of [`Rotation::rotate`] for every run; `staging` is aligned to a line and has [`bytes`] for each.
pub(super) unsafe fn rotate_runs<T: Element>(
    rotation: &Rotation,
    runs: &[Run<T>],
    count: usize,
    phases: Phases<'_>,
    staging: *mut u8,
) {
    let mut all = [const { None }; MAX_RUNS];
    for (i, (lines, run)) in all.iter_mut().zip(runs).enumerate() {
        let skip = run.to.addr() % LINE;
        *lines = Some(Lines {
            from: run.from,
            staging: staging.wrapping_add(i * bytes::<T>(rotation.head_dim)),
            line: run.to.cast::<u8>().wrapping_sub(skip),
            skip,
            filled: skip,
            sent: 0,
        });
    }
    // SAFETY: the caller upholds the contract; an `Isa` of this level proves that the CPU has the instructions.
    unsafe {
        match rotation.isa.level() {
            Level::Avx512Vnni => avx512(rotation, &mut all, count, phases),
            Level::Avx2 => avx2(rotation, &mut all, count, phases),
            Level::Portable => unreachable!("`is_worthwhile` requires AVX2"),
        }
    }
}

/// A run in progress. Heads are rotated into `staging` and flushed to the destination line by line.
struct Lines<T> {
    from: *const T,
    /// Aligned to a cache line.
    staging: *mut u8,
    /// The destination of `staging[0]`, aligned to a cache line.
    line: *mut u8,
    /// Bytes at the start of the first line that precede the run.
    skip: usize,
    filled: usize,
    sent: usize,
}

impl<T> Lines<T> {
    /// Flushes the whole lines in `staging[..until]`.
    ///
    /// # Safety
    /// `until` is at most `filled`; otherwise the contract of [`Lanes`].
    #[inline(always)]
    unsafe fn flush<L: Lanes>(&mut self, until: usize) {
        // SAFETY: the bytes `skip..filled` of `staging` have destinations at the same offsets from `line`.
        unsafe {
            if self.skip > 0 && until >= LINE {
                self.staging
                    .add(self.skip)
                    .copy_to_nonoverlapping(self.line.add(self.skip), LINE - self.skip);
                (self.skip, self.sent) = (0, LINE);
            }
            while self.sent + LINE <= until {
                L::stream_line(self.line.add(self.sent), self.staging.add(self.sent));
                self.sent += LINE;
            }
        }
    }

    /// Flushes all whole lines and moves the remaining bytes to the start of `staging`.
    ///
    /// # Safety
    /// The contract of [`Lines::flush`].
    #[inline(always)]
    unsafe fn flush_and_restart<L: Lanes>(&mut self) {
        // SAFETY: as in `flush`; `staging` has a line more than is ever filled.
        unsafe {
            self.flush::<L>(self.filled);
            self.staging.add(self.sent).copy_to(self.staging, LINE);
            self.line = self.line.add(self.sent);
        }
        (self.filled, self.sent) = (self.filled - self.sent, 0);
    }
}

/// # Safety
/// The contract of [`heads`]; the CPU has the instructions.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn avx2<T: Element>(
    rotation: &Rotation,
    runs: &mut [Option<Lines<T>>; MAX_RUNS],
    count: usize,
    phases: Phases<'_>,
) {
    // SAFETY: the caller upholds the contract; the target features are enabled here.
    unsafe { heads::<Avx2, T>(rotation, runs, count, phases) }
}

/// # Safety
/// The contract of [`heads`]; the CPU has the instructions.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx2,fma,f16c")]
unsafe fn avx512<T: Element>(
    rotation: &Rotation,
    runs: &mut [Option<Lines<T>>; MAX_RUNS],
    count: usize,
    phases: Phases<'_>,
) {
    // SAFETY: the caller upholds the contract; the target features are enabled here.
    unsafe { heads::<Avx512, T>(rotation, runs, count, phases) }
}

/// # Safety
/// The contracts of [`Rotation::rotate`] and [`Lanes`], for every run.
#[inline(always)]
unsafe fn heads<L: Lanes, T: Element>(
    rotation: &Rotation,
    runs: &mut [Option<Lines<T>>; MAX_RUNS],
    count: usize,
    phases: Phases<'_>,
) {
    // A local copy: the compiler need not assume that the stores below modify it.
    let rotation = *rotation;
    let whole = rotation.rope_dim == rotation.head_dim && rotation.width().is_multiple_of(L::N);
    // SAFETY: the caller upholds the contract; the number of registers matches half a head.
    unsafe {
        match rotation.width() / L::N {
            _ if rotation.pairing != Pairing::Split => rows::<L, T, 0>(&rotation, runs, count, phases),
            2 if whole => rows::<L, T, 2>(&rotation, runs, count, phases),
            4 if whole => rows::<L, T, 4>(&rotation, runs, count, phases),
            8 if whole => rows::<L, T, 8>(&rotation, runs, count, phases),
            _ => rows::<L, T, 0>(&rotation, runs, count, phases),
        }
    }
}

/// `K` is the number of registers of half a head, if the whole head is rotated with split pairing; otherwise 0.
///
/// # Safety
/// The contract of [`heads`].
#[inline(always)]
unsafe fn rows<L: Lanes, T: Element, const K: usize>(
    rotation: &Rotation,
    runs: &mut [Option<Lines<T>>; MAX_RUNS],
    count: usize,
    phases: Phases<'_>,
) {
    let bytes = rotation.head_dim * size_of::<T>();
    for head in 0..count {
        let phases = &phases.values[head * phases.step..];
        for run in runs.iter_mut().flatten() {
            // SAFETY: there are `count` heads and phases for them; `staging` holds `HEADS` heads after a partial line.
            unsafe {
                let (from, to) =
                    (run.from.add(head * rotation.head_dim), run.staging.add(run.filled).cast::<T>());
                if K > 0 {
                    prefetch::<T>(from, rotation.head_dim, PREFETCH_BYTES);
                    let (phases, half) = (phases.as_ptr(), K * L::N);
                    for i in (0..K).map(|k| k * L::N) {
                        let (c, s) = (L::load_f32(phases.add(i)), L::load_f32(phases.add(half + i)));
                        let (x, y) = (T::load::<L>(from.add(i)), T::load::<L>(from.add(half + i)));
                        T::store::<L>(to.add(i), L::rotated_x(x, y, c, s));
                        T::store::<L>(to.add(half + i), L::rotated_y(x, y, c, s));
                    }
                } else {
                    rotate_head::<L, T, T, true>(rotation, from, to, Phases { values: phases, step: 0 });
                }
                let before = run.filled;
                run.filled += bytes;
                if head % HEADS == HEADS - 1 {
                    run.flush_and_restart::<L>();
                } else {
                    run.flush::<L>(before);
                }
            }
        }
    }
    for run in runs.iter_mut().flatten() {
        // SAFETY: as in `flush`; the remaining bytes are less than a line, or end within the first line.
        unsafe {
            run.flush::<L>(run.filled);
            let first = run.sent.max(run.skip);
            run.staging.add(first).copy_to_nonoverlapping(run.line.add(first), run.filled - first);
        }
    }
}
