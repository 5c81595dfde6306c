//! Dot products in `f32`, for the `exact` matmul and for types that cannot be repacked.
//!
//! Lane `l` of eight sums the elements `k ≡ l (mod 8)` in ascending order by fused multiply-add. The lanes
//! are then added as `((0+4)+(2+6)) + ((1+5)+(3+7))`. Every implementation sums in that order.

use gyrus_tensor::block::{BlockQ4_0, BlockQ4_1, BlockQ8_0};
use gyrus_tensor::{DType, dequantize};
use half::{bf16, f16};

use crate::isa::Isa;
use crate::simd::{LANES, Registers, Simd, dispatch};

/// Weight rows of a tile.
pub(crate) const TILE_W: usize = 4;

/// Activation rows of a tile.
pub(crate) const TILE_X: usize = 3;

/// An element type that kernels convert to `f32` when loading.
pub(crate) trait Element: bytemuck::Pod {
    fn to_f32(self) -> f32;

    /// Loads an element of each lane.
    ///
    /// # Safety
    /// As many elements are readable at `p`; otherwise the contract of [`Registers`].
    unsafe fn load<S: Registers>(p: *const Self) -> S::F;
}

impl Element for f32 {
    fn to_f32(self) -> f32 {
        self
    }

    #[inline(always)]
    unsafe fn load<S: Registers>(p: *const f32) -> S::F {
        // SAFETY: the caller upholds the contract.
        unsafe { S::load(p) }
    }
}

impl Element for f16 {
    fn to_f32(self) -> f32 {
        f16::to_f32(self)
    }

    #[inline(always)]
    unsafe fn load<S: Registers>(p: *const f16) -> S::F {
        // SAFETY: the caller upholds the contract.
        unsafe { S::load_f16(p.cast()) }
    }
}

impl Element for bf16 {
    fn to_f32(self) -> f32 {
        bf16::to_f32(self)
    }

    #[inline(always)]
    unsafe fn load<S: Registers>(p: *const bf16) -> S::F {
        // SAFETY: the caller upholds the contract.
        unsafe { S::load_bf16(p.cast()) }
    }
}

/// Dot products of up to [`TILE_W`] weight rows with up to [`TILE_X`] activation rows: `w` is `[wn, width]`,
/// `x` is `[xn, width]`, and `out[r][i]` is activation row `r` times weight row `i`.
pub(crate) fn dots(isa: Isa, w: &[f32], x: &[f32], width: usize, out: &mut [[f32; TILE_W]; TILE_X]) {
    let (wn, xn) = (w.len() / width, x.len() / width);
    assert!(width.is_multiple_of(LANES) && (1..=TILE_W).contains(&wn) && (1..=TILE_X).contains(&xn));
    assert!(w.len() == wn * width && x.len() == xn * width);
    tile(isa, w, x, width, out);
}

dispatch! {
    fn tile(w: &[f32], x: &[f32], width: usize, out: &mut [[f32; TILE_W]; TILE_X]) { portable_tile, simd_tile }
}

fn portable_tile(w: &[f32], x: &[f32], width: usize, out: &mut [[f32; TILE_W]; TILE_X]) {
    for (x, out) in x.chunks_exact(width).zip(out) {
        for (w, out) in w.chunks_exact(width).zip(out) {
            *out = dot(w, x);
        }
    }
}

/// [`dots`] directly from f16 or bf16 rows, with the same bits, for batches too small to decode them first.
/// Returns `false`, with nothing written, if the type or the instruction set has no such kernel.
pub(crate) fn dots_16bit(
    isa: Isa,
    dtype: DType,
    w: &[u8],
    x: &[f32],
    width: usize,
    out: &mut [[f32; TILE_W]; TILE_X],
) -> bool {
    if !matches!(dtype, DType::F16 | DType::BF16) {
        return false;
    }
    let (wn, xn) = (w.len() / 2 / width, x.len() / width);
    assert!(width.is_multiple_of(LANES) && (1..=TILE_W).contains(&wn) && (1..=TILE_X).contains(&xn));
    assert!(w.len() == 2 * wn * width && x.len() == xn * width);
    match dtype {
        DType::F16 => f16_tile(isa, w, x, width, out),
        _ => bf16_tile(isa, w, x, width, out),
    }
}

