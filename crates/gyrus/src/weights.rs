use std::sync::Arc;

use gyrus_formats::{Checkpoint, TensorView};

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
    pub(crate) fn new(model: &Arc<Checkpoint>, tensor: &TensorView<'_>) -> TensorBytes {
        TensorBytes { model: Arc::clone(model), shard: tensor.shard, at: tensor.at, bytes: tensor.data.len() }
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
