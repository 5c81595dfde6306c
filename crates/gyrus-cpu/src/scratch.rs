use crate::quantize_rows::QBlock;

/// Scratch buffers that kernels reuse between calls. They grow to the largest size requested and never shrink.
#[derive(Default)]
pub struct Scratch {
    blocks: Vec<QBlock>,
    padded: Vec<f32>,
    tiles: Vec<f32>,
    pub(crate) partials: Vec<f32>,
    pub(crate) groups: Vec<crate::attention::Group>,
    pub(crate) sorted: crate::matmul::experts::Sorted,
}

impl Scratch {
    /// Empty buffers.
    pub fn new() -> Scratch {
        Scratch::default()
    }

    /// Reserves the partial results of one row's attention over a sequence of `blocks` blocks, so a growing
    /// sequence does not allocate. The system commits the memory when it is first written.
    pub(crate) fn reserve_attention(&mut self, heads: usize, head_dim: usize, blocks: usize) {
        // If the reservation fails, attention allocates on demand.
        let _ = self.partials.try_reserve(crate::attention::partial_elems(heads, head_dim, blocks));
    }

    /// The buffers for a matmul's input: quantised to int8, padded, and interleaved in tiles.
    pub(crate) fn take(
        &mut self,
        blocks: usize,
        padded: usize,
        tiles: usize,
    ) -> (&mut [QBlock], &mut [f32], &mut [f32]) {
        grow(&mut self.blocks, blocks);
        grow(&mut self.padded, padded);
        grow(&mut self.tiles, tiles);
        (&mut self.blocks[..blocks], &mut self.padded[..padded], &mut self.tiles[..tiles])
    }
}

pub(crate) fn grow<T: Clone + Default>(buffer: &mut Vec<T>, len: usize) {
    if buffer.len() < len {
        buffer.resize(len, T::default());
    }
}
