//! Weights that are quantised while they are loaded have the bits of a file that was quantised before.

#[cfg(feature = "gpu")]
mod adapter;
mod random_qwen3;
mod written;

use gyrus::{DType, Model, Options, Precision};
use gyrus_formats::Checkpoint;
use random_qwen3::{Random, VOCAB};

fn options(precision: Precision, quantize: Option<DType>) -> Options {
    Options { precision, quantize, threads: Some(2), context: Some(64), ..Options::default() }
}

fn load(
    checkpoint: Checkpoint,
    precision: Precision,
    quantize: Option<DType>,
) -> Result<Model, gyrus::Error> {
    Model::load(checkpoint, &options(precision, quantize))
}

fn logits(model: &Model) -> Vec<f32> {
    let mut logits = Vec::new();
    let ids: Vec<u32> = (0..24).map(|n| n * 37 % VOCAB as u32).collect();
    model.session().score(&ids, |_, row| logits.extend_from_slice(row)).unwrap();
    logits
}

#[test]
fn the_bits_are_those_of_a_file_quantised_before() {
    let shape = Random { dim: 128, ffn: 256, layers: 2 };
    for stored in [DType::F32, DType::F16, DType::BF16] {
        let floats = shape.tensors(stored, |_| stored);
        for to in [DType::Q8_0, DType::Q4_0, DType::Q4_1, DType::Q5_0, DType::Q5_1] {
            let before = shape.tensors(stored, |_| to);
            for precision in [Precision::Exact, Precision::Fast] {
                let model = load(shape.checkpoint(&floats), precision, Some(to)).unwrap();
                let expected = load(shape.checkpoint(&before), precision, None).unwrap();
                assert_eq!(model.plan(), expected.plan());
                assert!(logits(&model) == logits(&expected), "{stored} to {to}, {precision:?}");
            }
        }
    }
}

#[cfg(feature = "gpu")]
#[test]
fn a_gpu_is_given_the_same_bits() {
    let Some(name) = adapter::adapter() else { return };
    let shape = Random { dim: 128, ffn: 256, layers: 2 };
    let load = |stored: DType, quantize: Option<DType>| {
        let tensors = shape.tensors(DType::BF16, |_| stored);
        let device = gyrus::Device::Gpu(Some(name.clone()));
        Model::load(shape.checkpoint(&tensors), &Options { device, ..options(Precision::Fast, quantize) })
    };
    let (model, expected) = (load(DType::BF16, Some(DType::Q4_0)), load(DType::Q4_0, None));
    assert!(logits(&model.unwrap()) == logits(&expected.unwrap()));
    let mut tensors = shape.tensors(DType::F32, |_| DType::F32);
    tensors[0].3[..4].copy_from_slice(&f32::INFINITY.to_le_bytes());
    let device = gyrus::Device::Gpu(Some(name.clone()));
    let options = Options { device, ..options(Precision::Fast, Some(DType::Q4_0)) };
    let error = Model::load(shape.checkpoint(&tensors), &options).err().unwrap().to_string();
    assert!(error.contains("'token_embd.weight': element 0 is inf"), "{error}");
}

#[test]
fn what_is_quantised_already_stays() {
    let shape = Random { dim: 128, ffn: 256, layers: 1 };
    let mixed = |name: &str| if name.contains("attn") { DType::Q4_0 } else { DType::F16 };
    let tensors = shape.tensors(DType::F16, mixed);
    let model = load(shape.checkpoint(&tensors), Precision::Fast, Some(DType::Q8_0)).unwrap();
    for spec in &model.plan().weights {
        let expected = match spec.shape.rank() {
            1 => DType::F32,
            _ if spec.name.contains("attn") => DType::Q4_0,
            _ => DType::Q8_0,
        };
        assert_eq!(spec.dtype, expected, "{}", spec.name);
    }
}

#[test]
fn rows_that_are_not_whole_blocks_are_refused_by_name() {
    // Rows of 96 elements are blocks of 32, but not of 256.
    let shape = Random { dim: 96, ffn: 256, layers: 1 };
    let tensors = shape.tensors(DType::F16, |_| DType::F16);
    assert!(load(shape.checkpoint(&tensors), Precision::Fast, Some(DType::Q8_0)).is_ok());
    let error = load(shape.checkpoint(&tensors), Precision::Fast, Some(DType::Q4_K)).err().unwrap();
    assert_eq!(
        error.to_string(),
        "tensor 'token_embd.weight': a row of 96 elements is not a multiple of Q4_K's block of 256"
    );
}

#[test]
fn a_value_that_cannot_be_quantised_is_refused_by_name() {
    let shape = Random { dim: 128, ffn: 256, layers: 1 };
    let mut tensors = shape.tensors(DType::F32, |_| DType::F32);
    let (name, _, _, bytes) = tensors.iter_mut().find(|(name, ..)| name.contains("ffn_down")).unwrap();
    bytes[400..404].copy_from_slice(&f32::NAN.to_le_bytes());
    let name = name.clone();
    let error = load(shape.checkpoint(&tensors), Precision::Fast, Some(DType::Q8_0)).err().unwrap();
    assert_eq!(
        error.to_string(),
        format!("tensor '{name}': element 100 is NaN, which Q8_0 cannot represent")
    );
    let error = load(shape.checkpoint(&tensors), Precision::Fast, Some(DType::F16)).err().unwrap();
    assert_eq!(error.to_string(), "quantising weights to F16 is not supported");
}
