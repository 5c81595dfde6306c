//! When each word was said: the path through the attention of a decoder's rows to an encoder's positions.

use super::languages::has_spaces;
use super::tokens::Tokens;

/// Positions whose median is taken.
const MEDIAN: usize = 7;
/// Seconds of an encoder's position.
const POSITION: f64 = 0.02;

/// Signs that belong to the word after them, and to the word before them.
const BEFORE: &str = "\"'“¿([{-";
const AFTER: &str = "\"'.。,，!！?？:：”)]}、";

/// A word with its times in seconds.
#[derive(Debug, Clone, PartialEq)]
pub struct Word {
    /// The text, with the space before it.
    pub text: String,
    /// When it begins.
    pub start: f64,
    /// When it ends.
    pub end: f64,
    /// The mean probability of its tokens.
    pub probability: f64,
}

/// A word and its tokens.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct TimedWord {
    pub(super) word: Word,
    pub(super) tokens: Vec<u32>,
}

/// The mean of the attention of several heads. Heads are added one by one, so that the memory does not grow with their number.
pub(super) struct Attention {
    rows: usize,
    positions: usize,
    heads: usize,
    /// `[rows, positions]`.
    mean: Vec<f32>,
}

impl Attention {
    /// That of this many heads, all of which are added.
    pub(super) fn new(rows: usize, positions: usize, heads: usize) -> Attention {
        Attention { rows, positions, heads, mean: vec![0.0; rows * positions] }
    }

    /// Adds a head, `[rows, positions]` as softmax left it: it is normalised over its rows, then medians over time are taken.
    pub(super) fn add(&mut self, head: &mut [f32]) {
        let Attention { rows, positions, heads, .. } = *self;
        for position in 0..positions {
            let column = || (0..rows).map(|row| f64::from(head[row * positions + position]));
            let mean = column().sum::<f64>() / rows as f64;
            let variance = column().map(|x| (x - mean) * (x - mean)).sum::<f64>() / rows as f64;
            let scale = if variance > 0.0 { variance.sqrt().recip() } else { 0.0 };
            for row in 0..rows {
                let value = &mut head[row * positions + position];
                *value = ((f64::from(*value) - mean) * scale) as f32;
            }
        }
        let rows = head.chunks_exact(positions.max(1)).zip(self.mean.chunks_exact_mut(positions.max(1)));
        for (row, mean) in rows {
            for (value, mean) in medians(row).into_iter().zip(mean) {
                *mean += value / heads as f32;
            }
        }
    }

    /// Some of the rows.
    fn some_rows(&self, range: std::ops::Range<usize>) -> Vec<&[f32]> {
        self.mean.chunks_exact(self.positions.max(1)).skip(range.start).take(range.len()).collect()
    }
}

/// The words of each segment of a window. `attention` has a row for each token of all segments, all text, after the first
/// `before` rows, and one for the end. Times are relative to the window.
pub(super) fn words(
    tokens: &Tokens,
    segments: &[Vec<u32>],
    probabilities: &[f32],
    language: &str,
    attention: &Attention,
    before: usize,
) -> Vec<Vec<TimedWord>> {
    let rows = segments.iter().map(Vec::len).sum::<usize>() + 1;
    if attention.positions == 0 || attention.rows < before + rows || probabilities.len() + 1 != rows {
        return vec![Vec::new(); segments.len()];
    }
    let starts = row_starts(&attention.some_rows(before..before + rows));
    let (mut found, mut counts, mut first) = (Vec::new(), Vec::new(), 0);
    for segment in segments {
        let divided = divide(tokens, segment, language);
        counts.push(divided.len());
        for of_word in divided {
            let end = first + of_word.len();
            let chance: f32 = probabilities[first..end].iter().sum::<f32>() / of_word.len() as f32;
            let word = Word {
                text: tokens.text(&of_word),
                start: starts[first] as f64 * POSITION,
                end: starts[end] as f64 * POSITION,
                probability: f64::from(chance),
            };
            found.push(TimedWord { word, tokens: of_word });
            first = end;
        }
    }
    limit_durations(&mut found);
    let mut found = found.into_iter();
    let of_segment = |count: usize| {
        let mut words: Vec<TimedWord> = found.by_ref().take(count).collect();
        merge_punctuation(&mut words);
        words
    };
    counts.into_iter().map(of_segment).collect()
}

