//! Text from files, file names and servers reaches a terminal without its control characters.

mod common;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use common::{gyrus, refused, run, said, stdout, tales};
use gyrus_formats::Checkpoint;
use gyrus_formats::gguf::{Number, Value, ValueType, Writer};
use gyrus_testkit::tempfile;

/// An escape sequence, a C1 control and a character that reverses what follows.
const HOSTILE: &str = "x\u{1b}[31m\u{9b}1m\u{202e}\u{7}\ry";

/// A GGUF file of these keys and no tensors.
fn gguf(path: &Path, keys: &[(&str, &str)]) {
    let mut writer = Writer::new();
    for (key, value) in keys {
        writer.string(key, value);
    }
    writer.write_to(&mut std::fs::File::create(path).unwrap()).unwrap();
}

/// The built-in model with another chat template.
fn with_template(path: &Path, template: &str) {
    let model = Checkpoint::open(&tales()).unwrap();
    let mut writer = Writer::new();
    for (key, value) in model.gguf().unwrap().iter() {
        match value {
            Value::Str(text) => drop(writer.string(key, std::str::from_utf8(text).unwrap())),
            Value::Number(Number::Bool(value)) => drop(writer.bool(key, value)),
            Value::Number(Number::Float(value)) => drop(writer.f32(key, value as f32)),
            Value::Number(number) => drop(writer.u32(key, number.integer().unwrap() as u32)),
            Value::Array(array) if array.kind() == ValueType::Str => {
                let texts: Vec<_> = array.strings().map(|text| std::str::from_utf8(text).unwrap()).collect();
                writer.strings(key, &texts);
            }
            Value::Array(array) => {
                let numbers: Vec<i32> = array.numbers().map(|n| n.integer().unwrap() as i32).collect();
                writer.i32s(key, &numbers);
            }
        }
    }
    writer.string("tokenizer.chat_template", template);
    for tensor in model.tensors() {
        writer.tensor(tensor.name, tensor.dtype, tensor.shape, tensor.data).unwrap();
    }
    writer.write_to(&mut std::fs::File::create(path).unwrap()).unwrap();
}

fn assert_harmless(text: &str) {
    let hostile = |c: char| c.is_control() && c != '\n' || ('\u{202a}'..='\u{202e}').contains(&c);
    assert!(!text.contains(hostile), "{text:?}");
}

#[test]
fn errors_show_what_a_file_says_without_its_controls() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    gguf(&at("architecture.gguf"), &[("general.architecture", HOSTILE)]);
    gguf(&at("rope.gguf"), &[("general.architecture", "llama"), ("llama.rope.scaling.type", HOSTILE)]);
    std::fs::write(at(HOSTILE), "no model").unwrap();
    std::fs::write(at("config.json"), format!("{{\"model_type\": {HOSTILE:?}}}")).unwrap();
    let cases: [(&[&str], PathBuf); 6] = [
        (&["run", "-q"], at("architecture.gguf")),
        (&["rope"], at("rope.gguf")),
        (&["inspect"], at(HOSTILE)),
        (&["tokenize"], at(HOSTILE)),
        (&["run", "-q"], at(&format!("{HOSTILE}/missing.gguf"))),
        (&["rope"], at("config.json")),
    ];
    for (command, path) in cases {
        let mut args: Vec<OsString> = command.iter().map(OsString::from).collect();
        args.push(path.into());
        let said = refused(&args, 1);
        assert_harmless(&said);
        assert_eq!(said.lines().count(), 1, "{said:?}");
    }
    let said = refused(&["logits", "tales-7m", "--ids", "1", "--out", &format!("/no{HOSTILE}/x"), "-q"], 1);
    assert_harmless(&said);
}

#[test]
fn a_template_cannot_play_tricks_by_failing() {
    let folder = tempfile::tempdir().unwrap();
    let (model, messages) = (folder.path().join("model.gguf"), folder.path().join("messages.json"));
    std::fs::write(&messages, r#"[{"role": "user", "content": "hello"}]"#).unwrap();
    for template in [
        format!("{{{{ raise_exception('{HOSTILE}') }}}}"),
        format!("{{{{ messages.x{HOSTILE} }}}}"),
        format!("{{{{ messages | no{HOSTILE} }}}}"),
    ] {
        with_template(&model, &template);
        let output =
            run(&["template".as_ref(), model.as_os_str(), "--messages".as_ref(), messages.as_os_str()], "");
        assert_eq!(output.status.code(), Some(1), "{template:?}");
        assert_harmless(&said(&output));
        let output = run(&["chat".as_ref(), model.as_os_str(), "-q".as_ref()], "hello\n");
        assert_eq!(output.status.code(), Some(1), "{template:?}");
        assert_harmless(&said(&output));
    }
}

#[test]
fn what_was_typed_is_not_echoed_raw() {
    for args in [
        &["run", "tales-7m", "x", "--top-p", HOSTILE][..],
        &["run", "tales-7m", "x", "--device", HOSTILE],
        &["rope", "--head-dim", "8", "--scaling", HOSTILE],
        &["frobnicate\u{1b}[31m"],
    ] {
        assert_harmless(&refused(args, 2));
    }
}

#[test]
fn json_holds_no_raw_controls() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    gguf(&path, &[("general.architecture", "llama"), ("general.name", HOSTILE)]);
    let text = stdout(&["inspect".as_ref(), path.as_os_str(), "--json".as_ref()], "");
    assert_harmless(&text);
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(json["metadata"]["general.name"], HOSTILE);
}

