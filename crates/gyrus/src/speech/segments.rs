//! Divides the tokens of a window into segments by their timestamps, and finds where the next window begins.

use super::search::Hypothesis;
use super::tokens::Tokens;

/// Frames of one timestamp: 20 ms.
pub(super) const FRAMES_PER_TIMESTAMP: usize = 2;

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
}

/// Cuts the tokens of a window that has `frames` frames of audio.
///
/// Two timestamps in sequence end a segment and begin another. A window that ends with text after such a pair is decoded
/// again from there, since the text may have been cut off. A window that ends with a single timestamp has no speech after it.
pub(super) fn cut(tokens: &Tokens, sampled: &[u32], frames: usize) -> Cuts {
    let time = |token: u32| (token.saturating_sub(tokens.first_timestamp)) as usize;
    let is_time = |token: &u32| tokens.is_timestamp(*token);
    let all = frames.div_ceil(FRAMES_PER_TIMESTAMP);
    let single_end = matches!(sampled, [.., a, b] if !is_time(a) && is_time(b));
    let pairs = sampled.windows(2).enumerate().filter(|(_, pair)| pair.iter().all(is_time));
    let mut ends: Vec<usize> = pairs.map(|(at, _)| at + 1).collect();
    if ends.is_empty() {
        let last = sampled.iter().rev().find(|token| is_time(token));
        let end = last.map(|token| time(*token)).filter(|end| *end > 0).unwrap_or(all).min(all);
        let start = sampled.first().filter(|token| is_time(token)).map_or(0, |token| time(*token));
        let start = if start < end { start } else { 0 };
        let segments = vec![Cut { start, end, tokens: sampled.to_vec() }];
        return Cuts { segments, advance: frames };
    }
    if single_end {
        ends.push(sampled.len());
    }
    let mut segments = Vec::new();
    let mut first = 0;
    for end in ends {
        let part = &sampled[first..end];
        if let (Some(start), Some(last)) = (part.first(), part.last()) {
            segments.push(Cut { start: time(*start), end: time(*last), tokens: part.to_vec() });
        }
        first = end;
    }
    let last = segments.last().map_or(0, |segment: &Cut| segment.end);
    // A pair at the very beginning would not advance.
    let advance = match single_end || last == 0 {
        true => frames,
        false => (last * FRAMES_PER_TIMESTAMP).min(frames),
    };
    Cuts { segments, advance }
}

/// The tokens of a text that repeats itself. One that reached the greatest length so repeated itself to the end: what came
/// after its last timestamp is no text of the recording. A text without timestamps is kept.
pub(super) fn without_loop(tokens: &Tokens, text: &Hypothesis) -> Vec<u32> {
    let is_time = |token: &u32| tokens.is_timestamp(*token);
    match text.tokens.iter().rposition(is_time).filter(|_| text.is_cut) {
        Some(last) => text.tokens[..=last].to_vec(),
        None => text.tokens.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::tokens::tests::small;
    use super::*;

    fn cuts(sampled: &[i32], frames: usize) -> (Vec<(usize, usize, usize)>, usize) {
        let tokens = small(3);
        // Negative numbers are timestamps.
        let ids: Vec<u32> = sampled
            .iter()
            .map(|&t| if t <= 0 { tokens.first_timestamp + t.unsigned_abs() } else { t as u32 })
            .collect();
        let found = cut(&tokens, &ids, frames);
        let each = found.segments.iter().map(|s| (s.start, s.end, s.tokens.len()));
        (each.collect(), found.advance)
    }

    #[test]
    fn pairs_of_timestamps_divide_and_the_rest_is_decoded_again() {
        assert_eq!(cuts(&[0, 65, -100, -100, 66], 3000), (vec![(0, 100, 3)], 200));
        assert_eq!(cuts(&[0, 65, -100, -120, 66, -300, -300], 3000), (vec![(0, 100, 3), (120, 300, 3)], 600));
    }

    #[test]
    fn a_single_timestamp_at_the_end_ends_the_window() {
        assert_eq!(cuts(&[0, 65, -100, -100, 66, -200], 3000), (vec![(0, 100, 3), (100, 200, 3)], 3000));
        assert_eq!(cuts(&[0, 65, -100], 3000), (vec![(0, 100, 3)], 3000));
    }

    #[test]
    fn a_loop_ends_at_the_last_timestamp() {
        let tokens = small(3);
        let first = tokens.first_timestamp;
        let hypothesis =
            |tokens: &[u32], is_cut| Hypothesis { tokens: tokens.to_vec(), is_cut, ..Hypothesis::default() };
        let looped = [first, 65, first + 50, first + 50, 66, 66, 66];
        assert_eq!(without_loop(&tokens, &hypothesis(&looped, true)), looped[..4]);
        assert_eq!(without_loop(&tokens, &hypothesis(&looped, false)), looped);
        assert_eq!(without_loop(&tokens, &hypothesis(&[65, 65], true)), [65, 65]);
        // Nothing but the loop: no text, and the next window follows this one.
        assert_eq!(without_loop(&tokens, &hypothesis(&[first, 66, 66], true)), [first]);
        assert_eq!(cuts(&[0], 3000), (vec![(0, 1500, 1)], 3000));
    }

    #[test]
    fn windows_without_pairs_are_one_segment() {
        assert_eq!(cuts(&[65, 66], 1100), (vec![(0, 550, 2)], 1100));
        assert_eq!(cuts(&[-10, 65, 66], 3000), (vec![(0, 10, 3)], 3000));
        assert_eq!(cuts(&[], 3000), (vec![(0, 1500, 0)], 3000));
        assert_eq!(cuts(&[0, 0], 3000).1, 3000);
    }
}
