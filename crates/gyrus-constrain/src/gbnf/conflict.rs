//! Conflicts between lexemes.

use std::collections::HashSet;

use super::ast::Bytes;
use super::positions::Positions;

/// Ranges of characters that are compared for each unit of [`Limits::compile_work`](crate::Limits::compile_work).
pub(super) const RANGES_PER_UNIT: u64 = 5;

/// Whether some text of `short` is the beginning of a text of `long` that goes on with a byte of `follow`. The engine would
/// go on with `long` there, and lose what may follow `short`.
///
/// `None` if no ranges of characters are left to compare.
pub(super) fn conflict(short: &Positions, follow: Bytes, long: &Positions, ranges: &mut u64) -> Option<bool> {
    let mut seen: HashSet<(usize, usize)> = HashSet::new();
    let mut pending: Vec<(usize, usize)> = Vec::new();
    // Appends the pairs of states whose characters meet. Sets are compared range by range, so ranges are counted.
    let mut visit = |a: &[usize], b: &[usize], pending: &mut Vec<(usize, usize)>| {
        *ranges = ranges.checked_sub(1)?;
        for &a in a {
            for &b in b {
                *ranges = ranges.checked_sub((short.sets[a].ranges() + long.sets[b].ranges()) as u64)?;
                if short.sets[a].intersects(&long.sets[b]) && seen.insert((a, b)) {
                    pending.push((a, b));
                }
            }
        }
        Some(())
    };
    visit(&short.first, &long.first, &mut pending)?;
    while let Some((a, b)) = pending.pop() {
        if short.is_last[a] && long.next[b].iter().any(|&next| long.leads[next].intersects(follow)) {
            return Some(true);
        }
        visit(&short.next[a], &long.next[b], &mut pending)?;
    }
    Some(false)
}
