//! Turning heads by cosines and sines that are given.

use gyrus_kernels::Pairing;
use half::{bf16, f16};

use crate::isa::{Isa, Level};

/// An element as it lies in memory.
pub(super) trait Element: bytemuck::Pod + Send {
    fn to_f32(self) -> f32;

    /// To the nearest, ties to even.
    fn from_f32(value: f32) -> Self;

    /// Elements as numbers.
    fn decode(from: &[Self], to: &mut [f32]) {
        to.iter_mut().zip(from).for_each(|(to, from)| *to = from.to_f32());
    }

    /// Eight of them.
    ///
    /// # Safety
    /// They are readable at `p`; the caller is compiled with AVX2 and F16C.
    #[cfg(target_arch = "x86_64")]
    unsafe fn load(p: *const Self) -> std::arch::x86_64::__m256;

    /// Rounds eight, as [`Element::from_f32`] does.
    ///
    /// # Safety
    /// They are writable at `p`; the caller is compiled with AVX2 and F16C.
    #[cfg(target_arch = "x86_64")]
    unsafe fn store(p: *mut Self, v: std::arch::x86_64::__m256);
}

impl Element for f32 {
    fn to_f32(self) -> f32 {
        self
    }

    fn from_f32(value: f32) -> f32 {
        value
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn load(p: *const f32) -> std::arch::x86_64::__m256 {
        // SAFETY: by contract.
        unsafe { std::arch::x86_64::_mm256_loadu_ps(p) }
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn store(p: *mut f32, v: std::arch::x86_64::__m256) {
        // SAFETY: by contract.
        unsafe { std::arch::x86_64::_mm256_storeu_ps(p, v) }
    }
}

impl Element for f16 {
    fn to_f32(self) -> f32 {
        f16::to_f32(self)
    }

    fn from_f32(value: f32) -> f16 {
        f16::from_f32(value)
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn load(p: *const f16) -> std::arch::x86_64::__m256 {
        use std::arch::x86_64::*;
        // SAFETY: by contract.
        unsafe { _mm256_cvtph_ps(_mm_loadu_si128(p.cast())) }
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn store(p: *mut f16, v: std::arch::x86_64::__m256) {
        use std::arch::x86_64::*;
        // SAFETY: by contract.
        unsafe { _mm_storeu_si128(p.cast(), _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v)) }
    }
}

impl Element for bf16 {
    fn to_f32(self) -> f32 {
        bf16::to_f32(self)
    }

    fn from_f32(value: f32) -> bf16 {
        bf16::from_f32(value)
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn load(p: *const bf16) -> std::arch::x86_64::__m256 {
        use std::arch::x86_64::*;
        // SAFETY: by contract.
        unsafe {
            let wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(p.cast()));
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide))
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn store(p: *mut bf16, v: std::arch::x86_64::__m256) {
        use std::arch::x86_64::*;
        // SAFETY: by contract.
        unsafe {
            let bits = _mm256_castps_si256(v);
            let upper = _mm256_srli_epi32::<16>(bits);
            let odd = _mm256_and_si256(upper, _mm256_set1_epi32(1));
            let half = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff));
            let rounded = _mm256_srli_epi32::<16>(_mm256_add_epi32(bits, half));
            // What is not a number would round to infinity, or to zero.
            let quiet = _mm256_or_si256(upper, _mm256_set1_epi32(0x40));
            let nan = _mm256_castps_si256(_mm256_cmp_ps::<_CMP_UNORD_Q>(v, v));
            let halves = _mm256_blendv_epi8(rounded, quiet, nan);
            let packed = _mm256_permute4x64_epi64::<0b1000>(_mm256_packus_epi32(halves, halves));
            _mm_storeu_si128(p.cast(), _mm256_castsi256_si128(packed));
        }
    }
}

/// How heads are turned.
#[derive(Clone, Copy)]
pub(super) struct Turn {
    pub(super) isa: Isa,
    pub(super) pairing: Pairing,
    pub(super) head_dim: usize,
    pub(super) rope_dim: usize,
    pub(super) offset: usize,
    /// Factor on what is not turned; cosines and sines have it already.
    pub(super) scale: f32,
}

impl Turn {
    /// Cosines that a token has room for, and sines.
    pub(super) fn phases(&self) -> usize {
        match self.pairing {
            Pairing::Adjacent => self.rope_dim,
            Pairing::Split => self.rope_dim / 2,
        }
    }

