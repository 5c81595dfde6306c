//! Quantising while loading takes the memory of the result and of one tensor. The only test of its process, since the
//! allocator counts for all threads.

mod random_qwen3;
mod written;

use gyrus::{DType, Model, Options, Precision};
use gyrus_testkit::Counting;
use random_qwen3::Random;

#[global_allocator]
static ALLOCATOR: Counting = Counting::new();

#[test]
fn memory_peaks_at_the_result_and_one_tensor() {
    let shape = Random { dim: 256, ffn: 2048, layers: 3 };
    let tensors = shape.tensors(DType::F32, |_| DType::F32);
    let largest = tensors.iter().map(|(.., bytes)| bytes.len()).max().unwrap();
    let floats: usize = tensors.iter().map(|(.., bytes)| bytes.len()).sum();
    for precision in [Precision::Exact, Precision::Fast] {
        // The file's bytes are allocated before, where a mapped file would be outside.
        let checkpoint = shape.checkpoint(&tensors);
        let options = Options {
            precision,
            quantize: Some(DType::Q8_0),
            threads: Some(2),
            context: Some(64),
            ..Options::default()
        };
        let (model, peak) = ALLOCATOR.peak(|| Model::load(checkpoint, &options).unwrap());
        let plan = model.plan();
        let weights: usize = plan.weights.iter().map(|w| w.dtype.bytes_of(&w.shape).unwrap()).sum();
        let cache = 64 * plan.kv_bytes_per_token();
        println!("{precision:?}: peak {peak}, weights {weights}, cache {cache}, one tensor {largest}");
        // In `fast` the backend repacks each weight into mapped pages, which the allocator does not count, so no more than
        // one tensor may be left.
        let result = if precision == Precision::Exact { weights } else { 0 };
        assert!(peak < result + cache + largest, "{precision:?}: {peak}");
        // All tensors in f32 would not have been below that.
        assert!(weights + cache + largest < floats / 2);
    }
}
