//! The words of the segments of a window.

use super::alignment::{self, TimedWord, Word};
use super::engine::Engine;
use super::segments::{Cut, FRAMES_PER_TIMESTAMP};
use super::stream::{Context, Window, probability, start_tokens};
use crate::Error;

/// The words of each of a window's segments, in seconds from the window's beginning.
pub(super) fn align(
    context: &Context<'_>,
    engine: &mut Engine,
    window: &Window,
    cuts: &[&Cut],
    language: Option<u32>,
) -> Result<Vec<Vec<TimedWord>>, Error> {
    let tokens = context.tokens;
    let text_of = |cut: &&Cut| cut.tokens.iter().copied().filter(|token| tokens.is_text(*token)).collect();
    let segments: Vec<Vec<u32>> = cuts.iter().map(text_of).collect();
    let text = segments.concat();
    let mut sequence = start_tokens(tokens, context.request.task, language);
    let before = sequence.len();
    sequence.push(tokens.no_timestamps());
    // A prompt and the text of a window fit the context; the text alone, its start and its end do, too.
    sequence.extend(&text);
    sequence.push(tokens.end);
    let positions = window.frames / FRAMES_PER_TIMESTAMP;
    let (attention, logits) =
        engine.attention(&window.encoded, &window.rows, positions, sequence, context.checkpoint)?;
    let vocab = engine.vocab();
    let of_text = |(n, token): (usize, &u32)| {
        let row = &logits[(before + n) * vocab..][..tokens.end as usize];
        probability(row, *token) as f32
    };
    let probabilities: Vec<f32> = text.iter().enumerate().map(of_text).collect();
    let code = language.map_or("en", |token| tokens.code(token));
    Ok(alignment::words(tokens, &segments, &probabilities, code, &attention, before))
}

/// Words at the ends of a segment may have taken a pause: the segment's own times are better where they differ by more than
/// half a second. Otherwise the segment has the times of its words.
pub(super) fn fit_words(words: &mut [Word], start: &mut f64, end: &mut f64) {
    const FAR: f64 = 0.5;
    let mut durations: Vec<f64> = words.iter().map(|word| word.end - word.start).collect();
    durations.sort_unstable_by(f64::total_cmp);
    let median = durations.get(durations.len() / 2).copied().unwrap_or(0.0).min(0.7);
    if let Some(first) = words.first_mut() {
        match *start < first.end && *start - FAR > first.start {
            true => first.start = (first.end - median).min(*start).max(0.0),
            false => *start = first.start,
        }
    }
    if let Some(last) = words.last_mut() {
        match *end > last.start && *end + FAR < last.end {
            true => last.end = (last.start + median).max(*end),
            false => *end = last.end,
        }
    }
}
