//! Rope kernels on a device: exact phases, gradients as of autograd, and errors.

mod common;

use common::device;
use gyrus_formats::Checkpoint;
use gyrus_gpu::{Gpu, GpuError, Options};
use gyrus_kernels::call::{Freqs, RopeCall, RopeKernel, Storage};
use gyrus_kernels::grid::Runner;
use gyrus_kernels::params::{RoPEOpParams, RoPEParams};
use gyrus_kernels::scalar::{element, set};
use gyrus_kernels::shader::Rungs;
use gyrus_kernels::{Direction, LaunchError, Pairing, Rope, RopeSpec, Scaling};
use gyrus_tensor::dequantize;
use gyrus_testkit::{largest, repository};
use serde_json::Value;

/// The frequency table of a rope as kernels read it: turns per position, low word first.
fn table(rope: &Rope) -> Vec<u32> {
    let rows = rope.rows();
    let turns = rope.turns().iter().zip(rows).map(|(turns, row)| turns & !3 | u64::from(*row));
    turns.flat_map(|turns| [turns as u32, (turns >> 32) as u32]).collect()
}

fn in_place(pairing: Pairing, params: RoPEParams, direction: Direction, positions: u32) -> RopeCall {
    RopeCall {
        kernel: RopeKernel::InPlace { pairing, params },
        storage: Storage::F32,
        direction,
        freqs: Freqs::Turns,
        positions,
    }
}

/// A pair (1, 0) becomes (cos, sin).
#[test]
fn cosines_and_sines_are_within_a_ten_millionth_up_to_a_million() {
    let Some(mut runner) = device(Rungs::ALL) else { return };
    let head_dim = 128;
    for (base, scaling) in
        [(1e4, Scaling::None), (5e5, Scaling::Llama3 { factor: 8.0, low: 1.0, high: 4.0, original: 8192.0 })]
    {
        let rope =
            Rope::new(RopeSpec { scaling, ..RopeSpec::new(Pairing::Adjacent, head_dim, base) }).unwrap();
        let positions: Vec<u32> = (0..2000)
            .map(|i| i * 524 % 1_048_577)
            .chain([1, 2, 4095, 131_071, 1_048_575, 1_048_576])
            .collect();
        let n = head_dim as u32;
        let params =
            RoPEParams { seq_len: positions.len() as u32, head_dim: n, n_heads: 1, ..Default::default() };
        let one: Vec<u32> = [1f32, 0.0].iter().map(|v| v.to_bits()).collect();
        let x: Vec<u32> = one.iter().copied().cycle().take(positions.len() * head_dim).collect();
        let mut buffers = vec![x, table(&rope), positions.clone()];
        runner.run_rope(&in_place(Pairing::Adjacent, params, Direction::Forward, 1), &mut buffers).unwrap();
        let mut worst = 0f64;
        for (row, &position) in buffers[0].chunks_exact(head_dim).zip(&positions) {
            for (pair, &turns) in rope.turns().iter().enumerate() {
                let phase = turns.wrapping_mul(position.into()) as f64 / 2f64.powi(64);
                let (sin, cos) = (phase * std::f64::consts::TAU).sin_cos();
                let found = |i: usize| f64::from(f32::from_bits(row[2 * pair + i]));
                worst = largest([worst, (found(0) - cos).abs(), (found(1) - sin).abs()]);
            }
        }
        assert!(worst <= 1e-7, "base {base}: worst {worst:e}");
    }
}

/// Largest difference, relative to the largest value.
fn off(found: &[f64], expected: &[f32]) -> f64 {
    let most = expected.iter().fold(0f64, |most, x| most.max(f64::from(x.abs())));
    let worst = largest(found.iter().zip(expected).map(|(a, b)| (a - f64::from(*b)).abs()));
    worst / most
}

