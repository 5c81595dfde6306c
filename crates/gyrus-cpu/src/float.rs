//! Dot products in `f32`: the `exact` mat-mul, and the `fast` one of types without an integer kernel.
//!
//! Lane `l` of eight sums the elements `k ≡ l (mod 8)` in ascending order by fused multiply-add; the
//! lanes are then added as `((0+4)+(2+6)) + ((1+5)+(3+7))`. Every implementation keeps to that.

use gyrus_tensor::{DType, dequantize};

use crate::isa::{Isa, Level};

/// Partial sums of a dot product; rows are padded with zeros to a multiple of it.
pub(crate) const LANES: usize = 8;

/// Weight rows of a tile.
pub(crate) const TILE_W: usize = 4;

/// Activation rows of a tile.
pub(crate) const TILE_X: usize = 3;

/// Dot products of up to [`TILE_W`] weight rows with up to [`TILE_X`] activation rows, all `width` long
/// and dense: `w[wn, width]`, `x[xn, width]`; `out[r][i]` is activation row `r` times weight row `i`.
pub(crate) fn dots(isa: Isa, w: &[f32], x: &[f32], width: usize, out: &mut [[f32; TILE_W]; TILE_X]) {
    let (wn, xn) = (w.len() / width, x.len() / width);
    assert!(width.is_multiple_of(LANES) && (1..=TILE_W).contains(&wn) && (1..=TILE_X).contains(&xn));
    assert!(w.len() == wn * width && x.len() == xn * width);
    match isa.level() {
        Level::Portable => {
            for (x, out) in x.chunks_exact(width).zip(out) {
                for (w, out) in w.chunks_exact(width).zip(out) {
                    *out = dot(w, x);
                }
            }
        }
        #[cfg(target_arch = "x86_64")]
        // SAFETY: an `Isa` of this level exists only where the instructions do; sizes were checked.
        Level::Avx2 | Level::Avx512Vnni => unsafe {
            avx2::dots_of(w.as_ptr(), wn, x.as_ptr(), xn, width, out)
        },
    }
}

/// [`dots`] straight from half-precision rows, for batches too small to decode them first; the same bits.
/// `false`, with nothing done, if the type or the instruction set has no such form.
pub(crate) fn dots_from(
    isa: Isa,
    dtype: DType,
    w: &[u8],
    x: &[f32],
    width: usize,
    out: &mut [[f32; TILE_W]; TILE_X],
) -> bool {
    #[cfg(target_arch = "x86_64")]
    if isa.level() >= Level::Avx2 && matches!(dtype, DType::F16 | DType::BF16) {
        let (wn, xn) = (w.len() / 2 / width, x.len() / width);
        assert!(width.is_multiple_of(LANES) && (1..=TILE_W).contains(&wn) && (1..=TILE_X).contains(&xn));
        assert!(w.len() == 2 * wn * width && x.len() == xn * width);
        // SAFETY: an `Isa` of this level exists only where the instructions do; sizes were checked.
        unsafe {
            match dtype {
                DType::F16 => avx2::dots_of(w.as_ptr().cast::<half::f16>(), wn, x.as_ptr(), xn, width, out),
                _ => avx2::dots_of(w.as_ptr().cast::<half::bf16>(), wn, x.as_ptr(), xn, width, out),
            }
        }
        return true;
    }
    let _ = (isa, dtype, w, x, width, out);
    false
}

/// The plain form of one dot product.
fn dot(w: &[f32], x: &[f32]) -> f32 {
    let mut lanes = [0.0f32; LANES];
    for (w, x) in w.as_chunks::<LANES>().0.iter().zip(x.as_chunks::<LANES>().0) {
        for l in 0..LANES {
            lanes[l] = w[l].mul_add(x[l], lanes[l]);
        }
    }
    add_lanes(lanes)
}

/// Adds eight lanes in the one order.
pub(crate) fn add_lanes(v: [f32; LANES]) -> f32 {
    ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7]))
}

/// [`dequantize`] with the instructions there are; the same bits.
pub(crate) fn decode(isa: Isa, dtype: DType, bytes: &[u8], out: &mut [f32]) {
    #[cfg(target_arch = "x86_64")]
    if isa.level() >= Level::Avx2 {
        // SAFETY: an `Isa` of this level exists only where the instructions do.
        let done = unsafe { avx2::decode(dtype, bytes, out) };
        if done {
            return;
        }
    }
    let _ = isa;
    dequantize(dtype, bytes, out).expect("the matrix checked type and length");
}

