//! Biases that a product adds when it stores its sums, instead of another pass over its rows.

use gyrus_kernels::{BufferId, Op, WeightId};

/// What the neighbours of an op leave to it.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Fused {
    /// The op as it is.
    No,
    /// A product that adds these biases, one for each of its outputs.
    Adds(Vec<f32>),
    /// A bias that the product before has added.
    Added,
}

/// What is fused with each op: a product takes the biases that follow it directly. `width`: elements of a row of a buffer.
pub(super) fn fused_biases<'a>(
    ops: &[Op],
    width: impl Fn(BufferId) -> usize,
    vector: impl Fn(WeightId) -> &'a [f32],
) -> Vec<Fused> {
    let mut fused = vec![Fused::No; ops.len()];
    for (at, op) in ops.iter().enumerate() {
        let Op::MatMul { out, .. } = op else { continue };
        // Unlike 0, −0 leaves every value as it is, so outputs without a bias keep their bits.
        let mut sums = vec![-0.0; width(*out)];
        let mut taken = vec![false; sums.len()];
        for (i, next) in ops.iter().enumerate().skip(at + 1) {
            let Op::Bias { x, first, bias } = next else { break };
            let (first, bias) = (*first as usize, vector(*bias));
            let range = first..first + bias.len();
            // Two biases of one output would be added in another order.
            if x != out || range.end > sums.len() || taken[range.clone()].contains(&true) {
                break;
            }
            sums[range.clone()].copy_from_slice(bias);
            taken[range].fill(true);
            fused[i] = Fused::Added;
        }
        if fused.get(at + 1) == Some(&Fused::Added) {
            fused[at] = Fused::Adds(sums);
        }
    }
    fused
}

#[cfg(test)]
mod tests {
    use super::*;

    const BIASES: [&[f32]; 3] = [&[1.0, 2.0], &[3.0], &[4.0, 5.0, 6.0]];

    fn fused(ops: &[Op]) -> Vec<Fused> {
        fused_biases(ops, |_| 4, |id| BIASES[id.0 as usize])
    }

    fn product(out: u16) -> Op {
        Op::MatMul { x: BufferId(9), weights: vec![WeightId(0)], accumulate: false, out: BufferId(out) }
    }

    fn bias(x: u16, first: u32, id: u16) -> Op {
        Op::Bias { x: BufferId(x), first, bias: WeightId(id.into()) }
    }

    #[test]
    fn a_product_adds_the_biases_behind_it() {
        let found = fused(&[product(0), bias(0, 0, 0), bias(0, 3, 1), product(1), bias(0, 0, 0)]);
        let Fused::Adds(sums) = &found[0] else { panic!("{found:?}") };
        let bits = |v: &[f32]| v.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(sums), bits(&[1.0, 2.0, -0.0, 3.0]));
        assert_eq!(&found[1..3], [Fused::Added, Fused::Added]);
        // A bias of another buffer stays an op.
        assert_eq!(&found[3..], [Fused::No, Fused::No]);
    }

    #[test]
    fn biases_that_overlap_or_exceed_the_row_stay_ops() {
        let found = fused(&[product(0), bias(0, 0, 0), bias(0, 1, 1), bias(0, 3, 1)]);
        assert_eq!(found[1..], [Fused::Added, Fused::No, Fused::No]);
        assert_eq!(fused(&[product(0), bias(0, 2, 2)]), [Fused::No, Fused::No]);
        assert_eq!(fused(&[bias(0, 0, 0), product(0)]), [Fused::No, Fused::No]);
    }
}
