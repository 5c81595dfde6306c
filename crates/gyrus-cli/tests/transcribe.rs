//! `gyrus transcribe`: formats, inputs and models, what is refused before a model is loaded, and what an interrupt leaves.

mod common;
#[path = "../../gyrus/tests/whisper_gguf/mod.rs"]
mod whisper_gguf;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use common::{gyrus, refused, said, stdout};
use gyrus::Transcriber;
use gyrus::audio::{Limits, Waveform};
use gyrus::speech::{SpeechOptions, SpeechRequest, Transcript};
use gyrus_testkit::{repository, tempfile};
use whisper_gguf::WhisperGguf;

/// A model that is not there: whatever comes before loading comes before this is missed.
const ABSENT: [&str; 3] = ["transcribe", "--model", "/absent/ggml.bin"];

fn speech() -> String {
    repository().join("tests/data/audio/speech.wav").to_str().unwrap().to_owned()
}

fn tiny() -> PathBuf {
    repository().join("tests/data/whisper")
}

/// Arguments for the tiny random model. At this temperature it writes something in every form.
fn with(model: &Path, more: &[&str]) -> Vec<String> {
    let model = model.to_str().unwrap();
    let always = ["transcribe", "-q", "-l", "zh", "--temperature", "0.5", "--model", model];
    always.iter().chain(more).map(|argument| (*argument).to_owned()).collect()
}

/// The same speech several times, as samples without a header: enough for segments of several words.
fn long(folder: &Path) -> String {
    let path = folder.join("long.raw");
    let wav = std::fs::read(speech()).unwrap();
    std::fs::write(&path, wav[44..].repeat(20)).unwrap();
    path.to_str().unwrap().to_owned()
}

/// What the library makes of this many times the same speech.
fn expected(times: usize, timestamps: &str) -> Transcript {
    let transcriber = Transcriber::open(&tiny(), &SpeechOptions::default()).unwrap();
    let once = Waveform::decode(std::fs::read(speech()).unwrap(), &Limits::default()).unwrap();
    let audio = Waveform::from_samples(&once.samples().repeat(times), 16_000).unwrap();
    let request = SpeechRequest {
        language: Some("zh".to_owned()),
        temperatures: vec![0.5],
        timestamps: timestamps != "none",
        words: timestamps == "word",
        ..SpeechRequest::default()
    };
    let found = transcriber.transcribe(&audio, &request).unwrap();
    assert!(!found.text().is_empty(), "{timestamps}: nothing to compare");
    found
}

#[test]
fn every_format_has_segments_or_words_on_stdout_and_in_files() {
    let folder = tempfile::tempdir().unwrap();
    let (out, long) = (folder.path().to_str().unwrap(), long(folder.path()));
    for timestamps in ["none", "segment", "word"] {
        let whole = expected(20, timestamps);
        let parts = if timestamps == "word" { whole.by_words() } else { whole.clone() };
        assert_eq!(parts.segments.len() > whole.segments.len(), timestamps == "word");
        let timed = |segment: &gyrus::speech::Segment| {
            format!("{:.2}\t{:.2}\t{}\n", segment.start, segment.end, segment.line())
        };
        let txt = match timestamps {
            "word" => parts.segments.iter().map(timed).collect(),
            _ => whole.to_txt(),
        };
        for (format, expected) in [
            ("txt", txt),
            ("json", format!("{}\n", whole.to_json())),
            ("srt", parts.to_srt()),
            ("vtt", parts.to_vtt()),
            ("tsv", parts.to_tsv()),
        ] {
            let arguments = ["--raw", "s16:16000:1", "--timestamps", timestamps, "--format", format, &long];
            assert_eq!(stdout(&with(&tiny(), &arguments), ""), expected, "{timestamps}, {format}");
            let arguments = [&["-o", out][..], &arguments].concat();
            assert_eq!(stdout(&with(&tiny(), &arguments), ""), "");
            let written = std::fs::read_to_string(folder.path().join("long").with_extension(format));
            assert_eq!(written.unwrap(), expected, "{timestamps}, {format}, in a file");
        }
    }
}

