//! Ops on each element of a buffer: bias, residual, factor, soft cap.
//!
//! Each loop performs the operations of its scalar twin in the same order, so results are bit-equal on every
//! instruction set and number of threads.

use crate::exp::{exp, exp_lanes};
use crate::pool::Pool;
use crate::simd::{LANES, Registers, Simd, dispatch};
use crate::storage::Disjoint;

/// Elements of a task.
const PART: usize = 4096;

/// Calls `body` with the index of each part of `out`'s elements and the part.
pub(crate) fn parts(pool: &Pool, out: &mut [f32], body: impl Fn(usize, &mut [f32]) + Sync) {
    let len = out.len();
    let all = Disjoint::new(out);
    pool.run_rows(len.div_ceil(PART), len, |part| {
        let first = part * PART;
        // SAFETY: the buffer is borrowed above, and each task writes its own part.
        body(first, unsafe { all.part(first..len.min(first + PART)) });
    });
}

/// `x[r][first + i] += bias[i]` for each row of `width` elements.
///
/// # Panics
/// If the bias exceeds a row.
pub(crate) fn add_bias(pool: &Pool, x: &mut [f32], width: usize, first: usize, bias: &[f32]) {
    assert!(first + bias.len() <= width, "a bias of {} from {first} in rows of {width}", bias.len());
    let (rows, all) = (x.len() / width, Disjoint::new(x));
    pool.run_rows(rows, rows * bias.len(), |row| {
        let first = row * width + first;
        // SAFETY: the buffer is borrowed above, and each task writes its own rows.
        let columns = unsafe { all.part(first..first + bias.len()) };
        columns.iter_mut().zip(bias).for_each(|(x, b)| *x += b);
    });
}

/// `out += scale · x`.
pub(crate) fn add_scaled(pool: &Pool, x: &[f32], scale: f32, out: &mut [f32]) {
    parts(pool, out, |first, out| {
        let x = &x[first..first + out.len()];
        out.iter_mut().zip(x).for_each(|(out, x)| *out += scale * x);
    });
}

/// `x *= factor`.
pub(crate) fn scale(pool: &Pool, x: &mut [f32], factor: f32) {
    parts(pool, x, |_, x| x.iter_mut().for_each(|x| *x *= factor));
}

/// `x = cap · tanh(x / cap)`.
pub(crate) fn soft_cap(pool: &Pool, x: &mut [f32], cap: f32) {
    parts(pool, x, |_, x| soft_cap_part(pool.isa(), x, cap));
}

/// The soft cap of one element. The SIMD form repeats these operations.
#[inline(always)]
pub(crate) fn capped(x: f32, cap: f32) -> f32 {
    // tanh(u) = 1 − 2 / (e²ᵘ + 1)
    cap * (1.0 - 2.0 / (exp(x * (2.0 / cap)) + 1.0))
}

/// [`capped`] of each lane.
///
/// # Safety
/// The contract of [`Registers`].
#[inline(always)]
pub(crate) unsafe fn capped_lanes<S: Registers>(x: S::F, cap: f32) -> S::F {
    // SAFETY: the caller upholds the contract.
    unsafe {
        let e = exp_lanes::<S>(S::mul(x, S::splat(2.0 / cap)));
        let quotient = S::div(S::splat(2.0), S::add(e, S::splat(1.0)));
        S::mul(S::splat(cap), S::sub(S::splat(1.0), quotient))
    }
}

dispatch! {
    fn soft_cap_part(x: &mut [f32], cap: f32) { portable_soft_cap, simd_soft_cap }
}

fn portable_soft_cap(x: &mut [f32], cap: f32) {
    x.iter_mut().for_each(|x| *x = capped(*x, cap));
}

/// # Safety
/// The contract of [`Simd`].
#[inline(always)]
unsafe fn simd_soft_cap<S: Simd>(x: &mut [f32], cap: f32) {
    let (x, tail) = x.as_chunks_mut::<LANES>();
    for x in x {
        // SAFETY: reads and writes eight elements.
        unsafe { S::store(x.as_mut_ptr(), capped_lanes::<S>(S::load(x.as_ptr()), cap)) };
    }
    portable_soft_cap(tail, cap);
}

#[cfg(test)]
mod tests {
    use gyrus_testkit::Rng;

    use super::*;
    use crate::Isa;

    fn noise(n: usize, seed: u64) -> Vec<f32> {
        let mut rng = Rng::new(seed);
        (0..n).map(|_| 20.0 * rng.gaussian() as f32).collect()
    }

    #[test]
    fn the_soft_cap_is_a_hyperbolic_tangent() {
        for cap in [1.0f32, 30.0, 50.0] {
            for n in [1, 7, 8, 4096, 4099, 20_000] {
                let x = noise(n, n as u64);
                let mut portable = x.clone();
                portable_soft_cap(&mut portable, cap);
                for (x, y) in x.iter().zip(&portable) {
                    let want = f64::from(cap) * (f64::from(*x) / f64::from(cap)).tanh();
                    assert!((f64::from(*y) - want).abs() <= 3e-7 * f64::from(cap), "{cap}: {x} {y} {want}");
                }
                for threads in 1..=3 {
                    let mut y = x.clone();
                    soft_cap(&Pool::with_isa(threads, Isa::detect()), &mut y, cap);
                    assert_eq!(y, portable);
                }
            }
        }
        let mut edges = [f32::INFINITY, f32::NEG_INFINITY, 1e30, -1e30, f32::NAN];
        soft_cap(&Pool::new(1), &mut edges, 30.0);
        assert_eq!(edges[..4], [30.0, -30.0, 30.0, -30.0]);
        assert!(edges[4].is_nan());
    }

    #[test]
    fn every_element_is_reached_once() {
        for (rows, width) in [(1, 5), (3, 4096), (40, 300), (2, 9000)] {
            let x = noise(rows * width, 3);
            for threads in 1..=3 {
                let pool = Pool::new(threads);
                let bias = noise(width / 2, 4);
                let first = width - bias.len();
                let mut y = x.clone();
                add_bias(&pool, &mut y, width, first, &bias);
                for (i, (x, y)) in x.iter().zip(&y).enumerate() {
                    let column = i % width;
                    let want = if column < first { *x } else { x + bias[column - first] };
                    assert_eq!(*y, want);
                }
                let mut y = x.clone();
                add_scaled(&pool, &x, 0.5, &mut y);
                scale(&pool, &mut y, 2.0);
                assert!(x.iter().zip(&y).all(|(x, y)| *y == (x + 0.5 * x) * 2.0));
            }
        }
    }
}
