//! The blocks of one KV group: who uses them, and which tokens they hold.

use std::collections::HashMap;

use gyrus_kernels::KV_BLOCK;

use super::prefix::Link;

/// No block: the end of a list.
const NONE: u32 = u32::MAX;

/// The blocks of one KV group.
///
/// A block is free, in use by one or more sequences, or *kept*: no sequence uses it, but it holds the keys and values of
/// known tokens, so that a later sequence with the same prefix can use it. Kept blocks are taken, the least recently used
/// first, when no block is free.
#[derive(Debug)]
pub(crate) struct BlockPool {
    blocks: Vec<Block>,
    free: Vec<u32>,
    by_hash: HashMap<u64, u32>,
    /// The list of kept blocks.
    oldest: u32,
    newest: u32,
    kept: usize,
}

#[derive(Debug, Clone)]
struct Block {
    /// Sequences that use it.
    users: u32,
    /// What it holds, if it is complete and was registered.
    label: Option<Label>,
    /// Neighbours in the list of kept blocks.
    older: u32,
    newer: u32,
}

/// What a complete block holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Label {
    /// The chain up to the block before it.
    pub(crate) parent: Link,
    /// The chain up to this block.
    pub(crate) link: Link,
    /// Its tokens.
    pub(crate) tokens: [u32; KV_BLOCK],
}

impl BlockPool {
    pub(crate) fn new(blocks: usize) -> BlockPool {
        let block = Block { users: 0, label: None, older: NONE, newer: NONE };
        BlockPool {
            blocks: vec![block; blocks],
            free: (0..blocks as u32).rev().collect(),
            // Twice as large as it can become, so that it is never reallocated.
            by_hash: HashMap::with_capacity(2 * blocks),
            oldest: NONE,
            newest: NONE,
            kept: 0,
        }
    }

    /// All blocks.
    pub(crate) fn len(&self) -> usize {
        self.blocks.len()
    }

    /// Blocks that can be taken: free and kept ones.
    pub(crate) fn available(&self) -> usize {
        self.free.len() + self.kept
    }

    /// Free blocks, which hold nothing.
    pub(crate) fn free(&self) -> &[u32] {
        &self.free
    }

    /// Takes a block for one sequence, which may write to it.
    pub(crate) fn take(&mut self) -> Option<u32> {
        let block = match self.free.pop() {
            Some(block) => block,
            None => {
                let oldest = Some(self.oldest).filter(|block| *block != NONE)?;
                self.unlink(oldest);
                self.remove_label(oldest);
                oldest
            }
        };
        self.blocks[block as usize].users = 1;
        Some(block)
    }

    /// Adds a user to a block that holds known tokens.
    pub(crate) fn share(&mut self, block: u32) {
        if self.blocks[block as usize].users == 0 {
            self.unlink(block);
        }
        self.blocks[block as usize].users += 1;
    }

    /// Removes a user.
    pub(crate) fn release(&mut self, block: u32) {
        let entry = &mut self.blocks[block as usize];
        debug_assert!(entry.users > 0, "block {block} has no user");
        entry.users = entry.users.saturating_sub(1);
        if entry.users > 0 {
            return;
        }
        if entry.label.is_some() {
            self.link_newest(block);
        } else {
            self.free.push(block);
        }
    }

    /// Whether a sequence may write to the block: it is the only user, and nobody can find the block.
    pub(crate) fn is_writable(&self, block: u32) -> bool {
        let entry = &self.blocks[block as usize];
        entry.users == 1 && entry.label.is_none()
    }

    /// The block that holds these tokens after this chain. `kinds`: only if its rows were of these kinds.
    pub(crate) fn find(
        &self,
        parent: Link,
        link: Link,
        tokens: &[u32],
        kinds: Option<u64>,
    ) -> Option<(u32, Link)> {
        let block = *self.by_hash.get(&link.tokens)?;
        let label = self.blocks[block as usize].label.as_ref()?;
        let same = label.parent.tokens == parent.tokens
            && label.tokens[..] == *tokens
            && kinds.is_none_or(|kinds| kinds == label.link.kinds);
        same.then_some((block, label.link))
    }

    /// Registers the tokens of a complete block, so that [`BlockPool::find`] finds it. If another block holds the same
    /// tokens and its rows were of the same kinds, that one stays.
    pub(crate) fn register(&mut self, block: u32, label: Label) {
        if self.blocks[block as usize].label.is_some() {
            return;
        }
        if let Some(&other) = self.by_hash.get(&label.link.tokens) {
            let known = &self.blocks[other as usize];
            if known.label.is_some_and(|known| known.link == label.link) {
                return;
            }
            let unused = known.users == 0;
            if unused {
                self.unlink(other);
            }
            self.remove_label(other);
            if unused {
                self.free.push(other);
            }
        }
        self.by_hash.insert(label.link.tokens, block);
        self.blocks[block as usize].label = Some(label);
    }

