//! Mixtures of experts: the choice of experts, and the weighted sum of their results.

use gyrus_kernels::RouteWeights;

use crate::exp::exp;
use crate::pool::Pool;
use crate::storage::Disjoint;
use crate::thread_scratch;

/// Chooses `used` experts of each row from the logits of `experts`: `out` is `[rows, 2·used]`, ids and then weights. See
/// [`gyrus_kernels::Op::Route`].
///
/// # Panics
/// If a slice has the wrong length, or more experts are used than there are.
pub(crate) fn route(
    pool: &Pool,
    logits: &[f32],
    experts: usize,
    used: usize,
    weights: RouteWeights,
    scale: Option<&[f32]>,
    out: &mut [f32],
) {
    assert!((1..=experts).contains(&used), "{used} of {experts} experts");
    let rows = logits.len() / experts;
    assert_eq!(out.len(), rows * 2 * used, "routes of {rows} rows");
    assert!(scale.is_none_or(|scale| scale.len() == experts), "a scale for each of {experts} experts");
    let all = Disjoint::new(out);
    pool.run_rows(rows, rows * experts * used, |row| {
        // SAFETY: the buffer is borrowed above, and each task writes its own rows.
        let out = unsafe { all.part(row * 2 * used..(row + 1) * 2 * used) };
        route_row(&logits[row * experts..(row + 1) * experts], weights, scale, out);
    });
}

fn route_row(logits: &[f32], weights: RouteWeights, scale: Option<&[f32]>, out: &mut [f32]) {
    let (ids, chosen) = out.split_at_mut(out.len() / 2);
    if !logits.iter().all(|logit| logit.is_finite()) {
        ids.iter_mut().enumerate().for_each(|(i, id)| *id = i as f32);
        chosen.fill(f32::NAN);
        return;
    }
    let mut last = (f32::INFINITY, usize::MAX);
    for (id, weight) in ids.iter_mut().zip(chosen.iter_mut()) {
        // The first of the largest logits that come after the last chosen one.
        let mut best = (f32::NEG_INFINITY, 0);
        for (expert, &logit) in logits.iter().enumerate() {
            let is_left = logit < last.0 || (logit == last.0 && expert > last.1);
            if is_left && logit > best.0 {
                best = (logit, expert);
            }
        }
        last = best;
        (*id, *weight) = (best.1 as f32, best.0);
    }
    let largest = chosen[0];
    let sum: f32 = match weights {
        RouteWeights::All => logits.iter().map(|logit| exp(logit - largest)).sum(),
        RouteWeights::Chosen => chosen.iter().map(|logit| exp(logit - largest)).sum(),
    };
    for (id, weight) in ids.iter().zip(chosen) {
        *weight = exp(*weight - largest) / sum * scale.map_or(1.0, |scale| scale[*id as usize]);
    }
}

/// The experts of all slots of `routes`, `[rows, 2·used]`.
pub(crate) fn ids(routes: &[f32], used: usize) -> impl Iterator<Item = usize> + Clone + '_ {
    routes.chunks_exact(2 * used).flat_map(move |route| route[..used].iter().map(|id| *id as usize))
}

/// `out[r] (+)= Σ_s weight[r][s]·x[r·used + s]`, in the order of slots, for rows of `n` elements.
///
/// # Panics
/// If a slice has the wrong length.
pub(crate) fn expert_sum(
    pool: &Pool,
    x: &[f32],
    routes: &[f32],
    n: usize,
    accumulate: bool,
    out: &mut [f32],
) {
    let rows = out.len() / n;
    let used = x.len() / n / rows.max(1);
    assert_eq!((x.len(), routes.len()), (rows * used * n, rows * 2 * used), "slots of {rows} rows");
    let all = Disjoint::new(out);
    pool.run_rows(rows, x.len(), |row| {
        // SAFETY: the buffer is borrowed above, and each task writes its own rows.
        let out = unsafe { all.part(row * n..(row + 1) * n) };
        let weights = &routes[(2 * row + 1) * used..(2 * row + 2) * used];
        let slots = x[row * used * n..(row + 1) * used * n].chunks_exact(n);
        thread_scratch::with(n, |sums| {
            sums.fill(0.0);
            for (x, weight) in slots.zip(weights) {
                sums.iter_mut().zip(x).for_each(|(sum, x)| *sum += weight * x);
            }
            match accumulate {
                true => out.iter_mut().zip(&*sums).for_each(|(out, sum)| *out += sum),
                false => out.copy_from_slice(sums),
            }
        });
    });
}

