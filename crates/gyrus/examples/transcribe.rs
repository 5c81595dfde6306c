//! Transcribes a recording: `cargo run --release -p gyrus --example transcribe -- ggml-tiny.bin speech.wav`.

use std::error::Error;
use std::path::Path;

use gyrus::audio::{Limits, Waveform};
use gyrus::speech::{SpeechEvent, SpeechOptions, SpeechRequest};
use gyrus::{Precision, Transcriber};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [model, file, flags @ ..] = arguments.as_slice() else {
        return Err("usage: transcribe MODEL AUDIO [exact] [words] [beam]".into());
    };
    let has = |flag: &str| flags.iter().any(|given| given == flag);
    let precision = if has("exact") { Precision::Exact } else { Precision::Fast };
    let options = SpeechOptions { precision, ..SpeechOptions::default() };
    let transcriber = Transcriber::open(Path::new(model), &options)?;
    let audio = Waveform::decode(std::fs::read(file)?, &Limits::default())?;
    let beams = if has("beam") { 5 } else { 1 };
    let request = SpeechRequest { words: has("words"), beams, ..SpeechRequest::default() };
    let transcripts = transcriber.transcribe_all(&[&audio], &request, &mut |event| {
        if let SpeechEvent::Segment { segment, .. } = event {
            println!("{:7.2} {:7.2} {}", segment.start, segment.end, segment.text.trim());
        }
        true
    })?;
    for word in transcripts.iter().flat_map(|all| &all.segments).flat_map(|segment| &segment.words) {
        println!("{:7.2} {:7.2} {}", word.start, word.end, word.text.trim());
    }
    Ok(())
}
