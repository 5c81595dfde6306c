use super::Rope;
use crate::batch::Batch;

/// The phases of a batch's rows: `[rows, rope_dim / 2]` of `(cos, sin)`, shared by all layers.
#[derive(Debug, Default)]
pub struct Phases {
    pairs: usize,
    values: Vec<[f32; 2]>,
}

impl Phases {
    /// Recomputes the phases for a batch, reusing the allocation. Each row's phases are those of its sequence's class
    /// of lengths.
    pub fn compute(&mut self, rope: &Rope, batch: &Batch<'_>) {
        self.pairs = rope.pairs();
        self.values.resize(batch.rows() * self.pairs, [0.0; 2]);
        let mut first = 0;
        // Rows of a sequence are contiguous, so that its spectrum is looked up once.
        for rows in batch.sequences.chunk_by(|a, b| a == b) {
            let spectrum = rope.spectrum(batch.lengths[rows[0] as usize] as usize);
            for row in first..first + rows.len() {
                let out = &mut self.values[row * self.pairs..(row + 1) * self.pairs];
                rope.fill_phases(&spectrum, |_| batch.positions[row], out);
            }
            first += rows.len();
        }
    }

    /// The phases of all rows, contiguous.
    pub fn all(&self) -> &[[f32; 2]] {
        &self.values
    }

    /// The phases of a row.
    pub fn row(&self, row: usize) -> &[[f32; 2]] {
        &self.values[row * self.pairs..(row + 1) * self.pairs]
    }
}
