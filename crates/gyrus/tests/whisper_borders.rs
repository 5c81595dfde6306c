//! Recordings of many windows by Whisper tiny, if it is in `GYRUS_MODELS`: no sentence is lost or doubled at a border.
//!
//! The sentence of `jfk.wav` is repeated after pauses of random lengths, so that windows of 30 s begin and end within words,
//! between words and in silence. `GYRUS_CASES` is the number of recordings, up to 24.

use gyrus::Transcriber;
use gyrus::audio::{Limits, SAMPLE_RATE, Waveform};
use gyrus::speech::{SpeechOptions, SpeechRequest};
use gyrus_testkit::Rng;

/// Where the sentence is in the recording, in seconds.
const SPOKEN: (f64, f64) = (0.25, 10.7);
const SENTENCES: usize = 8;
/// The shortest and the longest pause before a sentence, in seconds.
const PAUSES: [(f64, f64); 4] = [(0.3, 0.8), (0.5, 3.0), (1.0, 8.0), (0.2, 12.0)];

fn samples(seconds: f64) -> usize {
    (seconds * f64::from(SAMPLE_RATE)) as usize
}

/// Sentences after pauses of faint noise.
fn recording(speech: &[f32], case: usize) -> Waveform {
    let mut numbers = Rng::new(case as u64 + 1);
    let (least, most) = PAUSES[case % PAUSES.len()];
    let mut all = Vec::new();
    for _ in 0..SENTENCES {
        let pause = least + (most - least) * numbers.uniform();
        all.extend((0..samples(pause)).map(|_| 0.001 * (numbers.uniform() as f32 - 0.5)));
        all.extend_from_slice(&speech[samples(SPOKEN.0)..samples(SPOKEN.1)]);
    }
    Waveform::from_samples(&all, SAMPLE_RATE).unwrap()
}

#[test]
fn no_sentence_is_lost_or_doubled_at_a_border() {
    let Some(speech) = gyrus_testkit::data("audio/jfk.wav") else { return };
    let Some(model) = gyrus_testkit::further_model("ggml-tiny.bin") else { return };
    let speech = Waveform::decode(std::fs::read(speech).unwrap(), &Limits::default()).unwrap();
    let transcriber = Transcriber::open(&model, &SpeechOptions::default()).unwrap();
    for case in 0..gyrus_testkit::cases(2).min(24) {
        let audio = recording(speech.samples(), case);
        for (previous_text, voice_activity) in [(true, false), (false, false), (false, true)] {
            let language = Some("en".to_owned());
            let request = SpeechRequest {
                language,
                previous_text,
                voice_activity,
                // The recording does repeat itself.
                temperatures: vec![0.0],
                compression_limit: None,
                ..SpeechRequest::default()
            };
            let found = transcriber.transcribe(&audio, &request).unwrap();
            let text = found.text().to_lowercase();
            let place =
                format!("case {case}, previous text {previous_text}, voice activity {voice_activity}");
            // Words at a border within a sentence may be heard otherwise.
            assert_eq!(text.matches("americans").count(), SENTENCES, "{place}: {text}");
            let country = text.matches("country").count();
            assert!(country.abs_diff(2 * SENTENCES) <= 2, "{place}: {country} times country: {text}");
            let words = text.split_whitespace().count();
            assert!(words.abs_diff(22 * SENTENCES) <= 8, "{place}: {words} words: {text}");
            let overlap = found.segments.windows(2).find(|pair| pair[1].start < pair[0].end - 0.01);
            assert!(overlap.is_none(), "{place}: {overlap:?}");
        }
    }
}

#[test]
fn silence_and_noise_have_no_text_with_voice_activity() {
    let Some(model) = gyrus_testkit::further_model("ggml-tiny.bin") else { return };
    let transcriber = Transcriber::open(&model, &SpeechOptions::default()).unwrap();
    let request = SpeechRequest { voice_activity: true, ..SpeechRequest::default() };
    for amplitude in [0.0, 1e-4, 0.01, 0.5] {
        let mut numbers = Rng::new(7);
        let noise: Vec<f32> =
            (0..samples(70.0)).map(|_| amplitude * (2.0 * numbers.uniform() as f32 - 1.0)).collect();
        let audio = Waveform::from_samples(&noise, SAMPLE_RATE).unwrap();
        let found = transcriber.transcribe(&audio, &request).unwrap();
        assert!(found.segments.is_empty(), "noise of {amplitude}: {}", found.text());
    }
}
