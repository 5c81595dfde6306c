//! Arguments: what names a model, what an empty variable means, and exit code 2 for wrong usage.

mod common;

use common::{gyrus, refused, run, said, stdout};
use gyrus_testkit::tempfile;

#[test]
fn values_out_of_range_exit_with_two() {
    let out = tempfile::tempdir().unwrap();
    let out = out.path().join("x.npy");
    let out = out.to_str().unwrap();
    for (flag, value) in [
        ("--top-p", "0"),
        ("--top-p", "1.5"),
        ("--top-p", "nan"),
        ("--min-p", "1.5"),
        ("--min-p", "-1"),
        ("--temp", "-1"),
        ("--temp", "inf"),
        ("--repeat-penalty", "0"),
        ("--presence-penalty", "nan"),
        ("--frequency-penalty", "inf"),
        ("--ctx", "0"),
    ] {
        for command in [&["run", "tales-7m", "x"][..], &["chat", "tales-7m"]] {
            let joined = format!("{flag}={value}");
            let said = refused(&[command, &[&joined]].concat(), 2);
            assert!(said.contains(flag), "{said}");
        }
    }
    for args in [
        &["run", "tales-7m", "x", "--threads", "0"][..],
        &["run", "tales-7m", "x", "--threads", "many"],
        &["run", "tales-7m", "x", "--device", "abacus"],
        &["run", "tales-7m", "x", "--output", "xml"],
        &["bench", "-r", "0"],
        &["bench", "tales-7m", "--synthetic", "llama-3.2-1b:q4_0"],
        &["logits", "tales-7m"],
        &["logits", "tales-7m", "--ids", "1 2 x", "--out", out],
        &["logits", "tales-7m", "--ids", "", "--out", out],
        &["complete", "tales-7m", "x", "--system", "be brief"],
        &["run", "tales-7m", "x", "--raw", "--system", "be brief"],
        &["bench", "--synthetic", "gpt:q4_0"],
        &["bench", "--synthetic", "llama-3.2-1b:q3"],
        &["bench", "--synthetic", "llama-3.2-1b"],
        &["bench", "--synthetic", "gpt:q4_0", "--write", out],
        &["bench", "tales-7m", "-p", "0", "-n", "0"],
        &["bench", "tales-7m", "--ctx", "0"],
        &["profile", "--synthetic", "gpt:q4_0", "--device", "auto"],
        &["profile", "tales-7m", "-p", "0", "-s", "0", "--device", "auto"],
        &["profile", "tales-7m", "-s", "17", "--device", "auto"],
        &["profile", "tales-7m", "--device", "cpu"],
        &["tune", "tales-7m", "--device", "cpu"],
        &["rope", "--head-dim", "7"],
        &["inspect", "tales-7m", "--ctx", "0"],
    ] {
        refused(args, 2);
    }
}

#[test]
fn an_empty_variable_is_an_unset_one() {
    for name in ["GYRUS_THREADS", "GYRUS_DEVICE"] {
        let output = gyrus().args(["run", "tales-7m", "x", "-n", "1", "-q"]).env(name, "").output().unwrap();
        assert!(output.status.success(), "{name}: {}", said(&output));
    }
    // An option is not a variable.
    refused(&["run", "tales-7m", "x", "--threads", ""], 2);
    let output = gyrus().args(["run", "tales-7m", "x"]).env("GYRUS_THREADS", "many").output().unwrap();
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn a_word_that_names_a_file_can_still_be_a_prompt() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("hello")).unwrap();
    std::fs::write(folder.path().join("README.md"), "# Not a model\n").unwrap();
    let within = |args: &[&str]| {
        let output = gyrus().args(args).current_dir(folder.path()).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{args:?}");
        said(&output)
    };
    for word in ["hello", "README.md"] {
        for command in ["run", "complete"] {
            let said = within(&[command, word, "-q"]);
            let hint = "; to give this as a prompt, name a model before it, such as qwen2.5-coder-0.5b\n";
            assert!(said.ends_with(hint), "{said}");
        }
        // Where it can only be a model, there is no such hint.
        for args in [&["run", word, "a prompt", "-q"][..], &["chat", word, "-q"], &["inspect", word]] {
            assert!(!within(args).contains("prompt"), "{args:?}");
        }
    }
    assert!(within(&["run", "no/such", "-q"]).contains("to give this as a prompt"));
    assert!(!within(&["inspect", "no/such"]).contains("prompt"));
    assert!(!within(&["inspect", "no.gguf"]).contains("prompt"));
    // A model that is damaged is not a prompt.
    std::fs::write(folder.path().join("cut.gguf"), "GGUF").unwrap();
    assert!(!within(&["run", "cut.gguf", "-q"]).contains("prompt"));
}

#[test]
fn every_command_takes_a_name_of_the_catalogue() {
    let folder = tempfile::tempdir().unwrap();
    let messages = folder.path().join("messages.json");
    std::fs::write(&messages, r#"[{"role": "user", "content": "hello"}]"#).unwrap();
    for args in [
        &["inspect", "tales-7m"][..],
        &["inspect", "tales-7m", "--json"],
        &["rope", "tales-7m"],
        &["rope", "tales-7m", "--compare", "tales-7m"],
        &["tokenize", "tales-7m"],
        &["template", "tales-7m", "--messages", messages.to_str().unwrap()],
    ] {
        assert!(!stdout(args, "1").is_empty(), "{args:?}");
    }
    assert!(run(&["detokenize", "tales-7m"], "12").status.success());
    // A name is pulled where it is needed, which this machine may not do.
    for args in
        [&["inspect", "smollm2-135m"][..], &["inspect", "hf:a/b/c.gguf"], &["tokenize", "smollm2-135m"]]
    {
        let said = refused(args, 1);
        assert!(said.contains("is not in the cache, and GYRUS_OFFLINE is set"), "{said}");
    }
}
