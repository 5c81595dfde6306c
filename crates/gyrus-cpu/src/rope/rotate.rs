//! Rotates heads by precomputed cosines and sines.

use gyrus_kernels::{Pairing, rotate_pair};

use super::element::Element;
#[cfg(target_arch = "x86_64")]
use super::lanes::{Avx2, Avx512, Lanes};
use crate::isa::Isa;
#[cfg(target_arch = "x86_64")]
use crate::isa::Level;

/// The parameters of a rotation.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rotation {
    pub(super) isa: Isa,
    pub(super) pairing: Pairing,
    pub(super) head_dim: usize,
    pub(super) rope_dim: usize,
    pub(super) offset: usize,
    /// The scale of elements outside the rotated part; cosines and sines already include it.
    pub(super) scale: f32,
}

/// The phases of heads: the cosines of a token, then its sines.
#[derive(Clone, Copy)]
pub(super) struct Phases<'a> {
    pub(super) values: &'a [f32],
    /// Elements between the phases of two heads; 0 if all heads share them.
    pub(super) step: usize,
}

impl Rotation {
    /// The number of cosines of a token, and of sines.
    pub(super) fn width(&self) -> usize {
        match self.pairing {
            Pairing::Adjacent => self.rope_dim,
            Pairing::Split => self.rope_dim / 2,
        }
    }

    /// Rotates contiguous heads in place. Elements outside the rotated part stay.
    pub(super) fn in_place<T: Element>(&self, heads: &mut [T], phases: Phases<'_>) {
        assert!(self.scale == 1.0, "an in-place rotation cannot scale the elements outside the rotated part");
        let count = self.count(heads.len(), phases);
        let heads = heads.as_mut_ptr();
        // SAFETY: `count` checked that there are so many heads, and phases for them.
        unsafe { self.rotate::<T, T, false>(heads, heads, count, phases) }
    }

    /// Rotates contiguous heads from one buffer to another.
    pub(super) fn out_of_place<S: Element, T: Element>(&self, from: &[S], to: &mut [T], phases: Phases<'_>) {
        assert_eq!(from.len(), to.len());
        let count = self.count(from.len(), phases);
        let (from, to) = (from.as_ptr(), to.as_mut_ptr());
        // SAFETY: `count` checked that both have so many heads, and phases for them.
        unsafe { self.rotate::<S, T, true>(from, to, count, phases) }
    }

    /// The number of heads in `elements` elements. The checks are what the unsafe code below relies on.
    pub(super) fn count(&self, elements: usize, phases: Phases<'_>) -> usize {
        assert!(self.offset + self.rope_dim <= self.head_dim && self.rope_dim.is_multiple_of(2));
        let count = elements / self.head_dim;
        assert_eq!(elements, count * self.head_dim);
        assert!(count == 0 || phases.values.len() >= (count - 1) * phases.step + 2 * self.width());
        count
    }

    /// Rotates `count` heads. With `COPY_REST`, elements outside the rotated part are scaled and written too.
    ///
    /// # Safety
    /// `count` heads are readable at `from` and writable at `to`, which may be equal. The elements
    /// `offset..offset + rope_dim` are within a head, and there are phases for all heads.
    unsafe fn rotate<S: Element, T: Element, const COPY_REST: bool>(
        &self,
        from: *const S,
        to: *mut T,
        count: usize,
        phases: Phases<'_>,
    ) {
        // SAFETY: the caller upholds the contract; an `Isa` of this level proves that the CPU has the instructions.
        unsafe {
            match self.isa.level() {
                #[cfg(target_arch = "x86_64")]
                Level::Avx2 => avx2::<S, T, COPY_REST>(self, from, to, count, phases),
                #[cfg(target_arch = "x86_64")]
                Level::Avx512Vnni => avx512::<S, T, COPY_REST>(self, from, to, count, phases),
                // Other targets use the portable form, which the compiler vectorises where it can.
                _ => {
                    for head in 0..count {
                        let (from, to) = (from.add(head * self.head_dim), to.add(head * self.head_dim));
                        if COPY_REST {
                            let end = self.offset + self.rope_dim;
                            self.copy_scaled(from, to, 0..self.offset);
                            self.copy_scaled(from, to, end..self.head_dim);
                        }
                        let phases = phases.values.as_ptr().add(head * phases.step);
                        self.scalar_tail(0, from.add(self.offset), to.add(self.offset), phases);
                    }
                }
            }
        }
    }

