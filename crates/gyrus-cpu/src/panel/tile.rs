//! The product of a panel with a few rows of activations: the portable form, and the form that all SIMD
//! kernels share except for their integer dot products.

use super::loads::Loads;
use super::quant_layout::QuantLayout;
use super::scale_layout::ScaleLayout;
use super::source::Source;
use super::{LANES, TILE, body_bytes, group_bytes, subs};
use crate::quantize_rows::{GROUP, QBlock};
use crate::simd::Registers;

/// One row's block of 32 along `k`: `v = scale·(q − zero) + offset`, with a scale and an offset for each 16
/// elements.
struct Lane {
    q: [u8; GROUP],
    zero: u8,
    scale: [f32; 2],
    offset: [f32; 2],
}

/// Unpacks row `row` from body `sub` of a group.
fn lane<F: Source>(group: &[u8], sub: usize, row: usize) -> Lane {
    let (header, bodies) = group.split_at(F::ScaleLayout::HEADER);
    let (quants, scales) = bodies[sub * body_bytes::<F>()..].split_at(F::QuantLayout::BYTES);
    let (scale, offset) = F::ScaleLayout::unpack(header, scales, row);
    let zero = if F::ScaleLayout::OFFSET { 0 } else { F::QuantLayout::ZERO_POINT as u8 };
    Lane { q: F::QuantLayout::unpack(quants, row), zero, scale, offset }
}

/// The values of one row of a panel, bit-equal to the source blocks.
pub(super) fn dequantize_row<F: Source>(panel: &[u8], row: usize, out: &mut [f32]) {
    let values = out.chunks_exact_mut(F::DTYPE.block_elems());
    for (group, out) in panel.chunks_exact(group_bytes::<F>()).zip(values) {
        for (sub, out) in out.chunks_exact_mut(GROUP).enumerate() {
            let lane = lane::<F>(group, sub, row);
            for (k, v) in out.iter_mut().enumerate() {
                *v = lane.scale[k / 16] * (f32::from(lane.q[k]) - f32::from(lane.zero));
                if F::ScaleLayout::OFFSET {
                    *v += lane.offset[k / 16];
                }
            }
        }
    }
}

/// The portable form of [`super::Tile`]. It is `unsafe` only to have that type; it has no
/// safety requirements.
pub(super) unsafe fn portable<F: Source>(
    panel: &[u8],
    x: &[QBlock],
    rows: usize,
    out: &mut [[f32; LANES]; TILE],
) {
    let blocks = panel.len() / group_bytes::<F>() * subs::<F>();
    let mut acc = [[0.0f32; LANES]; TILE];
    for (g, group) in panel.chunks_exact(group_bytes::<F>()).enumerate() {
        for sub in 0..subs::<F>() {
            for row in 0..LANES {
                let lane = lane::<F>(group, sub, row);
                for (r, acc) in acc[..rows].iter_mut().enumerate() {
                    let x = &x[r * blocks + g * subs::<F>() + sub];
                    acc[row] = lane.accumulate::<F::ScaleLayout>(x, acc[row]);
                }
            }
        }
    }
    out[..rows].copy_from_slice(&acc[..rows]);
}

impl Lane {
    /// Adds this block's product with `x` to a row's sum. Every kernel performs these operations in this order.
    fn accumulate<L: ScaleLayout>(&self, x: &QBlock, acc: f32) -> f32 {
        let dot = |range: std::ops::Range<usize>| -> i32 {
            range.map(|k| (i32::from(self.q[k]) - i32::from(self.zero)) * i32::from(x.qs[k])).sum()
        };
        let mut acc = acc;
        if L::PER_16 {
            acc = (dot(0..16) as f32).mul_add(self.scale[0] * x.scale, acc);
            acc = (dot(16..32) as f32).mul_add(self.scale[1] * x.scale, acc);
        } else {
            acc = (dot(0..32) as f32).mul_add(self.scale[0] * x.scale, acc);
        }
        if L::OFFSET && L::PER_16 {
            let last_sum = x.minus8_sum / -8 - x.first_sum;
            acc = self.offset[0].mul_add(x.scale * x.first_sum as f32, acc);
            acc = self.offset[1].mul_add(x.scale * last_sum as f32, acc);
        } else if L::OFFSET {
            acc = self.offset[0].mul_add(x.scaled_sum, acc);
        }
        acc
    }
}

/// The int8 dot products of an instruction set, in addition to [`Loads`].
pub(super) trait Kernel {
    type Simd: Loads;

    /// Whether [`Kernel::dots`] reads 8-bit quants as signed, with their zero point already subtracted.
    const SIGNED: bool;

