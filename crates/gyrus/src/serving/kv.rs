//! The paged KV cache: the blocks of all KV groups, and the part of it that a sequence has.

use std::ops::Range;

use gyrus_kernels::{KV_BLOCK, KvGroup, KvSize, MAX_KV_GROUPS, RowKind};

use super::blocks::{BlockPool, Label};
use super::prefix::Link;
use super::saved::Outline;

/// Positions that a sequence keeps beyond its windows, so that the last tokens can be taken back without computing the
/// window again.
pub(crate) const WINDOW_SLACK: usize = 128;

/// The KV cache: a pool of blocks for each KV group of the plan.
#[derive(Debug)]
pub(crate) struct KvCache {
    groups: Vec<KvGroup>,
    pools: Vec<BlockPool>,
    /// Whether complete blocks are registered and found again.
    shares: bool,
    /// Whether a sequence only uses blocks whose rows were of the same kinds as its own would be.
    strict: bool,
}

/// The blocks of one sequence, and what is known of their contents.
#[derive(Debug, Default)]
pub(crate) struct SequenceKv {
    /// The block table of each KV group. All have the same length.
    tables: Vec<Vec<u32>>,
    /// For each KV group the first block that the sequence still holds: earlier ones have left the window.
    first_held: Vec<usize>,
    /// For each block, which of its positions were computed as generated rows. This is kept when the blocks are released,
    /// so that the same rows compute them again.
    kinds: Vec<u32>,
    /// Positions whose kinds are known.
    known: usize,
    /// The chain after each complete block that was registered.
    links: Vec<Link>,
    /// The beginning of the chain.
    first: Link,
    /// Positions whose keys and values were computed, or will be by chunks that were submitted.
    len: usize,
}

/// Too few blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shortage {
    pub(crate) needed: usize,
    pub(crate) available: usize,
}

impl SequenceKv {
    /// An empty sequence, with capacity for this many positions. `salt` tells its blocks from those of sequences with the
    /// same tokens.
    pub(crate) fn new(groups: usize, positions: usize, salt: impl IntoIterator<Item = u64>) -> SequenceKv {
        let blocks = positions.div_ceil(KV_BLOCK) + 1;
        SequenceKv {
            tables: (0..groups).map(|_| Vec::with_capacity(blocks)).collect(),
            first_held: vec![0; groups],
            kinds: Vec::with_capacity(blocks),
            known: 0,
            links: Vec::with_capacity(blocks),
            first: Link::first(salt),
            len: 0,
        }
    }

    /// Whether it was never used.
    pub(crate) fn is_new(&self) -> bool {
        self.tables.is_empty() || (self.known == 0 && self.blocks() == 0)
    }

    /// Makes sure that it does not allocate while it grows to this many positions.
    pub(crate) fn reserve_capacity(&mut self, positions: usize) {
        let blocks = positions.div_ceil(KV_BLOCK) + 1;
        let more = |len: usize| blocks.saturating_sub(len);
        self.tables.iter_mut().for_each(|table| table.reserve(more(table.len())));
        self.kinds.reserve(more(self.kinds.len()));
        self.links.reserve(more(self.links.len()));
    }

    /// Computed positions.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Positions that its blocks can hold.
    pub(crate) fn capacity(&self) -> usize {
        self.blocks() * KV_BLOCK
    }

    /// Blocks of a KV group that it holds: those of its table that have not left the window.
    pub(crate) fn held_blocks(&self, group: usize) -> usize {
        let first = self.first_held.get(group).copied().unwrap_or(0);
        self.tables.get(group).map_or(0, |table| table.len().saturating_sub(first))
    }

    /// Blocks of the tables.
    fn blocks(&self) -> usize {
        self.tables.first().map_or(0, Vec::len)
    }

    /// The block tables, one per KV group.
    pub(crate) fn tables(&self) -> ([&[u32]; MAX_KV_GROUPS], usize) {
        let mut tables = [&[] as &[u32]; MAX_KV_GROUPS];
        tables.iter_mut().zip(&self.tables).for_each(|(to, table)| *to = table);
        (tables, self.tables.len())
    }

    /// The block table of a KV group.
    pub(crate) fn table(&self, group: usize) -> &[u32] {
        &self.tables[group]
    }

