//! SafeTensors folders from the command line.

mod common;

use std::fs;

use common::{refused, run, said, stdout};
use gyrus_testkit::{data, tempfile};

#[test]
fn towers_that_are_not_loaded_are_said_once() {
    let Some(source) = data("tiny/llama") else { return };
    let folder = tempfile::tempdir().unwrap();
    fs::copy(source.join("config.json"), folder.path().join("config.json")).unwrap();
    // One more tensor, at the end.
    let file = fs::read(source.join("model.safetensors")).unwrap();
    let length = u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
    let mut header: serde_json::Value = serde_json::from_slice(&file[8..8 + length]).unwrap();
    let content = &file[8 + length..];
    header["vision_tower.w"] = serde_json::json!({
        "dtype": "F32", "shape": [1], "data_offsets": [content.len(), content.len() + 4]
    });
    let header = header.to_string();
    let file = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), content, &[0; 4]].concat();
    fs::write(folder.path().join("model.safetensors"), file).unwrap();
    let out = folder.path().join("logits.npy");
    let arguments = |quiet: &[&str]| {
        let words = ["logits".into(), folder.path().into(), "--ids".into(), "1,2".into(), "--out".into()];
        let quiet = quiet.iter().map(std::path::PathBuf::from);
        words.into_iter().chain([out.clone()]).chain(quiet).collect::<Vec<_>>()
    };
    let output = run(&arguments(&[]), "");
    assert!(output.status.success(), "{}", said(&output));
    let lines: Vec<_> =
        said(&output).lines().filter(|l| l.contains("vision_tower")).map(str::to_owned).collect();
    assert_eq!(lines, ["text only: vision_tower of this multimodal model is not loaded"]);
    assert_eq!(said(&run(&arguments(&["--quiet"]), "")), "");
}

#[test]
fn weights_are_quantised_by_a_flag() {
    let Some(folder) = data("tiny/llama") else { return };
    let folder = folder.to_str().unwrap();
    let bench = |flags: &[&str]| {
        let fixed = ["bench", folder, "-p", "4", "-n", "0", "-r", "1", "-q", "--ctx", "64", "-o", "json"];
        let report: serde_json::Value = serde_json::from_str(&stdout(&[&fixed, flags].concat(), "")).unwrap();
        report
    };
    let bytes = |report: &serde_json::Value| {
        let text = report.to_string();
        let at = text.find("\"weight_bytes\":").unwrap_or_else(|| panic!("{text}"));
        text[at + 15..].split([',', '}']).next().unwrap().parse::<u64>().unwrap()
    };
    let (whole, small) = (bytes(&bench(&[])), bytes(&bench(&["--quantize", "q8_0"])));
    // 34 bytes for 32 values of two bytes each, and norms that stay.
    assert!((0.53..0.54).contains(&(small as f64 / whole as f64)), "{small} of {whole}");
    let refusal = refused(&["bench", folder, "--quantize", "q4_k", "-q", "-r", "1"], 1);
    assert!(refusal.contains("a row of 128 elements is not a multiple of Q4_K's block of 256"), "{refusal}");
    let refusal = refused(&["run", folder, "x", "--quantize", "f16"], 2);
    assert!(refusal.contains("weights can be quantised to Q4_0, Q4_1, "), "{refusal}");
}
