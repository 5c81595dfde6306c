//! Byte-pair merging: join the pair with the lowest rank, leftmost first, until none is left.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::table::{Merge, PairTable};

/// Up to this many symbols, scanning all pairs for the best is faster than keeping a heap.
const SHORT: usize = 48;

/// No merge. Ranks are lower, because there are fewer merges than this.
const NO_RANK: u64 = u64::MAX;

/// The rank in the high bits and the token in the low bits, so that one comparison orders by rank.
#[inline]
fn packed(merge: Option<Merge>) -> u64 {
    merge.map_or(NO_RANK, |merge| u64::from(merge.rank) << 32 | u64::from(merge.id))
}

/// Scratch buffers for long merges, reused between calls.
#[derive(Default)]
pub(crate) struct Scratch {
    /// The caller stores the symbols of a piece here.
    pub(crate) symbols: Vec<u32>,
    heap: BinaryHeap<Reverse<u64>>,
    next: Vec<u32>,
    previous: Vec<u32>,
    best: Vec<u64>,
}

/// Merges `scratch.symbols` and appends the resulting tokens to `out`.
pub(crate) fn merge(pairs: &PairTable<Merge>, scratch: &mut Scratch, out: &mut Vec<u32>) {
    if scratch.symbols.len() <= SHORT {
        merge_short(pairs, &scratch.symbols, out);
    } else {
        merge_long(pairs, scratch, out);
    }
}

/// Quadratic time, with arrays on the stack: for short pieces.
fn merge_short(pairs: &PairTable<Merge>, symbols: &[u32], out: &mut Vec<u32>) {
    let mut ids = [0_u32; SHORT];
    let mut best = [NO_RANK; SHORT];
    let mut len = symbols.len();
    ids[..len].copy_from_slice(symbols);
    for i in 1..len {
        best[i - 1] = packed(pairs.get(ids[i - 1], ids[i]));
    }
    while len > 1 {
        let (mut at, mut lowest) = (0, NO_RANK);
        for (i, &rank) in best[..len - 1].iter().enumerate() {
            if rank < lowest {
                (at, lowest) = (i, rank);
            }
        }
        if lowest == NO_RANK {
            break;
        }
        ids[at] = lowest as u32;
        ids.copy_within(at + 2..len, at + 1);
        best.copy_within(at + 1..len, at);
        len -= 1;
        if at > 0 {
            best[at - 1] = packed(pairs.get(ids[at - 1], ids[at]));
        }
        best[at] = if at + 1 < len { packed(pairs.get(ids[at], ids[at + 1])) } else { NO_RANK };
    }
    out.extend_from_slice(&ids[..len]);
}

const END: u32 = u32::MAX;

/// For long pieces: a heap of ranks over a linked list. A heap entry that no longer matches its position is stale and
/// skipped, so every merge costs a constant number of heap operations.
fn merge_long(pairs: &PairTable<Merge>, scratch: &mut Scratch, out: &mut Vec<u32>) {
    let Scratch { symbols, heap, next, previous, best } = scratch;
    // Positions are 32-bit numbers. Longer pieces are split; no word is that long.
    let limit = END as usize - 1;
    for ids in symbols.chunks_mut(limit) {
        let len = ids.len();
        next.clear();
        next.extend((1..=len as u32).map(|i| if i as usize == len { END } else { i }));
        previous.clear();
        previous.extend((0..len as u32).map(|i| i.wrapping_sub(1)));
        best.clear();
        best.extend(ids.windows(2).map(|pair| packed(pairs.get(pair[0], pair[1]))));
        best.push(NO_RANK);
        let entry = |rank: u64, at: usize| Reverse(rank >> 32 << 32 | at as u64);
        let mut seeds = std::mem::take(heap).into_vec();
        seeds.clear();
        seeds.extend(
            best.iter().enumerate().filter(|(_, rank)| **rank != NO_RANK).map(|(at, &rank)| entry(rank, at)),
        );
        *heap = BinaryHeap::from(seeds);
        while let Some(Reverse(top)) = heap.pop() {
            let at = (top & u64::from(u32::MAX)) as usize;
            if best[at] == NO_RANK || best[at] >> 32 != top >> 32 {
                continue;
            }
            let right = next[at] as usize;
            ids[at] = best[at] as u32;
            next[at] = next[right];
            best[right] = NO_RANK;
            best[at] = NO_RANK;
            if next[at] != END {
                let after = next[at] as usize;
                previous[after] = at as u32;
                best[at] = packed(pairs.get(ids[at], ids[after]));
                if best[at] != NO_RANK {
                    heap.push(entry(best[at], at));
                }
            }
            if previous[at] != END {
                let before = previous[at] as usize;
                best[before] = packed(pairs.get(ids[before], ids[at]));
                if best[before] != NO_RANK {
                    heap.push(entry(best[before], before));
                }
            }
        }
        let mut at = 0;
        while at != END {
            out.push(ids[at as usize]);
            at = next[at as usize];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tokens 0..4 are letters; 4 = 00, 5 = 44, 6 = 01, 7 = 40.
    fn pairs() -> PairTable<Merge> {
        let mut pairs = PairTable::with_capacity(4);
        for (rank, (left, right, id)) in [(0, 0, 4), (4, 4, 5), (0, 1, 6), (4, 0, 7)].into_iter().enumerate()
        {
            pairs.insert(left, right, Merge { rank: rank as u32, id });
        }
        pairs
    }

    #[test]
    fn short_and_long_merges_agree() {
        let pairs = pairs();
        let mut state = 1_u32;
        for len in 1..SHORT {
            for _ in 0..200 {
                let symbols: Vec<u32> = (0..len)
                    .map(|_| {
                        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                        (state >> 28) % 3
                    })
                    .collect();
                let (mut short, mut long) = (Vec::new(), Vec::new());
                merge_short(&pairs, &symbols, &mut short);
                let mut scratch = Scratch { symbols: symbols.clone(), ..Scratch::default() };
                merge_long(&pairs, &mut scratch, &mut long);
                assert_eq!(short, long, "{symbols:?}");
            }
        }
    }

    #[test]
    fn leftmost_pair_first() {
        let mut out = Vec::new();
        merge_short(&pairs(), &[0, 0, 0], &mut out);
        assert_eq!(out, [7]);
    }
}