#[test]
fn recordings_come_from_stdin_and_without_a_header() {
    let expected = expected(1, "none").to_txt();
    let wav = std::fs::read(speech()).unwrap();
    for (arguments, input) in [(&["-"][..], &wav[..]), (&["--raw", "s16:16000:1", "-"], &wav[44..])] {
        let mut command = gyrus();
        command
            .args(with(&tiny(), arguments))
            .args(["--timestamps", "none"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(input).unwrap();
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {}", said(&output));
        assert_eq!(String::from_utf8(output.stdout).unwrap(), expected, "{arguments:?}");
    }
}

#[test]
fn a_model_may_be_a_gguf_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("whisper.gguf");
    std::fs::write(&path, WhisperGguf::tiny().bytes()).unwrap();
    let speech = speech();
    let arguments = with(&path, &["--timestamps", "none", &speech]);
    assert_eq!(stdout(&arguments, ""), expected(1, "none").to_txt());
}

#[test]
fn wrong_arguments_exit_with_two() {
    let speech = speech();
    for (flag, value) in [
        ("--temperature", "nan"),
        ("--temperature", "0,2.1"),
        ("--temperature", "-1"),
        ("--language", "engish"),
        ("--beam", "9"),
        ("--raw", "s16"),
    ] {
        let joined = format!("{flag}={value}");
        let said = refused(&[&ABSENT[..], &[&joined, &speech]].concat(), 2);
        assert!(said.contains(flag), "{said}");
    }
    let said = refused(&[&ABSENT[..], &["--format", "srt", &speech, &speech]].concat(), 2);
    assert!(said.contains("several recordings need --output DIR in this format"), "{said}");
}

#[test]
fn recordings_whose_transcripts_would_have_one_name_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    let out = out.to_str().unwrap();
    for files in [["a/x.wav", "b/x.wav"], ["x.mp3", "x.wav"]] {
        let said = refused(&[&ABSENT[..], &["-o", out], &files].concat(), 2);
        assert!(
            said.contains(&format!("{} and {} would both be written to x.txt", files[0], files[1])),
            "{said}"
        );
    }
    assert!(!Path::new(out).exists());
}

#[cfg(target_os = "linux")]
#[test]
fn a_file_that_is_too_large_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let large = folder.path().join("large.wav");
    // A file with nothing in it takes no room.
    std::fs::File::create(&large).unwrap().set_len((16 << 30) + 1).unwrap();
    let said = refused(&[&ABSENT[..], &[large.to_str().unwrap()]].concat(), 1);
    assert!(said.contains("has more than 16 GiB, the most that is read"), "{said}");
}

