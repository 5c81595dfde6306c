//! Two hash tables for data that is built once and then only read: texts to ids, and pairs to merges.
//!
//! Both use open addressing and store no more of a key than a probe needs, so that a vocabulary of 250,000 tokens takes
//! a few megabytes and builds in milliseconds. Hashes are seeded for each process, so a crafted vocabulary cannot cause
//! collisions.

use std::hash::{BuildHasher, RandomState};

/// Mixes two words into one with a full multiplication, for both tables.
#[inline]
fn fold(a: u64, b: u64) -> u64 {
    let wide = u128::from(a) * u128::from(b);
    (wide as u64) ^ ((wide >> 64) as u64)
}

/// Loads up to eight bytes as one number; the caller mixes in the length.
#[inline]
fn word(bytes: &[u8]) -> u64 {
    match bytes.len() {
        8.. => u64::from_le_bytes([
            bytes[0], bytes[1], bytes[2], bytes[3], bytes[4], bytes[5], bytes[6], bytes[7],
        ]),
        4..8 => {
            let low = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
            let n = bytes.len();
            let high = u32::from_le_bytes([bytes[n - 4], bytes[n - 3], bytes[n - 2], bytes[n - 1]]);
            u64::from(low) | u64::from(high) << 32
        }
        0 => 0,
        n => u64::from(bytes[0]) | u64::from(bytes[n / 2]) << 8 | u64::from(bytes[n - 1]) << 16,
    }
}

/// Random multipliers, chosen when a table is created.
#[derive(Debug, Clone, Copy)]
struct Seed(u64, u64);

impl Seed {
    fn new() -> Self {
        let state = RandomState::new();
        // An odd multiplier never maps a non-zero word to zero.
        Self(state.hash_one(0_u64) | 1, state.hash_one(1_u64) | 1)
    }

    #[inline]
    fn bytes(self, bytes: &[u8]) -> u64 {
        let mut hash = self.0 ^ bytes.len() as u64;
        let mut rest = bytes;
        while rest.len() > 8 {
            hash = fold(hash ^ word(rest), self.1);
            rest = &rest[8..];
        }
        fold(hash ^ word(rest), self.1)
    }

    #[inline]
    fn pair(self, key: u64) -> u64 {
        fold(key ^ self.0, self.1)
    }
}

const EMPTY: u32 = u32::MAX;

/// The number of slots for `count` entries: a power of two, at most three quarters full.
fn slots_for(count: usize) -> usize {
    (count / 3 * 4 + 4).next_power_of_two()
}

/// Whether one more entry would fill a table of `slots` beyond three quarters.
fn is_full(len: usize, slots: usize) -> bool {
    (len + 1) * 4 > slots * 3
}

/// Maps byte strings to ids. The strings are stored in one buffer.
#[derive(Debug)]
pub(crate) struct TextTable {
    seed: Seed,
    /// A slot: the high half of the hash, which rejects most mismatches, and the entry's index.
    slots: Vec<(u32, u32)>,
    entries: Vec<(usize, u32)>,
    buffer: Vec<u8>,
}

impl TextTable {
    /// A table with capacity for `count` strings of `bytes` bytes in total. Both numbers are sizes of data in memory,
    /// never numbers from a file.
    pub(crate) fn with_capacity(count: usize, bytes: usize) -> Self {
        Self {
            seed: Seed::new(),
            slots: vec![(0, EMPTY); slots_for(count)],
            entries: Vec::with_capacity(count),
            buffer: Vec::with_capacity(bytes),
        }
    }

    fn key(&self, entry: u32) -> &[u8] {
        let entry = entry as usize;
        let start = if entry == 0 { 0 } else { self.entries[entry - 1].0 };
        &self.buffer[start..self.entries[entry].0]
    }

    /// Inserts `key`, or returns the id it already has. The capacity must not be exceeded.
    pub(crate) fn insert(&mut self, key: &[u8], id: u32) -> Result<(), u32> {
        if is_full(self.entries.len(), self.slots.len()) {
            self.grow();
        }
        let hash = self.seed.bytes(key);
        let mask = self.slots.len() - 1;
        let mut at = hash as usize & mask;
        while self.slots[at].1 != EMPTY {
            let (tag, entry) = self.slots[at];
            if tag == (hash >> 32) as u32 && self.key(entry) == key {
                return Err(self.entries[entry as usize].1);
            }
            at = (at + 1) & mask;
        }
        self.slots[at] = ((hash >> 32) as u32, self.entries.len() as u32);
        self.buffer.extend_from_slice(key);
        self.entries.push((self.buffer.len(), id));
        Ok(())
    }

    fn grow(&mut self) {
        let mut slots = vec![(0, EMPTY); self.slots.len() * 2];
        let mask = slots.len() - 1;
        for entry in 0..self.entries.len() as u32 {
            let hash = self.seed.bytes(self.key(entry));
            let mut at = hash as usize & mask;
            while slots[at].1 != EMPTY {
                at = (at + 1) & mask;
            }
            slots[at] = ((hash >> 32) as u32, entry);
        }
        self.slots = slots;
    }

    /// The id of `key`.
    #[inline]
    pub(crate) fn get(&self, key: &[u8]) -> Option<u32> {
        let hash = self.seed.bytes(key);
        let mask = self.slots.len() - 1;
        let mut at = hash as usize & mask;
        loop {
            let (tag, entry) = self.slots[at];
            if entry == EMPTY {
                return None;
            }
            if tag == (hash >> 32) as u32 && self.key(entry) == key {
                return Some(self.entries[entry as usize].1);
            }
            at = (at + 1) & mask;
        }
    }
}

