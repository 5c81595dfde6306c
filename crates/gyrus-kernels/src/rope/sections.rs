use super::error::RopeError;

/// M-RoPE: pairs divided among several rows of positions, such as time, height and width.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sections {
    /// How many pairs read each row.
    pub sizes: Vec<usize>,
    /// Whether the rows are interleaved (Qwen3-VL), or each has consecutive pairs (Qwen2-VL).
    pub interleaved: bool,
}

/// Files store four rows.
const MOST_ROWS: usize = 4;

impl Sections {
    /// Which row each pair reads.
    pub(super) fn rows(&self, pairs: usize) -> Result<Vec<u8>, RopeError> {
        let refused = |reason| RopeError::Sections { sizes: self.sizes.clone(), pairs, reason };
        if !(1..=MOST_ROWS).contains(&self.sizes.len()) {
            return Err(refused("one to four rows are possible"));
        }
        let sum = self.sizes.iter().try_fold(0usize, |sum, &n| sum.checked_add(n));
        if sum != Some(pairs) {
            return Err(refused("together they must be all pairs"));
        }
        if !self.interleaved {
            let pieces = self.sizes.iter().enumerate();
            return Ok(pieces.flat_map(|(row, &n)| std::iter::repeat_n(row as u8, n)).collect());
        }
        // Interleaved: one pair of each row; the first row has the rest.
        let count = self.sizes.iter().rposition(|&n| n > 0).map_or(1, |last| last + 1);
        let mut rows = vec![0; pairs];
        for (row, &n) in self.sizes[..count].iter().enumerate().skip(1) {
            for round in 0..n {
                let pair = rows.get_mut(row + count * round);
                *pair.ok_or_else(|| refused("too many of one row to interleave"))? = row as u8;
            }
        }
        Ok(rows)
    }
}
