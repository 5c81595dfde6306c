//! Layer normalisation.
//!
//! Both sums, of elements and of squared differences from their mean, have the order of [`crate::norm`]: 32 lanes.

use crate::f32_dot::add_lanes;
use crate::pool::Pool;
use crate::simd::{LANES, Simd, dispatch};
use crate::storage::Disjoint;

const SUMS: usize = 32;

/// `x = (x − mean(x)) / √(variance(x) + eps) · weight + bias` for each row of `x` (`[m, k]`), in place. `weight` is `[k]`,
/// `bias` too, or empty.
///
/// # Panics
/// If `x` is not whole rows of `weight.len()` elements, or the bias has another length.
pub(crate) fn layer_norm(pool: &Pool, x: &mut [f32], weight: &[f32], bias: &[f32], eps: f32) {
    let (k, elems) = (weight.len(), x.len());
    assert!(k > 0 && elems.is_multiple_of(k), "{elems} elements are not rows of {k}");
    assert!(bias.is_empty() || bias.len() == k, "a bias of {} for a weight of {k}", bias.len());
    let parts = Disjoint::new(x);
    pool.run_rows(elems / k, elems, |row| {
        // SAFETY: the buffer is borrowed above, and each task writes its own rows.
        normalize(pool.isa(), unsafe { parts.part(row * k..(row + 1) * k) }, weight, bias, eps);
    });
}

/// [`layer_norm`] of `x` into `out`.
pub(crate) fn layer_norm_to(pool: &Pool, x: &[f32], weight: &[f32], bias: &[f32], eps: f32, out: &mut [f32]) {
    let (k, elems) = (weight.len(), x.len());
    assert!(k > 0 && elems.is_multiple_of(k), "{elems} elements are not rows of {k}");
    assert!(bias.is_empty() || bias.len() == k, "a bias of {} for a weight of {k}", bias.len());
    assert_eq!(elems, out.len());
    let parts = Disjoint::new(out);
    pool.run_rows(elems / k, elems, |row| {
        // SAFETY: the buffer is borrowed above, and each task writes its own rows.
        let out = unsafe { parts.part(row * k..(row + 1) * k) };
        out.copy_from_slice(&x[row * k..(row + 1) * k]);
        normalize(pool.isa(), out, weight, bias, eps);
    });
}

dispatch! {
    fn normalize(x: &mut [f32], weight: &[f32], bias: &[f32], eps: f32) { portable_normalize, simd_normalize }
}

#[inline(always)]
fn portable_normalize(x: &mut [f32], weight: &[f32], bias: &[f32], eps: f32) {
    let count = x.len() as f32;
    let mean = sum_of(x, |sum, x| sum + x) / count;
    let variance = sum_of(x, |sum, x| (x - mean).mul_add(x - mean, sum)) / count;
    let factor = 1.0 / (variance + eps).sqrt();
    x.iter_mut().zip(weight).for_each(|(x, w)| *x = (*x - mean) * factor * w);
    x.iter_mut().zip(bias).for_each(|(x, b)| *x += b);
}

/// Adds each element to its lane, and then the lanes.
#[inline(always)]
fn sum_of(x: &[f32], add: impl Fn(f32, f32) -> f32) -> f32 {
    let mut sums = [0.0f32; SUMS];
    let (whole, tail) = x.as_chunks::<SUMS>();
    for x in whole {
        for (sum, x) in sums.iter_mut().zip(x) {
            *sum = add(*sum, *x);
        }
    }
    for (sum, x) in sums.iter_mut().zip(tail) {
        *sum = add(*sum, *x);
    }
    let half: [f32; 16] = std::array::from_fn(|l| sums[l] + sums[l + 16]);
    add_lanes(std::array::from_fn::<_, LANES, _>(|l| half[l] + half[l + 8]))
}

/// The portable source. With the target features the compiler vectorises it and fuses `mul_add`.
///
/// # Safety
/// The contract of [`Simd`].
#[inline(always)]
unsafe fn simd_normalize<S: Simd>(x: &mut [f32], weight: &[f32], bias: &[f32], eps: f32) {
    portable_normalize(x, weight, bias, eps);
}

#[cfg(test)]
mod tests {
    use gyrus_kernels::call::Norm;
    use gyrus_kernels::scalar;
    use gyrus_testkit::Rng;

    use super::*;
    use crate::isa::Isa;

    #[test]
    fn layer_norm_matches_its_twin_and_is_bit_equal_on_any_thread_count() {
        let mut rng = Rng::new(16);
        for k in [1, 5, 8, 31, 64, 384, 1280] {
            for m in [1, 2, 40] {
                for with_bias in [false, true] {
                    let mut random =
                        |n: usize| (0..n).map(|_| 1.5 + 3.0 * rng.gaussian() as f32).collect::<Vec<_>>();
                    let (x, w, all) = (random(m * k), random(k), random(k));
                    let bias = if with_bias { &all[..] } else { &[] };
                    let run = |pool: &Pool| {
                        let mut out = vec![f32::NAN; m * k];
                        layer_norm_to(pool, &x, &w, bias, 1e-5, &mut out);
                        let mut in_place = x.clone();
                        layer_norm(pool, &mut in_place, &w, bias, 1e-5);
                        assert_eq!(in_place, out);
                        out
                    };
                    let portable = run(&Pool::with_isa(1, Isa::PORTABLE));
                    for (x, out) in x.chunks_exact(k).zip(portable.chunks_exact(k)) {
                        let mut want = vec![0.0; k];
                        scalar::norm(Norm::Layer { bias: with_bias }, x, &w, bias, 1e-5, &mut want);
                        for (out, want) in out.iter().zip(&want) {
                            assert!(
                                (out - want).abs() <= 4e-5 * want.abs().max(1.0),
                                "{m}×{k}: {out} {want}"
                            );
                        }
                    }
                    for threads in 1..=3 {
                        assert_eq!(run(&Pool::new(threads)), portable, "{m}×{k}");
                    }
                }
            }
        }
    }
}