    /// Brings a token's cosines and sines, one a pair, into the order in which elements are read. Adjacent pairs
    /// have theirs twice, the sine with both signs: `y[j] = x[j]·cos[j] + x[j ^ 1]·sin[j]`.
    pub(super) fn spread(&self, cos: &mut [f32], sin: &mut [f32]) {
        if self.pairing == Pairing::Adjacent {
            // From the end, so that nothing is overwritten before it is read.
            for i in (0..self.rope_dim / 2).rev() {
                let (c, s) = (cos[i], sin[i]);
                (cos[2 * i], cos[2 * i + 1]) = (c, c);
                (sin[2 * i], sin[2 * i + 1]) = (-s, s);
            }
        }
    }

    /// Turns heads that lie side by side; what is not turned stays.
    pub(super) fn in_place<T: Element>(&self, heads: &mut [T], cos: &[f32], sin: &[f32]) {
        assert!(cos.len() == self.phases() && sin.len() == cos.len() && self.scale == 1.0);
        assert!(self.offset + self.rope_dim <= self.head_dim && heads.len().is_multiple_of(self.head_dim));
        let (heads, count) = (heads.as_mut_ptr(), heads.len() / self.head_dim);
        // SAFETY: heads are `head_dim` apart, the turned part lies within each, and there are phases for it.
        unsafe { self.turn(heads, heads, count, cos, sin) }
    }

    /// Turns one head on its way from one place to another.
    pub(super) fn across<S: Element, T: Element>(&self, from: &[S], to: &mut [T], cos: &[f32], sin: &[f32]) {
        assert!(cos.len() == self.phases() && sin.len() == cos.len());
        assert!(self.offset + self.rope_dim <= self.head_dim);
        assert!(from.len() == self.head_dim && to.len() == self.head_dim);
        let end = self.offset + self.rope_dim;
        self.scale_into(&from[..self.offset], &mut to[..self.offset]);
        self.scale_into(&from[end..], &mut to[end..]);
        // SAFETY: both are a head long, the turned part lies within, and there are phases for it.
        unsafe { self.turn(from.as_ptr(), to.as_mut_ptr(), 1, cos, sin) }
    }

    /// # Safety
    /// `count` heads can be read at `from` and written at `to`, which may be the same; `rope_dim` elements from
    /// `offset` on lie within each, and there are [`Turn::phases`] cosines and sines.
    unsafe fn turn<S: Element, T: Element>(
        &self,
        from: *const S,
        to: *mut T,
        count: usize,
        cos: &[f32],
        sin: &[f32],
    ) {
        // SAFETY: passed on; an `Isa` above portable exists only where the instructions do.
        unsafe {
            match (self.isa.level(), self.pairing) {
                (Level::Portable, _) => {
                    for head in 0..count {
                        let at = head * self.head_dim + self.offset;
                        self.turn_from(0, from.add(at), to.add(at), cos, sin);
                    }
                }
                #[cfg(target_arch = "x86_64")]
                (Level::Avx2 | Level::Avx512Vnni, Pairing::Split) => {
                    avx2::split(self, from, to, count, cos, sin)
                }
                #[cfg(target_arch = "x86_64")]
                (Level::Avx2 | Level::Avx512Vnni, Pairing::Adjacent) => {
                    avx2::adjacent(self, from, to, count, cos, sin)
                }
            }
        }
    }

    /// The plain form, for the phases from `first` on; `from` and `to` are where the turned part of a head begins.
    ///
    /// # Safety
    /// As [`Turn::turn`] asks, of one head.
    #[inline(always)]
    unsafe fn turn_from<S: Element, T: Element>(
        &self,
        first: usize,
        from: *const S,
        to: *mut T,
        cos: &[f32],
        sin: &[f32],
    ) {
        let half = self.rope_dim / 2;
        // SAFETY: both elements of a pair lie within the turned part, and are read before they are written.
        unsafe {
            match self.pairing {
                Pairing::Split => {
                    for i in first..half {
                        let (c, s) = (cos[i], sin[i]);
                        let (x, y) = ((*from.add(i)).to_f32(), (*from.add(i + half)).to_f32());
                        *to.add(i) = T::from_f32(x * c - y * s);
                        *to.add(i + half) = T::from_f32(x * s + y * c);
                    }
                }
                Pairing::Adjacent => {
                    for i in (first..self.rope_dim).step_by(2) {
                        let (x, y) = ((*from.add(i)).to_f32(), (*from.add(i + 1)).to_f32());
                        *to.add(i) = T::from_f32(x * cos[i] + y * sin[i]);
                        *to.add(i + 1) = T::from_f32(y * cos[i + 1] + x * sin[i + 1]);
                    }
                }
            }
        }
    }

