//! `gyrus rope` as a user meets it.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use gyrus_formats::gguf::Writer;
use gyrus_tensor::{DType, Shape};
use gyrus_testkit::{repository, tempfile};

fn gyrus(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gyrus"));
    command.env("GYRUS_OFFLINE", "1").env("GYRUS_CACHE", repository().join("target/test-cache"));
    command.arg("rope").args(args).output().unwrap()
}

fn stdout(args: &[&str]) -> String {
    let output = gyrus(args);
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    assert!(output.stderr.is_empty(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    // Columns are padded to their width; an editor would not keep that.
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().map(|line| format!("{}\n", line.trim_end())).collect()
}

fn file(folder: &Path, name: &str, text: &str) -> String {
    let path = folder.join(name);
    std::fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

/// A model with two kinds of layers, and factors that let half of the global ones' pairs stand still.
fn layered_model(folder: &Path) -> PathBuf {
    let mut writer = Writer::new();
    writer.string("general.architecture", "gemma4").u32("gemma4.block_count", 6);
    writer.u32("gemma4.context_length", 4096).u32("gemma4.attention.sliding_window_pattern", 3);
    writer.u32("gemma4.attention.key_length", 16).u32("gemma4.attention.key_length_swa", 8);
    writer.f32("gemma4.rope.freq_base", 1e6).f32("gemma4.rope.freq_base_swa", 1e4);
    let factors = [1f32, 1.0, 1.0, 1.0, 1e30, 1e30, 1e30, 1e30].map(f32::to_le_bytes).concat();
    writer.tensor("rope_freqs.weight", DType::F32, Shape::new(&[8]).unwrap(), &factors).unwrap();
    let path = folder.join("layered.gguf");
    writer.write_to(&mut std::fs::File::create(&path).unwrap()).unwrap();
    path
}

const DEEPSEEK: &str = r#"{"model_type": "deepseek_v3", "qk_rope_head_dim": 16, "qk_nope_head_dim": 32,
    "kv_lora_rank": 64, "head_dim": 16, "num_hidden_layers": 2, "max_position_embeddings": 163840,
    "rope_theta": 10000, "rope_scaling": {"type": "yarn", "factor": 40, "mscale": 1.0, "mscale_all_dim": 1.0,
    "original_max_position_embeddings": 4096}}"#;

#[test]
fn parameters_are_shown_as_a_table() {
    let llama3 = "llama3:factor=8,low=1,high=4,original=8192";
    insta::assert_snapshot!(stdout(&["--head-dim", "32", "--base", "500000", "--scaling", llama3]));
}

#[test]
fn kinds_of_layers_are_shown_apart() {
    let folder = tempfile::tempdir().unwrap();
    insta::assert_snapshot!(stdout(&[layered_model(folder.path()).to_str().unwrap()]));
}

#[test]
fn a_configuration_is_enough() {
    let folder = tempfile::tempdir().unwrap();
    let path = file(folder.path(), "config.json", DEEPSEEK);
    let text = stdout(&[&path]);
    insta::assert_snapshot!(text);
    // So is the folder that holds it.
    let of_folder = stdout(&[folder.path().to_str().unwrap()]);
    assert_eq!(text.lines().skip(1).collect::<Vec<_>>(), of_folder.lines().skip(1).collect::<Vec<_>>());
}

#[test]
fn settings_are_compared() {
    let folder = tempfile::tempdir().unwrap();
    let path = file(folder.path(), "config.json", DEEPSEEK);
    insta::assert_snapshot!(stdout(&[&path, "--compare", "base=1e6 scaling=none"]));
    // A model with itself.
    let text = stdout(&[&path, "--compare", &path]);
    assert!(text.contains("  0 of 8 pairs have other frequencies\n"), "{text}");
}

#[test]
fn the_built_in_model_and_changes_to_it() {
    let text = stdout(&["tales-7m", "--compare", "scaling=yarn:factor=4,original=1024"]);
    assert!(text.starts_with("tales-7m\n  qwen3 · context 1024\n"), "{text}");
    assert!(text.contains("factor on cosine and sine 1 and 1.138629436111989"), "{text}");
}

#[test]
fn longer_sequences_have_other_factors() {
    let scaling = "longrope:original=64,factor=4,short=1/1/1/1,long=1/2/3/4";
    let at = |length: &str| stdout(&["--head-dim", "8", "--scaling", scaling, "--length", length]);
    let (short, long) = (at("64"), at("65"));
    assert!(
        short.contains("4 pairs: 4 unchanged") && short.contains("--length shows longer ones"),
        "{short}"
    );
    assert!(long.contains("4 pairs: 1 unchanged, 3 stretched"), "{long}");
}

#[test]
fn json_holds_every_number() {
    let folder = tempfile::tempdir().unwrap();
    let path = layered_model(folder.path());
    let json: serde_json::Value = serde_json::from_str(&stdout(&[path.to_str().unwrap(), "--json"])).unwrap();
    assert_eq!(json["architecture"], "gemma4");
    let global = &json["kinds"][0];
    assert_eq!(global["layers"], "full_attention");
    assert_eq!(global["which"], serde_json::json!([2, 5]));
    assert_eq!(global["pairs"][7]["band"], "still");
    assert_eq!(global["pairs"][7]["wavelength"], serde_json::Value::Null);
    assert_eq!(global["pairs"][0]["frequency"], 1.0);
    // 2⁶⁴ / 2π.
    assert_eq!(global["pairs"][0]["turns"], "2935890503282001408");
    assert_eq!(json["kinds"][1]["pairs"][0]["elements"], serde_json::json!([0, 4]));
    let two = stdout(&[path.to_str().unwrap(), "--json", "--compare", "base=5"]);
    let two: serde_json::Value = serde_json::from_str(&two).unwrap();
    assert_eq!(two[1]["kinds"][0]["base"], 5.0);
}

#[test]
fn pictures_are_drawn() {
    let folder = tempfile::tempdir().unwrap();
    let svg = folder.path().join("rope.svg");
    let config = DEEPSEEK.replace("deepseek_v3", "deepseek<&>");
    let path = file(folder.path(), "a&b<c>.json", &config);
    stdout(&[&path, "--pairing", "adjacent", "--svg", svg.to_str().unwrap()]);
    let picture = std::fs::read_to_string(&svg).unwrap();
    assert!(picture.starts_with("<svg xmlns=") && picture.ends_with("</svg>\n"));
    assert!(picture.contains("a&amp;b&lt;c&gt;.json"), "names are escaped");
    assert_eq!(picture.matches('<').count(), picture.matches('>').count());
    // A point for each pair, and a hand for each of them on every dial.
    assert_eq!(picture.matches("class=\"hand\"").count(), 8 * 19);
    assert!(picture.contains("original context 4096"));
    assert!(!picture.contains("NaN") && !picture.contains("inf"));
    // Ropes at the edge of what can be drawn.
    for args in [
        &["--head-dim", "2"][..],
        &["--head-dim", "4", "--rope-dim", "0"],
        &["--head-dim", "4", "--base", "0.5"],
        &["--head-dim", "64", "--scaling", "proportional:part=0.01"],
        &["--head-dim", "4096", "--base", "1e300"],
    ] {
        stdout(&[args, &["--svg", svg.to_str().unwrap()]].concat());
        let picture = std::fs::read_to_string(&svg).unwrap();
        assert!(!picture.contains("NaN") && !picture.contains("inf"), "{args:?}");
    }
}

/// The pictures of docs/rope.md are what the commands there draw.
#[test]
fn pictures_of_the_documentation_are_current() {
    let folder = tempfile::tempdir().unwrap();
    let docs = repository().join("docs/rope");
    let gemma3 = docs.join("gemma3.json");
    let llama3 = "llama3:factor=8,original=8192";
    let yarn = "yarn:factor=4,original=32768";
    let linear = "scaling=linear:factor=4";
    let all: [(&str, &[&str]); 4] = [
        ("plain.svg", &["--head-dim", "128"]),
        ("llama3.svg", &["--head-dim", "128", "--base", "500000", "--scaling", llama3]),
        ("yarn.svg", &["--head-dim", "128", "--base", "1e6", "--scaling", yarn, "--compare", linear]),
        ("gemma3.svg", &[gemma3.to_str().unwrap()]),
    ];
    for (name, args) in all {
        let drawn = folder.path().join(name);
        stdout(&[args, &["--svg", drawn.to_str().unwrap()]].concat());
        let (drawn, stored) = (std::fs::read(drawn).unwrap(), std::fs::read(docs.join(name)).unwrap());
        assert!(drawn == stored, "{name}: draw it again with {args:?}");
    }
}

/// One line on stderr, or clap's few, and this exit code.
fn refused(args: &[&str], code: i32) -> String {
    let output = gyrus(args);
    assert_eq!(output.status.code(), Some(code), "{args:?}");
    assert!(output.stdout.is_empty(), "{args:?}");
    let text = String::from_utf8(output.stderr).unwrap();
    text.lines().next().unwrap_or_default().to_owned()
}

#[test]
fn what_makes_no_rope_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let json = |text: &str| file(folder.path(), "config.json", text);
    let mut lines = Vec::new();
    for args in [
        &[][..],
        &["--head-dim", "7"],
        &["--head-dim", "8", "--rope-dim", "10"],
        &["--head-dim", "8", "--offset", "2"],
        &["--head-dim", "8", "--base", "0"],
        &["--head-dim", "8", "--base", "x"],
        &["--head-dim", "8", "--scaling", "bent:factor=2"],
        &["--head-dim", "8", "--scaling", "linear"],
        &["--head-dim", "8", "--scaling", "linear:factor=0"],
        &["--head-dim", "8", "--scaling", "yarn:factor=4,original=9,beta_fast=1"],
        &["--head-dim", "8", "--sections", "1,2"],
        &["--head-dim", "8", "--interleaved"],
        &["--head-dim", "18446744073709551614"],
        &["--head-dim", "8", "--compare", "base=ten"],
        &["--head-dim", "8", "--compare", "rope-dim=3"],
    ] {
        lines.push(format!("{}: {}", args.join(" "), refused(args, 2)));
    }
    for config in [
        "{",
        "[]",
        r#"{"model_type": "llama"}"#,
        r#"{"model_type": "llama", "head_dim": 64, "rope_scaling": {"type": "bent", "factor": 2}}"#,
        r#"{"model_type": "llama", "head_dim": 64, "rope_scaling": {"type": "linear"}}"#,
        r#"{"model_type": "llama", "head_dim": 64, "rope_scaling": {"type": "yarn", "factor": 2}}"#,
        r#"{"model_type": "llama", "head_dim": 64, "rope_scaling": {"type": 3}}"#,
        r#"{"model_type": "llama", "head_dim": 64, "rope_theta": "big"}"#,
        r#"{"model_type": "llama", "head_dim": 63}"#,
        r#"{"model_type": "llama", "head_dim": 18446744073709551615}"#,
        r#"{"model_type": "llama", "hidden_size": 8, "num_attention_heads": 0}"#,
        r#"{"model_type": "llama", "head_dim": 64, "partial_rotary_factor": 1.5}"#,
        r#"{"model_type": "llama", "head_dim": 64, "num_hidden_layers": 1000000000}"#,
        r#"{"model_type": "llama", "head_dim": 64, "rope_scaling": {"type": "mrope", "mrope_section": [1, 2]}}"#,
        r#"{"model_type": "phi3", "head_dim": 4, "max_position_embeddings": 8, "rope_scaling": {"type": "su",
            "short_factor": [1, 2], "long_factor": [1]}}"#,
    ] {
        let line = refused(&[&json(config)], 1).replace(folder.path().to_str().unwrap(), "DIR");
        lines.push(format!("{config}: {line}"));
    }
    lines.push(format!("no file: {}", refused(&["missing.gguf"], 1)));
    insta::assert_snapshot!(lines.join("\n"));
}
