//! Real Whisper models, if they are in `GYRUS_MODELS`: the known sentence from each file.

use std::path::PathBuf;

use gyrus::Precision;
use gyrus::Transcriber;
use gyrus::audio::{Limits, Waveform};
use gyrus::speech::{SpeechOptions, SpeechRequest};
use gyrus_testkit::{Need, skip};

const SENTENCE: &str = "and so my fellow americans ask not what your country can do for you ask what you can do for your country";

fn model(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("GYRUS_MODELS").map(|folder| PathBuf::from(folder).join(name));
    let found = path.filter(|path| path.exists());
    if found.is_none() {
        skip(Need::Extra, &format!("no {name} in GYRUS_MODELS"));
    }
    found
}

fn words(text: &str) -> String {
    let letters = text.to_lowercase().replace(|c: char| !c.is_alphabetic() && c != ' ', "");
    letters.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn the_known_sentence_is_transcribed_in_both_precisions() {
    let Some(speech) = gyrus_testkit::data("audio/jfk.wav") else { return };
    let audio = Waveform::decode(std::fs::read(speech).unwrap(), &Limits::default()).unwrap();
    for name in ["ggml-tiny.bin", "ggml-base.en.bin"] {
        let Some(path) = model(name) else { continue };
        for precision in [Precision::Fast, Precision::Exact] {
            let options = SpeechOptions { precision, ..SpeechOptions::default() };
            let transcriber = Transcriber::open(&path, &options).unwrap();
            let request = SpeechRequest { words: true, ..SpeechRequest::default() };
            let found = transcriber.transcribe(&audio, &request).unwrap();
            assert_eq!(words(&found.text()), SENTENCE, "{name}, {precision:?}");
            assert_eq!(found.language, "en");
            let all: Vec<_> = found.segments.iter().flat_map(|segment| &segment.words).collect();
            assert_eq!(all.len(), 22, "{name}, {precision:?}");
            assert!(all.is_sorted_by(|a, b| a.start <= b.start), "{name}, {precision:?}");
        }
    }
}
