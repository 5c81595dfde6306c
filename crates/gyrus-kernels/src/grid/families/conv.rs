//! 1-D convolutions.

use crate::call::{Conv1dCall, ConvActivation, Storage};
use crate::grid::case::{Case, CaseBuffer};
use crate::grid::family::Point;
use crate::grid::noise::Noise;
use crate::scalar;
use crate::shader::Rungs;

pub(super) fn case(point: &mut Point, rungs: Rungs) -> Option<Case> {
    let weight = point.of(&[Storage::F16, Storage::F32]);
    let activation = point.of(&[ConvActivation::None, ConvActivation::Gelu, ConvActivation::GeluTanh]);
    // Whisper's three taps first; then other taps, strides and padding.
    let (taps, stride, padding) =
        point.of(&[(3, 1, 1), (3, 2, 1), (1, 1, 0), (10, 5, 0), (16, 8, 15), (4, 2, 3)]);
    let (bias, rows) = (point.of(&[true, false]), point.of(&[false, true]));
    // Channels that are no multiple of a tile.
    let (inputs, outputs) = point.of(&[(80, 70), (37, 65), (1, 1), (3, 130), (20, 33)]);
    let length = point.of(&[150, 131, 40, 260]);
    let part = point.of(&[[4, 4], [1, 2], [2, 1], [8, 2], [4, 8]]);
    let call = Conv1dCall {
        taps,
        padding,
        bias,
        activation,
        rows,
        part,
        ..Conv1dCall::new(inputs, outputs, length, stride, weight)
    };
    let seed = point.seed;
    let twin = move || {
        let mut noise = Noise::new(seed);
        let x = noise.gaussians((inputs * length) as usize);
        let bias = noise.gaussians(outputs as usize);
        let n = (outputs * inputs * taps) as usize;
        let mut words = vec![0; (n * weight.bytes() as usize).div_ceil(4)];
        for i in 0..n {
            scalar::set(&mut words, weight, i, noise.gaussian() / f64::from(inputs).sqrt());
        }
        let values: Vec<f32> = (0..n).map(|i| scalar::element(&words, weight, i) as f32).collect();
        let out = scalar::conv1d(&call, &x, &values, &bias);
        // Sums of a few hundred products of numbers around one, in f32.
        let tolerance = |i: usize| 1e-5 * (1.0 + f64::from(out[i].abs()));
        vec![
            CaseBuffer::floats("x", &x),
            CaseBuffer::read("weight", words),
            CaseBuffer::floats("bias", &bias),
            CaseBuffer::near("out", &out, tolerance),
        ]
    };
    Some(Case::new(format!("{call:?}"), call.launch(rungs).ok()?, twin))
}