dispatch! {
    fn f16_tile(w: &[u8], x: &[f32], width: usize, out: &mut [[f32; TILE_W]; TILE_X]) -> bool {
        unsupported_tile, simd_tile_f16
    }
}

dispatch! {
    fn bf16_tile(w: &[u8], x: &[f32], width: usize, out: &mut [[f32; TILE_W]; TILE_X]) -> bool {
        unsupported_tile, simd_tile_bf16
    }
}

fn unsupported_tile(_: &[u8], _: &[f32], _: usize, _: &mut [[f32; TILE_W]; TILE_X]) -> bool {
    false
}

/// # Safety
/// The lengths that [`dots`] checks; otherwise the contract of [`Simd`].
#[inline(always)]
unsafe fn simd_tile<S: Simd>(w: &[f32], x: &[f32], width: usize, out: &mut [[f32; TILE_W]; TILE_X]) {
    // SAFETY: the caller upholds the contract.
    unsafe { simd_dots_any::<S, f32>(w.as_ptr(), w.len() / width, x, width, out) }
}

/// # Safety
/// The lengths that [`dots_16bit`] checks; otherwise the contract of [`Simd`].
#[inline(always)]
unsafe fn simd_tile_f16<S: Simd>(
    w: &[u8],
    x: &[f32],
    width: usize,
    out: &mut [[f32; TILE_W]; TILE_X],
) -> bool {
    // SAFETY: the caller upholds the contract.
    unsafe { simd_dots_any::<S, f16>(w.as_ptr().cast(), w.len() / 2 / width, x, width, out) };
    true
}

/// # Safety
/// The lengths that [`dots_16bit`] checks; otherwise the contract of [`Simd`].
#[inline(always)]
unsafe fn simd_tile_bf16<S: Simd>(
    w: &[u8],
    x: &[f32],
    width: usize,
    out: &mut [[f32; TILE_W]; TILE_X],
) -> bool {
    // SAFETY: the caller upholds the contract.
    unsafe { simd_dots_any::<S, bf16>(w.as_ptr().cast(), w.len() / 2 / width, x, width, out) };
    true
}

/// # Safety
/// `wn` rows (1..=4) of `width` elements are readable at `w`, with any alignment, and `x` holds 1..=3 rows; otherwise
/// the contract of [`Simd`].
#[inline(always)]
unsafe fn simd_dots_any<S: Simd, T: Element>(
    w: *const T,
    wn: usize,
    x: &[f32],
    width: usize,
    out: &mut [[f32; TILE_W]; TILE_X],
) {
    let (xn, x) = (x.len() / width, x.as_ptr());
    // SAFETY: the caller upholds the contract.
    unsafe {
        match (wn, xn) {
            (4, 3) => simd_dots::<S, T, 4, 3>(w, x, width, out),
            (4, 2) => simd_dots::<S, T, 4, 2>(w, x, width, out),
            (4, 1) => simd_dots::<S, T, 4, 1>(w, x, width, out),
            _ => {
                for (r, out) in out[..xn].iter_mut().enumerate() {
                    for (i, out) in out[..wn].iter_mut().enumerate() {
                        let mut one = [[0.0; TILE_W]; TILE_X];
                        simd_dots::<S, T, 1, 1>(w.add(i * width), x.add(r * width), width, &mut one);
                        *out = one[0][0];
                    }
                }
            }
        }
    }
}

/// # Safety
/// `W` rows of `width`, a multiple of eight, are readable at `w`, with any alignment, and `X` rows at `x`; otherwise
/// the contract of [`Simd`].
#[inline(always)]
unsafe fn simd_dots<S: Simd, T: Element, const W: usize, const X: usize>(
    w: *const T,
    x: *const f32,
    width: usize,
    out: &mut [[f32; TILE_W]; TILE_X],
) {
    // SAFETY: `width` is a multiple of eight, so elements `k..k + 8` are within each row.
    unsafe {
        let mut acc = [[S::splat(0.0); W]; X];
        for k in (0..width).step_by(LANES) {
            let mut column = [S::splat(0.0); W];
            for (i, column) in column.iter_mut().enumerate() {
                *column = T::load::<S>(w.add(i * width + k));
            }
            for (r, acc) in acc.iter_mut().enumerate() {
                let x = S::load(x.add(r * width + k));
                for i in 0..W {
                    acc[i] = S::fma(column[i], x, acc[i]);
                }
            }
        }
        for r in 0..X {
            for i in 0..W {
                out[r][i] = S::reduce_add(acc[r][i]);
            }
        }
    }
}

