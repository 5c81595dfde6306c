//! Properties of 1-D convolutions beside the op-test grid's: tile shapes, exact GELU, refused calls.

mod common;

use common::device;
use gyrus_gpu::GpuRunner;
use gyrus_kernels::call::{Conv1dCall, ConvActivation, Storage};
use gyrus_kernels::scalar;
use gyrus_kernels::shader::Rungs;
use gyrus_testkit::Rng;

const UNTOUCHED: u32 = 0x7777_7777;

struct Case {
    call: Conv1dCall,
    x: Vec<f32>,
    /// In the device's layout.
    weight: Vec<u32>,
    bias: Vec<f32>,
}

impl Case {
    fn new(rng: &mut Rng, call: Conv1dCall) -> Case {
        let mut floats = |n: u32| -> Vec<f32> { (0..n).map(|_| rng.gaussian() as f32).collect() };
        let x = floats(call.in_channels * call.length);
        let bias = floats(call.out_channels);
        let n = call.out_channels * call.in_channels * call.taps;
        let values = floats(n);
        let mut weight = vec![0; (u64::from(n) * call.weight.bytes()).div_ceil(4) as usize];
        for (i, v) in values.iter().enumerate() {
            scalar::set(&mut weight, call.weight, i, f64::from(*v) / f64::from(call.in_channels).sqrt());
        }
        Case { call, x, weight, bias }
    }

    fn expected(&self) -> Vec<f32> {
        let n = (self.call.out_channels * self.call.in_channels * self.call.taps) as usize;
        let weight: Vec<f32> =
            (0..n).map(|i| scalar::element(&self.weight, self.call.weight, i) as f32).collect();
        scalar::conv1d(&self.call, &self.x, &weight, &self.bias)
    }

    fn found(&self, runner: &GpuRunner) -> Vec<f32> {
        let words = |values: &[f32]| values.iter().map(|v| v.to_bits()).collect::<Vec<u32>>();
        let n = self.call.out_length() as usize * self.call.out_channels as usize;
        let mut buffers = vec![words(&self.x), self.weight.clone(), vec![UNTOUCHED; n + 8]];
        if self.call.bias {
            buffers.push(words(&self.bias));
        }
        runner.run_launch(&self.call.launch(runner.gpu().rungs()).unwrap(), &mut buffers).unwrap();
        assert_eq!(buffers[2][n..], [UNTOUCHED; 8], "{:?}", self.call);
        buffers[2][..n].iter().map(|w| f32::from_bits(*w)).collect()
    }
}

/// The shape of a tile changes the speed only.
#[test]
fn tile_shapes_change_no_bit() {
    let Some(runner) = device(Rungs::ALL) else { return };
    let case = Case::new(&mut Rng::new(2), Conv1dCall::new(21, 40, 90, 2, Storage::F16));
    let first = case.found(&runner);
    for part in [[1, 1], [8, 2], [2, 8]] {
        let case = Case { call: Conv1dCall { part, ..case.call }, ..Case::new(&mut Rng::new(2), case.call) };
        assert_eq!(case.found(&runner), first, "{part:?}");
    }
}

/// GELU of large values of either sign, and close to zero.
#[test]
fn gelu_is_exact_everywhere() {
    let Some(runner) = device(Rungs::ALL) else { return };
    for activation in [ConvActivation::Gelu, ConvActivation::GeluTanh] {
        let base = Conv1dCall::new(1, 1, 2001, 1, Storage::F32);
        let call = Conv1dCall { taps: 1, padding: 0, bias: false, activation, ..base };
        let mut x: Vec<f32> = (0..2001).map(|i| (i - 1000) as f32 * 0.01).collect();
        (x[0], x[1], x[2]) = (-1e4, 1e4, 1e-20);
        let case = Case { call, x, weight: vec![1f32.to_bits()], bias: Vec::new() };
        for ((f, e), x) in case.found(&runner).iter().zip(case.expected()).zip(&case.x) {
            assert!((f - e).abs() <= 5e-7 * x.abs() + 1e-30, "{activation:?} of {x} is {f}, expected {e}");
        }
    }
}

#[test]
fn invalid_calls_are_refused() {
    let call = Conv1dCall::new(80, 384, 3000, 1, Storage::F16);
    assert_eq!(call.out_length(), 3000);
    assert_eq!(Conv1dCall { stride: 2, ..call }.out_length(), 1500);
    for (call, reason) in [
        (Conv1dCall { in_channels: 0, ..call }, "conv1d: in_channels is 0"),
        (Conv1dCall { taps: 0, ..call }, "conv1d: taps is 0"),
        (Conv1dCall { stride: 0, ..call }, "conv1d: stride is 0"),
        (Conv1dCall { taps: 17, ..call }, "conv1d: 17 taps are more"),
        (Conv1dCall { stride: 9, ..call }, "conv1d: 9 samples of a stride"),
        (Conv1dCall { padding: 3, ..call }, "conv1d: 3 zeros beside a channel"),
        (Conv1dCall { padding: 0, length: 2, ..call }, "conv1d: length is 2, at least 3"),
        (Conv1dCall { part: [3, 4], ..call }, "conv1d: channels of an invocation is 3, 1, 2, 4 or 8"),
        (Conv1dCall { weight: Storage::Bf16, ..call }, "conv1d: elements of type bf16"),
        (Conv1dCall { in_channels: 1 << 21, ..call }, "conv1d: 6291456000 samples read"),
        (Conv1dCall { out_channels: u32::MAX, length: 1, ..call }, "conv1d: 1030792150800 weights"),
    ] {
        let error = call.launch(Rungs::ALL).map_or_else(|error| error.to_string(), |_| "accepted".to_owned());
        assert!(error.starts_with(reason), "{error}, not {reason}");
    }
}