    /// `Σ q·x` of a block for the weight rows of all lanes with each of `M` activation rows: over the first and the
    /// last 16 elements if the scale layout is `PER_16`, otherwise over all 32, in the first of the two sums.
    ///
    /// # Safety
    /// `body` points to `C::BYTES` readable bytes and each of `x` to a block; otherwise the contract of [`Loads`].
    unsafe fn dots<C: QuantLayout, L: ScaleLayout, const M: usize>(
        body: Place<Self>,
        x: [*const QBlock; M],
    ) -> [[Ints<Self>; 2]; M];

    /// Prefetches the cache line `distance` bytes from `p`, which need not be readable.
    fn prefetch(p: Place<Self>, distance: usize);
}

pub(super) type Place<K> = <<K as Kernel>::Simd as Loads>::Place;
type Floats<K> = <<K as Kernel>::Simd as Registers>::F;
type Ints<K> = <<K as Kernel>::Simd as Registers>::I;

/// The prefetch distance of weights, in bytes. It may reach into the next panel.
const PREFETCH_BYTES: usize = 4096;

/// Multiplies the panels at `panel`, of `groups` groups each, with `M` rows of activations.
///
/// # Safety
/// The panels hold `groups` groups of `F`, `x` holds `M` rows of as many blocks, and a row of `out` has all lanes; otherwise
/// the contract of [`super::Tile`]. The caller enables the kernel's target features.
#[inline(always)]
pub(super) unsafe fn multiply_panel<K: Kernel, F: Source, const M: usize, const N: usize>(
    panel: Place<K>,
    groups: usize,
    x: &[QBlock],
    out: &mut [[f32; N]],
) {
    let stride = groups * subs::<F>();
    debug_assert_eq!(x.len(), stride * M);
    // SAFETY: the caller upholds the contract.
    unsafe {
        let mut acc = [K::Simd::splat(0.0); M];
        let mut group = panel;
        let mut at = [x.as_ptr(); M];
        for (r, at) in at.iter_mut().enumerate() {
            *at = x.as_ptr().add(r * stride);
        }
        for _ in 0..groups {
            if M == 1 {
                // A matrix-vector product is bound by memory bandwidth.
                for line in (0..group_bytes::<F>()).step_by(64) {
                    K::prefetch(group, PREFETCH_BYTES + line);
                }
            }
            let header = F::ScaleLayout::header::<K::Simd>(group);
            for sub in 0..subs::<F>() {
                let body = K::Simd::skip(group, F::ScaleLayout::HEADER + sub * body_bytes::<F>());
                let scales = K::Simd::skip(body, F::QuantLayout::BYTES);
                let (scale, offset) = F::ScaleLayout::scales::<K::Simd>(header, scales);
                let dots = K::dots::<F::QuantLayout, F::ScaleLayout, M>(body, at);
                add::<K, F::QuantLayout, F::ScaleLayout, M>(scale, offset, at, dots, &mut acc);
                for at in &mut at {
                    *at = at.add(1);
                }
            }
            group = K::Simd::skip(group, group_bytes::<F>());
        }
        for r in 0..M {
            K::Simd::put(out[r].as_mut_ptr(), acc[r]);
        }
    }
}

