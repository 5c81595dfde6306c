//! `gyrus inspect` and `gyrus doctor` as a user meets them.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use gyrus_formats::gguf::Writer;
use gyrus_tensor::{DType, Shape};
use gyrus_testkit::{data, tempfile};

fn gyrus(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_gyrus")).args(args).output().unwrap()
}

fn stdout(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// A small model with one of everything a summary shows.
fn small_model(path: &Path) {
    let embedding = vec![0u8; DType::Q8_0.bytes_of_elems(8 * 64).unwrap()];
    let norm = vec![0u8; 64 * 4];
    let tokens: Vec<String> = (0..20).map(|n| format!("t{n}")).collect();
    let mut writer = Writer::new();
    writer
        .string("general.architecture", "llama")
        .string("general.name", "Tiny\u{1b}[31m")
        .u32("llama.block_count", 2)
        .u32("llama.context_length", 2048)
        .u32("llama.embedding_length", 64)
        .u32("llama.attention.head_count", 4)
        .u32("llama.attention.head_count_kv", 2)
        .f32("llama.rope.freq_base", 10000.0)
        .f32("llama.attention.layer_norm_rms_epsilon", 1e-5)
        .bool("tokenizer.ggml.add_bos_token", true)
        .strings("tokenizer.ggml.tokens", &tokens)
        .f32s("tokenizer.ggml.scores", &[0.5, -1.0])
        .string("tokenizer.chat_template", &"{{ long }}\n".repeat(40));
    writer.tensor("token_embd.weight", DType::Q8_0, Shape::new(&[8, 64]).unwrap(), &embedding).unwrap();
    writer.tensor("output_norm.weight", DType::F32, Shape::new(&[64]).unwrap(), &norm).unwrap();
    writer.write_to(&mut std::fs::File::create(path).unwrap()).unwrap();
}

#[test]
fn a_model_is_shown_as_a_table() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tiny.gguf");
    small_model(&path);
    let text = stdout(&gyrus(&["inspect", path.to_str().unwrap()]));
    insta::assert_snapshot!(text.replace(&format!("{}/", folder.path().display()), ""));
}

#[test]
fn a_model_is_shown_as_json() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tiny.gguf");
    small_model(&path);
    let text = stdout(&gyrus(&["inspect", path.to_str().unwrap(), "--json", "--ctx", "100"]));
    insta::assert_snapshot!(text.replace(&format!("{}/", folder.path().display()), ""));
    let full = stdout(&gyrus(&["inspect", path.to_str().unwrap(), "--json", "--full"]));
    let full: serde_json::Value = serde_json::from_str(&full).unwrap();
    assert_eq!(full["metadata"]["tokenizer.ggml.tokens"][19], "t19");
}

#[test]
fn mlx_and_hugging_face_folders_are_shown() {
    for (folder, dtype) in [("mlx/qwen3-4bit", "U32"), ("tiny/llama", "BF16")] {
        let Some(path) = data(folder) else { return };
        let json = stdout(&gyrus(&["inspect", path.to_str().unwrap(), "--json"]));
        let json: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(json["format"], "SafeTensors");
        assert!(json["types"].as_array().unwrap().iter().any(|t| t["type"] == dtype), "{folder}");
        assert!(json["kv_cache"]["bytes"].as_u64().unwrap() > 0, "{folder}");
    }
}

/// Runs `gyrus inspect PATH`, which must fail with one line, and returns it without the path.
fn refused(path: &Path) -> String {
    let output = gyrus(&["inspect", path.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1), "{}", path.display());
    assert!(output.stdout.is_empty());
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(text.lines().count(), 1, "{text}");
    text.trim_end().replace(path.to_str().unwrap(), "PATH")
}

#[test]
fn what_cannot_be_inspected_is_refused_in_one_line() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    std::fs::write(at("text.gguf"), "Once upon a time there was a model.").unwrap();
    std::fs::write(at("empty"), "").unwrap();
    std::fs::write(at("cut.gguf"), b"GGUF\x03\0\0\0\x01\0\0\0").unwrap();
    std::fs::write(at("whisper.bin"), b"lmgg0000000000000").unwrap();
    std::fs::write(at("model.pt"), b"PK\x03\x04 and more").unwrap();
    std::fs::write(at("old.pt"), b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19.").unwrap();
    std::fs::create_dir(at("folder")).unwrap();
    std::fs::create_dir(at("two")).unwrap();
    for name in ["two/a.gguf", "two/b.gguf"] {
        small_model(&at(name));
    }
    let mut lines = Vec::new();
    for name in [
        "missing.gguf",
        "folder",
        "two",
        "text.gguf",
        "empty",
        "cut.gguf",
        "whisper.bin",
        "model.pt",
        "old.pt",
    ] {
        lines.push(format!("{name}: {}", refused(&at(name))));
    }
    #[cfg(target_os = "linux")]
    {
        lines.push(format!("device: {}", refused(Path::new("/dev/zero"))));
        lines.push(format!("below a file: {}", refused(&at("empty/model.gguf"))));
        let pipe = at("pipe");
        assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        lines.push(format!("pipe: {}", refused(&pipe)));
    }
    insta::assert_snapshot!(lines.join("\n"));
}

#[cfg(target_os = "linux")]
#[test]
fn a_file_without_permission_is_refused() {
    use std::os::unix::fs::PermissionsExt;

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("locked.gguf");
    small_model(&path);
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o000)).unwrap();
    // The superuser may read anything, so the program runs as nobody, from where nobody can reach it.
    let mut command = if std::fs::read(&path).is_ok() {
        let program = folder.path().join("gyrus");
        std::fs::copy(env!("CARGO_BIN_EXE_gyrus"), &program).unwrap();
        std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).unwrap();
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--"]).arg(program);
        command
    } else {
        Command::new(env!("CARGO_BIN_EXE_gyrus"))
    };
    let output = command.arg("inspect").arg(&path).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let expected = format!("error: {}: permission denied\n", path.display());
    assert_eq!(String::from_utf8_lossy(&output.stderr), expected);
}

#[test]
fn a_reader_that_stops_early_is_no_error() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tiny.gguf");
    small_model(&path);
    let mut child = Command::new(env!("CARGO_BIN_EXE_gyrus"))
        .args(["inspect", "--full"])
        .arg(&path)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.stderr.is_empty());
}

#[test]
fn wrong_usage_exits_with_two() {
    for args in [&["inspect"][..], &["inspect", "x", "--ctx", "0"], &["frobnicate"], &[]] {
        assert_eq!(gyrus(args).status.code(), Some(2), "{args:?}");
    }
}

#[test]
fn doctor_names_version_and_cpu() {
    let json = stdout(&gyrus(&["doctor", "--json"]));
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["version"], env!("CARGO_PKG_VERSION"));
    assert!(json["cpu"]["threads"].as_u64().unwrap() > 0);
    assert!(stdout(&gyrus(&["doctor"])).contains("features"));
}

/// Drivers look for a display that is not there, and must not say so.
#[test]
fn a_machine_without_a_display_is_looked_at_in_silence() {
    for directory in [None, Some(""), Some("relative")] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_gyrus"));
        command.arg("doctor").env_remove("XDG_RUNTIME_DIR").env_remove("WAYLAND_DISPLAY");
        command.envs(directory.map(|directory| ("XDG_RUNTIME_DIR", directory)));
        let output = command.output().unwrap();
        assert!(output.status.success());
        assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    }
}
