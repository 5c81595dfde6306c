//! `--session FILE` on the command line.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use gyrus_testkit::{data, model, repository, tempfile};

fn gyrus(args: &[&str], input: &str) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_gyrus"))
        .env("GYRUS_OFFLINE", "1")
        .env("GYRUS_CACHE", repository().join("target/test-cache"))
        .env("GYRUS_DEVICE", "cpu")
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    child.wait_with_output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// The answers of a chat with these lines.
fn chat(file: Option<&Path>, lines: &str) -> (String, String) {
    let mut args = vec!["chat", "tales-7m", "--temp", "0.8", "--seed", "5", "-n", "12"];
    args.extend(file.iter().flat_map(|file| ["--session", file.to_str().unwrap()]));
    let output = gyrus(&args, lines);
    assert!(output.status.success(), "{}", text(&output.stderr));
    (text(&output.stdout), text(&output.stderr))
}

#[test]
fn a_chat_goes_on_as_if_it_had_not_ended() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("talk.gyrus");
    let (whole, _) = chat(None, "Tell me of a dog.\nAnd of a cat?\nAnd of a cow?\n");
    let (first, said) = chat(Some(&file), "Tell me of a dog.\nAnd of a cat?\n");
    assert!(said.contains("saved "), "{said}");
    let (second, said) = chat(Some(&file), "And of a cow?\n");
    assert!(said.contains("4 messages, "), "{said}");
    assert_eq!(format!("{first}{second}"), whole);
    // Only what is new is computed: the question, and what the template writes around it.
    let fresh = said.lines().find_map(|line| line.split_once(" prompt tokens at")).unwrap().0;
    assert!(fresh.trim().parse::<usize>().unwrap() < 30, "{said}");
    assert!(fs::read_dir(folder.path()).unwrap().count() == 1, "no temporary file is left");
}

/// What a stop string has cut off is not fed back, whether the chat ends in between or not.
#[test]
fn an_answer_that_was_cut_goes_on_as_its_text() {
    const STOP: &str = "colour, but";
    let Some(model) = model("SmolLM2-135M-Instruct.Q4_1.gguf") else { return };
    let folder = tempfile::tempdir().unwrap();
    let talk = |name: &str, lines: &str| {
        let file = folder.path().join(name);
        let session = ["chat", model.to_str().unwrap(), "--session", file.to_str().unwrap()];
        let settings = ["--temp", "0", "-n", "16", "--ctx", "256", "--stop", STOP];
        let output = gyrus(&[&session[..], &settings].concat(), lines);
        let said = text(&output.stderr);
        assert!(output.status.success(), "{said}");
        (text(&output.stdout), said)
    };
    let (first, said) = talk("one", "Name three colours.\n");
    assert!(
        said.contains("stopped at") && !first.contains(STOP) && !first.trim().is_empty(),
        "{first}{said}"
    );
    let (second, _) = talk("one", "And one more?\n");
    let (whole, _) = talk("whole", "Name three colours.\nAnd one more?\n");
    assert_eq!(format!("{first}{second}"), whole);
}

#[test]
fn run_and_complete_continue_their_sessions() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tale.gyrus");
    let path = file.to_str().unwrap();
    let complete = |prompt: &str, more: &[&str]| {
        let args = [&["complete", "tales-7m", prompt, "--temp", "0", "-q"], more].concat();
        let output = gyrus(&args, "");
        assert!(output.status.success(), "{}", text(&output.stderr));
        text(&output.stdout).trim_end_matches('\n').to_owned()
    };
    let whole = complete("Once upon a time", &["-n", "20"]);
    let begun = complete("Once upon a time", &["-n", "8", "--session", path]);
    assert!(whole.starts_with(&begun), "{whole:?} {begun:?}");
    let before = fs::metadata(&file).unwrap().len();
    complete(" and a cat.", &["-n", "60", "--session", path]);
    assert!(fs::metadata(&file).unwrap().len() > before, "the session has grown");
    // A text is no conversation.
    let output = gyrus(&["chat", "tales-7m", "--session", path], "Hello\n");
    assert_eq!(output.status.code(), Some(1));
    let said = text(&output.stderr);
    assert!(said.contains("tale.gyrus: it is the session of a text"), "{said}");
    // The context is shifted where an answer fills it.
    let shift = ["--ctx", "128", "-n", "250", "--context-shift", "--allow-repetition"];
    let long =
        gyrus(&[&["complete", "tales-7m", "Once upon a time", "--temp", "0.9"][..], &shift].concat(), "");
    let said = text(&long.stderr);
    assert!(long.status.success() && !said.contains("context full"), "{said}");
}

#[test]
fn sessions_of_others_and_damaged_ones_are_refused_in_a_line() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("talk.gyrus");
    let path = file.to_str().unwrap();
    chat(Some(&file), "Tell me of a dog.\n");
    let whole = fs::read(&file).unwrap();
    let refused = |args: &[&str]| {
        let output = gyrus(args, "Hello\n");
        assert_eq!(output.status.code(), Some(1), "{args:?}");
        let said = text(&output.stderr);
        let line = said.lines().find(|line| line.starts_with("error: ")).unwrap_or_else(|| panic!("{said}"));
        assert!(line.contains("talk.gyrus: "), "{line}");
        line.to_owned()
    };
    let own = ["chat", "tales-7m", "--session", path];
    assert!(refused(&[&own[..], &["--precision", "exact"]].concat()).contains("its precision is fast"));
    assert!(refused(&[&own[..], &["--system", "Be kind."]].concat()).contains("another system prompt"));
    if let Some(other) = data("stories260K/stories260K.gguf") {
        let line = refused(&["chat", other.to_str().unwrap(), "--session", path]);
        assert!(line.contains("it is a session of another model: of 'tales-7m"), "{line}");
    }
    let raw = refused(&["complete", "tales-7m", "Once", "--session", path]);
    assert!(raw.contains("it is the session of a conversation"), "{raw}");
    for (bytes, complaint) in [
        (whole[..whole.len() - 1].to_vec(), "incomplete or damaged"),
        (b"{}".to_vec(), "it is no saved session: it begins with \"{}\""),
        (Vec::new(), "it is no saved session"),
        ([&whole[..whole.len() - 3], b"xyz"].concat(), "is damaged: the checksum of the bytes from "),
    ] {
        fs::write(&file, &bytes).unwrap();
        let line = refused(&own);
        assert!(line.contains(complaint), "{line}");
        assert_eq!(fs::read(&file).unwrap(), bytes, "a refused file is not replaced");
    }
    fs::remove_file(&file).unwrap();
    fs::create_dir(&file).unwrap();
    let line = refused(&own);
    assert!(line.contains("a session is saved to a file, and this is none"), "{line}");
}
