//! The part of the KV cache that one sequence has.

use gyrus_kernels::{KV_BLOCK, KvGroup, Plan};

/// The KV-cache blocks of one sequence.
///
/// [`Engine::release`](super::Engine::release) frees the blocks. Dropping the value does not, so only [`crate::Session`]
/// and traces hold one, and release it in their own `Drop`.
#[derive(Debug, Default)]
pub(crate) struct KvSequence {
    /// The KV groups of the plan, once the sequence has blocks.
    pub(super) groups: Vec<KvGroup>,
    /// The block table of each KV group. All have the same length.
    pub(super) tables: Vec<Vec<u32>>,
    /// For each KV group the first block that the sequence still holds: earlier ones have left the window.
    pub(super) first_held: Vec<usize>,
    /// Capacity of the tables in blocks.
    pub(super) capacity: usize,
    /// Cached positions.
    pub(super) len: usize,
    /// The length that the sequence may grow to. It is constant while any position is cached: see
    /// [`Batch::lengths`](gyrus_kernels::Batch::lengths).
    pub(super) max_len: u32,
}

impl KvSequence {
    /// An empty sequence, with capacity for the block table of this many positions.
    pub(crate) fn with_capacity(positions: usize) -> KvSequence {
        KvSequence { capacity: positions.div_ceil(KV_BLOCK), ..KvSequence::default() }
    }

    /// The number of cached positions.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Drops cached positions from `len` on. Their blocks stay allocated for the tokens that follow. If positions in the
    /// window of the next one were freed, all are dropped.
    pub(crate) fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
        if !self.holds_windows() {
            self.len = 0;
        }
    }

    /// Whether all positions are cached that the next one attends to.
    pub(super) fn holds_windows(&self) -> bool {
        let is_held = |(group, first): (&KvGroup, &usize)| group.first_needed(self.len) >= first * KV_BLOCK;
        self.groups.iter().zip(&self.first_held).all(is_held)
    }

    /// Blocks of the table.
    pub(super) fn blocks(&self) -> usize {
        self.tables.first().map_or(0, Vec::len)
    }

    /// Appends the tables of this sequence to those of a batch.
    pub(super) fn push_tables<'a>(&'a self, tables: &mut [&'a [u32]]) {
        tables.iter_mut().zip(&self.tables).for_each(|(to, table)| *to = table);
    }

    /// Sets the length that the sequence may grow to. Some rotary embeddings (LongRoPE, dynamic NTK) choose their
    /// frequencies by it. If the frequencies change, the cached keys are dropped, so that the output depends on the
    /// request alone and not on earlier requests.
    pub(crate) fn set_max_len(&mut self, plan: &Plan, length: usize) {
        let length = u32::try_from(length).unwrap_or(u32::MAX);
        let class = |len: u32| plan.ropes.iter().map(move |rope| rope.length_class(len as usize));
        if !class(length).eq(class(self.max_len)) {
            self.len = 0;
        }
        if self.len == 0 {
            self.max_len = length;
        }
    }
}