    /// Forgets what all blocks hold. Kept blocks become free.
    pub(crate) fn forget(&mut self) {
        while self.oldest != NONE {
            let block = self.oldest;
            self.unlink(block);
            self.free.push(block);
        }
        self.by_hash.clear();
        self.blocks.iter_mut().for_each(|block| block.label = None);
    }

    fn remove_label(&mut self, block: u32) {
        if let Some(label) = self.blocks[block as usize].label.take() {
            self.by_hash.remove(&label.link.tokens);
        }
    }

    fn link_newest(&mut self, block: u32) {
        let newest = std::mem::replace(&mut self.newest, block);
        let entry = &mut self.blocks[block as usize];
        (entry.older, entry.newer) = (newest, NONE);
        match self.blocks.get_mut(newest as usize) {
            Some(before) => before.newer = block,
            None => self.oldest = block,
        }
        self.kept += 1;
    }

    fn unlink(&mut self, block: u32) {
        let Block { older, newer, .. } = self.blocks[block as usize];
        match self.blocks.get_mut(older as usize) {
            Some(before) => before.newer = newer,
            None => self.oldest = newer,
        }
        match self.blocks.get_mut(newer as usize) {
            Some(after) => after.older = older,
            None => self.newest = older,
        }
        self.kept -= 1;
    }

    /// Checks the invariants, for tests: every block is free, kept or in use, and has the right number of users.
    #[cfg(test)]
    pub(crate) fn check(&self, users: &[u32]) {
        let mut seen = vec![0; self.blocks.len()];
        self.free.iter().for_each(|block| seen[*block as usize] += 1);
        let (mut at, mut kept) = (self.oldest, 0);
        while at != NONE {
            assert!(self.blocks[at as usize].label.is_some(), "a kept block without label");
            seen[at as usize] += 1;
            kept += 1;
            at = self.blocks[at as usize].newer;
        }
        assert_eq!(kept, self.kept);
        for (i, (block, users)) in self.blocks.iter().zip(users).enumerate() {
            assert_eq!(block.users, *users, "users of block {i}");
            assert_eq!(seen[i], u32::from(*users == 0), "block {i} is lost or listed twice");
            if let Some(label) = &block.label {
                assert_eq!(self.by_hash.get(&label.link.tokens), Some(&(i as u32)));
            }
        }
        assert_eq!(self.by_hash.len(), self.blocks.iter().filter(|block| block.label.is_some()).count());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::serving::prefix::Link;

    fn label(tokens: u32, kinds: u32) -> Label {
        let all = [tokens; KV_BLOCK];
        Label { parent: Link::default(), link: Link::default().next(&all, kinds), tokens: all }
    }

    fn find(pool: &BlockPool, tokens: u32, kinds: Option<u64>) -> Option<u32> {
        let label = label(tokens, 0);
        pool.find(label.parent, label.link, &label.tokens, kinds).map(|(block, _)| block)
    }

    #[test]
    fn kept_blocks_are_found_and_taken_in_the_order_of_their_last_use() {
        let mut pool = BlockPool::new(3);
        let [a, b, c] = [0; 3].map(|_| pool.take().unwrap());
        assert_eq!((pool.take(), pool.available()), (None, 0));
        for (block, tokens) in [(a, 1), (b, 2), (c, 3)] {
            pool.register(block, label(tokens, 0));
            pool.release(block);
        }
        pool.check(&[0, 0, 0]);
        assert_eq!((pool.available(), pool.free().len()), (3, 0));
        // The first one is used again, so the second is the least recently used.
        assert_eq!(find(&pool, 1, None), Some(a));
        pool.share(a);
        pool.share(a);
        pool.release(a);
        pool.release(a);
        assert_eq!(pool.take(), Some(b));
        assert_eq!((find(&pool, 2, None), find(&pool, 3, None)), (None, Some(c)));
        assert!(pool.is_writable(b) && !pool.is_writable(c));
        pool.forget();
        assert_eq!((find(&pool, 1, None), pool.available()), (None, 2));
    }

    #[test]
    fn the_same_tokens_of_another_kind_replace_those_before() {
        let mut pool = BlockPool::new(4);
        let [a, b, c] = [0; 3].map(|_| pool.take().unwrap());
        pool.register(a, label(7, 0));
        // Another sequence has computed the same.
        pool.register(b, label(7, 0));
        assert_eq!(find(&pool, 7, None), Some(a));
        pool.release(b);
        assert_eq!(pool.free().len(), 2);
        pool.release(a);
        pool.register(c, label(7, 5));
        assert_eq!(find(&pool, 7, None), Some(c));
        assert_eq!(find(&pool, 7, Some(label(7, 0).link.kinds)), None);
        assert_eq!(find(&pool, 7, Some(label(7, 5).link.kinds)), Some(c));
        let mut users = [0; 4];
        users[c as usize] = 1;
        pool.check(&users);
    }
}
