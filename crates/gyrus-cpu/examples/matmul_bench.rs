//! Speed of the matmul: `cargo run --release -p gyrus-cpu --example matmul_bench [FILTER]`.
//!
//! Each line is the best of many short runs, because other work may share the machine. GB/s counts the
//! weight bytes read once; GOP/s counts a multiply-add as two. The last column is the speed of repacking the
//! weight, in GB/s.

use std::time::{Duration, Instant};

use gyrus_cpu::{Bytes, Matrix, Pool, Precision, Scratch, matmul};
use gyrus_tensor::DType;

fn main() {
    let filter = std::env::args().nth(1).unwrap_or_default();
    let smol = [(576, 576), (1536, 576), (576, 1536), (49152, 576)];
    let llama = [(2048, 2048), (8192, 2048), (2048, 8192)];
    let cases = [
        (DType::Q4_1, Precision::Fast, &smol[..]),
        (DType::Q8_0, Precision::Fast, &smol[..]),
        (DType::Q4_0, Precision::Fast, &llama[..]),
        (DType::Q4_K, Precision::Fast, &llama[..]),
        (DType::Q5_0, Precision::Fast, &llama[..1]),
        (DType::Q5_K, Precision::Fast, &llama[..1]),
        (DType::Q6_K, Precision::Fast, &llama[..]),
        (DType::Q4_1, Precision::Exact, &smol[1..3]),
        (DType::F16, Precision::Exact, &smol[1..3]),
        (DType::F16, Precision::Fast, &smol[1..3]),
        (DType::BF16, Precision::Fast, &llama[..1]),
        (DType::F32, Precision::Fast, &llama[..1]),
        (DType::Q2_K, Precision::Fast, &llama[..1]),
        (DType::Q3_K, Precision::Fast, &llama[..1]),
        (DType::IQ4_NL, Precision::Fast, &llama[..1]),
        (DType::IQ4_XS, Precision::Fast, &llama[..1]),
    ];
    println!("{}", Pool::new(1).isa().name());
    println!("type  precision    n×k         m  threads    GOP/s    GB/s      µs    repacked");
    for (dtype, precision, shapes) in cases {
        for &(n, k) in shapes {
            for m in [1, 8, 512] {
                for threads in [1, 2] {
                    let name = format!("{dtype:<5} {precision:?} {n:>6}×{k:<5} {m:>4} {threads}");
                    if n > 10_000 && m > 8 || !name.contains(&filter) {
                        continue;
                    }
                    let (seconds, repacked, bytes) = measure(dtype, precision, n, k, m, threads);
                    let gops = 2.0 * (n * k * m) as f64 / seconds / 1e9;
                    let gbs = bytes as f64 / seconds / 1e9;
                    let repacked = bytes as f64 / repacked / 1e9;
                    println!("{name}  {gops:>9.1} {gbs:>8.2} {:>9.1} {repacked:>8.2}", seconds * 1e6);
                }
            }
        }
    }
}

/// The shortest times of a call and of repacking a weight, in seconds, and the weight's bytes. The calls cycle through
/// several copies of the weight, so a small matrix is not cached, as in a model.
fn measure(
    dtype: DType,
    precision: Precision,
    n: usize,
    k: usize,
    m: usize,
    threads: usize,
) -> (f64, f64, usize) {
    let pool = Pool::new(threads);
    let bytes = dtype.bytes_of_elems(n * k).expect("whole blocks");
    let copies = if m == 1 { (64_000_000 / bytes).clamp(1, 64) } else { 1 };
    let mut repacked = f64::INFINITY;
    let weights: Vec<Matrix> = (0..copies)
        .map(|_| {
            let mut data = (0..bytes).map(|i| ((i * 7919) >> 5) as u8 & 0x3F).collect::<Vec<u8>>();
            if !dtype.is_quantized() {
                // Normal floats: subnormals would be slow.
                let size = dtype.block_bytes();
                data.chunks_exact_mut(size).for_each(|v| v[size - 1] = 0x3C);
            }
            let data = Bytes::from(data);
            let start = Instant::now();
            let weight = Matrix::new(&pool, dtype, n, k, data, precision).expect("a good shape");
            repacked = repacked.min(start.elapsed().as_secs_f64());
            weight
        })
        .collect();
    let x: Vec<f32> = (0..m * k).map(|i| ((i * 31 % 97) as f32 - 48.0) / 48.0).collect();
    let mut out = vec![0.0; m * n];
    let mut scratch = Scratch::new();
    let mut best = f64::INFINITY;
    let begin = Instant::now();
    let mut rounds = 0;
    while rounds < 3 || begin.elapsed() < Duration::from_millis(300) {
        let start = Instant::now();
        for w in &weights {
            matmul(&pool, &[w], &x, &mut out, false, &mut scratch);
        }
        best = best.min(start.elapsed().as_secs_f64() / weights.len() as f64);
        rounds += 1;
    }
    (best, repacked, weights[0].bytes())
}