/// What a command writes on a terminal; `None` where there is no program that makes one.
fn on_a_terminal(args: &[&str]) -> Option<String> {
    let quoted: Vec<String> = args.iter().map(|arg| format!("'{arg}'")).collect();
    let line = format!("'{}' {}", env!("CARGO_BIN_EXE_gyrus"), quoted.join(" "));
    let plain = gyrus();
    let mut command = Command::new("script");
    command.args(["-qec", &line, "/dev/null"]).stdin(std::process::Stdio::null());
    for (name, value) in plain.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    match command.output() {
        Ok(output) => Some(String::from_utf8_lossy(&output.stdout).into_owned()),
        Err(_) => {
            gyrus_testkit::skip(gyrus_testkit::Need::Extra, "there is no script(1) here to make a terminal");
            None
        }
    }
}

#[test]
fn text_of_a_model_is_raw_in_a_pipe_and_escaped_on_a_terminal() {
    let folder = tempfile::tempdir().unwrap();
    let (ids, model) = (folder.path().join("ids"), folder.path().join("model.gguf"));
    std::fs::write(&ids, stdout(&["tokenize", "tales-7m"], HOSTILE)).unwrap();
    let args = ["detokenize", "tales-7m", "--file", ids.to_str().unwrap()];
    assert_eq!(stdout(&args, ""), HOSTILE);
    let Some(shown) = on_a_terminal(&args) else { return };
    assert!(shown.contains("x\\u{1b}[31m"), "{shown:?}");
    assert!(!shown.contains(['\u{1b}', '\u{9b}', '\u{7}']), "{shown:?}");
    // So is the prompt that a template makes.
    let messages = folder.path().join("messages.json");
    std::fs::write(&messages, "[]").unwrap();
    with_template(&model, HOSTILE);
    let args = ["template", model.to_str().unwrap(), "--messages", messages.to_str().unwrap()];
    // Jinja reads every kind of newline as one.
    assert_eq!(stdout(&args, ""), HOSTILE.replace('\r', "\n"));
    let shown = on_a_terminal(&args).unwrap();
    assert!(!shown.contains(['\u{1b}', '\u{9b}', '\u{7}']), "{shown:?}");
    // And what a conversation's files bring into it.
    let errors = on_a_terminal(&["inspect", folder.path().join(HOSTILE).to_str().unwrap()]).unwrap();
    assert!(!errors.contains("\u{1b}[31mx") && !errors.contains("x\u{1b}[31m\u{9b}"), "{errors:?}");
}

/// Names that are bytes and no text.
#[cfg(target_os = "linux")]
mod not_utf8 {
    use std::os::unix::ffi::OsStrExt;

    use super::*;

    fn name() -> OsString {
        std::ffi::OsStr::from_bytes(b"m\xff\x1b[31m.gguf").to_owned()
    }

    #[test]
    fn such_a_file_in_the_cache_is_listed() {
        let cache = tempfile::tempdir().unwrap();
        let models = cache.path().join("models");
        std::fs::create_dir(&models).unwrap();
        std::fs::write(models.join(name()), "model").unwrap();
        for args in [&["models", "--json"][..], &["models"]] {
            let output = gyrus().args(args).env("GYRUS_CACHE", cache.path()).output().unwrap();
            assert!(output.status.success(), "{}", said(&output));
            let text = String::from_utf8(output.stdout).unwrap();
            assert_harmless(&text);
            if args.contains(&"--json") {
                let json: serde_json::Value = serde_json::from_str(&text).unwrap();
                let listed = json
                    .as_array()
                    .unwrap()
                    .iter()
                    .filter(|model| model["name"] == "m\u{fffd}\u{1b}[31m.gguf");
                assert_eq!(listed.count(), 1, "{text}");
            }
        }
    }

    #[test]
    fn every_command_takes_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(name());
        std::fs::copy(tales(), &path).unwrap();
        let text = folder.path().join("text");
        std::fs::write(&text, "[{\"role\": \"user\", \"content\": \"Once upon a time\"}]").unwrap();
        let text = text.to_str().unwrap();
        let out = folder.path().join("out.npy");
        let cases: [(&str, &[&str]); 10] = [
            ("run", &["Once", "-n", "1", "-q"]),
            ("run", &["-n", "1", "-q"]),
            ("chat", &["-q"]),
            ("bench", &["-p", "1", "-n", "0", "-r", "1", "-q"]),
            ("perplexity", &["--file", text, "-q"]),
            ("logits", &["--ids", "1", "--out", out.to_str().unwrap(), "-q"]),
            ("inspect", &[]),
            ("rope", &[]),
            ("tokenize", &[]),
            ("template", &["--messages", text]),
        ];
        for (command, more) in cases {
            let mut args: Vec<OsString> = vec![command.into(), path.clone().into()];
            args.extend(more.iter().map(OsString::from));
            let output = run(&args, "Once upon a time");
            assert!(output.status.success(), "{args:?}: {}", said(&output));
            assert_harmless(&String::from_utf8_lossy(&output.stdout));
            assert_harmless(&said(&output));
        }
        let compare = ["rope".into(), "tales-7m".into(), OsString::from("--compare"), path.clone().into()];
        assert!(run(&compare, "").status.success());
        assert!(run(&["detokenize".as_ref(), path.as_os_str()], "1 2").status.success());
    }

    #[test]
    fn a_pulled_path_is_printed_as_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let cache = folder.path().join(std::ffi::OsStr::from_bytes(b"cache\xff"));
        let output = gyrus().args(["pull", "tales-7m"]).env("GYRUS_CACHE", &cache).output().unwrap();
        assert!(output.status.success(), "{}", said(&output));
        let path = Path::new(std::ffi::OsStr::from_bytes(output.stdout.trim_ascii_end()));
        assert!(path.is_file(), "{path:?}");
    }
}
