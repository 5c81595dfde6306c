/// Rows of int8 activations, in the words that kernels exchange.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QuantizedRows {
    /// `[rows, 2, cols / 32]` vectors of sixteen int8: the first sixteen of all blocks, then the last sixteen.
    pub q: Vec<u32>,
    /// `[rows, cols / 32]` of two words: the scale, and the sums of the first and last sixteen int8.
    pub scales: Vec<u32>,
    cols: usize,
}

/// Blocks of 32 as `v ≈ scale·q`: the scale is the largest magnitude over 127, and NaN if a value is NaN.
/// Rows begin `x_stride` elements apart.
pub fn quantize_rows(rows: usize, cols: usize, x_stride: usize, x: &[f32]) -> QuantizedRows {
    let blocks = cols / 32;
    let mut out = QuantizedRows { q: vec![0; rows * blocks * 8], scales: vec![0; rows * blocks * 2], cols };
    for row in 0..rows {
        let x = &x[row * x_stride..][..cols];
        for (block, x) in x.as_chunks::<32>().0.iter().enumerate() {
            let largest = f32::from_bits(x.iter().map(|v| v.to_bits() & 0x7fff_ffff).max().unwrap_or(0));
            let inverse = if largest > 0.0 { 127.0 / largest } else { 0.0 };
            let q = x.map(|v| (v * inverse).round_ties_even().clamp(-127.0, 127.0) as i8);
            for (word, bytes) in q.as_chunks::<4>().0.iter().enumerate() {
                let at = ((2 * row + word / 4) * blocks + block) * 4 + word % 4;
                out.q[at] = u32::from_le_bytes(bytes.map(|q| q as u8));
            }
            let [first, last] = [&q[..16], &q[16..]].map(|q| q.iter().map(|q| i32::from(*q)).sum::<i32>());
            let at = 2 * (row * blocks + block);
            out.scales[at] = (largest / 127.0).to_bits();
            out.scales[at + 1] = first as u32 & 0xffff | (last as u32) << 16;
        }
    }
    out
}

impl QuantizedRows {
    /// Rows that a kernel wrote.
    pub fn from_words(cols: usize, q: Vec<u32>, scales: Vec<u32>) -> QuantizedRows {
        QuantizedRows { q, scales, cols }
    }

    /// The int8 values of a row, in element order.
    pub fn bytes(&self, row: usize) -> Vec<i8> {
        let blocks = self.cols / 32;
        let word = |j: usize| {
            let (block, word) = (j / 8, j % 8);
            self.q[((2 * row + word / 4) * blocks + block) * 4 + word % 4]
        };
        (0..blocks * 8).flat_map(|j| word(j).to_le_bytes().map(|byte| byte as i8)).collect()
    }

    /// The scale of a block of a row.
    pub fn scale(&self, row: usize, block: usize) -> f32 {
        f32::from_bits(self.scales[2 * (row * (self.cols / 32) + block)])
    }

    /// The dequantised values.
    pub fn values(&self, row: usize) -> Vec<f32> {
        let bytes = self.bytes(row);
        bytes.iter().enumerate().map(|(i, q)| self.scale(row, i / 32) * f32::from(*q)).collect()
    }
}
