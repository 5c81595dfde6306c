use crate::SAMPLE_RATE;

/// A part of a recording, in samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// The first sample.
    pub start: usize,
    /// The sample after the last.
    pub end: usize,
}

/// Samples of a step: 10 ms.
const STEP: usize = SAMPLE_RATE as usize / 100;
/// Steps whose energy is averaged: 30 ms.
const SMOOTH: usize = 3;
/// Digital silence, in dB of full scale. It says nothing about the noise of the recording.
const SILENT: f32 = -75.0;
/// How much louder than its quietest parts a recording must become, in dB, for anything in it to be speech.
const LEAST_VARIATION: f32 = 5.0;
/// How much louder for its parts to be told apart.
const LEAST_RANGE: f32 = 10.0;
/// How far above the noise speech begins: a part of the range, within these limits in dB.
const PART_OF_RANGE: f32 = 0.25;
const LEAST_ABOVE: f32 = 4.0;
const MOST_ABOVE: f32 = 12.0;
/// Steps of a pause that does not end speech: 400 ms.
const BRIDGE: usize = 40;
/// Steps of the shortest sound that is speech: 80 ms.
const SHORTEST: usize = 8;
/// Steps that are kept on each side: 200 ms.
const MARGIN: usize = 20;

/// Where a recording may have speech, from its energy alone.
///
/// Parts count as speech that are clearly louder than the quiet parts of the same recording. So steady noise, tones and
/// silence of any loudness have none, and music or knocking may be taken for speech. Where something varies, but not clearly,
/// such as speech over music, all of the recording is one part. There is no model of speech in it.
pub fn speech_spans(samples: &[f32]) -> Vec<Span> {
    let energy = energies(samples);
    let mut sorted: Vec<f32> = energy.iter().copied().filter(|e| *e > SILENT).collect();
    if sorted.len() < SHORTEST {
        return Vec::new();
    }
    sorted.sort_unstable_by(f32::total_cmp);
    let at = |part: f32| sorted[((sorted.len() - 1) as f32 * part) as usize];
    // Digital silence around sounds is a pause like any other.
    let has_silence = energy.len() - sorted.len() > energy.len() / 10;
    let (quiet, loud) = (at(0.05), at(0.98));
    // Sounds that begin out of nothing are as loud as they are: only their own variation tells speech from noise.
    if loud - quiet < LEAST_VARIATION {
        return Vec::new();
    }
    if loud - quiet < LEAST_RANGE {
        return vec![Span { start: 0, end: samples.len() }];
    }
    let quiet = if has_silence { quiet.min(loud - 40.0) } else { quiet };
    let above = ((loud - quiet) * PART_OF_RANGE).clamp(LEAST_ABOVE, MOST_ABOVE);
    let loud_steps: Vec<bool> = energy.iter().map(|e| *e > quiet + above).collect();
    spans(&loud_steps, samples.len())
}

/// The energy of each step in dB, smoothed.
fn energies(samples: &[f32]) -> Vec<f32> {
    let power: Vec<f32> = samples
        .chunks(STEP)
        .map(|step| {
            let mean = step.iter().sum::<f32>() / step.len() as f32;
            step.iter().map(|x| (x - mean) * (x - mean)).sum::<f32>() / step.len() as f32
        })
        .collect();
    (0..power.len())
        .map(|n| {
            let near = &power[n.saturating_sub(SMOOTH / 2)..(n + SMOOTH / 2 + 1).min(power.len())];
            10.0 * (near.iter().sum::<f32>() / near.len() as f32).max(1e-12).log10()
        })
        .collect()
}

/// Runs of loud steps: pauses bridged, clicks dropped, margins added.
fn spans(loud: &[bool], samples: usize) -> Vec<Span> {
    let mut runs: Vec<(usize, usize)> = Vec::new();
    for (n, _) in loud.iter().enumerate().filter(|(_, loud)| **loud) {
        match runs.last_mut() {
            Some((_, end)) if n < *end + BRIDGE => *end = n + 1,
            _ => runs.push((n, n + 1)),
        }
    }
    runs.retain(|(start, end)| end - start >= SHORTEST);
    let mut out: Vec<Span> = Vec::new();
    for (start, end) in runs {
        let start = start.saturating_sub(MARGIN) * STEP;
        let end = ((end + MARGIN) * STEP).min(samples);
        match out.last_mut() {
            Some(last) if start <= last.end => last.end = end,
            _ => out.push(Span { start, end }),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noise(count: usize, amplitude: f32) -> Vec<f32> {
        let mut state = 3u32;
        (0..count)
            .map(|_| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                ((state >> 8) as f32 / (1 << 23) as f32 - 1.0) * amplitude
            })
            .collect()
    }

    #[test]
    fn silence_noise_and_tones_have_no_speech() {
        assert_eq!(speech_spans(&[]), []);
        assert_eq!(speech_spans(&[0.0; 160_000]), []);
        for amplitude in [0.001, 0.1, 1.0] {
            assert_eq!(speech_spans(&noise(160_000, amplitude)), []);
            let mut late = vec![0.0; 80_000];
            late.extend(noise(80_000, amplitude));
            assert_eq!(speech_spans(&late), [], "noise of {amplitude} after silence");
        }
        let tone: Vec<f32> = (0..160_000).map(|n| (n as f32 * 0.2).sin() * 0.5).collect();
        assert_eq!(speech_spans(&tone), []);
    }

    #[test]
    fn speech_over_music_is_one_part() {
        let music = |n: usize| 0.1 * (0.05 * n as f32).sin() + 0.1 * (0.171 * n as f32).sin();
        let mut samples: Vec<f32> = (0..160_000).map(music).collect();
        // Syllables that are little louder than the music.
        for (n, x) in noise(160_000, 0.5).into_iter().enumerate() {
            samples[n] += if n % 4_000 < 2_000 { x } else { 0.0 };
        }
        assert_eq!(speech_spans(&samples), [Span { start: 0, end: 160_000 }]);
    }

    #[test]
    fn bursts_over_noise_are_found_where_they_are() {
        let mut samples = noise(160_000, 0.003);
        for (n, x) in noise(32_000, 0.3).into_iter().enumerate() {
            samples[48_000 + n] += x;
        }
        let found = speech_spans(&samples);
        assert_eq!(found.len(), 1, "{found:?}");
        let Span { start, end } = found[0];
        assert!((42_000..=48_000).contains(&start) && (80_000..=86_000).contains(&end), "{found:?}");
    }

    #[test]
    fn a_click_is_not_speech() {
        let mut samples = noise(160_000, 0.003);
        samples[80_000..80_300].fill(0.9);
        assert_eq!(speech_spans(&samples), []);
    }
}