    /// The portable form: rotates the pairs of one head whose phases start at `first`. `from` and `to` point to
    /// the rotated part.
    ///
    /// # Safety
    /// The contract of [`Rotation::rotate`], for one head.
    #[inline(always)]
    unsafe fn scalar_tail<S: Element, T: Element>(
        &self,
        first: usize,
        from: *const S,
        to: *mut T,
        phases: *const f32,
    ) {
        let half = self.rope_dim / 2;
        // SAFETY: both elements of a pair are within the rotated part, and are read before they are written.
        unsafe {
            let sines = phases.add(self.width());
            match self.pairing {
                Pairing::Split => {
                    for i in first..half {
                        let pair = [(*from.add(i)).to_f32(), (*from.add(i + half)).to_f32()];
                        let [x, y] = rotate_pair(pair, [*phases.add(i), *sines.add(i)]);
                        *to.add(i) = T::from_f32(x);
                        *to.add(i + half) = T::from_f32(y);
                    }
                }
                Pairing::Adjacent => {
                    for i in (first..self.rope_dim).step_by(2) {
                        // Each pair has its cosine and sine twice; the first sine has the opposite sign.
                        let pair = [(*from.add(i)).to_f32(), (*from.add(i + 1)).to_f32()];
                        let [x, y] = rotate_pair(pair, [*phases.add(i + 1), *sines.add(i + 1)]);
                        *to.add(i) = T::from_f32(x);
                        *to.add(i + 1) = T::from_f32(y);
                    }
                }
            }
        }
    }

    /// The portable form: copies elements outside the rotated part, times the scale.
    ///
    /// # Safety
    /// The elements are readable at `from` and writable at `to`.
    #[inline(always)]
    unsafe fn copy_scaled<S: Element, T: Element>(
        &self,
        from: *const S,
        to: *mut T,
        elements: std::ops::Range<usize>,
    ) {
        for i in elements {
            // SAFETY: the caller upholds the contract.
            unsafe { *to.add(i) = T::from_f32((*from.add(i)).to_f32() * self.scale) };
        }
    }
}

/// # Safety
/// The contract of [`Rotation::rotate`]; the CPU has the instructions.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn avx2<S: Element, T: Element, const COPY_REST: bool>(
    rotation: &Rotation,
    from: *const S,
    to: *mut T,
    count: usize,
    phases: Phases<'_>,
) {
    // SAFETY: the caller upholds the contract; the target features are enabled here.
    unsafe { heads::<Avx2, S, T, COPY_REST>(rotation, from, to, count, phases) }
}

/// # Safety
/// The contract of [`Rotation::rotate`]; the CPU has the instructions.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx2,fma,f16c")]
unsafe fn avx512<S: Element, T: Element, const COPY_REST: bool>(
    rotation: &Rotation,
    from: *const S,
    to: *mut T,
    count: usize,
    phases: Phases<'_>,
) {
    // SAFETY: the caller upholds the contract; the target features are enabled here.
    unsafe { heads::<Avx512, S, T, COPY_REST>(rotation, from, to, count, phases) }
}

/// The prefetch distance in bytes.
#[cfg(target_arch = "x86_64")]
const PREFETCH_BYTES: usize = 8192;

/// # Safety
/// The contracts of [`Rotation::rotate`] and [`Lanes`].
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn heads<L: Lanes, S: Element, T: Element, const COPY_REST: bool>(
    rotation: &Rotation,
    from: *const S,
    to: *mut T,
    count: usize,
    phases: Phases<'_>,
) {
    // A local copy: the compiler need not assume that the stores below modify it.
    let rotation = *rotation;
    let copies_rest = COPY_REST && rotation.rope_dim < rotation.head_dim;
    if phases.step == 0 && !copies_rest && rotation.width().is_multiple_of(L::N) {
        // SAFETY: the caller upholds the contract; the number of registers matches the width of the phases.
        unsafe {
            let (from, to) = (from.add(rotation.offset), to.add(rotation.offset));
            match (rotation.pairing, rotation.width() / L::N) {
                (Pairing::Split, 2) => {
                    return shared_phases::<L, S, T, 2, true>(&rotation, from, to, count, phases);
                }
                (Pairing::Split, 4) => {
                    return shared_phases::<L, S, T, 4, true>(&rotation, from, to, count, phases);
                }
                (Pairing::Adjacent, 4) => {
                    return shared_phases::<L, S, T, 4, false>(&rotation, from, to, count, phases);
                }
                (Pairing::Adjacent, 8) if L::N == 16 => {
                    return shared_phases::<L, S, T, 8, false>(&rotation, from, to, count, phases);
                }
                _ => {}
            }
        }
    }
    for head in 0..count {
        let values = &phases.values[head * phases.step..];
        // SAFETY: the caller ensures that there are `count` heads, and phases for each.
        unsafe {
            let (from, to) = (from.add(head * rotation.head_dim), to.add(head * rotation.head_dim));
            rotate_head::<L, S, T, COPY_REST>(&rotation, from, to, Phases { values, step: 0 });
        }
    }
}

/// # Safety
/// The contracts of [`Rotation::rotate`] and [`Lanes`], for one head.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(super) unsafe fn rotate_head<L: Lanes, S: Element, T: Element, const COPY_REST: bool>(
    rotation: &Rotation,
    from: *const S,
    to: *mut T,
    phases: Phases<'_>,
) {
    prefetch::<S>(from, rotation.head_dim, PREFETCH_BYTES);
    // SAFETY: all ranges are within the head, and there are phases for it.
    unsafe {
        if COPY_REST && rotation.rope_dim < rotation.head_dim {
            copy_scaled::<L, S, T>(rotation, from, to, 0..rotation.offset);
            copy_scaled::<L, S, T>(
                rotation,
                from,
                to,
                rotation.offset + rotation.rope_dim..rotation.head_dim,
            );
        }
        let (from, to) = (from.add(rotation.offset), to.add(rotation.offset));
        match rotation.pairing {
            Pairing::Split => split::<L, S, T>(rotation, from, to, phases.values.as_ptr()),
            Pairing::Adjacent => adjacent::<L, S, T>(rotation, from, to, phases.values.as_ptr()),
        }
    }
}