/// Two recordings of the same speech, and files that are none.
fn good_and_bad(folder: &Path) -> [String; 4] {
    let file = |name: &str, bytes: &[u8]| {
        let path = folder.join(name);
        std::fs::write(&path, bytes).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let wav = std::fs::read(speech()).unwrap();
    // Samples far beyond what audio has, which are found when the spectrogram is made.
    let mut loud = wav[..44].to_vec();
    loud[20..22].copy_from_slice(&3u16.to_le_bytes());
    loud[28..32].copy_from_slice(&64_000u32.to_le_bytes());
    loud[32..36].copy_from_slice(&[4, 0, 32, 0]);
    loud[40..44].copy_from_slice(&64_000u32.to_le_bytes());
    loud[4..8].copy_from_slice(&64_036u32.to_le_bytes());
    loud.extend((0..16_000).flat_map(|_| 1e20f32.to_le_bytes()));
    [file("a.wav", &wav), file("b.wav", b"no audio"), file("c.wav", &loud), file("d.wav", &wav)]
}

#[test]
fn a_recording_that_fails_does_not_lose_the_others() {
    let folder = tempfile::tempdir().unwrap();
    let files = good_and_bad(folder.path());
    let files: Vec<&str> = files.iter().map(String::as_str).collect();
    let out = folder.path().join("out");
    let expected = expected(1, "none").to_txt();
    let none = ["--timestamps", "none"];
    let run = |more: &[&str]| {
        let output = gyrus().args(with(&tiny(), &[&none[..], more, &files].concat())).output().unwrap();
        let said = said(&output);
        assert_eq!(output.status.code(), Some(1), "{said}");
        for part in ["b.wav: ", "c.wav: ", "are too large for a spectrogram", "2 of 4 recordings were not"] {
            assert!(said.contains(part), "{part}: {said}");
        }
        String::from_utf8(output.stdout).unwrap()
    };
    assert_eq!(run(&["-o", out.to_str().unwrap()]), "");
    let mut written: Vec<_> =
        std::fs::read_dir(&out).unwrap().map(|file| file.unwrap().file_name()).collect();
    written.sort();
    assert_eq!(written, ["a.txt", "d.txt"]);
    for name in written {
        assert_eq!(std::fs::read_to_string(out.join(name)).unwrap(), expected);
    }
    // Stdout has the order of the arguments.
    assert_eq!(run(&[]), format!("# {}\n{expected}# {}\n{expected}", files[0], files[3]));
    // A single recording is the error itself, and no model is loaded for files that are none.
    let said = refused(&[&ABSENT[..], &[files[1]]].concat(), 1);
    assert!(said.contains("b.wav: ") && !said.contains("ggml.bin"), "{said}");
    let said = refused(&[&ABSENT[..], &[files[1], files[1]]].concat(), 1);
    assert!(said.contains("2 of 2 recordings were not") && !said.contains("ggml.bin"), "{said}");
    // A path that is not there is found before anything is read.
    let said = refused(&[&ABSENT[..], &[files[0], "/absent/e.wav"]].concat(), 1);
    assert!(said.contains("/absent/e.wav") && !said.contains("ggml.bin"), "{said}");
}

/// The text so far is not written as if it were whole. What ended before was written when it ended.
#[cfg(target_os = "linux")]
#[test]
fn an_interrupt_leaves_transcripts_of_whole_recordings_alone() {
    let folder = tempfile::tempdir().unwrap();
    // Ten minutes of the same speech, which take longer than the signal.
    let one = std::fs::read(repository().join("tests/data/audio/speech.wav")).unwrap();
    let samples = &one[44..];
    let (long, short) = (folder.path().join("long.raw"), folder.path().join("short.raw"));
    std::fs::write(&long, samples.repeat(400)).unwrap();
    std::fs::write(&short, samples).unwrap();
    let model = repository().join("tests/data/whisper");
    for files in [vec![&long], vec![&long, &short]] {
        let out = folder.path().join(format!("out{}", files.len()));
        let mut command = gyrus();
        command.args([
            "transcribe",
            "--raw",
            "s16:16000:1",
            "-l",
            "en",
            "--threads",
            "1",
            "--format",
            "json",
        ]);
        command.arg("--partial").arg("--model").arg(&model).arg("-o").arg(&out).args(&files);
        command.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut stderr = std::io::BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        while !line.contains("loaded in") {
            line.clear();
            assert!(std::io::BufRead::read_line(&mut stderr, &mut line).unwrap() > 0);
        }
        // Partial texts say that decoding has begun.
        let written = out.join("short.json");
        loop {
            assert!(std::io::BufRead::read_line(&mut stderr, &mut line).unwrap() > 0, "the command ended");
            if files.len() == 1 || written.exists() {
                break;
            }
        }
        let kill = std::process::Command::new("kill").args(["-TERM", &child.id().to_string()]).status();
        assert!(kill.unwrap().success());
        std::io::copy(&mut stderr, &mut std::io::sink()).unwrap();
        // A shell may have its background jobs ignore SIGINT.
        assert_eq!(child.wait().unwrap().code(), Some(143));
        match files.len() {
            1 => assert!(!out.exists()),
            _ => assert_eq!(std::fs::read_dir(&out).unwrap().count(), 1),
        }
    }
}
