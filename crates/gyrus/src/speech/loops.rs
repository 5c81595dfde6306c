//! Texts that repeat themselves until they are as long as they may be.

use super::segments::FRAMES_PER_TIMESTAMP;
use super::tokens::Tokens;

/// The fewest tokens that are repetitions, and not emphasis.
const LEAST: usize = 8;

/// A text of the greatest length must have come this far, in frames, for its rest to be decoded from there: 15 s.
const LEAST_ADVANCE: usize = 1500;

/// Whether a text of the greatest length is a failure: it has no time, or has not come far.
pub(super) fn is_stuck(tokens: &Tokens, sampled: &[u32]) -> bool {
    let last = sampled.iter().rfind(|token| tokens.is_timestamp(**token));
    let time = last.map_or(0, |token| (token - tokens.first_timestamp) as usize);
    time * FRAMES_PER_TIMESTAMP < LEAST_ADVANCE
}

/// The tokens up to the first repetition of what a text repeats until its end. Timestamps between repetitions may differ.
pub(super) fn without_loop<'a>(tokens: &Tokens, sampled: &'a [u32]) -> &'a [u32] {
    let places: Vec<usize> = (0..sampled.len()).filter(|at| !tokens.is_timestamp(sampled[*at])).collect();
    let text: Vec<u32> = places.iter().map(|at| sampled[*at]).collect();
    let repeated = |period: usize| {
        let same = text.iter().rev().zip(text.iter().rev().skip(period));
        same.take_while(|(a, b)| a == b).count()
    };
    let found = (1..=text.len() / 3).map(|period| (period, repeated(period)));
    // The shortest period that the end of the text has at least three times.
    let looped = found.into_iter().find(|(period, count)| *count >= (2 * period).max(LEAST));
    match looped {
        Some((_, count)) => {
            let kept = text.len() - count;
            &sampled[..places.get(kept).copied().unwrap_or(sampled.len())]
        }
        None => sampled,
    }
}

#[cfg(test)]
mod tests {
    use super::super::tokens::tests::small;
    use super::*;

    #[test]
    fn one_occurrence_of_a_loop_is_kept_and_all_before_it() {
        let tokens = small(3);
        let first = tokens.first_timestamp;
        let good = [first, 10, 11, 12, 13];
        let looped = [&good[..], &[7, 8].repeat(20), &[7]].concat();
        assert_eq!(without_loop(&tokens, &looped), [&good[..], &[7, 8]].concat());
        // Timestamps go on while the text does not.
        let timed: Vec<u32> = (1..9).flat_map(|n| [first + n, first + n, 7, 8]).collect();
        let looped = [&good[..], &timed].concat();
        assert_eq!(without_loop(&tokens, &looped)[..9], [&good[..], &timed[..4]].concat());
        assert!(without_loop(&tokens, &looped)[9..].iter().all(|token| tokens.is_timestamp(*token)));
    }

    #[test]
    fn emphasis_and_other_texts_are_kept() {
        let tokens = small(3);
        for text in [&[1, 2, 3, 4, 5, 6][..], &[1, 2, 7, 7, 7, 7], &[], &[5]] {
            assert_eq!(without_loop(&tokens, text), text);
        }
    }

    #[test]
    fn a_cut_text_is_stuck_unless_it_came_far() {
        let tokens = small(3);
        let first = tokens.first_timestamp;
        for (text, stuck) in [
            (vec![first, 65, 65], true),
            (vec![65, 65], true),
            (vec![first, 65, first + 749, 66], true),
            (vec![first, 65, first + 750, 66], false),
        ] {
            assert_eq!(is_stuck(&tokens, &text), stuck, "{text:?}");
        }
    }
}