/// The median around each value; the row is reflected at its ends.
fn medians(row: &[f32]) -> Vec<f32> {
    let half = MEDIAN / 2;
    if row.len() <= half {
        return row.to_vec();
    }
    let last = row.len() as i64 - 1;
    let at = |n: i64| {
        let reflected = if n < 0 {
            -n
        } else if n > last {
            2 * last - n
        } else {
            n
        };
        row[reflected.clamp(0, last) as usize]
    };
    (0..row.len() as i64)
        .map(|centre| {
            let mut near: [f32; MEDIAN] = std::array::from_fn(|n| at(centre + n as i64 - half as i64));
            near.sort_unstable_by(f32::total_cmp);
            near[half]
        })
        .collect()
}

/// The position at which the best monotonic path through the matrix enters each row: dynamic time warping of its negative.
fn row_starts(matrix: &[&[f32]]) -> Vec<usize> {
    let (rows, columns) = (matrix.len(), matrix[0].len());
    let width = columns + 1;
    let mut cost = vec![f32::INFINITY; (rows + 1) * width];
    // 0: from both, 1: from the row before, 2: from the column before.
    let mut trace = vec![0u8; (rows + 1) * width];
    cost[0] = 0.0;
    for column in 1..width {
        for row in 1..=rows {
            let diagonal = cost[(row - 1) * width + column - 1];
            let above = cost[(row - 1) * width + column];
            let left = cost[row * width + column - 1];
            let (least, from) = if diagonal < above && diagonal < left {
                (diagonal, 0)
            } else if above < diagonal && above < left {
                (above, 1)
            } else {
                (left, 2)
            };
            cost[row * width + column] = least - matrix[row - 1][column - 1];
            trace[row * width + column] = from;
        }
    }
    let mut starts = vec![0; rows];
    let (mut row, mut column) = (rows, columns);
    while row > 0 || column > 0 {
        if row > 0 {
            starts[row - 1] = column.saturating_sub(1);
        }
        match (row, column) {
            (0, _) => column -= 1,
            (_, 0) => row -= 1,
            _ => match trace[row * width + column] {
                0 => (row, column) = (row - 1, column - 1),
                1 => row -= 1,
                _ => column -= 1,
            },
        }
    }
    starts
}

/// Divides tokens into words: at spaces, or, in languages without them, at every character.
fn divide(tokens: &Tokens, text: &[u32], language: &str) -> Vec<Vec<u32>> {
    // Tokens that end within a character belong to the next ones.
    let mut pieces: Vec<Vec<u32>> = Vec::new();
    let mut open: Vec<u32> = Vec::new();
    for &token in text {
        open.push(token);
        if std::str::from_utf8(&tokens.bytes(&open)).is_ok() {
            pieces.push(std::mem::take(&mut open));
        }
    }
    if !open.is_empty() {
        pieces.push(open);
    }
    if !has_spaces(language) {
        return pieces;
    }
    let mut words: Vec<Vec<u32>> = Vec::new();
    for piece in pieces {
        let text = tokens.text(&piece);
        let is_sign = !text.trim().is_empty() && text.trim().chars().all(|c| c.is_ascii_punctuation());
        match words.last_mut() {
            Some(word) if !text.starts_with(' ') && !is_sign => word.extend(piece),
            _ => words.push(piece),
        }
    }
    words
}

/// Words beside a pause may be given the whole pause: a word at the beginning or the end of a sentence has at most twice
/// the median duration.
fn limit_durations(words: &mut [TimedWord]) {
    let mut durations: Vec<f64> =
        words.iter().map(|timed| timed.word.end - timed.word.start).filter(|d| *d > 0.0).collect();
    durations.sort_unstable_by(f64::total_cmp);
    let median = durations.get(durations.len() / 2).copied().unwrap_or(0.0).min(0.7);
    let most = 2.0 * median;
    let ends_sentence = |text: &str| matches!(text.trim(), "." | "。" | "!" | "！" | "?" | "？");
    if most <= 0.0 {
        return;
    }
    for n in 1..words.len() {
        let (start, end) = (words[n].word.start, words[n].word.end);
        if end - start > most {
            if ends_sentence(&words[n].word.text) {
                words[n].word.end = start + most;
            } else if ends_sentence(&words[n - 1].word.text) {
                words[n].word.start = end - most;
            }
        }
    }
}

