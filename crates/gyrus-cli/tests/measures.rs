//! Measurements: tests that just fit the context, rates without a measurement, and NaN.

mod common;

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::Stdio;

use common::{gyrus, refused, run, said, stdout, tales};
use gyrus_formats::Checkpoint;
use gyrus_testkit::tempfile;
use serde_json::Value;

fn json(args: &[&str]) -> Value {
    serde_json::from_str(&stdout(args, "")).unwrap()
}

/// The built-in model has a context of 1,024 tokens.
#[test]
fn a_test_may_fill_the_context() {
    fn bench<'a>(more: &[&'a str]) -> Vec<&'a str> {
        [&["bench", "tales-7m", "-r", "1", "--no-warmup", "-q", "-o", "json"], more].concat()
    }
    for (more, test) in [
        (&["-p", "1024", "-n", "0"][..], "pp1024"),
        (&["-p", "24", "-d", "1000", "-n", "0"], "pp24@d1000"),
        (&["-p", "0", "-d", "1000", "-n", "24"], "tg24@d1000"),
        (&["-p", "0", "-d", "1000", "-n", "24", "-s", "2"], "tg24x2@d1000"),
        (&["-p", "0", "-n", "1023"], "tg1023"),
    ] {
        let measured = json(&bench(more));
        assert_eq!(measured[0]["test"], test);
        assert!(measured[0]["tokens_per_second"].as_f64().unwrap() > 0.0);
    }
    for (more, line) in [
        (
            &["-p", "1025", "-n", "0"][..],
            "error: pp1025: needs a context of 1025 tokens, the context is 1024 (--ctx sets it)\n",
        ),
        (
            &["-p", "24", "-d", "1001", "-n", "0"],
            "error: pp24@d1001: needs a context of 1025 tokens, the context is 1024 (--ctx sets it)\n",
        ),
        (
            &["-p", "0", "-d", "1000", "-n", "25"],
            "error: tg25@d1000: needs a context of 1025 tokens, the context is 1024 (--ctx sets it)\n",
        ),
        (
            &["-p", "0", "-n", "1024"],
            "error: tg1024: needs a context of 1025 tokens, the context is 1024 (--ctx sets it)\n",
        ),
        (&["-p", "18446744073709551615", "-d", "9", "-n", "0"], "the depth and the token count overflow\n"),
    ] {
        let said = refused(&bench(more), 1);
        assert!(said.ends_with(line), "{said}");
    }
}

/// A row names the size of the weights and the parameter count, as llama-bench does.
#[test]
fn a_row_has_the_size_of_the_model() {
    let bench = |output: &str| {
        let args = ["bench", "tales-7m", "-p", "1", "-n", "0", "-r", "1", "--no-warmup", "-q", "-o", output];
        stdout(&args, "")
    };
    let model = Checkpoint::open(&tales()).unwrap();
    let bytes: usize = model.tensors().map(|tensor| tensor.data.len()).sum();
    let json: Value = serde_json::from_str(&bench("json")).unwrap();
    assert_eq!(json[0]["weight_bytes"], bytes);
    let parameters = json[0]["parameters"].as_u64().unwrap();
    let table = bench("md");
    assert!(
        table.starts_with(
            "| model | size | params | device | threads | precision | test | tokens/s | GPU idle |\n"
        ),
        "{table}"
    );
    let size = format!(
        "| tales-7m | {:.2} MiB | {:.2} M | cpu |",
        bytes as f64 / 1048576.0,
        parameters as f64 * 1e-6
    );
    assert!(table.contains(&size), "{table}");
    // A CPU row has no share of idle GPU time.
    assert!(table.ends_with(" | - |\n"), "{table}");
    assert_eq!(json[0]["gpu_idle"], Value::Null);
    let csv = bench("csv");
    assert!(csv.lines().next().unwrap().ends_with(",weight_bytes,parameters,gpu_idle"), "{csv}");
    assert!(csv.lines().nth(1).unwrap().ends_with(&format!(",{bytes},{parameters},")), "{csv}");
}

/// What constraints and log-probabilities cost: one sequence in turns, and others beside those that ask.
#[test]
fn what_is_asked_for_is_measured_against_nothing() {
    let model = tales();
    let model = model.to_str().unwrap();
    let common = ["-n", "12", "-r", "1", "-s", "1,4", "-q", "-o", "json"];
    // The second ends after a few tokens and begins anew.
    for asked in [&["--regex", "[\\s\\S]*"][..], &["--regex", "([a-z]{2,5} ){4}"], &["--logprobs", "3"]] {
        let rows = json(&[&["bench", model], &common[..], asked].concat());
        assert_eq!(rows.as_array().unwrap().len(), 2, "{asked:?}");
        for (row, sequences) in [(&rows[0], 1), (&rows[1], 4)] {
            assert_eq!(row["sequences"], sequences);
            for key in ["plain", "asking", "ratio"] {
                assert!(row[key].as_f64().unwrap() > 0.0, "{asked:?}: {row}");
            }
            assert_eq!(row["beside"].as_f64().is_some_and(|ratio| ratio > 0.0), sequences > 1, "{row}");
        }
    }
    // A synthetic model takes the vocabulary of a file, whatever size it has.
    let shape = ["bench", "--synthetic", "dim=64,layers=1,heads=2,kv=1,ffn=96,vocab=40:q8_0", "-q"];
    let said = refused(&[&shape[..], &["--vocabulary", model, "--regex", "x"]].concat(), 1);
    assert!(said.contains("an answer has fewer than two tokens"), "{said}");
    let said = refused(&[&shape[..], &["--regex", "x"]].concat(), 1);
    assert!(said.contains("--vocabulary FILE gives one"), "{said}");
}

