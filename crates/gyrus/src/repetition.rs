//! Notices an answer that repeats one short cycle and will not stop by itself.

/// The longest cycle that is looked for, in tokens.
const LONGEST: usize = 32;

/// How often a cycle comes before it counts. Tables, matrices of zeros and refrains repeat a line some ten
/// times; nothing that is meant repeats it twenty times over.
const TIMES: usize = 20;

/// How many tokens the repetition has at least: a rule of dashes or a run of laughter is shorter.
const LEAST: usize = 160;

/// Watches a stream of tokens for a cycle.
///
/// For each period it counts how many of the latest tokens equal the one a period before. That takes the
/// same few operations for every token, and no memory beyond this.
#[derive(Debug)]
pub(crate) struct Repetition {
    /// The latest tokens, by position modulo the longest period.
    recent: [u32; LONGEST],
    /// For period `n + 1`, how many tokens in a row equal the one a period before.
    equal: [usize; LONGEST],
    seen: usize,
}

impl Repetition {
    pub(crate) fn new() -> Repetition {
        Repetition { recent: [0; LONGEST], equal: [0; LONGEST], seen: 0 }
    }

    /// Takes the next token and says whether the stream has become a cycle.
    pub(crate) fn push(&mut self, token: u32) -> bool {
        let mut is_cycle = false;
        for (period, equal) in (1..=LONGEST).zip(&mut self.equal) {
            let before = self.seen.checked_sub(period).map(|at| self.recent[at % LONGEST]);
            *equal = if before == Some(token) { *equal + 1 } else { 0 };
            // The first time around equals nothing before it.
            is_cycle |= *equal + period >= (TIMES * period).max(LEAST);
        }
        self.recent[self.seen % LONGEST] = token;
        self.seen += 1;
        is_cycle
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// After how many tokens the stream counts as a cycle.
    fn stopped_at(tokens: impl IntoIterator<Item = u32>) -> Option<usize> {
        let mut repetition = Repetition::new();
        tokens.into_iter().position(|token| repetition.push(token)).map(|at| at + 1)
    }

    /// A prefix, then a cycle of that many different tokens for ever.
    fn cycle(prefix: u32, period: u32) -> impl Iterator<Item = u32> {
        (0..prefix).map(|n| 1_000 + n).chain((0..period).cycle())
    }

    #[test]
    fn short_cycles_are_stopped() {
        assert_eq!(stopped_at(cycle(0, 1).take(10_000)), Some(160));
        assert_eq!(stopped_at(cycle(7, 2).take(10_000)), Some(7 + 160));
        assert_eq!(stopped_at(cycle(500, 8).take(10_000)), Some(500 + 160));
        assert_eq!(stopped_at(cycle(33, 32).take(10_000)), Some(33 + 640));
    }

    #[test]
    fn long_cycles_and_changing_text_are_not() {
        assert_eq!(stopped_at(cycle(0, 33).take(100_000)), None);
        assert_eq!(stopped_at((0..100_000).map(|n| n % 97)), None);
        // A numbered list: one token of each line differs.
        assert_eq!(stopped_at((0..1_000).flat_map(|n| [1, 1_000 + n, 2, 3, 4])), None);
    }

    #[test]
    fn what_is_meant_is_not_stopped() {
        // Ten lines of dashes, a token for each dash.
        let rule = || std::iter::repeat_n(5, 80).chain([6]);
        assert_eq!(stopped_at((0..10).flat_map(|_| rule())), None);
        // A matrix of zeros: rows of `0, 0, …` and a line end.
        for size in 2..=18 {
            let row = || (0..size).flat_map(|_| [7, 8]).chain([9, 10, 11]);
            assert_eq!(stopped_at((0..size).flat_map(|_| row())), None, "{size}");
        }
        // A table of one row many times, and laughter.
        assert_eq!(stopped_at((0..18).flat_map(|_| 20..40)), None);
        assert_eq!(stopped_at(std::iter::repeat_n([1, 2], 60).flatten()), None);
    }

    #[test]
    fn a_cycle_that_is_broken_begins_anew() {
        let broken = (0..20).flat_map(|n| cycle(0, 3).take(120).chain([100 + n]));
        assert_eq!(stopped_at(broken), None);
    }
}
