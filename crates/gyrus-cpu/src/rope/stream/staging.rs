//! Through a little cache: any shape, with any registers.

use gyrus_kernels::Pairing;

use super::super::element::Element;
use super::super::lanes::{Avx2, Avx512, Lanes};
use super::super::rotate::{Phases, Rotation, prefetch, rotate_head};
use super::{LINE, MAX_RUNS, PREFETCH_BYTES, Run};
use crate::isa::Level;

/// Heads that the memory holds. A line is sent a head later than it was written: one that is read back at once waits
/// for the stores it was made of.
const HEADS: usize = 8;

/// Bytes for a plane: some heads after the part of a line, and a line that is moved as a whole.
pub(super) fn bytes<T: Element>(head_dim: usize) -> usize {
    (LINE + HEADS * head_dim * size_of::<T>()).next_multiple_of(LINE)
}

/// # Safety
/// As [`Rotation::rotate`] asks, of every run; `room` begins at a line and has [`bytes`] for each.
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
    // SAFETY: an `Isa` of this level proves that the CPU has the instructions; the rest is passed on.
    unsafe {
        match rotation.isa.level() {
            Level::Avx512Vnni => avx512(rotation, &mut all, count, phases),
            Level::Avx2 => avx2(rotation, &mut all, count, phases),
            Level::Portable => unreachable!("`is_worthwhile` says no"),
        }
    }
}

/// Heads on their way to where they lie side by side.
struct Lines<T> {
    from: *const T,
    /// Begins at a line.
    staging: *mut u8,
    /// The line whose bytes those in `room` are.
    line: *mut u8,
    /// Bytes of the first line that belong to something else.
    skip: usize,
    filled: usize,
    sent: usize,
}

impl<T> Lines<T> {
    /// Sends the whole lines among the first bytes of the staging.
    ///
    /// # Safety
    /// They have been filled and not sent before; as [`Lanes`] asks.
    #[inline(always)]
    unsafe fn flush<L: Lanes>(&mut self, until: usize) {
        // SAFETY: the bytes from `skip` to `filled` have a place each, from the same one of `line` on.
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

    /// Sends all whole lines, and begins again with what is left.
    ///
    /// # Safety
    /// The contract of [`Lines::flush`].
    #[inline(always)]
    unsafe fn flush_and_restart<L: Lanes>(&mut self) {
        // SAFETY: as for `flush`; the room has a line more than is ever filled.
        unsafe {
            self.flush::<L>(self.filled);
            self.staging.add(self.sent).copy_to(self.staging, LINE);
            self.line = self.line.add(self.sent);
        }
        (self.filled, self.sent) = (self.filled - self.sent, 0);
    }
}

/// # Safety
/// As [`heads`]; the CPU has the instructions.
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
/// As [`heads`]; the CPU has the instructions.
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
/// The contracts of [`Rotation::rotate`] and [`Lanes`], of every run.
#[inline(always)]
unsafe fn heads<L: Lanes, T: Element>(
    rotation: &Rotation,
    runs: &mut [Option<Lines<T>>; MAX_RUNS],
    count: usize,
    phases: Phases<'_>,
) {
    // A copy of its own, which no store can be thought to change.
    let rotation = *rotation;
    let whole = rotation.rope_dim == rotation.head_dim && rotation.width().is_multiple_of(L::N);
    // SAFETY: the caller upholds the contract; the number of registers is that which half a head fills.
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

/// `K`: how many registers half a head fills, if all of it is turned; 0 for any other.
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
            // SAFETY: there are as many heads and phases for them; the room holds `HEADS` after the part of a line.
            unsafe {
                let (from, to) =
                    (run.from.add(head * rotation.head_dim), run.staging.add(run.filled).cast::<T>());
                if K > 0 {
                    prefetch::<T>(from, rotation.head_dim, PREFETCH_BYTES);
                    let (phases, half) = (phases.as_ptr(), K * L::N);
                    for i in (0..K).map(|k| k * L::N) {
                        let (c, s) = (L::load_f32(phases.add(i)), L::load_f32(phases.add(half + i)));
                        let (x, y) = (T::load::<L>(from.add(i)), T::load::<L>(from.add(half + i)));
                        T::store::<L>(to.add(i), L::sub(L::mul(x, c), L::mul(y, s)));
                        T::store::<L>(to.add(half + i), L::add(L::mul(x, s), L::mul(y, c)));
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
        // SAFETY: as for `flush`: the bytes left are less than a line, or what came before the first line's end.
        unsafe {
            run.flush::<L>(run.filled);
            let first = run.sent.max(run.skip);
            run.staging.add(first).copy_to_nonoverlapping(run.line.add(first), run.filled - first);
        }
    }
}
