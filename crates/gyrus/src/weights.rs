use std::sync::Arc;

use gyrus_formats::{Checkpoint, TensorView};
use gyrus_kernels::WeightSpec;
use gyrus_tensor::DType;

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
        let Some(tensor) = model.tensor(&spec.name) else { return Ok(None) };
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
