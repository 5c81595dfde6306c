use crate::quantize_rows::QBlock;

/// Buffers that kernels re-use from call to call; they grow to the largest size asked for and stay.
#[derive(Default)]
pub struct Scratch {
    blocks: Vec<QBlock>,
    padded: Vec<f32>,
    pub(crate) partials: Vec<f32>,
    pub(crate) groups: Vec<crate::attention::Group>,
}

impl Scratch {
    /// Empty buffers.
    pub fn new() -> Scratch {
        Scratch::default()
    }

    pub(crate) fn take(&mut self, blocks: usize, floats: usize) -> (&mut [QBlock], &mut [f32]) {
        grow(&mut self.blocks, blocks);
        grow(&mut self.padded, floats);
        (&mut self.blocks[..blocks], &mut self.padded[..floats])
    }
}

pub(crate) fn grow<T: Clone + Default>(buffer: &mut Vec<T>, len: usize) {
    if buffer.len() < len {
        buffer.resize(len, T::default());
    }
}
