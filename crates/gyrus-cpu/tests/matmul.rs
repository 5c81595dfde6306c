//! Matmuls against a reference in `f64`, between instruction sets, and between batch sizes.

use gyrus_cpu::{
    Bytes, CpuError, GROUP, Isa, Matrix, Pool, Precision, QBlock, Scratch, matmul, quantize_row,
};
use gyrus_tensor::{DType, dequantize};
use gyrus_testkit::Rng;

const TYPES: [DType; 26] = [
    DType::F32,
    DType::F16,
    DType::BF16,
    DType::Q4_0,
    DType::Q4_1,
    DType::Q5_0,
    DType::Q5_1,
    DType::Q8_0,
    DType::Q2_K,
    DType::Q3_K,
    DType::Q4_K,
    DType::Q5_K,
    DType::Q6_K,
    DType::IQ4_NL,
    DType::MXFP4,
    DType::IQ4_XS,
    DType::AFFINE2_BF16,
    DType::AFFINE3_BF16,
    DType::AFFINE4_BF16,
    DType::AFFINE5_BF16,
    DType::AFFINE6_BF16,
    DType::AFFINE8_BF16,
    DType::AFFINE2_F16,
    DType::AFFINE3_F16,
    DType::AFFINE6_F16,
    DType::AFFINE8_F16,
];

/// The types with int8 kernels: all but the floats.
const PANELS: &[DType] = TYPES.split_at(3).1;

/// Offsets of the 16-bit fields within a block.
fn f16_offsets(dtype: DType) -> &'static [usize] {
    match dtype {
        DType::Q4_1 | DType::Q5_1 | DType::Q4_K | DType::Q5_K => &[0, 2],
        DType::Q2_K => &[80, 82],
        DType::Q3_K => &[108],
        DType::Q6_K => &[208],
        dtype if dtype.is_affine() => &[0, 2],
        DType::MXFP4 => &[],
        _ => &[0],
    }
}

/// Random weights: for block formats random quants and small scales, for floats a normal distribution.
fn weight(rng: &mut Rng, dtype: DType, rows: usize, cols: usize) -> Vec<u8> {
    let elems = rows * cols;
    let small = |rng: &mut Rng| half::f16::from_f32(0.02 * rng.gaussian() as f32).to_le_bytes();
    match dtype {
        DType::F32 => (0..elems).flat_map(|_| (rng.gaussian() as f32).to_le_bytes()).collect(),
        DType::F16 => (0..elems).flat_map(|_| small(rng)).collect(),
        DType::BF16 => {
            (0..elems).flat_map(|_| half::bf16::from_f32(rng.gaussian() as f32).to_le_bytes()).collect()
        }
        _ => {
            let mut bytes = rng.bytes(dtype.bytes_of_elems(elems).unwrap());
            for block in bytes.chunks_exact_mut(dtype.block_bytes()) {
                if dtype == DType::MXFP4 {
                    block[0] = 116 + rng.below(9) as u8;
                }
                for &at in f16_offsets(dtype) {
                    let bytes = match dtype.name().ends_with("_BF16") {
                        true => half::bf16::from_f32(0.02 * rng.gaussian() as f32).to_le_bytes(),
                        false => small(rng),
                    };
                    block[at..at + 2].copy_from_slice(&bytes);
                }
            }
            bytes
        }
    }
}

