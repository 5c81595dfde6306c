//! Running models from the command line, with the built-in model.

mod common;

use std::path::Path;

use common::{gyrus, refused, run, stdout};
use gyrus_testkit::{data, npy, oracle, tempfile};

const TALE: &str = ", there was a little girl named Lily. She loved to play outside in the sunshine.";

#[test]
fn a_prompt_is_continued() {
    let tale = |args: &[&str], input: &str| {
        let all: Vec<&str> = [args, &["--temp", "0", "-n", "19"][..]].concat();
        stdout(&all, input)
    };
    assert_eq!(tale(&["run", "tales-7m", "Once upon a time"], ""), format!("{TALE} One\n"));
    assert_eq!(tale(&["complete", "tales-7m"], "Once upon a time"), format!("{TALE} One\n"));
    // Without network the default model is the built-in one, and a single argument is the prompt.
    assert_eq!(tale(&["run", "Once upon a time"], ""), format!("{TALE} One\n"));
    assert_eq!(
        tale(&["run", "tales-7m", "Once upon a time", "--threads", "1", "-q"], ""),
        format!("{TALE} One\n")
    );
}

#[test]
fn without_network_one_line_says_so_and_a_story_is_told() {
    let output = run(&["run", "Once upon a time", "-n", "4", "-q"], "");
    assert!(output.status.success());
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(said.lines().count(), 1, "{said}");
    assert!(said.contains("using the built-in model tales-7m"), "{said}");
    assert!(!output.stdout.is_empty());
}

#[test]
fn ids_and_json_are_printed_whole() {
    let args = ["run", "tales-7m", "Once upon a time", "--temp", "0", "-n", "4", "--output"];
    assert_eq!(stdout(&[&args[..], &["ids"]].concat(), ""), "12 369 282 259\n");
    let json: serde_json::Value =
        serde_json::from_str(&stdout(&[&args[..], &["json"]].concat(), "")).unwrap();
    assert_eq!(json["text"], ", there was a");
    assert_eq!(json["ids"], serde_json::json!([12, 369, 282, 259]));
    assert_eq!((&json["stop"], &json["prompt_tokens"]), (&"max_tokens".into(), &5.into()));
}

#[test]
fn a_seed_repeats_and_stop_strings_stop() {
    let args = ["run", "tales-7m", "The dog", "-n", "20", "--seed", "5", "-q"];
    assert_eq!(stdout(&args, ""), stdout(&args, ""));
    let args = ["run", "tales-7m", "Once upon a time", "--temp", "0", "--stop", "Lily", "-q"];
    assert_eq!(stdout(&args, ""), ", there was a little girl named \n");
}

#[test]
fn an_answer_that_repeats_itself_is_stopped_unless_it_may() {
    // A penalty below one makes what occurred likelier, so that the same comes again and again.
    let stop = |command: &str, more: &[&str]| {
        let args = [command, "tales-7m", "Once upon a time", "--temp", "0", "--repeat-penalty", "0.01"];
        let rest = ["-n", "300", "--output", "json", "-q"];
        let json = stdout(&[&args[..], &rest, more].concat(), "");
        serde_json::from_str::<serde_json::Value>(&json).unwrap()["stop"].clone()
    };
    assert_eq!(stop("run", &[]), "repetition");
    assert_eq!(stop("run", &["--allow-repetition"]), "max_tokens");
    assert_eq!(stop("run", &["--raw"]), "max_tokens");
    assert_eq!(stop("complete", &[]), "max_tokens");
}

#[test]
fn fast_is_verified_against_exact() {
    let text = stdout(&["run", "tales-7m", "Once upon a time, there was a dog", "--verify", "-q"], "");
    assert!(text.contains("fast compared with exact over"), "{text}");
    assert!(text.contains("same top-1 token"), "{text}");
}

#[test]
fn an_architecture_that_is_not_known_is_named() {
    let Some(path) = data("vocab/ggml-vocab-gpt-2.gguf") else { return };
    let said = refused(&["run", &path.display().to_string(), "x", "-q"], 1);
    assert!(said.contains("architecture 'gpt2' is not supported, only llama, qwen2, qwen3"), "{said}");
}

#[test]
fn a_device_that_is_not_there_is_refused() {
    let said = refused(&["run", "tales-7m", "x", "--device", "tpu"], 2);
    assert!(said.contains("'tpu' is no device: auto, cpu, gpu, or gpu:NAME"), "{said}");
    let said = refused(&["run", "tales-7m", "x", "-q", "--device", "gpu:Voodoo 2"], 1);
    assert!(said.contains("no GPU is called 'Voodoo 2'; there are: "), "{said}");
}

/// What is said on stderr about a run.
fn said(args: &[&str], device: Option<&str>) -> Vec<String> {
    let mut command = gyrus();
    match device {
        Some(device) => command.env("GYRUS_DEVICE", device),
        None => command.env_remove("GYRUS_DEVICE"),
    };
    let output = command.args(args).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stderr).unwrap();
    text.lines().map(str::to_owned).collect()
}