/// Joins signs with the words that they belong to.
fn merge_punctuation(words: &mut Vec<TimedWord>) {
    let is_one_of = |text: &str, signs: &str| {
        let mut chars = text.chars();
        matches!((chars.next(), chars.next()), (Some(c), None) if signs.contains(c))
    };
    // Signs before a word, from the end.
    let mut n = words.len().saturating_sub(1);
    while n > 0 {
        let before = &words[n - 1].word.text;
        if before.starts_with(' ') && is_one_of(before.trim(), BEFORE) {
            let sign = words.remove(n - 1);
            let word = &mut words[n - 1];
            word.word.text.insert_str(0, &sign.word.text);
            word.tokens.splice(0..0, sign.tokens);
        }
        n -= 1;
    }
    // Signs after a word.
    let mut n = 1;
    while n < words.len() {
        let joins = !words[n - 1].word.text.ends_with(' ') && is_one_of(&words[n].word.text, AFTER);
        if joins {
            let sign = words.remove(n);
            words[n - 1].word.text.push_str(&sign.word.text);
            words[n - 1].tokens.extend(sign.tokens);
        } else {
            n += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tokens::tests::small;
    use super::*;

    /// Each row attends to positions of its own.
    fn weights(rows: usize, positions: usize, centre: impl Fn(usize) -> f32) -> Vec<f32> {
        let mut weights = Vec::new();
        for row in 0..rows {
            for position in 0..positions {
                let distance = (position as f32 - centre(row)) / 4.0;
                weights.push((-distance * distance).exp() + 1e-3);
            }
        }
        weights
    }

    fn attention(rows: usize, positions: usize, centre: impl Fn(usize) -> f32) -> Attention {
        let mut attention = Attention::new(rows, positions, 1);
        attention.add(&mut weights(rows, positions, centre));
        attention
    }

    #[test]
    fn words_have_the_times_of_their_rows() {
        let tokens = small(3);
        // " the" (258), "re", " the", "."
        let text = [258, 259, 258, 46];
        // Two rows of a prompt come first; the end follows.
        let rows = attention(2 + text.len() + 1, 200, |row| 10.0 + 25.0 * row as f32);
        let found = words(&tokens, &[text.to_vec()], &[0.5, 1.0, 0.8, 0.2], "en", &rows, 2).remove(0);
        let each: Vec<(&str, f64)> = found.iter().map(|w| (w.word.text.as_str(), w.word.start)).collect();
        assert_eq!(each.len(), 2, "{each:?}");
        assert_eq!((each[0].0, each[1].0), (" there", " the."));
        assert_eq!(found[0].tokens, [258, 259]);
        assert_eq!(found[0].word.probability, 0.75);
        // The third row begins between the centres of its own and the one before.
        let between = 0.02 * (10.0 + 25.0 * 3.5);
        assert!((found[1].word.start - between).abs() < 0.15, "{found:?}");
        assert!(found[0].word.end <= found[1].word.start + 1e-9);
    }

    #[test]
    fn medians_reflect_at_the_ends() {
        assert_eq!(medians(&[9.0, 1.0, 2.0, 3.0, 4.0]), [2.0, 2.0, 3.0, 3.0, 2.0]);
        assert_eq!(medians(&[5.0]), [5.0]);
    }

    #[test]
    fn the_path_is_the_best_monotonic_one() {
        let matrix: [&[f32]; 3] =
            [&[1.0, 1.0, -1.0, -1.0], &[-1.0, -1.0, 1.0, -1.0], &[-1.0, -1.0, -1.0, 1.0]];
        assert_eq!(row_starts(&matrix), [0, 2, 3]);
    }

    #[test]
    fn heads_are_normalised_each_and_averaged() {
        let head = weights(3, 40, |row| 5.0 + 15.0 * row as f32);
        // The second head is the first one in other units, the third one has no preference.
        let mut three = Attention::new(3, 40, 3);
        three.add(&mut head.clone());
        three.add(&mut head.iter().map(|x| 10.0 * x + 3.0).collect::<Vec<f32>>());
        three.add(&mut [0.5; 120]);
        let mut one = Attention::new(3, 40, 1);
        one.add(&mut head.clone());
        assert!(one.mean.iter().any(|x| *x > 1.0));
        for (three, one) in three.mean.iter().zip(&one.mean) {
            assert!((three - one * 2.0 / 3.0).abs() < 1e-4, "{three}, {one}");
        }
    }
}