fn random(rng: &mut Rng, n: usize) -> Vec<f32> {
    (0..n).map(|_| rng.gaussian() as f32).collect()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

fn matrix(pool: &Pool, dtype: DType, rows: usize, cols: usize, bytes: &[u8], precision: Precision) -> Matrix {
    Matrix::new(pool, dtype, rows, cols, Bytes::from(bytes.to_vec()), precision).unwrap()
}

/// `x · wᵀ` in `f64`, with `x` quantised to int8 or not, and the sum of the magnitudes of its terms.
fn reference(dtype: DType, w: &[u8], rows: usize, x: &[f32], k: usize, int8: bool) -> Vec<(f64, f64)> {
    let mut values = vec![0.0; rows * k];
    dequantize(dtype, w, &mut values).unwrap();
    let mut out = Vec::new();
    for x in x.chunks_exact(k) {
        let mut blocks = vec![QBlock::default(); k.div_ceil(GROUP)];
        quantize_row(Isa::PORTABLE, x, &mut blocks);
        let value = |i: usize| match int8 {
            true => f64::from(blocks[i / GROUP].scale) * f64::from(blocks[i / GROUP].qs[i % GROUP]),
            false => f64::from(x[i]),
        };
        for w in values.chunks_exact(k) {
            let terms = w.iter().enumerate().map(|(i, w)| f64::from(*w) * value(i));
            out.push((terms.clone().sum(), terms.map(f64::abs).sum()));
        }
    }
    out
}

#[test]
fn matmul_matches_f64_in_every_type_precision_and_shape() {
    let mut rng = Rng::new(10);
    for dtype in TYPES {
        let ks: &[usize] = match dtype.block_elems() {
            1 => &[1, 5, 8, 31, 64, 200],
            32 => &[32, 96, 576],
            _ => &[256, 768],
        };
        for &k in ks {
            for n in [1, 7, 8, 17, 40] {
                let bytes = weight(&mut rng, dtype, n, k);
                for m in [1, 2, 3, 4, 5, 13] {
                    let x = random(&mut rng, m * k);
                    for precision in [Precision::Exact, Precision::Fast] {
                        let mut results = Vec::new();
                        for isa in Isa::supported() {
                            let pool = Pool::with_isa(2, isa);
                            let w = matrix(&pool, dtype, n, k, &bytes, precision);
                            let mut out = vec![f32::NAN; m * n];
                            matmul(&pool, &[&w], &x, &mut out, false, &mut Scratch::new());
                            let truth = reference(dtype, &bytes, n, &x, k, w.takes_int8());
                            for (got, (want, size)) in out.iter().zip(truth) {
                                let error = (f64::from(*got) - want).abs();
                                assert!(
                                    error <= 1e-5 * size + 1e-30,
                                    "{dtype} {m}×{k}×{n} {precision:?} {isa:?}: {got} {want}"
                                );
                            }
                            results.push(bits(&out));
                        }
                        for other in &results[1..] {
                            assert_eq!(results[0], *other, "{dtype} {m}×{k}×{n} {precision:?}");
                        }
                    }
                }
            }
        }
    }
}

/// Every instruction set of this CPU is bit-equal to portable Rust, for any number of rows.
#[test]
fn matmul_is_bit_equal_on_all_instruction_sets_for_any_number_of_rows() {
    let mut rng = Rng::new(14);
    let (k, n) = (512, 19);
    for dtype in TYPES {
        let bytes = weight(&mut rng, dtype, n, k);
        let x = random(&mut rng, 512 * k);
        let mut portable = vec![0.0; 512 * n];
        for isa in Isa::supported() {
            let pool = Pool::with_isa(2, isa);
            let w = matrix(&pool, dtype, n, k, &bytes, Precision::Fast);
            let mut scratch = Scratch::new();
            if isa == Isa::PORTABLE {
                matmul(&pool, &[&w], &x, &mut portable, false, &mut scratch);
            }
            for m in (1..=40).chain([100, 512]) {
                let mut out = vec![f32::NAN; m * n];
                matmul(&pool, &[&w], &x[..m * k], &mut out, false, &mut scratch);
                assert_eq!(bits(&out), bits(&portable[..m * n]), "{dtype} {m} {isa:?}");
            }
        }
    }
}

#[test]
fn block_formats_use_int8_kernels_in_fast_precision_only() {
    let pool = Pool::new(1);
    for dtype in TYPES {
        let w = weight(&mut Rng::new(1), dtype, 3, 256);
        let panels = PANELS.contains(&dtype);
        assert_eq!(matrix(&pool, dtype, 3, 256, &w, Precision::Fast).takes_int8(), panels, "{dtype}");
        assert!(!matrix(&pool, dtype, 3, 256, &w, Precision::Exact).takes_int8());
    }
}

/// Extreme quants and activations must not overflow an intermediate sum.
#[test]
fn extreme_quants_and_activations_do_not_overflow() {
    for &dtype in PANELS {
        for fill in [0x00, 0xFF, 0x80, 0x7F] {
            let k = 512;
            let mut bytes = vec![fill; dtype.bytes_of_elems(9 * k).unwrap()];
            for block in bytes.chunks_exact_mut(dtype.block_bytes()) {
                if dtype == DType::MXFP4 {
                    block[0] = 127;
                }
                for &at in f16_offsets(dtype) {
                    block[at..at + 2].copy_from_slice(&half::f16::from_f32(1.0).to_le_bytes());
                }
            }
            for (x, isa) in [1.0, -1.0].into_iter().flat_map(|x| Isa::supported().map(move |isa| (x, isa))) {
                let x = vec![x; 4 * k];
                let pool = Pool::with_isa(1, isa);
                let w = matrix(&pool, dtype, 9, k, &bytes, Precision::Fast);
                let mut out = vec![0.0; 4 * 9];
                matmul(&pool, &[&w], &x, &mut out, false, &mut Scratch::new());
                for (got, (want, size)) in out.iter().zip(reference(dtype, &bytes, 9, &x, k, true)) {
                    assert!(
                        (f64::from(*got) - want).abs() <= 1e-5 * size,
                        "{dtype} {fill:#x} {isa:?}: {got} {want}"
                    );
                }
            }
        }
    }
}

/// A row has the same bits alone or batched, on any number of threads.
#[test]
fn matmul_is_batch_invariant() {
    let mut rng = Rng::new(11);
    let (k, n) = (512, 72);
    for precision in [Precision::Exact, Precision::Fast] {
        for dtype in TYPES {
            let bytes = weight(&mut rng, dtype, n, k);
            let x = random(&mut rng, 512 * k);
            let pool = Pool::new(1);
            let w = matrix(&pool, dtype, n, k, &bytes, precision);
            let mut scratch = Scratch::new();
            let mut alone = vec![0.0; 512 * n];
            for (x, out) in x.chunks_exact(k).zip(alone.chunks_exact_mut(n)) {
                matmul(&pool, &[&w], x, out, false, &mut scratch);
            }
            for threads in 1..=4 {
                let pool = Pool::new(threads);
                for m in (1..=40).chain([100, 512]) {
                    // A random start, so rows have different positions in a tile.
                    let from = rng.below(512 - m + 1);
                    let mut out = vec![0.0; m * n];
                    matmul(&pool, &[&w], &x[from * k..(from + m) * k], &mut out, false, &mut scratch);
                    assert_eq!(bits(&out), bits(&alone[from * n..(from + m) * n]), "{dtype} {m} {threads}");
                }
            }
        }
    }
}

#[test]
fn outputs_of_several_weights_are_concatenated_and_residuals_added() {
    let mut rng = Rng::new(12);
    let (k, m) = (256, 5);
    let pool = Pool::new(2);
    let mut scratch = Scratch::new();
    let shapes = [(DType::Q4_1, 20), (DType::F32, 9), (DType::Q8_0, 1), (DType::Q6_K, 33)];
    let weights: Vec<Matrix> = shapes
        .iter()
        .map(|&(dtype, n)| {
            let bytes = weight(&mut rng, dtype, n, k);
            matrix(&pool, dtype, n, k, &bytes, Precision::Fast)
        })
        .collect();
    let x = random(&mut rng, m * k);
    let total = 20 + 9 + 1 + 33;
    let residual = random(&mut rng, m * total);

    let mut expected = residual.clone();
    let mut column = 0;
    for w in &weights {
        let mut out = vec![0.0; m * w.rows()];
        matmul(&pool, &[w], &x, &mut out, false, &mut scratch);
        for (row, out) in out.chunks_exact(w.rows()).enumerate() {
            for (i, v) in out.iter().enumerate() {
                expected[row * total + column + i] += v;
            }
        }
        column += w.rows();
    }
    let mut out = residual;
    matmul(&pool, &weights.iter().collect::<Vec<_>>(), &x, &mut out, true, &mut scratch);
    assert_eq!(bits(&out), bits(&expected));
}

#[test]
fn rows_are_bit_equal_to_the_reference_dequantisation() {
    let mut rng = Rng::new(13);
    let pool = Pool::new(1);
    for dtype in TYPES {
        let (n, k) = (11, 512);
        let bytes = weight(&mut rng, dtype, n, k);
        let mut values = vec![0.0; n * k];
        dequantize(dtype, &bytes, &mut values).unwrap();
        for precision in [Precision::Exact, Precision::Fast] {
            let w = matrix(&pool, dtype, n, k, &bytes, precision);
            let mut row = vec![0.0; k];
            for i in 0..n {
                w.row(i, &mut row);
                assert_eq!(row, values[i * k..(i + 1) * k], "{dtype} row {i}");
            }
        }
    }
}

#[test]
fn invalid_matrices_are_rejected() {
    let pool = Pool::new(1);
    let new = |dtype, rows, cols, bytes: usize| {
        Matrix::new(&pool, dtype, rows, cols, Bytes::from(vec![0; bytes]), Precision::Fast).err()
    };
    assert_eq!(new(DType::F32, 0, 4, 0), Some(CpuError::Empty { rows: 0, cols: 4 }));
    assert_eq!(
        new(DType::Q4_0, 2, 32, 35),
        Some(CpuError::ByteCount { dtype: DType::Q4_0, rows: 2, cols: 32, expected: 36, found: 35 })
    );
    assert!(matches!(new(DType::Q4_0, 2, 33, 36), Some(CpuError::Tensor(_))));
    assert!(matches!(new(DType::IQ1_S, 1, 256, 50), Some(CpuError::Tensor(_))));
    assert!(matches!(new(DType::F32, usize::MAX, 2, 8), Some(CpuError::Tensor(_))));
    assert_eq!(
        Bytes::new(std::sync::Arc::new(vec![0u8; 4]), 2..5).err(),
        Some(CpuError::Range { start: 2, end: 5, len: 4 })
    );
}

/// The engine shares weights, caches and pools between threads.
#[test]
fn weights_caches_and_pools_are_send_and_sync() {
    fn shared<T: Send + Sync>() {}
    shared::<Matrix>();
    shared::<Pool>();
    shared::<gyrus_cpu::KvStore>();
    shared::<Scratch>();
}