    /// The blocks of all KV groups at an index of the tables.
    pub(crate) fn blocks_at(&self, index: usize) -> Vec<u32> {
        self.tables.iter().map(|table| table[index]).collect()
    }

    /// Its blocks have the contents of this many positions.
    pub(crate) fn set_len(&mut self, len: usize) {
        debug_assert!(len <= self.known && len <= self.capacity(), "{len} positions without blocks or kinds");
        self.len = len;
    }

    /// The salt of its chain.
    pub(crate) fn chain(&self) -> Link {
        self.first
    }

    /// The last block before a position, which is a multiple of [`KV_BLOCK`], if it was registered. `tokens` are those of
    /// the sequence.
    pub(crate) fn label(&self, tokens: &[u32], position: usize) -> Option<Label> {
        let block = (position / KV_BLOCK).checked_sub(1)?;
        let link = *self.links.get(block)?;
        let parent = block.checked_sub(1).map_or(self.first, |before| self.links[before]);
        Some(Label { parent, link, tokens: *tokens.get(block * KV_BLOCK..)?.first_chunk()? })
    }

    /// Counts positions as computed by rows of this kind.
    pub(crate) fn computed(&mut self, positions: usize, kind: RowKind) {
        self.len += positions;
        for position in self.known..self.len {
            let block = position / KV_BLOCK;
            if block == self.kinds.len() {
                self.kinds.push(0);
            }
            if kind == RowKind::Generated {
                self.kinds[block] |= 1 << (position % KV_BLOCK);
            }
        }
        self.known = self.known.max(self.len);
    }

    /// What computed a position, or is to compute it.
    pub(crate) fn kind(&self, position: usize) -> RowKind {
        let bits = self.kinds.get(position / KV_BLOCK).copied().unwrap_or(0);
        if bits >> (position % KV_BLOCK) & 1 == 1 { RowKind::Generated } else { RowKind::Prompt }
    }

    /// Forgets what computed the positions from `len` on: other tokens will be there.
    fn forget_kinds(&mut self, len: usize) {
        self.known = self.known.min(len);
        self.kinds.truncate(len.div_ceil(KV_BLOCK));
        if let (Some(last), 1..) = (self.kinds.last_mut(), len % KV_BLOCK) {
            *last &= (1 << (len % KV_BLOCK)) - 1;
        }
    }

    /// Blocks that it uses, of each KV group.
    #[cfg(test)]
    pub(crate) fn held(&self) -> impl Iterator<Item = (usize, u32)> + '_ {
        self.tables.iter().enumerate().flat_map(|(group, table)| {
            table.iter().skip(self.first_held[group]).map(move |block| (group, *block))
        })
    }

    /// Whether all positions are cached that the next one attends to.
    fn holds_windows(&self, groups: &[KvGroup], len: usize) -> bool {
        let is_held = |(group, first): (&KvGroup, &usize)| group.first_needed(len) >= first * KV_BLOCK;
        groups.iter().zip(&self.first_held).all(is_held)
    }
}

impl KvCache {
    pub(crate) fn new(groups: Vec<KvGroup>, blocks: &[usize], shares: bool, strict: bool) -> KvCache {
        let pools = blocks.iter().map(|blocks| BlockPool::new(*blocks)).collect();
        KvCache { groups, pools, shares, strict }
    }

    /// KV groups.
    pub(crate) fn groups(&self) -> &[KvGroup] {
        &self.groups
    }

    /// The pools of the KV groups.
    pub(crate) fn pools(&self) -> &[BlockPool] {
        &self.pools
    }

    /// Blocks that can be taken in every group.
    pub(crate) fn available(&self) -> usize {
        self.pools.iter().map(BlockPool::available).min().unwrap_or(0)
    }

    /// Blocks that sequence of this many positions holds in a group at most, if chunks of `chunk` rows are computed.
    pub(crate) fn most_held(&self, group: usize, positions: usize, chunk: usize) -> usize {
        let all = positions.div_ceil(KV_BLOCK);
        let size = KvSize::windowed(&self.groups[group..=group], 1, positions, chunk + WINDOW_SLACK);
        size.blocks.first().copied().unwrap_or(all)
    }