#[test]
fn where_a_model_runs_is_said_in_a_line() {
    let run = ["run", "tales-7m", "x", "-n", "1"];
    let quiet = [&run[..], &["-q"]].concat();
    let lines = said(&run, None);
    assert!(lines[0].starts_with("running on "), "{lines:?}");
    // A machine without drivers, or with one in software only, has no GPU.
    if lines[0].starts_with("running on the CPU") {
        assert_eq!(lines[0], "running on the CPU: no GPU was found");
        assert!(lines[1].contains(" · cpu, "), "{lines:?}");
    } else {
        assert!(lines[1].contains(" · gpu · "), "{lines:?}");
    }
    // Whoever names the CPU is not told that it is the CPU.
    assert!(said(&run, Some("cpu"))[0].contains(" · cpu, "));
    assert!(said(&[&run[..], &["--device", "cpu"]].concat(), Some("auto"))[0].contains(" · cpu, "));
    for device in [None, Some("auto"), Some("cpu")] {
        assert_eq!(said(&quiet, device), [""; 0], "{device:?}");
    }
}

#[cfg(feature = "gpu")]
#[test]
fn a_model_runs_on_a_gpu_that_is_named() {
    let adapters = gyrus_gpu::adapters();
    let Some(adapter) = adapters.first() else {
        return gyrus_testkit::skip(gyrus_testkit::Need::Gpu, "no GPU was found");
    };
    let cache = tempfile::tempdir().unwrap();
    let mut command = gyrus();
    command.env("GYRUS_CACHE", cache.path()).env("GYRUS_DEVICE", format!("gpu:{}", adapter.name));
    let output =
        command.args(["run", "tales-7m", "Once upon a time", "--temp", "0", "-n", "4"]).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{said}");
    assert_eq!(String::from_utf8(output.stdout).unwrap(), ", there was a\n");
    assert!(said.contains(&format!("running on {} ({})\n", adapter.name, adapter.api())), "{said}");
    // Stderr is not a terminal here, so there is no progress bar.
    assert!(!said.contains("loading"), "{said}");
    // A software GPU is used only by its name.
    if adapter.kind == gyrus_gpu::AdapterKind::Software {
        let said = refused(&["run", "tales-7m", "x", "-q", "--device", "gpu"], 1);
        assert!(said.contains(&adapter.name) && said.contains("try --device cpu"), "{said}");
    }
}

#[test]
fn what_cannot_run_is_refused_with_a_line() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).display().to_string();
    std::fs::write(at("text.gguf"), "not a model").unwrap();
    let cases = vec![
        vec!["run".to_owned(), at("missing.gguf"), "x".to_owned()],
        vec!["run".to_owned(), folder.path().display().to_string(), "x".to_owned()],
        vec!["run".to_owned(), at("text.gguf"), "x".to_owned()],
        ["run", "no-such-model", "x"].map(str::to_owned).to_vec(),
        ["run", "tales-7m", "x", "--ctx", "5000"].map(str::to_owned).to_vec(),
        ["run", "tales-7m", "x", "--system", "be brief"].map(str::to_owned).to_vec(),
        ["logits", "tales-7m", "--ids", "4096", "--out", &at("x.npy")].map(str::to_owned).to_vec(),
        ["logits", "tales-7m", "--ids", "1", "--out", "/no/such/folder/x.npy"].map(str::to_owned).to_vec(),
        ["perplexity", "tales-7m", "--file", "/no/such/file"].map(str::to_owned).to_vec(),
        ["perplexity", "tales-7m", "--file", "/dev/null"].map(str::to_owned).to_vec(),
        ["bench", "tales-7m", "-p", "2000", "-n", "0", "-r", "1"].map(str::to_owned).to_vec(),
    ];
    let mut lines = Vec::new();
    for case in cases {
        let mut args: Vec<&str> = case.iter().map(String::as_str).collect();
        args.push("-q");
        let said = refused(&args, 1).replace(&format!("{}/", folder.path().display()), "");
        let said = said.replace(&folder.path().display().to_string(), "FOLDER");
        assert_eq!(said.lines().count(), 1, "{said}");
        lines.push(said.trim_end().to_owned());
    }
    // 200 kB of prompt, which no argument could hold.
    let output = run(&["run", "tales-7m", "-q"], &"long story ".repeat(20_000));
    assert_eq!(output.status.code(), Some(1));
    lines.push(String::from_utf8(output.stderr).unwrap().trim_end().to_owned());
    insta::assert_snapshot!(lines.join("\n"));
    assert!(!Path::new(&at("x.npy")).exists());
}