#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2 {
    use std::arch::x86_64::*;

    use gyrus_tensor::block::{BlockQ4_0, BlockQ4_1, BlockQ8_0};
    use half::{bf16, f16};

    use super::*;

    /// An element that eight of can be loaded as `f32`.
    pub(crate) trait Load: Copy {
        /// # Safety
        /// Eight elements are readable at `p`; the caller is compiled with AVX2 and F16C.
        unsafe fn load(p: *const Self) -> __m256;
    }

    impl Load for f32 {
        #[inline(always)]
        unsafe fn load(p: *const f32) -> __m256 {
            // SAFETY: by contract.
            unsafe { _mm256_loadu_ps(p) }
        }
    }

    impl Load for f16 {
        #[inline(always)]
        unsafe fn load(p: *const f16) -> __m256 {
            // SAFETY: by contract.
            unsafe { _mm256_cvtph_ps(_mm_loadu_si128(p.cast())) }
        }
    }

    impl Load for bf16 {
        #[inline(always)]
        unsafe fn load(p: *const bf16) -> __m256 {
            // SAFETY: by contract.
            unsafe {
                let wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(p.cast()));
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide))
            }
        }
    }

    /// # Safety
    /// The processor has AVX2, FMA and F16C; `W` rows of `width`, a multiple of eight, are readable at `w`,
    /// aligned or not, and `X` rows at `x`.
    #[target_feature(enable = "avx2,fma,f16c")]
    pub(super) unsafe fn dots<T: Load, const W: usize, const X: usize>(
        w: *const T,
        x: *const f32,
        width: usize,
        out: &mut [[f32; TILE_W]; TILE_X],
    ) {
        let mut acc = [[_mm256_setzero_ps(); W]; X];
        // SAFETY: eight elements from `k` on lie within a row, for every row there is.
        unsafe {
            for k in (0..width).step_by(LANES) {
                let w: [__m256; W] = std::array::from_fn(|i| T::load(w.add(i * width + k)));
                for (r, acc) in acc.iter_mut().enumerate() {
                    let x = _mm256_loadu_ps(x.add(r * width + k));
                    for i in 0..W {
                        acc[i] = _mm256_fmadd_ps(w[i], x, acc[i]);
                    }
                }
            }
        }
        for r in 0..X {
            for i in 0..W {
                out[r][i] = sum(acc[r][i]);
            }
        }
    }

    /// As [`dots`], for any number of rows a tile may have.
    ///
    /// # Safety
    /// As for [`dots`], with `wn` (1..=4) and `xn` (1..=3) rows.
    #[target_feature(enable = "avx2,fma,f16c")]
    pub(super) unsafe fn dots_of<T: Load>(
        w: *const T,
        wn: usize,
        x: *const f32,
        xn: usize,
        width: usize,
        out: &mut [[f32; TILE_W]; TILE_X],
    ) {
        // SAFETY: passed on.
        unsafe {
            match (wn, xn) {
                (4, 3) => dots::<T, 4, 3>(w, x, width, out),
                (4, 2) => dots::<T, 4, 2>(w, x, width, out),
                (4, 1) => dots::<T, 4, 1>(w, x, width, out),
                _ => {
                    for (r, out) in out[..xn].iter_mut().enumerate() {
                        for (i, out) in out[..wn].iter_mut().enumerate() {
                            let mut one = [[0.0; TILE_W]; TILE_X];
                            dots::<T, 1, 1>(w.add(i * width), x.add(r * width), width, &mut one);
                            *out = one[0][0];
                        }
                    }
                }
            }
        }
    }

    /// [`add_lanes`] of a register.
    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    pub(crate) fn sum(v: __m256) -> f32 {
        let v = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
        let v = _mm_add_ps(v, _mm_movehl_ps(v, v));
        _mm_cvtss_f32(_mm_add_ss(v, _mm_shuffle_ps::<1>(v, v)))
    }

    /// Decodes the common types; `false` leaves `out` untouched. The loops are plain and vectorise under
    /// the function's target feature.
    ///
    /// # Safety
    /// The processor has AVX2 and F16C.
    #[target_feature(enable = "avx2,fma,f16c")]
    pub(super) unsafe fn decode(dtype: DType, bytes: &[u8], out: &mut [f32]) -> bool {
        match dtype {
            DType::F16 => halves(bytes, out),
            DType::BF16 => {
                for (b, v) in bytes.as_chunks::<2>().0.iter().zip(out) {
                    *v = f32::from_bits(u32::from(u16::from_le_bytes(*b)) << 16);
                }
            }
            DType::Q4_0 => blocks(bytes, out, |block: &BlockQ4_0, out| {
                let d = block.d.to_f32();
                for (k, &q) in block.qs.iter().enumerate() {
                    out[k] = d * (f32::from(q & 15) - 8.0);
                    out[k + 16] = d * (f32::from(q >> 4) - 8.0);
                }
            }),
            DType::Q4_1 => blocks(bytes, out, |block: &BlockQ4_1, out| {
                let (d, m) = (block.d.to_f32(), block.m.to_f32());
                for (k, &q) in block.qs.iter().enumerate() {
                    out[k] = d * f32::from(q & 15) + m;
                    out[k + 16] = d * f32::from(q >> 4) + m;
                }
            }),
            DType::Q8_0 => blocks(bytes, out, |block: &BlockQ8_0, out| {
                let d = block.d.to_f32();
                for (v, &q) in out.iter_mut().zip(&block.qs) {
                    *v = d * f32::from(q);
                }
            }),
            _ => return false,
        }
        true
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    fn blocks<B: bytemuck::Pod>(bytes: &[u8], out: &mut [f32], each: impl Fn(&B, &mut [f32; 32])) {
        let blocks: &[B] = bytemuck::cast_slice(bytes);
        for (block, out) in blocks.iter().zip(out.as_chunks_mut::<32>().0) {
            each(block, out);
        }
    }

    /// Single precision to half, to nearest even.
    #[target_feature(enable = "avx2,fma,f16c")]
    pub(crate) fn to_halves(from: &[f32], to: &mut [f16]) {
        let ((from, rest), (to, tail)) = (from.as_chunks::<8>(), to.as_chunks_mut::<8>());
        for (v, h) in from.iter().zip(to) {
            // SAFETY: eight numbers in, 16 bytes out.
            unsafe {
                let halves = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(_mm256_loadu_ps(v.as_ptr()));
                _mm_storeu_si128(h.as_mut_ptr().cast(), halves);
            }
        }
        rest.iter().zip(tail).for_each(|(v, h)| *h = f16::from_f32(*v));
    }

    /// Half precision to single.
    #[target_feature(enable = "avx2,fma,f16c")]
    pub(crate) fn halves(bytes: &[u8], out: &mut [f32]) {
        let (bytes, rest) = bytes.as_chunks::<16>();
        let (whole, tail) = out.as_chunks_mut::<8>();
        for (b, v) in bytes.iter().zip(whole) {
            // SAFETY: 16 bytes in, eight numbers out.
            unsafe { _mm256_storeu_ps(v.as_mut_ptr(), _mm256_cvtph_ps(_mm_loadu_si128(b.as_ptr().cast()))) };
        }
        for (b, v) in rest.as_chunks::<2>().0.iter().zip(tail) {
            *v = f16::from_le_bytes(*b).to_f32();
        }
    }
}

