//! Identities of rotary embeddings on the best adapter, with all of its optional features and with none.

mod common;

use common::device;
use gyrus_gpu::GpuError;
use gyrus_kernels::Direction;
use gyrus_kernels::LaunchError;
use gyrus_kernels::call::{Freqs, RopeCall, RopeKernel, Storage};
use gyrus_kernels::grid::identities;
use gyrus_kernels::params::RoPEOpParams;
use gyrus_kernels::shader::Rungs;

fn identities_hold(rungs: Rungs) {
    let Some(mut runner) = device(rungs) else { return };
    // A case has about twenty kernels, most of which are compiled for it.
    let count = gyrus_testkit::cases(900) / 300;
    let broken: Vec<String> = identities::all()
        .iter()
        .enumerate()
        .filter_map(|(seed, (name, law))| {
            Some(format!("{name}: {}", law(&mut runner, seed as u64, count).err()?))
        })
        .collect();
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

#[test]
fn all_rungs() {
    identities_hold(Rungs::ALL);
}

#[test]
fn without_any_rung() {
    identities_hold(Rungs::NONE);
}

/// A runner's buffers are distinct vectors, but a device buffer can be bound twice.
#[test]
fn an_output_must_not_alias_an_input() {
    let Some(runner) = device(Rungs::ALL) else { return };
    let params = RoPEOpParams {
        batch: 1,
        n_heads: 2,
        seq_len: 4,
        head_dim: 16,
        rope_dim: 16,
        freqs_dim: 8,
        output_scale: 1.0,
        _pad0: 0,
    };
    let call = RopeCall {
        kernel: RopeKernel::Op { params },
        storage: Storage::F32,
        direction: Direction::Forward,
        freqs: Freqs::Inline,
        positions: 0,
    };
    let gpu = runner.gpu();
    let launch = call.launch(gpu.rungs(), runner.tuning).unwrap();
    let (x, freqs) = (gpu.upload(&[0; 512]).unwrap(), gpu.upload(&[0; 128]).unwrap());
    let refused = gpu.bind(&launch, &[&x, &freqs, &x]).unwrap_err();
    assert!(matches!(refused, GpuError::Launch(LaunchError::Alias { a: "x", b: "y", .. })), "{refused}");
}
