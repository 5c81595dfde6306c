//! Tales 7M as `mlx-lm` converts it, at every bit width, against logits of MLX in f32.
#![cfg(feature = "gpu")]

mod adapter;
mod reference;

use std::process::Command;

use adapter::adapter;
use gyrus::{Device, Model, Options, Precision};
use gyrus_testkit::{Need, data, oracle, python, skip, tempfile};
use reference::{distance, logits};

#[test]
fn every_bit_width_is_as_in_mlx() {
    let Some(model) = data("tales/model.safetensors") else { return };
    let Some(interpreter) = python("mlx_folders.py") else { return };
    if !Command::new(interpreter).args(["-c", "import mlx_lm"]).output().unwrap().status.success() {
        return skip(Need::Extra, "the interpreter of GYRUS_ORACLE_PYTHON has no mlx_lm");
    }
    let folder = tempfile::tempdir().unwrap();
    oracle("mlx_folders.py", &[model.parent().unwrap(), folder.path()]).unwrap();
    let gpu = adapter().map(|name| Device::Gpu(Some(name)));
    for bits in [2, 3, 4, 5, 6, 8] {
        let path = folder.path().join(format!("{bits}bit"));
        let (_, ids, expected) = reference::read(&path);
        for device in [Some(Device::Cpu), gpu.clone()].into_iter().flatten() {
            let options = Options {
                device: device.clone(),
                precision: Precision::Exact,
                context: Some(128),
                ..Options::default()
            };
            let far = distance(&logits(&Model::open(&path, &options).unwrap(), &ids), &expected);
            println!("{bits} bits on {device:?}: off by {far:e}");
            assert!(far < 5e-3, "{bits} bits on {device:?}: {far}");
        }
    }
}