#[test]
fn a_rate_of_nothing_is_none() {
    let nothing = json(&["run", "tales-7m", "Once upon a time", "-n", "0", "-q", "--output", "json"]);
    assert_eq!(nothing["generated_tokens"], 0);
    assert_eq!(nothing["prompt_tokens_per_second"], Value::Null);
    assert_eq!(nothing["tokens_per_second"], Value::Null);
    // The first token belongs to the prompt.
    let one = json(&["run", "tales-7m", "Once upon a time", "-n", "1", "-q", "--output", "json"]);
    assert!(one["prompt_tokens_per_second"].as_f64().unwrap() > 0.0);
    assert_eq!(one["tokens_per_second"], Value::Null);
    for (tokens, line) in [
        ("0", "5 prompt tokens at -/s · 0 tokens at -/s · token limit reached"),
        ("1", " · 1 tokens at -/s · token limit reached"),
    ] {
        let output = run(&["run", "tales-7m", "Once upon a time", "-n", tokens], "");
        let said = said(&output);
        assert!(said.trim_end().ends_with(line), "{said}");
    }
}

/// The built-in model with NaN among its weights.
fn model_with_nan(path: &Path) {
    let model = Checkpoint::open(&tales()).unwrap();
    let norm = model.tensor("output_norm.weight").unwrap();
    let (at, length) = (norm.at as usize, norm.data.len());
    let mut bytes = std::fs::read(tales()).unwrap();
    for value in bytes[at..at + length].chunks_exact_mut(4) {
        value.copy_from_slice(&f32::NAN.to_le_bytes());
    }
    std::fs::write(path, bytes).unwrap();
}

#[test]
fn logits_that_are_not_finite_are_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let (model, text) = (folder.path().join("nan.gguf"), folder.path().join("text"));
    model_with_nan(&model);
    std::fs::write(&text, "Once upon a time, there was a little girl.").unwrap();
    let (model, text) = (model.to_str().unwrap(), text.to_str().unwrap());
    for args in [
        &["perplexity", model, "--file", text, "-q"][..],
        &["perplexity", model, "--file", text, "-q", "--json"],
        &["run", model, "Once upon a time", "--verify", "-q"],
        &["run", model, "Once upon a time", "-q"],
        &["run", model, "Once upon a time", "-q", "--precision", "exact"],
        &["logits", model, "--ids", "1,2,3", "--out", "/dev/null", "-q"],
    ] {
        let said = refused(args, 1);
        assert!(said.contains("the model computed NaN or infinity at position "), "{said}");
        let fast = args[0] == "run" && !args.contains(&"exact");
        assert_eq!(said.contains("; try --precision exact"), fast, "{said}");
    }
}

/// A model that was read into memory does not depend on its file any more.
#[test]
fn a_file_cut_after_loading_changes_nothing_without_a_map() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    std::fs::copy(tales(), &path).unwrap();
    let answers = |cut: bool| {
        let mut command = gyrus();
        command.arg("chat").arg(&path).args([
            "--no-mmap",
            "--precision",
            "exact",
            "--temp",
            "0",
            "-n",
            "8",
            "-q",
        ]);
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let (mut typed, mut answers) =
            (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        let mut lines = vec![String::new(); 2];
        for line in &mut lines {
            writeln!(typed, "Tell me of a dog.").unwrap();
            let read = answers.read_line(line).unwrap();
            assert!(read > 0, "no answer");
            if cut {
                std::fs::File::options().write(true).open(&path).unwrap().set_len(4096).unwrap();
            }
        }
        drop(typed);
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", said(&output));
        lines
    };
    let whole = answers(false);
    assert_eq!(answers(true), whole);
}

/// Every command that loads a model can read instead of mapping.
#[test]
fn commands_that_load_a_model_take_no_mmap() {
    let folder = tempfile::tempdir().unwrap();
    let (model, text) = (tales(), folder.path().join("text"));
    std::fs::write(&text, "Once upon a time").unwrap();
    let (model, text, out) = (model.to_str().unwrap(), text.to_str().unwrap(), folder.path().join("out"));
    for args in [
        &["run", model, "x", "-n", "1", "-q", "--no-mmap"][..],
        &["run", model, "x", "--verify", "-q", "--no-mmap"],
        &["bench", model, "-p", "1", "-n", "0", "-r", "1", "-q", "--no-mmap"],
        &["perplexity", model, "--file", text, "-q", "--no-mmap"],
        &["logits", model, "--ids", "1", "--out", out.to_str().unwrap(), "-q", "--no-mmap"],
    ] {
        stdout(args, "");
    }
}