/// Rotates heads that share their phases, which stay in `K` registers of cosines and `K` of sines. Reloading them for
/// every head took as long as the arithmetic.
///
/// # Safety
/// The contracts of [`Rotation::rotate`] and [`Lanes`], with `from` and `to` at the first rotated element. `K`
/// registers hold [`Rotation::width`] elements.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn shared_phases<L: Lanes, S: Element, T: Element, const K: usize, const SPLIT: bool>(
    rotation: &Rotation,
    from: *const S,
    to: *mut T,
    count: usize,
    phases: Phases<'_>,
) {
    let width = K * L::N;
    // SAFETY: there are `width` cosines and `width` sines; elements as in `split` and `adjacent`.
    unsafe {
        let phases = phases.values.as_ptr();
        let cosines: [L::V; K] = std::array::from_fn(|k| L::load_f32(phases.add(k * L::N)));
        let sines: [L::V; K] = std::array::from_fn(|k| L::load_f32(phases.add(width + k * L::N)));
        for head in 0..count {
            let (from, to) = (from.add(head * rotation.head_dim), to.add(head * rotation.head_dim));
            prefetch::<S>(from, rotation.head_dim, PREFETCH_BYTES);
            for k in 0..K {
                let (i, c, s) = (k * L::N, cosines[k], sines[k]);
                let x = S::load::<L>(from.add(i));
                if SPLIT {
                    let y = S::load::<L>(from.add(width + i));
                    T::store::<L>(to.add(i), L::rotated_x(x, y, c, s));
                    T::store::<L>(to.add(width + i), L::rotated_y(x, y, c, s));
                } else {
                    T::store::<L>(to.add(i), L::rotated_adjacent(x, c, s));
                }
            }
        }
    }
}

/// Prefetches a head's length of memory, `ahead` bytes after `from`.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(super) fn prefetch<S>(from: *const S, head_dim: usize, ahead: usize) {
    use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
    for line in (0..head_dim * size_of::<S>()).step_by(64) {
        // SAFETY: a prefetch of an unmapped address has no effect.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(from.cast::<i8>().wrapping_add(ahead + line)) };
    }
}

/// # Safety
/// The contracts of [`Rotation::scalar_tail`] and [`Lanes`].
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn split<L: Lanes, S: Element, T: Element>(
    rotation: &Rotation,
    from: *const S,
    to: *mut T,
    phases: *const f32,
) {
    let half = rotation.rope_dim / 2;
    let whole = half - half % L::N;
    // SAFETY: the pairs `i..i + N` are within the rotated part.
    unsafe {
        for i in (0..whole).step_by(L::N) {
            let (c, s) = (L::load_f32(phases.add(i)), L::load_f32(phases.add(half + i)));
            let (x, y) = (S::load::<L>(from.add(i)), S::load::<L>(from.add(half + i)));
            T::store::<L>(to.add(i), L::rotated_x(x, y, c, s));
            T::store::<L>(to.add(half + i), L::rotated_y(x, y, c, s));
        }
        if whole < half {
            rotation.scalar_tail(whole, from, to, phases);
        }
    }
}

/// # Safety
/// The contracts of [`Rotation::scalar_tail`] and [`Lanes`].
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn adjacent<L: Lanes, S: Element, T: Element>(
    rotation: &Rotation,
    from: *const S,
    to: *mut T,
    phases: *const f32,
) {
    let n = rotation.rope_dim;
    let whole = n - n % L::N;
    // SAFETY: the elements `i..i + N` are within the rotated part and are whole pairs.
    unsafe {
        for i in (0..whole).step_by(L::N) {
            let (c, s) = (L::load_f32(phases.add(i)), L::load_f32(phases.add(n + i)));
            let x = S::load::<L>(from.add(i));
            T::store::<L>(to.add(i), L::rotated_adjacent(x, c, s));
        }
        if whole < n {
            rotation.scalar_tail(whole, from, to, phases);
        }
    }
}

/// Copies elements outside the rotated part, times the scale.
///
/// # Safety
/// The contracts of [`Rotation::copy_scaled`] and [`Lanes`].
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn copy_scaled<L: Lanes, S: Element, T: Element>(
    rotation: &Rotation,
    from: *const S,
    to: *mut T,
    elements: std::ops::Range<usize>,
) {
    let whole = elements.len() - elements.len() % L::N;
    // SAFETY: the caller upholds the contract.
    unsafe {
        let scale = L::splat(rotation.scale);
        for i in (elements.start..elements.start + whole).step_by(L::N) {
            T::store::<L>(to.add(i), L::mul(S::load::<L>(from.add(i)), scale));
        }
        rotation.copy_scaled(from, to, elements.start + whole..elements.end);
    }
}
