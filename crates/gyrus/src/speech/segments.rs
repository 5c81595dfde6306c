//! Divides the tokens of a window into segments by their timestamps, and finds where the next window begins.

use super::tokens::Tokens;

/// Frames of one timestamp: 20 ms.
pub(super) const FRAMES_PER_TIMESTAMP: usize = 2;

/// A window that begins less than a second after the one before would take long and say the same.
const LEAST_ADVANCE: usize = 100;

/// How the text of a window ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ending {
    /// With the end token.
    Complete,
    /// At the greatest length, so that the rest of the window follows its last timestamp.
    Cut,
    /// Nothing of the window is decoded again.
    Last,
}

/// A segment of a window. Times are in timestamps of 20 ms from the window's beginning.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Cut {
    pub(super) start: usize,
    pub(super) end: usize,
    /// With its timestamps.
    pub(super) tokens: Vec<u32>,
}

/// The segments of a window, and the frames by which the next window begins later.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Cuts {
    pub(super) segments: Vec<Cut>,
    pub(super) advance: usize,
    /// The timestamp that begins a text after the segments, which is decoded again. As the end of a prompt it says that
    /// speech goes on.
    pub(super) next: Option<u32>,
}

/// Cuts the tokens of a window that has `frames` frames of audio.
///
/// Two timestamps in sequence end a segment and begin another. A complete text with more after such a pair is decoded again
/// from there, since the end of the window may have cut it off. One that ends with a single timestamp has no speech after it.
pub(super) fn cut(tokens: &Tokens, sampled: &[u32], frames: usize, ending: Ending) -> Cuts {
    let time = |token: u32| (token.saturating_sub(tokens.first_timestamp)) as usize;
    let is_time = |token: &u32| tokens.is_timestamp(*token);
    let all = frames.div_ceil(FRAMES_PER_TIMESTAMP);
    let last_time = sampled.iter().rposition(is_time).filter(|at| time(sampled[*at]) > 0);
    let (sampled, ending) = match (ending, last_time) {
        (Ending::Cut, Some(last)) => (&sampled[..=last], Ending::Cut),
        (Ending::Cut, None) => (sampled, Ending::Last),
        (other, _) => (sampled, other),
    };
    let single_end = matches!(sampled, [.., a, b] if !is_time(a) && is_time(b));
    let pairs = sampled.windows(2).enumerate().filter(|(_, pair)| pair.iter().all(is_time));
    let mut ends: Vec<usize> = pairs.map(|(at, _)| at + 1).collect();
    let last_pair = ends.last().map_or(0, |end| time(sampled[end - 1]) * FRAMES_PER_TIMESTAMP);
    let advance = match ending {
        Ending::Cut => last_time.map_or(frames, |last| time(sampled[last]) * FRAMES_PER_TIMESTAMP),
        Ending::Complete if !single_end && last_pair >= LEAST_ADVANCE => last_pair,
        Ending::Complete | Ending::Last => frames,
    };
    // The text after the last pair belongs to this window if the next one does not have it.
    if ends.is_empty() || single_end || advance >= frames {
        ends.push(sampled.len());
    }
    let mut segments = Vec::new();
    let mut first = 0;
    for end in ends {
        let part = &sampled[first..end];
        first = end;
        let begins = part.first().filter(|token| is_time(token)).map_or(0, |token| time(*token));
        let ends =
            part.iter().skip(1).rfind(|token| is_time(token)).map_or(all, |token| time(*token)).min(all);
        // Nothing is said after the end of the recording.
        if !part.is_empty() && (begins < all || begins == 0) {
            let start = if begins <= ends { begins } else { 0 };
            segments.push(Cut { start, end: ends, tokens: part.to_vec() });
        }
    }
    // Of a pair, the first timestamp belongs to the segment before it.
    let next = sampled.get(first).copied().filter(|token| is_time(token));
    Cuts { segments, advance: advance.min(frames), next }
}

#[cfg(test)]
mod tests {
    use super::super::tokens::tests::small;
    use super::Ending::{Complete, Last};
    use super::*;

