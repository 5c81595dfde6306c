//! Properties of norms beside the op-test grid's: zeros, a large mean, batch invariance, refused calls.

mod common;

use common::device;
use gyrus_gpu::GpuRunner;
use gyrus_kernels::call::{Norm, NormCall};
use gyrus_kernels::scalar;
use gyrus_kernels::shader::Rungs;
use gyrus_testkit::Rng;

const NORMS: [Norm; 4] =
    [Norm::Rms, Norm::RmsPlusOne, Norm::Layer { bias: false }, Norm::Layer { bias: true }];

const UNTOUCHED: u32 = 0x7777_7777;

fn floats(rng: &mut Rng, n: usize) -> Vec<f32> {
    (0..n).map(|_| rng.gaussian() as f32).collect()
}

/// The words of these values, followed by words that must not be written.
fn words(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).chain([UNTOUCHED; 8]).collect()
}

fn values(words: &[u32], n: usize) -> Vec<f32> {
    assert_eq!(words[n..], [UNTOUCHED; 8]);
    words[..n].iter().map(|w| f32::from_bits(*w)).collect()
}

/// The contents of `x` and, unless in place, of `out` after the kernel.
fn run(
    runner: &GpuRunner,
    call: &NormCall,
    x: &[f32],
    weight: &[f32],
    residual: &[f32],
    bias: &[f32],
) -> (Vec<f32>, Vec<f32>) {
    let mut buffers = vec![words(x), words(weight)];
    if !call.in_place {
        buffers.push(words(&vec![0.0; x.len()]));
    }
    if call.residual {
        buffers.push(words(residual));
    }
    if call.norm == (Norm::Layer { bias: true }) {
        buffers.push(words(bias));
    }
    runner.run_launch(&call.launch(runner.gpu().rungs()).unwrap(), &mut buffers).unwrap();
    let out = if call.in_place { Vec::new() } else { values(&buffers[2], x.len()) };
    (values(&buffers[0], x.len()), out)
}

fn assert_close(found: &[f32], expected: &[f32], tolerance: f32, what: &str) {
    let most = expected.iter().fold(0f32, |most, v| most.max(v.abs()));
    for (i, (f, e)) in found.iter().zip(expected).enumerate() {
        assert!((f - e).abs() <= tolerance * most, "{what}: element {i} is {f}, expected {e}");
    }
}

#[test]
fn a_row_of_zeros_becomes_zeros_or_the_bias() {
    let Some(runner) = device(Rungs::ALL) else { return };
    let mut rng = Rng::new(2);
    let (zeros, weight, bias) = (vec![0.0; 64], floats(&mut rng, 64), floats(&mut rng, 64));
    for norm in NORMS {
        let (_, out) = run(&runner, &NormCall::new(norm, 1, 64, 1e-6), &zeros, &weight, &zeros, &bias);
        let expected = if norm == (Norm::Layer { bias: true }) { &bias } else { &zeros };
        assert_eq!(&out, expected, "{norm:?}");
    }
}

/// The mean is subtracted before squares are summed. A mean of a thousand standard deviations costs three digits of the
/// values; the difference of two sums would cost six digits of the variance.
#[test]
fn a_large_mean_keeps_the_variance() {
    let Some(runner) = device(Rungs::ALL) else { return };
    let mut rng = Rng::new(3);
    let x: Vec<f32> = floats(&mut rng, 1024).iter().map(|v| v + 1000.0).collect();
    let (weight, none) = (vec![1.0; 1024], vec![0.0; 1024]);
    let norm = Norm::Layer { bias: false };
    let mut expected = vec![0.0; 1024];
    scalar::norm(norm, &x, &weight, &none, 1e-5, &mut expected);
    let (_, out) = run(&runner, &NormCall::new(norm, 1, 1024, 1e-5), &x, &weight, &none, &none);
    assert_close(&out, &expected, 3e-4, "a large mean");
}

/// A row has the same bits alone and beside others.
#[test]
fn neighbours_change_no_bit() {
    let Some(runner) = device(Rungs::ALL) else { return };
    let mut rng = Rng::new(4);
    let (x, weight) = (floats(&mut rng, 3 * 576), floats(&mut rng, 576));
    for norm in NORMS {
        let (_, all) = run(&runner, &NormCall::new(norm, 3, 576, 1e-5), &x, &weight, &[], &weight);
        for row in 0..3 {
            let one = row * 576..(row + 1) * 576;
            let call = NormCall::new(norm, 1, 576, 1e-5);
            let (_, alone) = run(&runner, &call, &x[one.clone()], &weight, &[], &weight);
            assert_eq!(alone, all[one], "{norm:?}");
        }
    }
}

#[test]
fn invalid_calls_are_refused() {
    let call = NormCall::new(Norm::Rms, 1, 64, 1e-5);
    for (call, reason) in [
        (NormCall { dim: 0, ..call }, "rms_norm: dim is 0"),
        (NormCall { rows: 0, ..call }, "rms_norm: the number of rows or workgroups is 0"),
        (NormCall { workgroup: 96, ..call }, "rms_norm: workgroup is 96, a power of two"),
        (NormCall { dim: 1 << 20, ..call }, "rms_norm: 1048576 elements of a row are more"),
        (NormCall { rows: 65_535, dim: 1 << 17, ..call }, "rms_norm: 8589803520 elements are more"),
    ] {
        let error = call.launch(Rungs::ALL).unwrap_err().to_string();
        assert!(error.starts_with(reason), "{error}");
    }
}