/// The SIMD form of [`Lane::accumulate`], the only place that rounds.
///
/// # Safety
/// Each of `x` points to a block; otherwise the contract of [`Loads`].
#[inline(always)]
unsafe fn add<K: Kernel, C: QuantLayout, L: ScaleLayout, const M: usize>(
    scale: [Floats<K>; 2],
    offset: [Floats<K>; 2],
    x: [*const QBlock; M],
    dots: [[Ints<K>; 2]; M],
    acc: &mut [Floats<K>; M],
) {
    // Unsigned quants without an offset need `zero_point · Σx` subtracted.
    let centre = !(L::OFFSET || K::SIGNED && C::MAX > 127);
    let zero_shift = C::ZERO_POINT.trailing_zeros() as i32;
    // SAFETY: the caller upholds the contract.
    unsafe {
        for r in 0..M {
            let x = &*x[r];
            let x_scale = K::Simd::splat(x.scale);
            let [mut first, mut last] = dots[r];
            if centre {
                // −8·Σx, shifted to −zero_point·Σx.
                let all = K::Simd::scale_i(K::Simd::splat_i(x.minus8_sum), zero_shift - 3);
                if L::PER_16 {
                    let zero = K::Simd::scale_i(K::Simd::splat_i(x.first_sum), zero_shift);
                    first = K::Simd::sub_i(first, zero);
                    last = K::Simd::add_i(last, K::Simd::add_i(all, zero));
                } else {
                    first = K::Simd::add_i(first, all);
                }
            }
            if L::OFFSET && K::SIGNED && C::MAX > 127 {
                // The kernel has subtracted 128·Σx, which is −16 times −8·Σx.
                first = K::Simd::sub_i(first, K::Simd::scale_i(K::Simd::splat_i(x.minus8_sum), 4));
            }
            let mut sum = acc[r];
            sum = K::Simd::fma(K::Simd::to_f(first), K::Simd::mul(scale[0], x_scale), sum);
            if L::PER_16 {
                sum = K::Simd::fma(K::Simd::to_f(last), K::Simd::mul(scale[1], x_scale), sum);
            }
            if L::OFFSET && L::PER_16 {
                let last_sum = x.minus8_sum / -8 - x.first_sum;
                let first_sum = K::Simd::splat(x.scale * x.first_sum as f32);
                sum = K::Simd::fma(offset[0], first_sum, sum);
                sum = K::Simd::fma(offset[1], K::Simd::splat(x.scale * last_sum as f32), sum);
            } else if L::OFFSET {
                sum = K::Simd::fma(offset[0], K::Simd::splat(x.scaled_sum), sum);
            }
            acc[r] = sum;
        }
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use std::arch::x86_64::*;

    use gyrus_tensor::block::*;
    use gyrus_testkit::Rng;

    use super::*;
    use crate::simd::Avx2;

    /// Reads 8-bit quants as signed, like the kernels for ARM.
    struct Signed;

    impl Kernel for Signed {
        type Simd = Avx2;
        const SIGNED: bool = true;

        unsafe fn dots<C: QuantLayout, L: ScaleLayout, const M: usize>(
            body: *const u8,
            x: [*const QBlock; M],
        ) -> [[__m256i; 2]; M] {
            // SAFETY: the caller upholds the contract.
            let body = unsafe { std::slice::from_raw_parts(body, C::BYTES) };
            let zero = if C::MAX > 127 { 128 } else { 0 };
            x.map(|x| {
                let mut sums = [[0; LANES]; 2];
                #[allow(clippy::needless_range_loop, reason = "a row of two arrays of sums")]
                for row in 0..LANES {
                    for (k, q) in C::unpack(body, row).into_iter().enumerate() {
                        // SAFETY: the caller upholds the contract.
                        let x = i32::from(unsafe { (&*x).qs[k] });
                        sums[if L::PER_16 { k / 16 } else { 0 }][row] += (i32::from(q) - zero) * x;
                    }
                }
                // SAFETY: eight `i32` are a vector.
                sums.map(|sums| unsafe { _mm256_loadu_si256(sums.as_ptr().cast()) })
            })
        }

        fn prefetch(_: *const u8, _: usize) {}
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn signed<F: Source>(panel: &[u8], x: &[QBlock], out: &mut [[f32; LANES]]) {
        // SAFETY: the caller upholds the contract.
        unsafe {
            multiply_panel::<Signed, F, 2, LANES>(panel.as_ptr(), panel.len() / group_bytes::<F>(), x, out)
        }
    }

    fn compare<F: Source>() {
        let mut rng = Rng::new(5);
        let mut panel = vec![0; 3 * group_bytes::<F>()];
        for group in panel.chunks_exact_mut(group_bytes::<F>()) {
            for row in 0..LANES {
                let mut block = rng.bytes(size_of::<F>());
                // Scales and offsets that are finite in f16, in bf16 and as exponents.
                block[..4].copy_from_slice(&[rng.below(200) as u8, 0x2c, rng.below(256) as u8, 0xad]);
                super::super::pack::<F>(&block, row, group);
            }
        }
        let values: Vec<f32> = (0..6 * GROUP).map(|_| rng.gaussian() as f32).collect();
        let mut x = vec![QBlock::default(); 6];
        crate::quantize_row(crate::Isa::detect(), &values, &mut x);
        let (mut found, mut expected) = ([[0.0; LANES]; TILE], [[0.0; LANES]; TILE]);
        // SAFETY: the caller has checked the instructions; the panel has three groups and `x` two rows of three blocks.
        unsafe {
            signed::<F>(&panel, &x, &mut found);
            portable::<F>(&panel, &x, 2, &mut expected);
        }
        assert!(expected[1][7] != 0.0);
        assert_eq!(found, expected, "{}", F::DTYPE);
    }

    #[test]
    fn kernels_of_signed_quants_give_the_bits_of_the_portable_form() {
        if !(is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma")) {
            return;
        }
        compare::<BlockQ4_1>();
        compare::<BlockQ8_0>();
        compare::<BlockIq4Nl>();
        compare::<BlockMxfp4>();
        compare::<BlockAffine<12, true>>();
        compare::<BlockAffine<32, true>>();
        compare::<BlockAffine<32, false>>();
    }
}