    /// Elements that pass, times the scale.
    fn scale_into<S: Element, T: Element>(&self, from: &[S], to: &mut [T]) {
        #[cfg(target_arch = "x86_64")]
        if self.isa.level() >= Level::Avx2 {
            // SAFETY: an `Isa` of this level exists only where the instructions do.
            return unsafe { avx2::scale_into(self.scale, from, to) };
        }
        to.iter_mut().zip(from).for_each(|(to, from)| *to = T::from_f32(from.to_f32() * self.scale));
    }
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use std::arch::x86_64::*;

    use super::*;

    const LANES: usize = 8;

    /// # Safety
    /// As [`Turn::turn`] asks; the processor has AVX2, FMA and F16C.
    #[target_feature(enable = "avx2,fma,f16c")]
    pub(super) unsafe fn split<S: Element, T: Element>(
        turn: &Turn,
        from: *const S,
        to: *mut T,
        count: usize,
        cos: &[f32],
        sin: &[f32],
    ) {
        let half = turn.rope_dim / 2;
        let whole = half - half % LANES;
        for head in 0..count {
            // SAFETY: eight pairs from `i` on lie within the turned part, and so do their phases.
            unsafe {
                let at = head * turn.head_dim + turn.offset;
                let (from, to) = (from.add(at), to.add(at));
                for i in (0..whole).step_by(LANES) {
                    let (c, s) = (_mm256_loadu_ps(cos.as_ptr().add(i)), _mm256_loadu_ps(sin.as_ptr().add(i)));
                    let (x, y) = (S::load(from.add(i)), S::load(from.add(i + half)));
                    let u = _mm256_sub_ps(_mm256_mul_ps(x, c), _mm256_mul_ps(y, s));
                    let v = _mm256_add_ps(_mm256_mul_ps(x, s), _mm256_mul_ps(y, c));
                    T::store(to.add(i), u);
                    T::store(to.add(i + half), v);
                }
                turn.turn_from(whole, from, to, cos, sin);
            }
        }
    }

    /// # Safety
    /// As [`Turn::turn`] asks; the processor has AVX2, FMA and F16C.
    #[target_feature(enable = "avx2,fma,f16c")]
    pub(super) unsafe fn adjacent<S: Element, T: Element>(
        turn: &Turn,
        from: *const S,
        to: *mut T,
        count: usize,
        cos: &[f32],
        sin: &[f32],
    ) {
        let whole = turn.rope_dim - turn.rope_dim % LANES;
        for head in 0..count {
            // SAFETY: four pairs from `i` on lie within the turned part, and so do their phases.
            unsafe {
                let at = head * turn.head_dim + turn.offset;
                let (from, to) = (from.add(at), to.add(at));
                for i in (0..whole).step_by(LANES) {
                    let (c, s) = (_mm256_loadu_ps(cos.as_ptr().add(i)), _mm256_loadu_ps(sin.as_ptr().add(i)));
                    let x = S::load(from.add(i));
                    let swapped = _mm256_permute_ps::<0b10_11_00_01>(x);
                    T::store(to.add(i), _mm256_add_ps(_mm256_mul_ps(x, c), _mm256_mul_ps(swapped, s)));
                }
                turn.turn_from(whole, from, to, cos, sin);
            }
        }
    }

    /// # Safety
    /// The processor has AVX2, FMA and F16C.
    #[target_feature(enable = "avx2,fma,f16c")]
    pub(super) unsafe fn scale_into<S: Element, T: Element>(scale: f32, from: &[S], to: &mut [T]) {
        let factor = _mm256_set1_ps(scale);
        let (whole, rest) = from.as_chunks::<LANES>();
        let (targets, tail) = to.as_chunks_mut::<LANES>();
        for (from, to) in whole.iter().zip(targets) {
            // SAFETY: eight elements each.
            unsafe { T::store(to.as_mut_ptr(), _mm256_mul_ps(S::load(from.as_ptr()), factor)) };
        }
        tail.iter_mut().zip(rest).for_each(|(to, from)| *to = T::from_f32(from.to_f32() * scale));
    }
}
