//! `gyrus trace`: results of ops, divergences and their exit code.

mod common;

use common::{gyrus, refused, run, said, stdout};
use serde_json::Value;

fn json(args: &[&str]) -> Value {
    serde_json::from_str(&stdout(&[&["trace", "tales-7m", "--json", "-q"], args].concat(), "")).unwrap()
}

#[test]
fn a_trace_prints_each_op() {
    let printed = stdout(&["trace", "tales-7m", "--ids", "1,2,3", "-q"], "");
    let mut lines = printed.lines();
    assert_eq!(lines.next(), Some("tales-7m: fast on cpu"));
    assert_eq!((lines.next(), lines.next()), (Some(""), Some("positions 0 to 2 in a batch of 3")));
    assert_eq!(
        lines.next().unwrap().split_whitespace().collect::<Vec<_>>(),
        ["op", "result", "checksum", "largest"]
    );
    let first: Vec<&str> = lines.next().unwrap().split_whitespace().collect();
    assert_eq!(first[..2], ["0", "b0"]);
    // The embedding is a copy of weights, so that its bits are the same everywhere.
    assert_eq!(first[2], "05bc6518408ce9d1");
    assert!(printed.contains("b0 = embed token_embd.weight Q8_0"), "{printed}");
    assert!(printed.contains("k kv0.5") && printed.contains("v kv0.5"), "{printed}");
    assert_eq!(printed, stdout(&["trace", "tales-7m", "--ids", "1 2 3", "-q"], ""), "the same run twice");
}

#[test]
fn json_has_every_result() {
    let traced = json(&["--ids", "1,2,3", "--against", "reference", "--precision", "exact"]);
    assert_eq!((&traced["tokens"], &traced["isolated"]), (&3.into(), &true.into()));
    assert_eq!(traced["ours"]["device"], "cpu");
    assert_eq!(traced["theirs"]["device"], "reference");
    assert_eq!(traced["first_divergence"], Value::Null);
    let results = traced["batches"][0]["results"].as_array().unwrap();
    // Six layers of nine ops, of which one has three results, and four ops around them.
    assert_eq!((results.len(), &traced["compared"]), (70, &70.into()));
    for result in results {
        let checksum = result["ours"]["checksum"].as_str().unwrap();
        assert!(checksum.len() == 16 && u64::from_str_radix(checksum, 16).is_ok(), "{result}");
        assert!(result["difference"]["relative"].as_f64().unwrap() < 1e-4, "{result}");
    }
    let attention = results.iter().find(|r| r["line"].as_str().unwrap().contains("attention")).unwrap();
    assert_eq!((&attention["op"], &attention["result"]), (&4.into(), &"b3".into()));
}

#[test]
fn the_last_batch_is_printed_or_all() {
    let batches = |args: &[&str]| -> Vec<(u64, u64)> {
        let traced = json(&[&["--ids", "1,2,3,4,5,6", "--chunk", "3,2,1"], args].concat());
        let batches = traced["batches"].as_array().unwrap().iter();
        batches.map(|b| (b["first_position"].as_u64().unwrap(), b["rows"].as_u64().unwrap())).collect()
    };
    assert_eq!(batches(&[]), [(5, 1)]);
    assert_eq!(batches(&["--all"]), [(0, 3), (3, 2), (5, 1)]);
}

/// `fast` rounds activations, which a tolerance of zero does not allow.
#[test]
fn a_divergence_is_named_and_exits_with_one() {
    let args =
        ["trace", "tales-7m", "-p", "Once upon a time", "--against", "exact", "--tolerance", "0", "-q"];
    let output = run(&args, "");
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(said(&output), "error: the two runs diverge at op 2\n");
    let printed = String::from_utf8(output.stdout).unwrap();
    assert!(printed.contains("\nfirst divergence: op 2, b2 = b1 · blk.0.attn_q.weight"), "{printed}");
    assert!(printed.contains(" at position ") && printed.contains(" !"), "{printed}");
    let output = run(&[&args[..], &["--json", "--chunk", "1"]].concat(), "");
    assert_eq!(output.status.code(), Some(1));
    let traced: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(traced["first_divergence"]["op"], 2);
    // It stops at the batch that diverges.
    assert_eq!(traced["batches"].as_array().unwrap().len(), 1);
    assert_eq!(traced["batches"][0]["first_position"], 0);
    // The default tolerance allows for it.
    let printed = stdout(&args[..6], "");
    assert!(printed.contains("\nno divergence in 70 results; op "), "{printed}");
}

#[test]
fn bad_arguments_are_refused() {
    let with = |more: &[&str], code| refused(&[&["trace", "tales-7m", "-q"], more].concat(), code);
    with(&[], 2);
    with(&["--ids", ""], 2);
    with(&["--ids", "1,x"], 2);
    with(&["--ids", "1", "--prompt", "x"], 2);
    with(&["--ids", "1", "--chunk", "0"], 2);
    with(&["--ids", "1", "--chunk", "513"], 2);
    with(&["--ids", "1", "--tolerance", "1"], 2);
    with(&["--ids", "1", "--against", "exact", "--tolerance", "nan"], 2);
    with(&["--ids", "1", "--against", "exact", "--tolerance=-1"], 2);
    let unknown = with(&["--ids", "1", "--against", "tpu"], 2);
    assert!(unknown.contains("'tpu' is no device"), "{unknown}");
    assert!(unknown.contains("or exact, or fast"), "{unknown}");
    let beyond = with(&["--ids", "1,4096"], 1);
    assert_eq!(beyond, "error: token id 4096 is beyond the vocabulary of 4096\n");
    let ids = vec!["1"; 1025].join(",");
    let long = with(&["--ids", &ids], 1);
    assert_eq!(long, "error: a context of 1025 tokens is more than the 1024 the model was made for\n");
    assert!(refused(&["trace", "no-such-model", "--ids", "1"], 1).contains("no-such-model"));
}

/// Two runs that have nothing to differ in are allowed, with a note.
#[test]
fn equal_runs_are_noted() {
    let output = run(&["trace", "tales-7m", "--ids", "1,2", "--against", "cpu", "-q"], "");
    assert!(output.status.success());
    assert!(said(&output).contains("note: both runs are fast on cpu, so they should be equal"));
    let printed = String::from_utf8(output.stdout).unwrap();
    assert!(printed.contains("no divergence in 70 results"), "{printed}");
}

#[cfg(feature = "gpu")]
#[test]
fn a_gpu_is_compared_with_the_cpu() {
    let Some(adapter) = gyrus_gpu::adapters().into_iter().next() else {
        return gyrus_testkit::skip(gyrus_testkit::Need::Gpu, "no GPU was found");
    };
    let device = format!("gpu:{}", adapter.name);
    let mut command = gyrus();
    command.args(["trace", "tales-7m", "-p", "Once upon a time", "-q", "--chunk", "2,1"]);
    let output = command.args(["--device", &device, "--against", "cpu"]).output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    let printed = String::from_utf8(output.stdout).unwrap();
    // In a decode step the norm is part of the next kernel.
    assert!(printed.contains("hidden") && printed.contains("[fused into the kernel 'norm · "), "{printed}");
    assert!(printed.contains("no divergence in "), "{printed}");
}