/// A merge: its priority (lower first) and the token it produces.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Merge {
    pub(crate) rank: u32,
    pub(crate) id: u32,
}

/// Maps pairs of numbers to small values: adjacent tokens to their merge, trie nodes and bytes to child nodes.
#[derive(Debug)]
pub(crate) struct PairTable<V> {
    seed: Seed,
    slots: Vec<(u64, V)>,
    len: usize,
}

/// Marks an empty slot: [`Merge`]s and tries never use the largest number on both sides.
const NO_PAIR: u64 = u64::MAX;

impl<V: Copy + Default> PairTable<V> {
    /// A table with capacity for `count` pairs; it grows on demand.
    pub(crate) fn with_capacity(count: usize) -> Self {
        Self { seed: Seed::new(), slots: vec![(NO_PAIR, V::default()); slots_for(count)], len: 0 }
    }

    /// The slot of a key, or the empty slot for it.
    #[inline]
    fn find(&self, key: u64) -> usize {
        let mask = self.slots.len() - 1;
        let mut at = self.seed.pair(key) as usize & mask;
        while self.slots[at].0 != key && self.slots[at].0 != NO_PAIR {
            at = (at + 1) & mask;
        }
        at
    }

    /// Inserts a value; the first value of a pair is kept.
    pub(crate) fn insert(&mut self, left: u32, right: u32, value: V) {
        if is_full(self.len, self.slots.len()) {
            let larger = vec![(NO_PAIR, V::default()); self.slots.len() * 2];
            for slot in std::mem::replace(&mut self.slots, larger) {
                if slot.0 != NO_PAIR {
                    let at = self.find(slot.0);
                    self.slots[at] = slot;
                }
            }
        }
        let key = u64::from(left) << 32 | u64::from(right);
        let at = self.find(key);
        if self.slots[at].0 == NO_PAIR {
            self.slots[at] = (key, value);
            self.len += 1;
        }
    }

    /// The value of a pair.
    #[inline]
    pub(crate) fn get(&self, left: u32, right: u32) -> Option<V> {
        let key = u64::from(left) << 32 | u64::from(right);
        let slot = self.slots[self.find(key)];
        (slot.0 == key && key != NO_PAIR).then_some(slot.1)
    }
}

/// A trie of byte strings.
#[derive(Debug)]
pub(crate) struct Trie {
    edges: PairTable<u32>,
    /// The id of the string that ends at each node, or [`EMPTY`].
    ids: Vec<u32>,
}

impl Trie {
    /// An empty trie.
    pub(crate) fn new() -> Self {
        Self { edges: PairTable::with_capacity(0), ids: vec![EMPTY] }
    }

    /// The root node.
    pub(crate) const ROOT: u32 = 0;

    /// Inserts a string; the first id of a string is kept.
    pub(crate) fn insert(&mut self, key: &[u8], id: u32) {
        let mut node = Self::ROOT;
        for &byte in key {
            node = self.step(node, byte).unwrap_or_else(|| {
                let next = self.ids.len() as u32;
                self.ids.push(EMPTY);
                self.edges.insert(node, u32::from(byte), next);
                next
            });
        }
        let slot = &mut self.ids[node as usize];
        if *slot == EMPTY {
            *slot = id;
        }
    }

    /// The child node for one more byte.
    #[inline]
    pub(crate) fn step(&self, node: u32, byte: u8) -> Option<u32> {
        self.edges.get(node, u32::from(byte))
    }

    /// The id of the string that ends at this node.
    #[inline]
    pub(crate) fn id(&self, node: u32) -> Option<u32> {
        Some(self.ids[node as usize]).filter(|&id| id != EMPTY)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_found_and_duplicates_named() {
        let mut table = TextTable::with_capacity(1, 0);
        for id in 0..5000_u32 {
            assert_eq!(table.insert(format!("key {id}").as_bytes(), id), Ok(()));
        }
        assert_eq!(table.insert(b"key 77", 9), Err(77));
        assert!((0..5000).all(|id| table.get(format!("key {id}").as_bytes()) == Some(id)));
        assert_eq!(table.get(b""), None);
        assert_eq!(table.get(b"key 5000"), None);
    }

    #[test]
    fn pairs_are_directed_and_the_first_merge_stays() {
        let mut table = PairTable::with_capacity(2);
        table.insert(1, 2, Merge { rank: 0, id: 7 });
        table.insert(1, 2, Merge { rank: 5, id: 8 });
        assert_eq!(table.get(1, 2), Some(Merge { rank: 0, id: 7 }));
        assert_eq!(table.get(2, 1), None);
        assert_eq!(table.get(u32::MAX, u32::MAX), None);
        for left in 10..1000 {
            table.insert(left, left + 1, Merge { rank: left, id: left });
        }
        assert!((10..1000).all(|left| table.get(left, left + 1).is_some_and(|merge| merge.rank == left)));
    }

    #[test]
    fn tries_find_every_prefix() {
        let mut trie = Trie::new();
        for (id, key) in ["a", "ab", "abcd", "b"].iter().enumerate() {
            trie.insert(key.as_bytes(), id as u32);
        }
        let mut node = Trie::ROOT;
        let found = b"abcd".map(|byte| {
            node = trie.step(node, byte).expect("a prefix");
            trie.id(node)
        });
        assert_eq!(found, [Some(0), Some(1), None, Some(2)]);
        assert_eq!(trie.step(Trie::ROOT, b'x'), None);
    }
}