#[cfg(test)]
mod tests {
    use gyrus_tensor::can_dequantize;
    use gyrus_testkit::Rng;

    use super::*;

    #[test]
    fn every_tile_is_the_plain_dot_product() {
        let mut rng = Rng::new(3);
        for width in [8, 16, 72, 576] {
            let mut rows = |n: usize| (0..n * width).map(|_| rng.gaussian() as f32).collect::<Vec<_>>();
            let (w, x) = (rows(TILE_W), rows(TILE_X));
            for wn in 1..=TILE_W {
                for xn in 1..=TILE_X {
                    let mut out = [[f32::NAN; TILE_W]; TILE_X];
                    dots(Isa::detect(), &w[..wn * width], &x[..xn * width], width, &mut out);
                    for r in 0..xn {
                        for i in 0..wn {
                            let (w, x) = (&w[i * width..][..width], &x[r * width..][..width]);
                            assert_eq!(out[r][i].to_bits(), dot(w, x).to_bits());
                            let truth: f64 =
                                w.iter().zip(x).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
                            assert!((f64::from(out[r][i]) - truth).abs() < 1e-3);
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn decoding_has_the_reference_bits() {
        let mut rng = Rng::new(4);
        for &dtype in DType::ALL.iter().filter(|d| can_dequantize(**d)) {
            let elems = if dtype.is_quantized() { 3 * dtype.block_elems() } else { 77 };
            let bytes = rng.bytes(dtype.bytes_of_elems(elems).unwrap());
            let (mut fast, mut plain) = (vec![0.0; elems], vec![0.0; elems]);
            decode(Isa::detect(), dtype, &bytes, &mut fast);
            dequantize(dtype, &bytes, &mut plain).unwrap();
            for (a, b) in fast.iter().zip(&plain) {
                // A NaN's payload is nobody's business.
                assert!(a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan(), "{dtype}: {a} {b}");
            }
        }
    }
}