    /// Start, end and number of tokens of each segment, and the frames to the next window.
    fn cuts(sampled: &[i32], frames: usize, ending: Ending) -> (Vec<(usize, usize, usize)>, usize) {
        let tokens = small(3);
        // Numbers that are not positive are timestamps.
        let ids: Vec<u32> = sampled
            .iter()
            .map(|&t| if t <= 0 { tokens.first_timestamp + t.unsigned_abs() } else { t as u32 })
            .collect();
        let found = cut(&tokens, &ids, frames, ending);
        let each = found.segments.iter().map(|s| (s.start, s.end, s.tokens.len()));
        (each.collect(), found.advance)
    }

    #[test]
    fn pairs_of_timestamps_divide_and_the_rest_is_decoded_again() {
        assert_eq!(cuts(&[0, 65, -100, -100, 66], 3000, Complete), (vec![(0, 100, 3)], 200));
        let two = [0, 65, -100, -120, 66, -300, -300];
        assert_eq!(cuts(&two, 3000, Complete), (vec![(0, 100, 3), (120, 300, 3)], 600));
    }

    #[test]
    fn a_single_timestamp_at_the_end_ends_the_window() {
        let text = [0, 65, -100, -100, 66, -200];
        assert_eq!(cuts(&text, 3000, Complete), (vec![(0, 100, 3), (100, 200, 3)], 3000));
        assert_eq!(cuts(&[0, 65, -100], 3000, Complete), (vec![(0, 100, 3)], 3000));
    }

    #[test]
    fn the_timestamp_of_a_text_to_decode_again_is_kept() {
        let tokens = small(3);
        let first = tokens.first_timestamp;
        let next = |sampled: &[u32], ending| cut(&tokens, sampled, 3000, ending).next;
        let text = [first, 65, first + 800, first + 810, 66];
        assert_eq!(next(&text, Complete), Some(first + 810));
        assert_eq!(next(&text, Ending::Cut), Some(first + 810));
        assert_eq!(next(&text, Last), None);
        assert_eq!(next(&text[..3], Complete), None);
    }

    #[test]
    fn a_text_that_was_cut_goes_on_at_its_last_timestamp() {
        let text = [0, 65, -800, -810, 66, 66, 66];
        assert_eq!(cuts(&text, 3000, Ending::Cut), (vec![(0, 800, 3)], 1620));
        // Its last token may have been the first of a pair.
        assert_eq!(cuts(&text[..3], 3000, Ending::Cut), (vec![(0, 800, 3)], 1600));
        let text = [0, 65, -100, -100, 66, -800];
        assert_eq!(cuts(&text, 3000, Ending::Cut), (vec![(0, 100, 3), (100, 800, 3)], 1600));
        // Without a timestamp there is nowhere to go on.
        assert_eq!(cuts(&[0, 66, 66], 3000, Ending::Cut), (vec![(0, 1500, 3)], 3000));
    }

    #[test]
    fn the_last_text_of_a_window_is_kept_whole() {
        let text = [0, 65, -100, -110, 66, 67];
        assert_eq!(cuts(&text, 3000, Last), (vec![(0, 100, 3), (110, 1500, 3)], 3000));
        // The next window would begin 20 ms later.
        let text = [0, 65, -1, -1, 66];
        assert_eq!(cuts(&text, 3000, Complete), (vec![(0, 1, 3), (1, 1500, 2)], 3000));
    }

    #[test]
    fn nothing_is_said_after_the_end_of_the_recording() {
        let text = [0, 65, -300, -300, 66, -700, -700, 67, -800];
        assert_eq!(cuts(&text, 1000, Complete), (vec![(0, 300, 3), (300, 500, 3)], 1000));
        assert_eq!(cuts(&[0, 65, -700, -700, 66], 1000, Complete).0, [(0, 500, 3)]);
    }

    #[test]
    fn windows_without_pairs_are_one_segment() {
        assert_eq!(cuts(&[65, 66], 1100, Complete), (vec![(0, 550, 2)], 1100));
        assert_eq!(cuts(&[-10, 65, 66], 3000, Complete), (vec![(10, 1500, 3)], 3000));
        assert_eq!(cuts(&[], 3000, Complete), (vec![], 3000));
        assert_eq!(cuts(&[0, 0], 3000, Complete).1, 3000);
    }
}
