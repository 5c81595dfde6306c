//! Detects a completion that is stuck in a short cycle of tokens.

/// The longest cycle to detect, in tokens.
const MAX_PERIOD: usize = 32;

/// How many repetitions count as a cycle. Tables, matrices of zeros and refrains repeat a line about ten times; useful
/// text does not repeat it twenty times.
const MIN_REPEATS: usize = 20;

/// How many tokens count as a cycle. A line of dashes or of laughter is shorter.
const MIN_TOKENS: usize = 160;

/// Detects a cycle in a stream of tokens.
///
/// For each period it counts how many of the latest tokens equal the token one period before. The cost for each token
/// is constant, and it does not allocate.
#[derive(Debug)]
pub(crate) struct Repetition {
    /// The latest tokens, a ring buffer.
    recent: [u32; MAX_PERIOD],
    /// `equal[n - 1]`: how many of the latest tokens equal the token `n` positions before.
    equal: [usize; MAX_PERIOD],
    seen: usize,
}

impl Repetition {
    pub(crate) fn new() -> Repetition {
        Repetition { recent: [0; MAX_PERIOD], equal: [0; MAX_PERIOD], seen: 0 }
    }

    /// Takes the next token. Returns whether the stream is in a cycle.
    pub(crate) fn push(&mut self, token: u32) -> bool {
        let mut is_cycle = false;
        for (period, equal) in (1..=MAX_PERIOD).zip(&mut self.equal) {
            let before = self.seen.checked_sub(period).map(|at| self.recent[at % MAX_PERIOD]);
            *equal = if before == Some(token) { *equal + 1 } else { 0 };
            // The first repetition has no equal tokens before it.
            is_cycle |= *equal + period >= (MIN_REPEATS * period).max(MIN_TOKENS);
        }
        self.recent[self.seen % MAX_PERIOD] = token;
        self.seen += 1;
        is_cycle
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The number of tokens after which a cycle is detected.
    fn stopped_at(tokens: impl IntoIterator<Item = u32>) -> Option<usize> {
        let mut repetition = Repetition::new();
        tokens.into_iter().position(|token| repetition.push(token)).map(|at| at + 1)
    }

    /// A prefix, then an infinite cycle of `period` different tokens.
    fn cycle(prefix: u32, period: u32) -> impl Iterator<Item = u32> {
        (0..prefix).map(|n| 1_000 + n).chain((0..period).cycle())
    }

    #[test]
    fn short_cycles_are_detected() {
        assert_eq!(stopped_at(cycle(0, 1).take(10_000)), Some(160));
        assert_eq!(stopped_at(cycle(7, 2).take(10_000)), Some(7 + 160));
        assert_eq!(stopped_at(cycle(500, 8).take(10_000)), Some(500 + 160));
        assert_eq!(stopped_at(cycle(33, 32).take(10_000)), Some(33 + 640));
    }

    #[test]
    fn long_cycles_and_changing_tokens_are_not_detected() {
        assert_eq!(stopped_at(cycle(0, 33).take(100_000)), None);
        assert_eq!(stopped_at((0..100_000).map(|n| n % 97)), None);
        // A numbered list: one token in each line differs.
        assert_eq!(stopped_at((0..1_000).flat_map(|n| [1, 1_000 + n, 2, 3, 4])), None);
    }

    #[test]
    fn tables_and_matrices_are_not_detected() {
        // Ten lines of dashes, one token for each dash.
        let rule = || std::iter::repeat_n(5, 80).chain([6]);
        assert_eq!(stopped_at((0..10).flat_map(|_| rule())), None);
        // A matrix of zeros: rows of `0, 0, …` and a line break.
        for size in 2..=18 {
            let row = || (0..size).flat_map(|_| [7, 8]).chain([9, 10, 11]);
            assert_eq!(stopped_at((0..size).flat_map(|_| row())), None, "{size}");
        }
        // A table with many equal rows, and laughter.
        assert_eq!(stopped_at((0..18).flat_map(|_| 20..40)), None);
        assert_eq!(stopped_at(std::iter::repeat_n([1, 2], 60).flatten()), None);
    }

    #[test]
    fn an_interrupted_cycle_is_counted_from_zero() {
        let broken = (0..20).flat_map(|n| cycle(0, 3).take(120).chain([100 + n]));
        assert_eq!(stopped_at(broken), None);
    }
}
