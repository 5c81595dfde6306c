use crate::quantize_rows::QBlock;

/// Buffers that kernels re-use from call to call; they grow to the largest size asked for and stay.
#[derive(Default)]
pub struct Scratch {
    blocks: Vec<QBlock>,
    padded: Vec<f32>,
    tiles: Vec<f32>,
    pub(crate) partials: Vec<f32>,
    pub(crate) groups: Vec<crate::attention::Group>,
}

impl Scratch {
    /// Empty buffers.
    pub fn new() -> Scratch {
        Scratch::default()
    }

    /// Makes room for the partial results of one row's attention over a sequence of this many blocks, so
    /// that a text that grows does not allocate. The memory is committed as it is used.
    pub(crate) fn reserve_attention(&mut self, heads: usize, head_dim: usize, blocks: usize) {
        // Without the room it is allocated when it is needed.
        let _ = self.partials.try_reserve(crate::attention::partial_elems(heads, head_dim, blocks));
    }

    /// Room for a mat-mul's inputs: quantised, padded, side by side.
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
