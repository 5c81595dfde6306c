/// Positions in one block of the KV cache.
pub const KV_BLOCK: usize = 32;

/// The rows of one forward pass. Prompts, single steps and many sequences at once are the same call with
/// other rows.
///
/// All slices but `logits`, `tables` and `lengths` have one entry per row. A sequence's rows must come in order of
/// position, and the cache must already hold every earlier position of that sequence.
#[derive(Debug, Clone, Copy)]
pub struct Batch<'a> {
    /// Token ids.
    pub tokens: &'a [u32],
    /// Positions, which fix both the rotary phase and the cache slot. M-RoPE reads them for all its rows,
    /// as it does in text.
    pub positions: &'a [u32],
    /// For each row, which of `tables` is its sequence's.
    pub sequences: &'a [u32],
    /// Indices of the rows whose logits are wanted, ascending.
    pub logits: &'a [u32],
    /// For each sequence its cache blocks: position `p` lies in `tables[s][p / KV_BLOCK]`.
    pub tables: &'a [&'a [u32]],
    /// For each sequence the length it may reach, the same in all its batches: some ropes turn long
    /// sequences at other speeds, and keys in the cache must have been turned like those to come.
    pub lengths: &'a [u32],
}

impl Batch<'_> {
    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.tokens.len()
    }

    /// The block table of a row's sequence.
    pub fn table(&self, row: usize) -> &[u32] {
        self.tables[self.sequences[row] as usize]
    }

    /// Whether the slices agree in length and every position has a block. Backends check this once per
    /// batch, so that kernels need not.
    pub fn is_sound(&self, vocab: usize, blocks: usize) -> bool {
        let rows = self.rows();
        self.positions.len() == rows
            && self.sequences.len() == rows
            && self.lengths.len() == self.tables.len()
            && self.logits.iter().all(|&r| (r as usize) < rows)
            && self.tokens.iter().all(|&t| (t as usize) < vocab)
            && self.tables.iter().all(|table| table.iter().all(|&b| (b as usize) < blocks))
            && (0..rows).all(|r| {
                let table = self.tables.get(self.sequences[r] as usize);
                table.is_some_and(|t| (self.positions[r] as usize) / KV_BLOCK < t.len())
            })
    }
}
