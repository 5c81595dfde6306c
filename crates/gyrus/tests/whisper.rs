//! Real Whisper models, if they are in `GYRUS_MODELS`: the known sentence from each file, and when its words are said.
//! `scripts/verify` fetches the GGML files and writes the SafeTensors folders (`scripts/oracle/whisper_folder.py`).

use gyrus::Precision;
use gyrus::Transcriber;
use gyrus::audio::{Limits, Waveform};
use gyrus::speech::{SpeechOptions, SpeechRequest};

const SENTENCE: &str = "and so my fellow americans ask not what your country can do for you ask what you can do for your country";

/// A GGML file, a folder with the same weights, and when the words are said.
type Spoken = ([&'static str; 2], [(f64, f64); 22]);

/// Start and end of each word in seconds, by openai-whisper 20250625: `transcribe` with `word_timestamps=True,
/// language="en", temperature=0.0, fp16=False`, and the heads of `_ALIGNMENT_HEADS`.
const MODELS: [Spoken; 2] = [
    (
        ["ggml-tiny.bin", "whisper-tiny"],
        [
            (0.0, 0.74),
            (0.74, 1.06),
            (1.06, 1.34),
            (1.34, 1.68),
            (1.68, 2.3),
            (2.3, 3.78),
            (3.78, 4.7),
            (4.7, 5.7),
            (5.7, 5.98),
            (5.98, 6.42),
            (6.42, 6.72),
            (6.72, 6.96),
            (6.96, 7.22),
            (7.22, 8.24),
            (8.24, 8.62),
            (8.62, 8.98),
            (8.98, 9.22),
            (9.22, 9.42),
            (9.42, 9.7),
            (9.7, 9.88),
            (9.88, 10.12),
            (10.12, 10.52),
        ],
    ),
    (
        ["ggml-base.en.bin", "whisper-base.en"],
        [
            (0.0, 0.5),
            (0.5, 0.74),
            (0.74, 1.1),
            (1.1, 1.52),
            (1.52, 1.96),
            (3.34, 3.7),
            (3.7, 4.14),
            (4.14, 5.46),
            (5.46, 5.72),
            (5.72, 6.18),
            (6.18, 6.56),
            (6.56, 6.78),
            (6.78, 7.04),
            (7.04, 7.32),
            (7.32, 8.32),
            (8.32, 8.72),
            (8.72, 8.98),
            (8.98, 9.28),
            (9.28, 9.52),
            (9.52, 9.74),
            (9.74, 9.9),
            (9.9, 10.34),
        ],
    ),
];
/// The tokens of the text by whisper.cpp 1.8.5 with the GGML files, greedy, without timestamps.
const IDS: [&[u32]; 2] = [
    &[
        400, 370, 452, 7177, 6280, 1029, 406, 437, 428, 1941, 393, 360, 337, 291, 11, 1029, 437, 291, 393,
        360, 337, 428, 1941, 13,
    ],
    &[
        843, 523, 616, 5891, 3399, 11, 1265, 407, 644, 534, 1499, 460, 466, 329, 345, 11, 1265, 644, 345,
        460, 466, 329, 534, 1499, 13,
    ],
];
/// One of tiny's commas is a near tie: in f32, faster-whisper leaves it out as we do.
const COMMA: u32 = 11;
/// How far times may be from the reference: four positions of the encoder.
const FAR: f64 = 0.08;

fn words(text: &str) -> String {
    let letters = text.to_lowercase().replace(|c: char| !c.is_alphabetic() && c != ' ', "");
    letters.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn the_known_sentence_is_transcribed_in_both_precisions() {
    let Some(speech) = gyrus_testkit::data("audio/jfk.wav") else { return };
    let audio = Waveform::decode(std::fs::read(speech).unwrap(), &Limits::default()).unwrap();
    let files =
        MODELS.iter().zip(IDS).flat_map(|((names, expected), ids)| names.map(|name| (name, expected, ids)));
    for (name, expected, ids) in files {
        let Some(path) = gyrus_testkit::further_model(name) else { continue };
        for precision in [Precision::Fast, Precision::Exact] {
            let options = SpeechOptions { precision, ..SpeechOptions::default() };
            let transcriber = Transcriber::open(&path, &options).unwrap();
            let request = SpeechRequest { words: true, ..SpeechRequest::default() };
            let found = transcriber.transcribe(&audio, &request).unwrap();
            assert_eq!(words(&found.text()), SENTENCE, "{name}, {precision:?}");
            assert_eq!(found.language, "en");
            let end_of_text = if name.ends_with(".en") || name.ends_with(".en.bin") { 50256 } else { 50257 };
            let tokens = found.segments.iter().flat_map(|segment| segment.tokens.iter().copied());
            let is_word = |token: &u32| *token < end_of_text && *token != COMMA;
            let text: Vec<u32> = tokens.filter(is_word).collect();
            let expected_ids: Vec<u32> = ids.iter().copied().filter(is_word).collect();
            assert_eq!(text, expected_ids, "{name}, {precision:?}");
            let all: Vec<_> = found.segments.iter().flat_map(|segment| &segment.words).collect();
            assert_eq!(all.len(), expected.len(), "{name}, {precision:?}");
            for (word, (start, end)) in all.iter().zip(expected) {
                let far = (word.start - start).abs().max((word.end - end).abs());
                assert!(far < FAR + 1e-6, "{name}, {precision:?}: {word:?}, {start} to {end} is expected");
            }
        }
    }
}
