/// The inputs of a convolution over the rows of one sequence: `x: [n·stride, channels]`, `out: [n, channels·taps]` with
/// `out[r][c·taps + t] = x[r·stride + t − taps / 2][c]`, and 0 where there is no such row.
pub fn unfold(x: &[f32], channels: usize, stride: usize, taps: usize, out: &mut [f32]) {
    let rows: Vec<&[f32]> = x.chunks_exact(channels).collect();
    for (r, out) in out.chunks_exact_mut(channels * taps).enumerate() {
        for c in 0..channels {
            for t in 0..taps {
                let row = (r * stride + t).checked_sub(taps / 2).and_then(|row| rows.get(row));
                out[c * taps + t] = row.map_or(0.0, |row| row[c]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::unfold;
    use crate::scalar::matmul;

    /// A product with the unfolded rows is the convolution.
    #[test]
    fn a_product_of_unfolded_rows_is_a_convolution() {
        let value = |i: usize| ((i * 37 + 11) % 29) as f32 / 7.0 - 2.0;
        for (inputs, outputs, rows, stride, taps) in [(3, 4, 5, 1, 3), (2, 3, 4, 2, 3), (1, 1, 1, 2, 5)] {
            let length = rows * stride;
            let x: Vec<f32> = (0..length * inputs).map(value).collect();
            let weight: Vec<f32> = (0..outputs * inputs * taps).map(|i| value(i + 5)).collect();
            let mut unfolded = vec![0.0; rows * inputs * taps];
            unfold(&x, inputs, stride, taps, &mut unfolded);
            let mut got = vec![0.0; rows * outputs];
            for (x, out) in unfolded.chunks_exact(inputs * taps).zip(got.chunks_exact_mut(outputs)) {
                matmul(&weight, x, false, out);
            }
            for (at, got) in got.iter().enumerate() {
                let (r, o) = (at / outputs, at % outputs);
                let mut want = 0.0;
                for c in 0..inputs {
                    for t in 0..taps {
                        let row = (r * stride + t) as isize - (taps / 2) as isize;
                        if (0..length as isize).contains(&row) {
                            want += weight[(o * inputs + c) * taps + t] * x[row as usize * inputs + c];
                        }
                    }
                }
                assert!((got - want).abs() <= 1e-4 * want.abs().max(1.0), "{got} {want}");
            }
        }
    }
}
