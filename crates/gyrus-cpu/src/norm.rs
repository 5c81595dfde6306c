//! Root-mean-square normalisation.
//!
//! Squares are summed in 32 lanes: element `k` goes to lane `k mod 32`, in ascending order, by fused
//! multiply-add. Then lanes `l` and `l + 16` are added, then `l` and `l + 8`, and the last eight as in
//! [`add_lanes`].

use crate::f32_dot::add_lanes;
use crate::isa::Isa;
use crate::pool::Pool;
use crate::simd::{LANES, Simd, dispatch};
use crate::storage::Disjoint;

const SUMS: usize = 32;

/// `out = x / √(mean(x²) + eps) · weight` for each row of `x` and `out` (`[m, k]`), `weight` being `[k]`.
///
/// For a norm per head of contiguous heads, `k` is `head_dim`.
///
/// # Panics
/// If `x` is not whole rows of `weight.len()` elements, or `out` has another length.
pub fn rms_norm(pool: &Pool, x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    let k = weight.len();
    assert!(k > 0 && x.len().is_multiple_of(k), "{} elements are not rows of {k}", x.len());
    assert_eq!(x.len(), out.len());
    let m = x.len() / k;
    let parts = Disjoint::new(out);
    pool.run_rows(m, x.len(), |row| {
        let x = &x[row * k..(row + 1) * k];
        // SAFETY: each task writes its own rows only.
        let out = unsafe { parts.part(row * k..(row + 1) * k) };
        let factor = factor(pool.isa(), x, eps);
        for ((out, x), w) in out.iter_mut().zip(x).zip(weight) {
            *out = x * factor * w;
        }
    });
}

/// [`rms_norm`] in place over `heads` heads of `weight.len()` elements, which start at `offset` in each row
/// of `x` (`[m, stride]`): the query and key norms of a fused QKV projection.
///
/// # Panics
/// If the heads exceed a row.
pub(crate) fn rms_norm_heads(
    pool: &Pool,
    x: &mut [f32],
    stride: usize,
    offset: usize,
    heads: usize,
    weight: &[f32],
    eps: f32,
) {
    let k = weight.len();
    assert!(stride > 0 && x.len().is_multiple_of(stride), "{} elements are not rows of {stride}", x.len());
    assert!(k > 0 && offset + heads * k <= stride, "{heads} heads of {k} from {offset} in rows of {stride}");
    let m = x.len() / stride;
    let parts = Disjoint::new(x);
    pool.run_rows(m, m * heads * k, |row| {
        let first = row * stride + offset;
        // SAFETY: each task writes its own rows only.
        let row = unsafe { parts.part(first..first + heads * k) };
        for head in row.chunks_exact_mut(k) {
            let factor = factor(pool.isa(), head, eps);
            head.iter_mut().zip(weight).for_each(|(v, w)| *v = *v * factor * w);
        }
    });
}

fn factor(isa: Isa, x: &[f32], eps: f32) -> f32 {
    1.0 / (squares(isa, x) / x.len() as f32 + eps).sqrt()
}

dispatch! {
    /// The sum of squares.
    pub(crate) fn squares(x: &[f32]) -> f32 { sum_of_squares, simd_sum_of_squares }
}

#[inline(always)]
fn sum_of_squares(x: &[f32]) -> f32 {
    let mut sums = [0.0f32; SUMS];
    let (whole, tail) = x.as_chunks::<SUMS>();
    for x in whole {
        for (sum, x) in sums.iter_mut().zip(x) {
            *sum = x.mul_add(*x, *sum);
        }
    }
    for (sum, x) in sums.iter_mut().zip(tail) {
        *sum = x.mul_add(*x, *sum);
    }
    let half: [f32; 16] = std::array::from_fn(|l| sums[l] + sums[l + 16]);
    add_lanes(std::array::from_fn::<_, LANES, _>(|l| half[l] + half[l + 8]))
}

/// The portable source. With the target features the compiler vectorises it and fuses `mul_add`.
///
/// # Safety
/// The contract of [`Simd`].
#[inline(always)]
unsafe fn simd_sum_of_squares<S: Simd>(x: &[f32]) -> f32 {
    sum_of_squares(x)
}

#[cfg(test)]
mod tests {
    use gyrus_testkit::Rng;

    use super::*;

    #[test]
    fn rms_norm_matches_f64_and_is_bit_equal_on_any_thread_count() {
        let mut rng = Rng::new(6);
        for k in [1, 5, 8, 31, 64, 576, 2048] {
            for m in [1, 2, 40] {
                let x: Vec<f32> = (0..m * k).map(|_| 3.0 * rng.gaussian() as f32).collect();
                let w: Vec<f32> = (0..k).map(|_| rng.gaussian() as f32).collect();
                let run = |pool: &Pool| {
                    let mut out = vec![f32::NAN; m * k];
                    rms_norm(pool, &x, &w, 1e-5, &mut out);
                    out
                };
                let portable = run(&Pool::with_isa(1, Isa::PORTABLE));
                for (x, out) in x.chunks_exact(k).zip(portable.chunks_exact(k)) {
                    let mean = x.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>() / k as f64;
                    for i in 0..k {
                        let want = f64::from(x[i]) / (mean + 1e-5).sqrt() * f64::from(w[i]);
                        assert!((f64::from(out[i]) - want).abs() <= 1e-6 * want.abs().max(1e-3));
                    }
                }
                for threads in 1..=3 {
                    assert_eq!(run(&Pool::new(threads)), portable, "{m}×{k}");
                }
                let mut wide = vec![7.0; m * (2 * k + 3)];
                for (wide, x) in wide.chunks_exact_mut(2 * k + 3).zip(x.chunks_exact(k)) {
                    wide[1..1 + k].copy_from_slice(x);
                    wide[1 + k..1 + 2 * k].copy_from_slice(x);
                }
                rms_norm_heads(&Pool::new(2), &mut wide, 2 * k + 3, 1, 2, &w, 1e-5);
                for (wide, out) in wide.chunks_exact(2 * k + 3).zip(portable.chunks_exact(k)) {
                    assert_eq!((&wide[1..1 + k], &wide[1 + k..1 + 2 * k]), (out, out));
                    assert_eq!((wide[0], wide[2 * k + 1]), (7.0, 7.0));
                }
            }
        }
    }
}