/// The portable form of one dot product.
fn dot(w: &[f32], x: &[f32]) -> f32 {
    let mut lanes = [0.0f32; LANES];
    for (w, x) in w.as_chunks::<LANES>().0.iter().zip(x.as_chunks::<LANES>().0) {
        for l in 0..LANES {
            lanes[l] = w[l].mul_add(x[l], lanes[l]);
        }
    }
    add_lanes(lanes)
}

/// Adds eight lanes in the fixed order of this crate.
pub(crate) fn add_lanes(v: [f32; LANES]) -> f32 {
    ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7]))
}

dispatch! {
    /// [`dequantize`] with the instruction set's conversions; the same bits.
    pub(crate) fn decode(dtype: DType, bytes: &[u8], out: &mut [f32]) { portable_decode, simd_decode }
}

fn portable_decode(dtype: DType, bytes: &[u8], out: &mut [f32]) {
    dequantize(dtype, bytes, out).expect("`Matrix::new` checked type and length");
}

/// Decodes the common types. The compiler vectorises the loops with the caller's target features.
///
/// # Safety
/// The contract of [`Simd`].
#[inline(always)]
unsafe fn simd_decode<S: Simd>(dtype: DType, bytes: &[u8], out: &mut [f32]) {
    match dtype {
        // SAFETY: the caller upholds the contract.
        DType::F16 => unsafe { simd_elements::<S, f16>(bytes, out) },
        // SAFETY: the caller upholds the contract.
        DType::BF16 => unsafe { simd_elements::<S, bf16>(bytes, out) },
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
        _ => portable_decode(dtype, bytes, out),
    }
}

#[inline(always)]
fn blocks<B: bytemuck::Pod>(bytes: &[u8], out: &mut [f32], each: impl Fn(&B, &mut [f32; 32])) {
    let blocks: &[B] = bytemuck::cast_slice(bytes);
    for (block, out) in blocks.iter().zip(out.as_chunks_mut::<32>().0) {
        each(block, out);
    }
}

/// # Safety
/// The contract of [`Simd`].
#[inline(always)]
unsafe fn simd_elements<S: Simd, T: Element>(bytes: &[u8], out: &mut [f32]) {
    let (whole, tail) = out.as_chunks_mut::<LANES>();
    let (values, rest) = bytes.split_at(whole.len() * LANES * size_of::<T>());
    for (b, v) in values.chunks_exact(LANES * size_of::<T>()).zip(whole) {
        // SAFETY: reads and writes eight elements.
        unsafe { S::store(v.as_mut_ptr(), T::load::<S>(b.as_ptr().cast())) };
    }
    for (b, v) in rest.chunks_exact(size_of::<T>()).zip(tail) {
        *v = bytemuck::pod_read_unaligned::<T>(b).to_f32();
    }
}

#[cfg(test)]
mod tests {
    use gyrus_tensor::can_dequantize;
    use gyrus_testkit::Rng;

    use super::*;

    #[test]
    fn every_tile_size_is_bit_equal_to_the_portable_dot_product() {
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
    fn decoding_is_bit_equal_to_the_reference() {
        let mut rng = Rng::new(4);
        for &dtype in DType::ALL.iter().filter(|d| can_dequantize(**d)) {
            let elems = if dtype.is_quantized() { 3 * dtype.block_elems() } else { 77 };
            let bytes = rng.bytes(dtype.bytes_of_elems(elems).unwrap());
            let (mut fast, mut portable) = (vec![0.0; elems], vec![0.0; elems]);
            decode(Isa::detect(), dtype, &bytes, &mut fast);
            dequantize(dtype, &bytes, &mut portable).unwrap();
            for (a, b) in fast.iter().zip(&portable) {
                // NaN payloads may differ.
                assert!(a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan(), "{dtype}: {a} {b}");
            }
        }
    }
}