    /// Takes blocks so that a sequence can hold this many positions. On a shortage nothing is taken.
    pub(crate) fn reserve(&mut self, kv: &mut SequenceKv, positions: usize) -> Result<(), Shortage> {
        let needed = positions.div_ceil(KV_BLOCK).saturating_sub(kv.blocks());
        if needed == 0 {
            return Ok(());
        }
        self.free_outside_windows(kv);
        let available = self.available();
        if needed > available {
            return Err(Shortage { needed, available });
        }
        for (pool, table) in self.pools.iter_mut().zip(&mut kv.tables) {
            for _ in 0..needed {
                match pool.take() {
                    Some(block) => table.push(block),
                    None => debug_assert!(false, "a pool has fewer blocks than it said"),
                }
            }
        }
        Ok(())
    }

    /// Returns blocks that no computed position needs: those that were taken ahead.
    pub(crate) fn trim(&mut self, kv: &mut SequenceKv, positions: usize) {
        let keep = positions.max(kv.len).div_ceil(KV_BLOCK);
        self.shorten(kv, keep);
    }

    /// Returns all blocks of a sequence. Registered ones stay findable until they are needed.
    pub(crate) fn release(&mut self, kv: &mut SequenceKv) {
        self.shorten(kv, 0);
        kv.first_held.fill(0);
        kv.links.clear();
        kv.len = 0;
    }

    /// Keeps the first `len` positions, because other tokens follow them; returns how many are still computed. A block that
    /// others may read is not kept in part, since the sequence would write to it.
    pub(crate) fn truncate(&mut self, kv: &mut SequenceKv, len: usize) -> usize {
        kv.forget_kinds(len);
        if len >= kv.len {
            return kv.len;
        }
        let partial = len / KV_BLOCK;
        let writable = |(pool, table): (&BlockPool, &Vec<u32>)| {
            table.get(partial).is_none_or(|block| pool.is_writable(*block))
        };
        let whole = len.is_multiple_of(KV_BLOCK) || self.pools.iter().zip(&kv.tables).all(writable);
        let len = if whole { len } else { partial * KV_BLOCK };
        if !kv.holds_windows(&self.groups, len) {
            self.release(kv);
            return 0;
        }
        self.shorten(kv, len.div_ceil(KV_BLOCK));
        kv.links.truncate(len / KV_BLOCK);
        kv.len = len;
        len
    }

    /// Keeps the first `len` positions, a multiple of [`KV_BLOCK`]; the others are computed again, by rows of the same
    /// kinds. Without the blocks of a window nothing is kept.
    pub(crate) fn rewind(&mut self, kv: &mut SequenceKv, len: usize) {
        if len >= kv.len {
            return;
        }
        if len == 0 || !kv.holds_windows(&self.groups, len) {
            return self.release(kv);
        }
        self.shorten(kv, len.div_ceil(KV_BLOCK));
        kv.links.truncate(len / KV_BLOCK);
        kv.len = len;
    }

    /// A sequence with the first `len` positions of another, or as many as that has, in the same blocks. Neither may write
    /// to them. It has none if the blocks of a window are missing. They have `common` tokens in common, whose kinds it
    /// knows.
    pub(crate) fn share(&mut self, kv: &SequenceKv, len: usize, common: usize) -> SequenceKv {
        let mut other = SequenceKv::new(self.groups.len(), 0, []);
        (other.first, other.known) = (kv.first, kv.known);
        other.kinds.clone_from(&kv.kinds);
        other.forget_kinds(common);
        let len = len.min(kv.len);
        if kv.tables.is_empty() || !kv.holds_windows(&self.groups, len) {
            return other;
        }
        let blocks = len.div_ceil(KV_BLOCK);
        for (group, pool) in self.pools.iter_mut().enumerate() {
            let first = kv.first_held[group].min(blocks);
            other.tables[group].extend_from_slice(&kv.tables[group][..blocks]);
            other.first_held[group] = first;
            other.tables[group][first..].iter().for_each(|block| pool.share(*block));
        }
        let registered = kv.links.len().min(len / KV_BLOCK);
        other.links.extend_from_slice(&kv.links[..registered]);
        other.len = len;
        other
    }

    /// What is known of a sequence's positions. Blocks that have left the windows are returned.
    pub(crate) fn outline(&mut self, kv: &mut SequenceKv) -> Outline {
        self.free_outside_windows(kv);
        Outline {
            positions: kv.len,
            first_blocks: kv.first_held.clone(),
            kinds: kv.kinds.clone(),
            known: kv.known,
            length: 0,
        }
    }

