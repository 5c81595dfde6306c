//! Folders of SafeTensors that a test reads, changes and writes.

use std::collections::BTreeMap;
use std::path::Path;

use gyrus_formats::Checkpoint;
use gyrus_tensor::DType;
use serde_json::{Value, json};

/// A tensor outside its file.
#[derive(Clone)]
pub(crate) struct Tensor {
    pub(crate) dtype: DType,
    pub(crate) shape: Vec<usize>,
    pub(crate) bytes: Vec<u8>,
}

/// The tensors of a model and its `config.json`.
#[derive(Clone)]
pub(crate) struct Folder {
    pub(crate) config: Value,
    pub(crate) tensors: BTreeMap<String, Tensor>,
}

impl Folder {
    pub(crate) fn read(path: &Path) -> Folder {
        let model = Checkpoint::open(path).unwrap();
        let tensor = |t: gyrus_formats::TensorView<'_>| {
            let shape = t.shape.dims().to_vec();
            (t.name.to_owned(), Tensor { dtype: t.dtype, shape, bytes: t.data.to_vec() })
        };
        Folder { config: model.config().unwrap().clone(), tensors: model.tensors().map(tensor).collect() }
    }

    pub(crate) fn write(&self, path: &Path) {
        let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
        for (name, tensor) in &self.tensors {
            let offsets = [data.len(), data.len() + tensor.bytes.len()];
            let entry = json!({"dtype": tensor.dtype.name(), "shape": tensor.shape, "data_offsets": offsets});
            header.insert(name.clone(), entry);
            data.extend_from_slice(&tensor.bytes);
        }
        let header = serde_json::to_vec(&header).unwrap();
        let file = [&(header.len() as u64).to_le_bytes()[..], &header, &data].concat();
        std::fs::write(path.join("model.safetensors"), file).unwrap();
        std::fs::write(path.join("config.json"), self.config.to_string()).unwrap();
    }
}

/// A weight in affine groups.
pub(crate) struct Affine {
    pub(crate) bits: usize,
    pub(crate) group: usize,
    pub(crate) scale: DType,
}

/// The three tensors of a weight `[rows, cols]`, and the values that they stand for: the smallest value of a group
/// becomes quant 0, the largest the last quant.
pub(crate) fn quantize(values: &[f32], cols: usize, affine: &Affine) -> ([Tensor; 3], Vec<f32>) {
    let Affine { bits, group, scale } = *affine;
    let rows = values.len() / cols;
    let rounded = |value: f32| {
        let bytes = gyrus_tensor::quantize(scale, &[value]).unwrap();
        let mut back = [0.0];
        gyrus_tensor::dequantize(scale, &bytes, &mut back).unwrap();
        (bytes, back[0])
    };
    let (mut scales, mut biases, mut made) = (Vec::new(), Vec::new(), Vec::new());
    let mut quants = vec![0u8; values.len() * bits / 8];
    for (g, values) in values.chunks_exact(group).enumerate() {
        let low = values.iter().copied().fold(f32::INFINITY, f32::min);
        let high = values.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let last = ((1 << bits) - 1) as f32;
        let ((d_bytes, d), (m_bytes, m)) = (rounded((high - low) / last), rounded(low));
        scales.extend(d_bytes);
        biases.extend(m_bytes);
        for (i, value) in values.iter().enumerate() {
            let q = if d == 0.0 { 0.0 } else { ((value - m) / d).round().clamp(0.0, last) };
            made.push(d * q + m);
            // Groups are whole bytes, so a row is a part of one stream.
            for bit in (0..bits).filter(|bit| q as usize >> bit & 1 == 1) {
                let at = (g * group + i) * bits + bit;
                quants[at / 8] |= 1 << (at % 8);
            }
        }
    }
    let words = Tensor { dtype: DType::U32, shape: vec![rows, cols * bits / 32], bytes: quants };
    let numbers = |bytes| Tensor { dtype: scale, shape: vec![rows, cols / group], bytes };
    ([words, numbers(scales), numbers(biases)], made)
}
