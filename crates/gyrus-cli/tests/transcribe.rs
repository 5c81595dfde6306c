//! `gyrus transcribe`: what is refused before a model is loaded, and what an interrupt leaves.

mod common;

use std::path::Path;

use common::{gyrus, refused};
use gyrus_testkit::{repository, tempfile};

/// A model that is not there: whatever comes before loading comes before this is missed.
const ABSENT: [&str; 3] = ["transcribe", "--model", "/absent/ggml.bin"];

fn speech() -> String {
    repository().join("tests/data/audio/speech.wav").to_str().unwrap().to_owned()
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

/// The text so far is not written as if it were whole.
#[cfg(target_os = "linux")]
#[test]
fn an_interrupt_leaves_no_transcript() {
    let folder = tempfile::tempdir().unwrap();
    // Ten minutes of the same speech, which take longer than the signal.
    let one = std::fs::read(repository().join("tests/data/audio/speech.wav")).unwrap();
    let samples = &one[44..];
    let raw = folder.path().join("long.raw");
    std::fs::write(&raw, samples.repeat(400)).unwrap();
    let out = folder.path().join("out");
    let model = repository().join("tests/data/whisper");
    let mut command = gyrus();
    command.args(["transcribe", "--raw", "s16:16000:1", "-l", "en", "--threads", "1", "--format", "json"]);
    command.arg("--partial").arg("--model").arg(model).arg("-o").arg(&out).arg(&raw);
    command.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::piped());
    let mut child = command.spawn().unwrap();
    // The first partial text says that decoding has begun.
    let mut stderr = std::io::BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    while !line.contains("loaded in") {
        line.clear();
        assert!(std::io::BufRead::read_line(&mut stderr, &mut line).unwrap() > 0);
    }
    std::thread::sleep(std::time::Duration::from_millis(500));
    let kill = std::process::Command::new("kill").args(["-INT", &child.id().to_string()]).status();
    assert!(kill.unwrap().success());
    std::io::copy(&mut stderr, &mut std::io::sink()).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert!(!out.exists());
}