    /// Takes blocks for a sequence of which this is known. Its contents are yet to be written: it has no positions. On a
    /// shortage nothing is taken.
    pub(crate) fn restore(
        &mut self,
        outline: &Outline,
        positions: usize,
        salt: impl IntoIterator<Item = u64>,
    ) -> Result<SequenceKv, Shortage> {
        let blocks = outline.positions.div_ceil(KV_BLOCK);
        for (pool, first) in self.pools.iter().zip(&outline.first_blocks) {
            let (needed, available) = (blocks - first, pool.available());
            if needed > available {
                return Err(Shortage { needed, available });
            }
        }
        let mut kv = SequenceKv::new(self.groups.len(), positions, salt);
        for (group, (pool, first)) in self.pools.iter_mut().zip(&outline.first_blocks).enumerate() {
            kv.tables[group].resize(*first, 0);
            kv.first_held[group] = *first;
            kv.tables[group].extend((*first..blocks).map_while(|_| pool.take()));
        }
        (kv.kinds, kv.known) = (outline.kinds.clone(), outline.known);
        Ok(kv)
    }

    /// Removes blocks from the middle of a sequence. Those behind them are yet to be rotated to their new positions. It has a
    /// chain of its own from now on.
    pub(crate) fn drop_blocks(
        &mut self,
        kv: &mut SequenceKv,
        blocks: Range<usize>,
        salt: impl IntoIterator<Item = u64>,
    ) {
        for (pool, table) in self.pools.iter_mut().zip(&mut kv.tables) {
            table.drain(blocks.clone()).for_each(|block| pool.release(block));
        }
        kv.kinds.drain(blocks.clone());
        kv.known -= blocks.len() * KV_BLOCK;
        kv.len -= blocks.len() * KV_BLOCK;
        kv.links.clear();
        kv.first = Link::first(salt);
    }

    /// Puts a free block in the place of one of a sequence, and returns both. The one before is still in use. `None` if no
    /// block is free.
    pub(crate) fn replace(&mut self, kv: &mut SequenceKv, group: usize, index: usize) -> Option<(u32, u32)> {
        let block = self.pools[group].take()?;
        Some((std::mem::replace(&mut kv.tables[group][index], block), block))
    }

    /// Returns a block.
    pub(crate) fn release_block(&mut self, group: usize, block: u32) {
        self.pools[group].release(block);
    }

    /// Registers the complete blocks of a sequence among the first `landed` positions, whose tokens are `tokens`.
    pub(crate) fn register(&mut self, kv: &mut SequenceKv, tokens: &[u32], landed: usize) {
        if !self.shares {
            return;
        }
        let complete = kv.len.min(tokens.len()).min(landed) / KV_BLOCK;
        while kv.links.len() < complete {
            let block = kv.links.len();
            let parent = kv.links.last().copied().unwrap_or(kv.first);
            let own: &[u32; KV_BLOCK] = match tokens[block * KV_BLOCK..].first_chunk() {
                Some(own) => own,
                None => return,
            };
            let link = parent.next(own, kv.kinds.get(block).copied().unwrap_or(0));
            for ((pool, table), first) in self.pools.iter_mut().zip(&kv.tables).zip(&kv.first_held) {
                if block >= *first {
                    pool.register(table[block], Label { parent, link, tokens: *own });
                }
            }
            kv.links.push(link);
        }
    }

