use crate::op::RouteWeights;

/// The experts of one row from its router logits: `out` is `[2·used]`, ids and then weights. `scale` has a factor for each
/// expert's weight. See [`crate::Op::Route`].
pub fn route(logits: &[f32], used: usize, weights: RouteWeights, scale: Option<&[f32]>, out: &mut [f32]) {
    let (ids, chosen) = out.split_at_mut(used);
    let mut order: Vec<usize> = (0..logits.len()).collect();
    if !logits.iter().all(|logit| logit.is_finite()) {
        ids.iter_mut().zip(order).for_each(|(id, expert)| *id = expert as f32);
        chosen.fill(f32::NAN);
        return;
    }
    // The sort is stable, so equal logits are in the order of ids. Zeros of either sign are equal.
    order.sort_by(|&a, &b| (logits[b] + 0.0).total_cmp(&(logits[a] + 0.0)));
    let e = |expert: &usize| (f64::from(logits[*expert]) - f64::from(logits[order[0]])).exp();
    let sum: f64 = match weights {
        RouteWeights::All => order.iter().map(e).sum(),
        RouteWeights::Chosen => order[..used].iter().map(e).sum(),
    };
    for ((id, weight), expert) in ids.iter_mut().zip(chosen).zip(&order) {
        *id = *expert as f32;
        let scale = scale.map_or(1.0, |scale| f64::from(scale[*expert]));
        *weight = (e(expert) / sum * scale) as f32;
    }
}

/// The experts of a row that [`route`] left.
pub fn routed(route: &[f32]) -> impl Iterator<Item = (usize, f32)> + Clone + '_ {
    let (ids, weights) = route.split_at(route.len() / 2);
    ids.iter().zip(weights).map(|(id, weight)| (*id as usize, *weight))
}

/// The weighted sum of the slots of one row: `x` is `[used, width]`, `out` is `[width]`.
pub fn expert_sum(x: &[f32], route: &[f32], accumulate: bool, out: &mut [f32]) {
    let width = out.len();
    for (i, out) in out.iter_mut().enumerate() {
        let terms = routed(route).enumerate().map(|(slot, (_, weight))| weight * x[slot * width + i]);
        let sum = terms.fold(0.0, |sum, term| sum + term);
        *out = if accumulate { *out + sum } else { sum };
    }
}

/// `out += sigmoid(gate)·x` for one row.
pub fn add_gated(x: &[f32], gate: f32, out: &mut [f32]) {
    let factor = (1.0 / (1.0 + (-f64::from(gate)).exp())) as f32;
    out.iter_mut().zip(x).for_each(|(out, x)| *out += factor * x);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_logits_are_chosen_by_id() {
        let mut out = [0.0; 6];
        route(&[0.0, 2.0, -0.0, 2.0, 0.0], 3, RouteWeights::Chosen, None, &mut out);
        assert_eq!(out[..3], [1.0, 3.0, 0.0]);
        assert!((out[3..].iter().sum::<f32>() - 1.0).abs() < 1e-6 && out[3] == out[4]);
        route(&[0.0, 2.0, 0.0, 2.0, 0.0], 3, RouteWeights::All, Some(&[4.0, 1.0, 1.0, 0.5, 1.0]), &mut out);
        assert_eq!((out[..3].to_vec(), out[4]), (vec![1.0, 3.0, 0.0], 0.5 * out[3]));
        assert!((out[3] - 0.415_626_6).abs() < 1e-6, "{out:?}");
    }

    #[test]
    fn a_logit_that_is_not_finite_makes_all_weights_nan() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut out = [0.0; 4];
            route(&[1.0, bad, 3.0], 2, RouteWeights::All, None, &mut out);
            assert_eq!(out[..2], [0.0, 1.0]);
            assert!(out[2..].iter().all(|weight| weight.is_nan()));
        }
    }
}