/// `out[r] += sigmoid(gate[r])·x[r]` for rows of `n` elements.
///
/// # Panics
/// If a slice has the wrong length.
pub(crate) fn add_gated(pool: &Pool, x: &[f32], gates: &[f32], n: usize, out: &mut [f32]) {
    assert_eq!((x.len(), out.len()), (gates.len() * n, gates.len() * n), "rows of {n} for each gate");
    let all = Disjoint::new(out);
    pool.run_rows(gates.len(), x.len(), |row| {
        let factor = 1.0 / (1.0 + exp(-gates[row]));
        // SAFETY: the buffer is borrowed above, and each task writes its own rows.
        let out = unsafe { all.part(row * n..(row + 1) * n) };
        out.iter_mut().zip(&x[row * n..(row + 1) * n]).for_each(|(out, x)| *out += factor * x);
    });
}

#[cfg(test)]
mod tests {
    use gyrus_kernels::scalar;
    use gyrus_testkit::Rng;

    use super::*;
    use crate::Isa;

    fn noise(rng: &mut Rng, n: usize) -> Vec<f32> {
        (0..n).map(|_| 2.0 * rng.gaussian() as f32).collect()
    }

    fn pools() -> impl Iterator<Item = Pool> {
        [1, 3].into_iter().flat_map(|n| Isa::supported().map(move |isa| Pool::with_isa(n, isa)))
    }

    #[test]
    fn routes_are_those_of_the_twin() {
        let mut rng = Rng::new(31);
        for (experts, used) in [(1, 1), (4, 2), (8, 8), (16, 4), (128, 8), (200, 3)] {
            for weights in [RouteWeights::All, RouteWeights::Chosen] {
                let rows = 9;
                let mut logits = noise(&mut rng, rows * experts);
                // Equal logits, and one that is not finite.
                logits[..experts].fill(0.5);
                logits[experts..2 * experts].iter_mut().for_each(|logit| *logit = logit.round());
                logits[3 * experts - 1] = f32::NAN;
                let scale = noise(&mut rng, experts);
                for scale in [None, Some(&scale[..])] {
                    let mut expected = vec![0.0; rows * 2 * used];
                    let each = logits.chunks_exact(experts).zip(expected.chunks_exact_mut(2 * used));
                    each.for_each(|(logits, out)| scalar::route(logits, used, weights, scale, out));
                    let mut first: Option<Vec<u32>> = None;
                    for pool in pools() {
                        let mut out = vec![9.0; expected.len()];
                        route(&pool, &logits, experts, used, weights, scale, &mut out);
                        for (row, (out, expected)) in
                            out.chunks_exact(2 * used).zip(expected.chunks_exact(2 * used)).enumerate()
                        {
                            assert_eq!(out[..used], expected[..used], "{experts} experts, row {row}");
                            for (a, b) in out[used..].iter().zip(&expected[used..]) {
                                let near = (a - b).abs() <= 2e-6 * b.abs().max(1e-3);
                                assert!(near || (a.is_nan() && b.is_nan()), "row {row}: {a} {b}");
                            }
                        }
                        let bits: Vec<u32> = out.iter().map(|v| v.to_bits()).collect();
                        assert_eq!(*first.get_or_insert_with(|| bits.clone()), bits);
                    }
                }
            }
        }
    }

    #[test]
    fn sums_and_gated_results_are_those_of_the_twins() {
        let mut rng = Rng::new(32);
        for (rows, used, n) in [(1, 1, 5), (1, 4, 1024), (3, 8, 100), (70, 2, 384)] {
            let (x, start) = (noise(&mut rng, rows * used * n), noise(&mut rng, rows * n));
            let routes = noise(&mut rng, rows * 2 * used);
            let gates = noise(&mut rng, rows);
            for accumulate in [false, true] {
                let mut expected = start.clone();
                for (row, out) in expected.chunks_exact_mut(n).enumerate() {
                    let route = &routes[row * 2 * used..(row + 1) * 2 * used];
                    scalar::expert_sum(&x[row * used * n..][..used * n], route, accumulate, out);
                }
                for pool in pools() {
                    let mut out = start.clone();
                    expert_sum(&pool, &x, &routes, n, accumulate, &mut out);
                    assert!(out == expected, "{rows} rows of {used} × {n}");
                }
            }
            let mut expected = start.clone();
            for ((row, out), gate) in expected.chunks_exact_mut(n).enumerate().zip(&gates) {
                scalar::add_gated(&x[row * n..(row + 1) * n], *gate, out);
            }
            for pool in pools() {
                let mut out = start.clone();
                add_gated(&pool, &x[..rows * n], &gates, n, &mut out);
                let far = gyrus_testkit::distance(&out, &expected);
                assert!(far < 1e-5, "{rows} × {n}: {far}");
            }
        }
    }
}
