use gyrus_kernels::{BufferId, DeltaLayer, KvLayer, Plane, RopeId, WeightId};

/// A buffer that a kernel reads or writes, by what it holds.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Operand {
    /// A scratch buffer of the plan, f32.
    Scratch(BufferId),
    /// The same for rows of slots that decode, so that their steps can run among the kernels of chunks.
    SlotScratch(BufferId),
    /// The token of each row.
    Tokens,
    /// Position and first block-table entry of each row.
    Rows,
    /// The block tables of a batch's sequences in a KV group.
    BlockTables(u8),
    /// The block tables of all slots in a KV group. It stands for [`Operand::BlockTables`] in kernels of slots.
    SlotTables(u8),
    /// For spans that are not causal: the last position that a row sees in a KV group, and its first block-table entry.
    SpanRows(u8),
    /// The type of each row.
    Types,
    /// Which rows want logits.
    LogitRows,
    /// Tiles of rows that attend together in prefill.
    Tiles,
    /// The same for spans that are not causal: they see a sequence's extent in a KV group.
    SpanTiles(u8),
    /// Unmerged splits of attention.
    Partials,
    /// Slots of rows sorted by expert, in tiles.
    ExpertOrder,
    /// Frequencies of a rotary embedding.
    RopeTable(RopeId),
    /// Frequencies that rotate nothing, for heads of this many elements.
    NoRope(u32),
    /// Keys of a layer.
    Keys(KvLayer),
    /// Values of a layer.
    Values(KvLayer),
    /// The states of a layer of Gated DeltaNet, of all records.
    State(DeltaLayer),
    /// The rows of each sequence of a batch and their records.
    Runs,
    /// Which of these each row is of.
    RowRuns,
    /// The records of a copy.
    CopiedRecords,
    /// Rows of activations in int8.
    Int8(Int8Rows, Int8Plane),
    /// Rows of activations in f16, by their width.
    F16(u32, F16Plane),
    /// A plane of a part of the matrix that these weights form.
    Matrix { weights: Vec<WeightId>, part: usize, plane: Plane },
    /// Norm weights in f32, one after the other.
    Vectors(Vec<WeightId>),
    /// Vectors in f32, each from a column on, and zeros in the columns that none has; and the number of columns.
    Columns(Vec<(u32, WeightId)>, u32),
}

/// Rows of activations quantised to int8, of which a mat-vec takes up to 16. All ops of a width share one set, since it
/// is read right after it was written. Normed rows have a set of their own: an epilogue may write those while its
/// kernel reads others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Int8Rows {
    pub(crate) width: u32,
    /// Multiplied by a norm's weight. 1 / rms is still to be applied.
    pub(crate) normed: bool,
}

/// Buffers of [`Int8Rows`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Int8Plane {
    Values,
    /// Of each block of 32.
    Scales,
    /// 1 / rms of each row.
    InverseRms,
    /// Sums of squares of each block, from which the consumer computes 1 / rms.
    SquareSums,
}

impl Int8Plane {
    pub(crate) const ALL: [Int8Plane; 4] =
        [Int8Plane::Values, Int8Plane::Scales, Int8Plane::InverseRms, Int8Plane::SquareSums];
}

/// Buffers of rows in f16.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum F16Plane {
    Values,
    /// Of each row, a power of two.
    Scales,
}
