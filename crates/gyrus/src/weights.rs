use std::sync::Arc;

use gyrus_formats::{Checkpoint, TensorView};
use gyrus_kernels::{FileLayout, WeightSpec};
use gyrus_tensor::{DType, assemble_mxfp4};

use crate::Error;
use crate::affine;
use crate::quantized::Quantizer;

/// The bytes of one tensor in its file. It keeps the file open. Dropping it releases the tensor's pages of the memory
/// map.
#[derive(Debug)]
pub(crate) struct TensorBytes {
    model: Arc<Checkpoint>,
    shard: usize,
    at: u64,
    bytes: usize,
}

impl TensorBytes {
    /// The bytes of some rows of a tensor.
    fn new(model: &Arc<Checkpoint>, tensor: &TensorView<'_>, spec: &WeightSpec) -> Option<TensorBytes> {
        let range = spec.range()?;
        let bytes = tensor.data.get(range.clone())?.len();
        let at = tensor.at + range.start as u64;
        Some(TensorBytes { model: Arc::clone(model), shard: tensor.shard, at, bytes })
    }
}

/// The data of a weight.
#[derive(Debug)]
pub(crate) enum WeightBytes {
    File(TensorBytes),
    /// A weight that no tensor of the file holds as it is: a constant, one that was assembled from several tensors, or one
    /// of another type.
    Memory(Vec<u8>),
}

impl WeightBytes {
    /// The data of a weight of a plan; `None` if the file does not have it. A weight that the file has in another type is
    /// converted by `quantizer`.
    pub(crate) fn of(
        model: &Arc<Checkpoint>,
        spec: &WeightSpec,
        quantizer: Option<&Quantizer>,
    ) -> Result<Option<WeightBytes>, Error> {
        if spec.constant {
            return Ok(spec.range().map(|range| WeightBytes::Memory(vec![0; range.len()])));
        }
        if let Some(whole) = spec.whole() {
            let bytes = WeightBytes::of(model, &whole, quantizer)?;
            return Ok(bytes.and_then(|bytes| spec.gather(bytes.as_ref())).map(WeightBytes::Memory));
        }
        if spec.layout != FileLayout::Rows
            && let Some(experts) = spec.experts()
        {
            return Self::of_experts(model, spec, experts, quantizer);
        }
        if let FileLayout::Mxfp4 { first, step } = spec.layout {
            return Ok(mxfp4(model, spec, first, step).map(WeightBytes::Memory));
        }
        let Some(tensor) = model.tensor(&spec.name) else { return Ok(None) };
        if let FileLayout::Columns { first, step } = spec.layout {
            let Some(bytes) = columns(&tensor, spec, first, step) else { return Ok(None) };
            return match quantizer.filter(|_| tensor.dtype != spec.dtype) {
                None => Ok(Some(WeightBytes::Memory(bytes))),
                Some(quantizer) => {
                    let converted = quantizer.convert(&spec.name, &bytes, tensor.dtype, spec.dtype)?;
                    Ok(Some(WeightBytes::Memory(converted)))
                }
            };
        }
        // No kernel reads words, so these are the quants of affine groups.
        if tensor.dtype == DType::U32 {
            return Ok(affine::assemble(model, spec, &tensor).map(WeightBytes::Memory));
        }
        match quantizer.filter(|_| tensor.dtype != spec.dtype) {
            None => Ok(TensorBytes::new(model, &tensor, spec).map(WeightBytes::File)),
            Some(quantizer) => {
                let in_file = WeightSpec { dtype: tensor.dtype, ..spec.clone() };
                let Some(bytes) = TensorBytes::new(model, &tensor, &in_file) else { return Ok(None) };
                let converted = quantizer.convert(&spec.name, bytes.as_ref(), tensor.dtype, spec.dtype)?;
                Ok(Some(WeightBytes::Memory(converted)))
            }
        }
    }

    /// The data of all experts of a weight, one after the other.
    fn of_experts(
        model: &Arc<Checkpoint>,
        spec: &WeightSpec,
        experts: usize,
        quantizer: Option<&Quantizer>,
    ) -> Result<Option<WeightBytes>, Error> {
        let mut all = Vec::new();
        let Some(range) = spec.range().filter(|range| all.try_reserve_exact(range.len()).is_ok()) else {
            return Ok(None);
        };
        for expert in 0..experts {
            let Some(one) = spec.expert(expert) else { return Ok(None) };
            let Some(bytes) = Self::of(model, &one, quantizer)? else { return Ok(None) };
            all.extend_from_slice(bytes.as_ref());
        }
        Ok((all.len() == range.len()).then_some(WeightBytes::Memory(all)))
    }
}

/// A weight whose rows are columns of a tensor of floats: those of one expert, or a vector with every `step`-th element.
fn columns(tensor: &TensorView<'_>, spec: &WeightSpec, first: usize, step: usize) -> Option<Vec<u8>> {
    let size = tensor.dtype.block_bytes();
    let (rows, cols) = match *spec.shape.dims() {
        [rows, cols] => (rows, cols),
        [elems] => (elems, 1),
        _ => return None,
    };
    // A column of the weight is a row of the tensor.
    let stride = rows.checked_mul(step)?.checked_mul(size)?;
    let start = spec.first_row.checked_mul(stride)?;
    let data = tensor.data.get(start..start.checked_add(cols.checked_mul(stride)?)?)?;
    let mut out = Vec::new();
    out.try_reserve_exact(rows.checked_mul(cols)?.checked_mul(size)?).ok()?;
    for row in 0..rows {
        for col in 0..cols {
            let at = col * stride + (first + row * step) * size;
            out.extend_from_slice(data.get(at..at + size)?);
        }
    }
    Some(out)
}

/// The blocks of one expert's rows, whose quants and exponents are in tensors of their own.
fn mxfp4(model: &Checkpoint, spec: &WeightSpec, first: usize, step: usize) -> Option<Vec<u8>> {
    let quants = model.tensor(&format!("{}_blocks", spec.name))?;
    let scales = model.tensor(&format!("{}_scales", spec.name))?;
    let (rows, blocks) = (spec.shape.rows(), spec.shape.row() / DType::MXFP4.block_elems());
    let row_bytes = blocks * DType::MXFP4.block_bytes();
    let mut out = Vec::new();
    out.try_reserve_exact(rows.checked_mul(row_bytes)?).ok()?;
    out.resize(rows * row_bytes, 0);
    for (row, out) in out.chunks_exact_mut(row_bytes.max(1)).enumerate() {
        let at = (spec.first_row + first + row * step) * blocks;
        let of = |data: &'_ [u8], bytes: usize| -> Option<std::ops::Range<usize>> {
            let range = at.checked_mul(bytes)?..(at + blocks).checked_mul(bytes)?;
            (range.end <= data.len()).then_some(range)
        };
        let (q, s) = (&quants.data[of(quants.data, 16)?], &scales.data[of(scales.data, 1)?]);
        assemble_mxfp4(q, s, out).ok()?;
    }
    Some(out)
}

impl AsRef<[u8]> for WeightBytes {
    fn as_ref(&self) -> &[u8] {
        match self {
            WeightBytes::File(bytes) => bytes.as_ref(),
            WeightBytes::Memory(bytes) => bytes,
        }
    }
}

impl AsRef<[u8]> for TensorBytes {
    fn as_ref(&self) -> &[u8] {
        self.model.bytes(self.shard, self.at, self.bytes)
    }
}

impl Drop for TensorBytes {
    fn drop(&mut self) {
        self.model.release(self.shard, self.at, self.bytes);
    }
}
