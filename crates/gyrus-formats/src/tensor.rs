use gyrus_tensor::{DType, Shape};

/// A tensor in a checkpoint: what it is, and its bytes where they lie.
#[derive(Debug, Clone, Copy)]
pub struct TensorView<'a> {
    /// The name in the file.
    pub name: &'a str,
    /// Element type.
    pub dtype: DType,
    /// Axes, outermost first, whatever order the file uses.
    pub shape: Shape,
    /// Exactly the bytes `dtype` and `shape` call for.
    pub data: &'a [u8],
    /// Where `data` begins in its file.
    pub at: u64,
    /// Which of the checkpoint's files holds it, counted from 0.
    pub shard: usize,
}
