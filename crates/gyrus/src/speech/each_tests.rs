//! Recordings that come one after the other: how many are held, what each has of the others, and which errors it survives.

use std::cell::RefCell;

use gyrus_audio::Waveform;

use super::tests::{damaged, long_request, speech, transcriber};
use super::{SpeechEvent, SpeechOptions, SpeechRequest, Transcriber, Transcript};
use crate::Error;

/// Twelve recordings of different lengths.
fn recordings() -> Vec<Waveform> {
    let speech = speech();
    let whole = speech.samples();
    let part = |n: usize| Waveform::from_samples(&whole[n * 500..whole.len() - n * 700], 16_000).unwrap();
    (0..12).map(part).collect()
}

/// What became of each recording, and how many were held at once.
fn each(
    windows: usize,
    request: &SpeechRequest,
    all: Vec<Waveform>,
) -> (Vec<Result<Transcript, Error>>, usize) {
    let transcriber = transcriber(SpeechOptions { windows: Some(windows), ..SpeechOptions::default() });
    let mut found: Vec<Option<Result<Transcript, Error>>> = all.iter().map(|_| None).collect();
    // Recordings that came, that ended, and the most that came before others ended.
    let held = RefCell::new((0usize, 0usize, 0usize));
    let came = all.into_iter().inspect(|_| {
        let (came, ended, most) = &mut *held.borrow_mut();
        *came += 1;
        *most = (*most).max(*came - *ended);
    });
    let run = transcriber.transcribe_each(came, request, &mut |event| {
        if let SpeechEvent::Done { file, result } = event {
            assert!(found[file].is_none(), "recording {file} ended twice");
            found[file] = Some(result);
            held.borrow_mut().1 += 1;
        }
        true
    });
    run.unwrap();
    let most = held.borrow().2;
    (found.into_iter().map(Option::unwrap).collect(), most)
}

#[test]
fn as_many_recordings_are_held_as_there_are_windows() {
    let request = SpeechRequest { timestamps: false, ..long_request() };
    let all = recordings();
    let alone = transcriber(SpeechOptions::default());
    let alone: Vec<Transcript> = all.iter().map(|audio| alone.transcribe(audio, &request).unwrap()).collect();
    assert!(alone.iter().all(|transcript| !transcript.segments.is_empty()));
    for windows in [1, 3] {
        for language in [request.language.clone(), None] {
            let detects = language.is_none();
            let request = SpeechRequest { language, ..request.clone() };
            let (found, held) = each(windows, &request, recordings());
            assert_eq!(held, windows, "the language is detected: {detects}");
            let found: Vec<Transcript> = found.into_iter().map(Result::unwrap).collect();
            if !detects {
                assert!(found == alone, "{windows} windows");
            }
            assert!(found.iter().zip(&alone).all(|(a, b)| a.duration == b.duration));
        }
    }
}

#[test]
fn a_recording_that_fails_does_not_end_the_others() {
    let request = long_request();
    let mut all = recordings();
    let (alone, _) = each(2, &request, recordings());
    let mut samples = speech().samples().to_vec();
    samples[8_000..8_400].fill(1e20);
    for bad in [0, 5, 11] {
        all[bad] = Waveform::from_samples(&samples, 16_000).unwrap();
    }
    let (found, _) = each(2, &request, all);
    for (n, (found, alone)) in found.iter().zip(&alone).enumerate() {
        match found {
            Ok(found) => assert_eq!(Some(found), alone.as_ref().ok()),
            Err(Error::Recording { index, .. }) => assert!([0, 5, 11].contains(&n) && *index == n),
            Err(other) => panic!("{other}"),
        }
    }
    assert_eq!(found.iter().filter(|found| found.is_err()).count(), 3);
}

/// A position of the decoder that is NaN ends the recordings with a text that long, and their windows serve others.
#[test]
fn a_recording_that_is_not_finite_does_not_end_the_others() {
    let temperatures = vec![0.5];
    let request = SpeechRequest { temperatures, previous_text: false, ..long_request() };
    let run = |transcriber: &Transcriber| {
        let mut found: Vec<Option<Result<Transcript, Error>>> = recordings().iter().map(|_| None).collect();
        let run = transcriber.transcribe_each(recordings(), &request, &mut |event| {
            if let SpeechEvent::Done { file, result } = event {
                found[file] = Some(result);
            }
            true
        });
        run.unwrap();
        found.into_iter().map(Option::unwrap).collect::<Vec<_>>()
    };
    let sound = run(&transcriber(SpeechOptions::default()));
    let width = 32;
    // Random weights write texts of many lengths; at some position a part of the recordings has ended.
    let mixed = (4..40).rev().find_map(|position| {
        let found = run(&damaged("model.decoder.embed_positions.weight", position * width));
        let failed = found.iter().filter(|found| found.is_err()).count();
        (1..found.len()).contains(&failed).then_some(found)
    });
    for (n, (found, sound)) in mixed.unwrap().into_iter().zip(sound).enumerate() {
        match found {
            Ok(found) => assert_eq!(found, sound.unwrap()),
            Err(error) => {
                assert!(matches!(error, Error::RecordingNotFinite { index, .. } if index == n), "{error}")
            }
        }
    }
}

/// Parts of a recording without speech are none: it ends at once and takes no window.
#[test]
fn recordings_without_parts_end() {
    let silence = || Waveform::from_samples(&vec![0.0; 48_000], 16_000).unwrap();
    let request = SpeechRequest { voice_activity: true, ..long_request() };
    let (found, held) = each(2, &request, (0..5).map(|_| silence()).collect());
    assert_eq!(held, 1);
    for found in found {
        assert_eq!((found.as_ref().unwrap().text(), found.unwrap().duration), (String::new(), 3.0));
    }
    let (found, _) = each(2, &request, Vec::new());
    assert!(found.is_empty());
}