#[test]
fn forward_and_backward_are_those_of_autograd() {
    let Some(mut runner) = device(Rungs::ALL) else { return };
    let folder = repository().join("tests/data/rope");
    let golden: Value =
        serde_json::from_str(&std::fs::read_to_string(folder.join("golden.json")).unwrap()).unwrap();
    let tensors = Checkpoint::open(&folder.join("golden.safetensors")).unwrap();
    let values = |name: &Value| {
        let tensor = tensors.tensor(name.as_str().unwrap()).unwrap();
        let mut values = vec![0.0; tensor.shape.elems()];
        dequantize(tensor.dtype, tensor.data, &mut values).unwrap();
        values
    };
    let mut seen = 0;
    for case in golden["cases"].as_array().unwrap().iter().filter(|case| case["kind"] == "autograd") {
        let name = case["name"].as_str().unwrap();
        let size = |field: &str| case[field].as_u64().unwrap() as usize;
        let (storage, tolerance) = match case["dtype"].as_str().unwrap() {
            "float32" => (Storage::F32, 1e-5),
            "float16" => (Storage::F16, 4e-3),
            _ => (Storage::Bf16, 3e-2),
        };
        let pairing = if case["pairing"] == "split" { Pairing::Split } else { Pairing::Adjacent };
        let positions: Vec<u32> = serde_json::from_value(case["positions"].clone()).unwrap();
        let (head_dim, rope_dim, offset) = (size("head_dim"), size("rope_dim"), size("offset"));
        let scale = case["output_scale"].as_f64().unwrap();
        let rope = Rope::new(RopeSpec {
            rope_dim,
            offset,
            ..RopeSpec::new(pairing, head_dim, case["base"].as_f64().unwrap())
        })
        .unwrap();
        let last = pairing == Pairing::Split && offset + rope_dim == head_dim;
        for (direction, input, output) in [(Direction::Forward, "x", "y"), (Direction::Inverse, "dy", "dx")] {
            let (x, expected) = (values(&case[input]), values(&case[output]));
            let heads = x.len() / positions.len() / head_dim;
            let words = |values: &[f32]| {
                let mut words = vec![0; values.len().div_ceil(4 / storage.bytes() as usize)];
                values.iter().enumerate().for_each(|(i, v)| set(&mut words, storage, i, f64::from(*v)));
                words
            };
            let mut found: Option<Vec<f64>> = None;
            if last {
                // The op's layout is [heads, positions, head_dim], the case's [positions, heads, head_dim].
                let at = |p: usize, h: usize| (h * positions.len() + p) * head_dim;
                let mut transposed = vec![0.0; x.len()];
                for (i, head) in x.chunks_exact(head_dim).enumerate() {
                    let to = at(i / heads, i % heads);
                    transposed[to..to + head_dim].copy_from_slice(head);
                }
                let angles: Vec<u32> = positions
                    .iter()
                    .flat_map(|p| {
                        rope.frequencies().iter().map(move |f| ((f64::from(*p) * f) as f32).to_bits())
                    })
                    .collect();
                let params = RoPEOpParams {
                    batch: 1,
                    n_heads: heads as u32,
                    seq_len: positions.len() as u32,
                    head_dim: head_dim as u32,
                    rope_dim: rope_dim as u32,
                    freqs_dim: rope_dim as u32 / 2,
                    output_scale: scale as f32,
                    _pad0: 0,
                };
                let call = RopeCall {
                    kernel: RopeKernel::Op { params },
                    storage,
                    direction,
                    freqs: Freqs::Turns,
                    positions: 0,
                };
                let x = words(&transposed);
                let mut buffers = vec![x.clone(), angles, vec![0; x.len()]];
                runner.run_rope(&call, &mut buffers).unwrap();
                let all = (0..positions.len() * heads * head_dim).map(|i| {
                    let (p, h, e) = (i / head_dim / heads, i / head_dim % heads, i % head_dim);
                    element(&buffers[2], storage, at(p, h) + e)
                });
                found = Some(all.collect());
            } else if storage != Storage::Bf16 && scale == 1.0 {
                let params = RoPEParams {
                    seq_len: positions.len() as u32,
                    head_dim: head_dim as u32,
                    n_heads: heads as u32,
                    rope_dim: rope_dim as u32,
                    rope_offset: offset as u32,
                    ..Default::default()
                };
                let call = RopeCall { storage, ..in_place(pairing, params, direction, 1) };
                // Position ids come before the table where pairs are split.
                let mut buffers = vec![words(&x), positions.clone(), table(&rope)];
                if pairing == Pairing::Adjacent {
                    buffers.swap(1, 2);
                }
                runner.run_rope(&call, &mut buffers).unwrap();
                found = Some((0..x.len()).map(|i| element(&buffers[0], storage, i)).collect());
            }
            if let Some(found) = found {
                let off = off(&found, &expected);
                assert!(off <= tolerance, "{name} {output}: off by {off:e}");
                seen += 1;
            }
        }
    }
    assert!(seen >= 24, "only {seen} of the cases have a kernel");
}

#[test]
fn wrong_buffers_are_refused_before_anything_runs() {
    let Some(runner) = device(Rungs::ALL) else { return };
    let gpu = runner.gpu();
    let params = RoPEParams { seq_len: 4, head_dim: 64, n_heads: 2, theta: 1e4, ..Default::default() };
    let call = in_place(Pairing::Split, params, Direction::Forward, 0);
    let launch = call.launch(gpu.rungs(), Default::default()).unwrap();
    let (x, freqs) = (gpu.buffer(4 * 2 * 64 * 4).unwrap(), gpu.buffer(32 * 8).unwrap());
    gpu.bind(&launch, &[&x, &freqs]).unwrap();

    let alias = gpu.bind(&launch, &[&x, &x]).unwrap_err();
    assert!(matches!(alias, GpuError::Launch(LaunchError::Alias { .. })), "{alias}");
    let small = gpu.bind(&launch, &[&freqs, &x]).unwrap_err();
    assert!(matches!(small, GpuError::Launch(LaunchError::Small { .. })), "{small}");
    let few = gpu.bind(&launch, &[&x]).unwrap_err();
    assert!(matches!(few, GpuError::Launch(LaunchError::Buffers { .. })), "{few}");
    let vast = gpu.buffer(1 << 60).unwrap_err();
    assert!(matches!(vast, GpuError::Limit { .. }), "{vast}");
    // The device still works.
    let dispatch = gpu.bind(&launch, &[&x, &freqs]).unwrap();
    gpu.run(&[&dispatch]).unwrap();
}

#[test]
fn an_unknown_adapter_is_reported_with_the_known_ones() {
    let options = Options { adapter: Some("Voodoo 2".to_owned()), ..Options::default() };
    let error = Gpu::open(&options).unwrap_err().to_string();
    assert!(error.starts_with("no GPU is called 'Voodoo 2'; there are: "), "{error}");
}
