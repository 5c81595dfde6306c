//! The block formats against independent implementations: the Python package `gguf` and ggml.

use std::path::Path;

use gyrus_tensor::{DType, can_dequantize, can_quantize, dequantize, quantize};
use gyrus_testkit::{Rng, oracle, tempfile};

fn write_f32(path: &Path, values: &[f32]) {
    let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
    std::fs::write(path, bytes).unwrap();
}

fn read_f32(path: &Path) -> Vec<f32> {
    std::fs::read(path).unwrap().as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
}

#[test]
fn dequantisation_is_bit_equal_to_the_reference_on_random_blocks() {
    const BLOCKS: usize = 10_000;
    let folder = tempfile::tempdir().unwrap();
    let dtypes: Vec<DType> =
        DType::ALL.iter().copied().filter(|d| can_dequantize(*d) && !d.is_affine()).collect();
    let mut rng = Rng::new(1);
    for dtype in &dtypes {
        // Random bytes contain every kind of scale: 1 in 32 f16 patterns is NaN or infinite.
        let bytes = rng.bytes(BLOCKS * dtype.block_bytes());
        std::fs::write(folder.path().join(format!("{dtype}.blocks")), bytes).unwrap();
    }
    if oracle("quants.py", &["dequantize".as_ref(), folder.path()]).is_none() {
        return;
    }
    for dtype in dtypes {
        let bytes = std::fs::read(folder.path().join(format!("{dtype}.blocks"))).unwrap();
        let theirs = read_f32(&folder.path().join(format!("{dtype}.f32")));
        let mut ours = vec![0.0; BLOCKS * dtype.block_elems()];
        dequantize(dtype, &bytes, &mut ours).unwrap();
        assert_eq!(ours.len(), theirs.len(), "{dtype}");
        for (i, (a, b)) in ours.iter().zip(&theirs).enumerate() {
            // NaN payloads may differ.
            let mut equal = a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan());
            if dtype == DType::MXFP4 && bytes[i / 32 * 17] == 0xFF {
                // The format's NaN, which the reference decodes as 2^127.
                equal = a.is_nan();
            }
            assert!(equal, "{dtype}: element {i} is {a:e}, the reference has {b:e}");
        }
    }
}

#[test]
fn quantisation_error_is_within_two_per_cent_of_the_reference() {
    const ELEMS: usize = 1 << 18;
    let folder = tempfile::tempdir().unwrap();
    let mut rng = Rng::new(2);
    let mut data: Vec<(&str, Vec<f32>)> = vec![
        ("gaussian", (0..ELEMS).map(|_| (0.02 * rng.gaussian()) as f32).collect()),
        // Student's t with three degrees of freedom: outliers far beyond the rest of their block.
        (
            "heavy",
            (0..ELEMS)
                .map(|_| {
                    let chi: f64 = (0..3).map(|_| rng.gaussian().powi(2)).sum();
                    (0.02 * rng.gaussian() / (chi / 3.0).sqrt()) as f32
                })
                .collect(),
        ),
        ("offset", (0..ELEMS).map(|_| (1.0 + 0.1 * rng.gaussian()) as f32).collect()),
    ];
    for (name, values) in &mut data {
        write_f32(&folder.path().join(format!("{name}.f32")), values);
    }
    let Some(printed) = oracle("quants.py", &["error".as_ref(), folder.path()]) else { return };
    let reference: serde_json::Value = serde_json::from_str(&printed).unwrap();
    for (name, values) in &data {
        for dtype in DType::ALL.iter().copied().filter(|d| d.is_quantized() && can_quantize(*d)) {
            let mut back = vec![0.0; ELEMS];
            dequantize(dtype, &quantize(dtype, values).unwrap(), &mut back).unwrap();
            let sum: f64 = values.iter().zip(&back).map(|(a, b)| f64::from(a - b).powi(2)).sum();
            let theirs = reference[name][dtype.name()].as_f64().unwrap();
            let ratio = sum / ELEMS as f64 / theirs;
            println!("{name:9} {dtype:5} {ratio:.4} of the reference's error");
            assert!(ratio <= 1.02, "{dtype} on {name}: {ratio:.4} times the reference's error");
        }
    }
}

#[test]
fn names_and_sizes_match_ggml() {
    let Some(printed) = oracle("quants.py", &["sizes"]) else { return };
    let table: serde_json::Value = serde_json::from_str(&printed).unwrap();
    for row in table.as_object().unwrap().values() {
        let name = row[0].as_str().unwrap();
        let dtype: DType = name.parse().unwrap_or_else(|()| panic!("{name} is not known"));
        assert_eq!(Some(dtype.block_elems() as u64), row[1].as_u64(), "{name}");
        assert_eq!(Some(dtype.block_bytes() as u64), row[2].as_u64(), "{name}");
    }
}
