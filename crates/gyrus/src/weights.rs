use std::sync::Arc;

use gyrus_formats::{Checkpoint, TensorView};
use gyrus_kernels::WeightSpec;
use gyrus_tensor::DType;

use crate::affine;

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
    /// A weight that no tensor of the file holds: a constant, or one that was assembled from several tensors.
    Memory(Vec<u8>),
}

impl WeightBytes {
    /// The data of a weight of a plan; `None` if the file does not have it.
    pub(crate) fn of(model: &Arc<Checkpoint>, spec: &WeightSpec) -> Option<WeightBytes> {
        if spec.constant {
            return Some(WeightBytes::Memory(vec![0; spec.range()?.len()]));
        }
        let tensor = model.tensor(&spec.name)?;
        // No kernel reads words, so these are the quants of affine groups.
        if tensor.dtype == DType::U32 {
            return affine::assemble(model, spec, &tensor).map(WeightBytes::Memory);
        }
        TensorBytes::new(model, &tensor, spec).map(WeightBytes::File)
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