#[test]
fn an_empty_prompt_is_no_prompt() {
    // The built-in model adds a begin token, so even nothing can be continued.
    assert!(!stdout(&["run", "tales-7m", "", "-n", "3", "-q"], "").is_empty());
    let Some(path) = data("stories260K/stories260K.gguf") else { return };
    assert!(!stdout(&["run", path.to_str().unwrap(), "", "-n", "3", "-q"], "").is_empty());
}

#[test]
fn logits_are_a_numpy_file_that_numpy_reads() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("l.npy");
    stdout(&["logits", "tales-7m", "--ids", "0 387,390", "--out", out.to_str().unwrap(), "-q"], "");
    let logits = npy::read_f32(&out);
    assert_eq!(logits.shape, [3, 4096]);
    let best = argmax(&logits.values[2 * 4096..]);
    assert_eq!(best, 259, "'Once upon' goes on with 'a'");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "nothing else is left");
    let shape = oracle("npy_shape.py", &[out]);
    assert!(shape.is_none_or(|s| s.trim() == "(3, 4096) float32"));
}

fn argmax(values: &[f32]) -> usize {
    (0..values.len()).max_by(|&a, &b| values[a].total_cmp(&values[b])).unwrap()
}

#[test]
fn perplexity_of_a_story_is_low_and_of_noise_high() {
    let folder = tempfile::tempdir().unwrap();
    let score = |text: &str, more: &[&str]| -> (f64, u64) {
        let path = folder.path().join("text.txt");
        std::fs::write(&path, text).unwrap();
        let args =
            [&["perplexity", "tales-7m", "--file", path.to_str().unwrap(), "--json", "-q"], more].concat();
        let json: serde_json::Value = serde_json::from_str(&stdout(&args, "")).unwrap();
        (json["perplexity"].as_f64().unwrap(), json["tokens"].as_u64().unwrap())
    };
    let story = "Once upon a time, there was a little girl named Lily. She loved to play outside. ".repeat(4);
    let (low, tokens) = score(&story, &[]);
    let (high, _) = score("xylophone quartz 42 % ß ## zebra vortex", &[]);
    assert!(low < 10.0 && high > 100.0, "{low} {high}");
    // Windows of 16 lose their first tokens; llama.cpp's way scores half of each whole window.
    let (_, fewer) = score(&story, &["--ctx", "16"]);
    let (_, half) = score(&story, &["--ctx", "16", "--llama"]);
    assert!(fewer < tokens && half < fewer && half > 0, "{tokens} {fewer} {half}");
}

#[test]
fn bench_reports_what_it_measured() {
    let args = ["bench", "tales-7m", "-p", "32", "-n", "8", "-d", "0,16", "-r", "2", "-o", "json", "-q"];
    let json: serde_json::Value = serde_json::from_str(&stdout(&args, "")).unwrap();
    let tests: Vec<&str> = json.as_array().unwrap().iter().map(|m| m["test"].as_str().unwrap()).collect();
    assert_eq!(tests, ["pp32", "tg8", "pp32@d16", "tg8@d16"]);
    for m in json.as_array().unwrap() {
        assert!(m["tokens_per_second"].as_f64().unwrap() > 0.0);
        assert_eq!((&m["model"], &m["device"]), (&"tales-7m".into(), &"cpu".into()));
    }
    let small = "dim=64,layers=2,heads=4,kv=2,ffn=96,vocab=100:q8_0";
    let table = stdout(&["bench", "--synthetic", small, "-p", "8", "-n", "4", "-r", "1", "-q"], "");
    assert_eq!(table.lines().count(), 4, "{table}");
    let csv = stdout(&["bench", "tales-7m", "--prompts", "-n", "4", "-r", "1", "-o", "csv", "-q"], "");
    assert_eq!(csv.lines().count(), 4, "{csv}");
}

#[test]
fn tokenize_and_detokenize_are_each_others_inverse() {
    let text = "Once upon a time 🐕 <|endoftext|>\n";
    let ids = stdout(&["tokenize", "tales-7m"], text);
    assert_eq!(stdout(&["detokenize", "tales-7m"], &ids), text);
    let json = stdout(&["tokenize", "tales-7m", "--json"], text);
    assert_eq!(stdout(&["detokenize", "tales-7m"], &json), text);
    let special = stdout(&["tokenize", "tales-7m", "--special"], text);
    assert!(special.starts_with("0 ") && special.split_whitespace().filter(|id| *id == "0").count() == 2);
    assert_eq!(refused(&["detokenize", "tales-7m", "--file", "/no/such"], 1).lines().count(), 1);
    let output = run(&["detokenize", "tales-7m"], "1 2 potato");
    assert_eq!(
        String::from_utf8_lossy(&output.stderr),
        "error: 'potato' is not a token id: invalid digit found in string\n"
    );
}

#[test]
fn completions_are_printed_for_every_shell() {
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        assert!(stdout(&["completions", shell], "").contains("gyrus"), "{shell}");
    }
}

#[test]
fn help_reads_well() {
    insta::assert_snapshot!(stdout(&["--help"], ""));
}