    /// Gives an empty sequence the registered blocks of its longest known prefix, and returns its positions. The last
    /// token is not part of it, since its logits are needed.
    pub(crate) fn adopt(&mut self, kv: &mut SequenceKv, tokens: &[u32]) -> usize {
        if !self.shares || kv.blocks() > 0 {
            return kv.len;
        }
        let chunks = tokens[..tokens.len().saturating_sub(1)].chunks_exact(KV_BLOCK);
        let unlimited = |group: &&usize| self.groups[**group].window.is_none();
        let groups: Vec<usize> = (0..self.groups.len()).collect();
        // The chain as far as all groups without a window have its blocks, and its labels as they were registered.
        let mut parents = vec![kv.first];
        for (block, own) in chunks.clone().enumerate() {
            let wanted = self.wanted(kv, parents[block], block, own);
            let mut link = wanted;
            let has = |group: &usize| match self.found(*group, parents[block], wanted, own) {
                Some((_, registered)) => {
                    link = registered;
                    true
                }
                None => false,
            };
            if !groups.iter().filter(unlimited).all(has) {
                break;
            }
            parents.push(link);
        }
        let find = |group: usize, block: usize| {
            let own = &tokens[block * KV_BLOCK..(block + 1) * KV_BLOCK];
            let wanted = self.wanted(kv, parents[block], block, own);
            self.found(group, parents[block], wanted, own).map(|(found, _)| found)
        };
        let first_needed = |group: usize, blocks: usize| {
            (self.groups[group].first_needed(blocks * KV_BLOCK) / KV_BLOCK).min(blocks)
        };
        // Groups with a window need only the blocks in it.
        let mut blocks = parents.len() - 1;
        while blocks > 0 {
            let has = |group: &usize| {
                (first_needed(*group, blocks)..blocks).all(|block| find(*group, block).is_some())
            };
            if groups.iter().all(has) {
                break;
            }
            blocks -= 1;
        }
        let adopted: Vec<(usize, Vec<u32>)> = groups
            .iter()
            .map(|&group| {
                let first = first_needed(group, blocks);
                (first, (first..blocks).map_while(|block| find(group, block)).collect())
            })
            .collect();
        for (group, (first, found)) in adopted.into_iter().enumerate() {
            // Blocks before the window are not read: any number stands for them.
            kv.tables[group].resize(first, 0);
            kv.first_held[group] = first;
            for block in found {
                self.pools[group].share(block);
                kv.tables[group].push(block);
            }
        }
        kv.links.extend_from_slice(&parents[1..=blocks]);
        kv.computed(blocks * KV_BLOCK, RowKind::Prompt);
        kv.len
    }

    /// The chain after a block of these tokens, computed by rows as the sequence would compute it.
    fn wanted(&self, kv: &SequenceKv, parent: Link, block: usize, tokens: &[u32]) -> Link {
        parent.next(tokens, kv.kinds.get(block).copied().unwrap_or(0))
    }

    /// The registered block of these tokens, and its link.
    fn found(&self, group: usize, parent: Link, wanted: Link, tokens: &[u32]) -> Option<(u32, Link)> {
        self.pools[group].find(parent, wanted, tokens, self.strict.then_some(wanted.kinds))
    }

    /// Whether the sequence may write to its positions from `first` on.
    pub(crate) fn may_write(&self, kv: &SequenceKv, first: usize) -> bool {
        self.pools
            .iter()
            .zip(&kv.tables)
            .all(|(pool, table)| table.iter().skip(first / KV_BLOCK).all(|block| pool.is_writable(*block)))
    }

    /// Forgets the contents of all blocks.
    pub(crate) fn forget(&mut self) {
        self.pools.iter_mut().for_each(BlockPool::forget);
    }

    /// Returns the blocks of a sequence that have left the window of their group. The device runs submissions in order, so
    /// steps in flight finish before a later step reuses them.
    fn free_outside_windows(&mut self, kv: &mut SequenceKv) {
        let tables = kv.tables.iter().zip(&mut kv.first_held);
        for ((group, pool), (table, first)) in self.groups.iter().zip(&mut self.pools).zip(tables) {
            let needed = group.first_needed(kv.len.saturating_sub(WINDOW_SLACK)) / KV_BLOCK;
            let needed = needed.min(table.len());
            if needed > *first {
                table[*first..needed].iter().for_each(|block| pool.release(*block));
                *first = needed;
            }
        }
    }

    /// Shortens the tables to this many blocks. The last blocks are released first, so that they are the first to be
    /// taken: a prefix is worth more than what follows it.
    fn shorten(&mut self, kv: &mut SequenceKv, blocks: usize) {
        for ((pool, table), first) in self.pools.iter_mut().zip(&mut kv.tables).zip(&mut kv.first_held) {
            while table.len() > blocks {
                let held = table.len() > *first;
                if let (Some(block), true) = (table.pop(), held) {
                    pool.release(block);
                }
            }
            *first = (*first).min(table.len());
        }
    }
}
