//! Conflicts between lexemes.

use std::collections::HashSet;

use super::ast::Bytes;
use super::positions::Positions;

/// Pairs of states visited in all comparisons of a grammar, a bound on their time.
pub(super) const MAX_STEPS: usize = 5_000_000;

/// Whether some text of `short` is the beginning of a text of `long` that goes on with a byte of `follow`. The engine would
/// go on with `long` there, and lose what may follow `short`.
///
/// `None` if the count of steps runs out.
pub(super) fn conflict(
    short: &Positions,
    follow: Bytes,
    long: &Positions,
    steps: &mut usize,
) -> Option<bool> {
    let mut seen: HashSet<(usize, usize)> = HashSet::new();
    let mut pending: Vec<(usize, usize)> = Vec::new();
    let mut visit = |a: &[usize], b: &[usize], pending: &mut Vec<(usize, usize)>, steps: &mut usize| {
        for &a in a {
            for &b in b {
                *steps += 1;
                if short.sets[a].intersects(&long.sets[b]) && seen.insert((a, b)) {
                    pending.push((a, b));
                }
            }
        }
    };
    visit(&short.first, &long.first, &mut pending, steps);
    while let Some((a, b)) = pending.pop() {
        if *steps > MAX_STEPS {
            return None;
        }
        if short.is_last[a]
            && long.next[b].iter().any(|&next| long.sets[next].lead_bytes().intersects(follow))
        {
            return Some(true);
        }
        visit(&short.next[a], &long.next[b], &mut pending, steps);
    }
    Some(false)
}
