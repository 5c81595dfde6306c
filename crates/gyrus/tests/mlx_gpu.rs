//! MLX folders on a GPU: `exact` against logits of MLX in f32, `fast` against the CPU.
#![cfg(feature = "gpu")]

mod adapter;
mod reference;

use adapter::adapter;
use gyrus::{Device, Model, Options, Precision};
use gyrus_testkit::data;
use reference::{distance, logits};

#[test]
fn every_folder_is_as_in_its_reference_and_on_the_cpu() {
    let Some(adapter) = adapter() else { return };
    for name in ["gemma3-4bit", "llama-4bit", "qwen3-3bit", "qwen3-4bit", "qwen3-6bit", "qwen3-8bit"] {
        let Some(path) = data(&format!("mlx/{name}")) else { continue };
        let (_, ids, expected) = reference::read(&path);
        let run = |device: &Device, precision, chunk| {
            let device = device.clone();
            let options = Options { device, precision, chunk, context: Some(160), ..Options::default() };
            distance(&logits(&Model::open(&path, &options).unwrap(), &ids), &expected)
        };
        let gpu = Device::Gpu(Some(adapter.clone()));
        let exact = run(&gpu, Precision::Exact, 512);
        let on_cpu = run(&Device::Cpu, Precision::Fast, 512);
        println!("{name}: exact is off by {exact:e}, fast on the CPU by {on_cpu:e}");
        assert!(exact < 3e-4, "{name}, exact: {exact}");
        // A prompt at once and row by row: tiles and mat-vecs.
        for chunk in [512, 1] {
            let far = run(&gpu, Precision::Fast, chunk);
            println!("{name}: fast in chunks of {chunk} is off by {far:e}");
            assert!(far <= 3.0 * on_cpu, "{name}, fast in chunks of {chunk}: {far}");
        }
    }
}
