use std::sync::Arc;

use gyrus_formats::Checkpoint;

/// The bytes of one tensor, kept alive with the file they lie in. When they are no longer needed, the
/// memory that the mapped file took for them is given back.
#[derive(Debug)]
pub(crate) struct TensorBytes {
    model: Arc<Checkpoint>,
    name: Arc<str>,
}

impl TensorBytes {
    pub(crate) fn new(model: &Arc<Checkpoint>, name: &str) -> TensorBytes {
        TensorBytes { model: Arc::clone(model), name: name.into() }
    }
}

impl AsRef<[u8]> for TensorBytes {
    fn as_ref(&self) -> &[u8] {
        self.model.tensor(&self.name).map_or(&[], |tensor| tensor.data)
    }
}

impl Drop for TensorBytes {
    fn drop(&mut self) {
        if let Some(tensor) = self.model.tensor(&self.name) {
            self.model.release(&tensor);
        }
    }
}
