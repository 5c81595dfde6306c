//! A small random Whisper on a GPU: the transcripts and the times of words are those of the CPU, however many rows there are.
#![cfg(feature = "gpu")]

mod adapter;

use adapter::adapter;
use gyrus::audio::{Limits, Waveform};
use gyrus::speech::{SpeechOptions, SpeechRequest, Transcript};
use gyrus::{Device, Precision, Transcriber};

/// More than the rows that a GPU's mat-vec takes at once.
const MANY: usize = 17;

fn transcriber(device: Device, precision: Precision) -> Transcriber {
    transcriber_with(SpeechOptions { device, precision, threads: Some(2), ..SpeechOptions::default() })
}

fn transcriber_with(options: SpeechOptions) -> Transcriber {
    Transcriber::open(&gyrus_testkit::repository().join("tests/data/whisper"), &options).unwrap()
}

fn gpu(precision: Precision) -> Option<Transcriber> {
    Some(transcriber(Device::Gpu(Some(adapter()?)), precision))
}

fn speech() -> Waveform {
    let path = gyrus_testkit::repository().join("tests/data/audio/speech.wav");
    Waveform::decode(std::fs::read(path).unwrap(), &Limits::default()).unwrap()
}

/// Recordings that end at different times, the longest after this many samples. A window has 15,360.
fn recordings(count: usize, longest: usize) -> Vec<Waveform> {
    let speech = speech();
    let end = |n: usize| longest - 1_000 * n;
    (0..count).map(|n| Waveform::from_samples(&speech.samples()[..end(n)], 16_000).unwrap()).collect()
}

/// Random weights give implausible text, which is accepted here. With this temperature and seed, it is as long as it may be.
fn request() -> SpeechRequest {
    SpeechRequest {
        language: Some("en".to_owned()),
        timestamps: false,
        temperatures: vec![0.7],
        samples: 1,
        seed: 2,
        no_speech_limit: None,
        probability_limit: None,
        compression_limit: None,
        ..SpeechRequest::default()
    }
}

fn together(transcriber: &Transcriber, audio: &[Waveform], request: &SpeechRequest) -> Vec<Transcript> {
    let audio: Vec<&Waveform> = audio.iter().collect();
    transcriber.transcribe_all(&audio, request, &mut |_| true).unwrap()
}

fn assert_near(found: &[Transcript], want: &[Transcript], case: &str) {
    assert_eq!(found.len(), want.len());
    for (found, want) in found.iter().zip(want) {
        let tokens = |of: &Transcript| -> Vec<Vec<u32>> {
            of.segments.iter().map(|segment| segment.tokens.clone()).collect()
        };
        assert_eq!(tokens(found), tokens(want), "{case}");
        assert_eq!(found.text(), want.text(), "{case}");
    }
}

/// One pass shows the attention of more rows than a GPU computes the logits of at once.
#[test]
fn words_have_the_times_of_the_cpu() {
    let Some(gpu) = gpu(Precision::Exact) else { return };
    let request = SpeechRequest { words: true, ..request() };
    let want = transcriber(Device::Cpu, Precision::Exact).transcribe(&speech(), &request).unwrap();
    let found = gpu.transcribe(&speech(), &request).unwrap();
    let longest = want.segments.iter().map(|segment| segment.tokens.len()).max().unwrap();
    assert!(longest >= MANY, "a segment of {longest} tokens shows nothing");
    assert_near(std::slice::from_ref(&found), std::slice::from_ref(&want), "words");
    let words =
        |of: &Transcript| of.segments.iter().flat_map(|segment| segment.words.clone()).collect::<Vec<_>>();
    let (found, want) = (words(&found), words(&want));
    assert!(!want.is_empty());
    assert_eq!(found.len(), want.len());
    for (found, want) in found.iter().zip(&want) {
        assert_eq!(found.text, want.text);
        let far = (found.start - want.start).abs().max((found.end - want.end).abs());
        assert!(far < 1e-6, "{found:?}, {want:?} on the CPU");
        assert!((found.probability - want.probability).abs() < 1e-4, "{found:?}, {want:?} on the CPU");
    }
}

/// Samples have a row each at every step after the first.
#[test]
fn more_rows_than_a_pass_has_are_those_of_the_cpu() {
    let Some(gpu) = gpu(Precision::Exact) else { return };
    let cpu = transcriber(Device::Cpu, Precision::Exact);
    let audio = recordings(3, 23_000);
    for (name, request) in [
        ("samples", SpeechRequest { samples: 6, ..request() }),
        ("beams", SpeechRequest { beams: 6, temperatures: vec![0.0], ..request() }),
    ] {
        let want = together(&cpu, &audio, &request);
        assert!(want.iter().all(|transcript| !transcript.segments.is_empty()), "{name}");
        assert_near(&together(&gpu, &audio, &request), &want, name);
    }
}

/// A prompt, and rows that are generated, have the same bits alone and beside rows of either kind.
#[test]
fn a_transcript_has_the_same_bits_alone_and_beside_others() {
    let samples = SpeechRequest { samples: 6, words: true, ..request() };
    let beams = SpeechRequest { beams: 6, temperatures: vec![0.0], ..request() };
    for (precision, request) in [(Precision::Exact, beams), (Precision::Fast, samples)] {
        let Some(gpu) = gpu(precision) else { return };
        let audio = recordings(3, 23_000);
        let alone: Vec<_> = audio.iter().map(|audio| gpu.transcribe(audio, &request).unwrap()).collect();
        assert_eq!(together(&gpu, &audio, &request), alone, "{precision:?}");
    }
}

/// Recordings wait for windows, of which there are as many as the options say.
#[test]
fn a_gpu_decodes_sixteen_windows_at_once() {
    let Some(gpu) = gpu(Precision::Exact) else { return };
    assert_eq!(gpu.windows(), 16);
    let request = SpeechRequest { samples: 2, ..request() };
    let audio: Vec<Waveform> = recordings(6, 15_000).into_iter().cycle().take(18).collect();
    let found = together(&gpu, &audio, &request);
    for (n, transcript) in found.iter().enumerate() {
        assert_eq!(*transcript, found[n % 6], "recording {n}");
    }
    assert_eq!(found[..6], together(&gpu, &audio[..6], &request));
    let device = Device::Gpu(adapter());
    let few = SpeechOptions { device, windows: Some(3), ..SpeechOptions::default() };
    assert_eq!(transcriber_with(few).windows(), 3);
}
