use gyrus_tensor::{DType, Shape};

/// A view of a tensor in a checkpoint.
#[derive(Debug, Clone, Copy)]
pub struct TensorView<'a> {
    /// The name in the file.
    pub name: &'a str,
    /// Element type.
    pub dtype: DType,
    /// Dimensions, outermost first; GGUF files store them in reverse.
    pub shape: Shape,
    /// The bytes of the tensor, as many as `dtype` and `shape` need.
    pub data: &'a [u8],
    /// File offset of `data`.
    pub at: u64,
    /// Index of the file in [`crate::Checkpoint::files`].
    pub shard: usize,
}
