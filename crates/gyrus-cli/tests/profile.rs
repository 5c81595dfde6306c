//! Looking into kernels from the command line.

mod common;

use std::process::Command;

use common::refused;

fn gyrus(args: &[&str]) -> Command {
    let mut command = common::gyrus();
    command.args(args);
    command
}

#[test]
fn the_cpu_cannot_be_profiled_or_tuned() {
    for command in ["profile", "tune"] {
        let said = refused(&[command, "tales-7m", "-q"], 2);
        assert_eq!(
            said,
            "error: only GPU kernels can be profiled and tuned, and the model runs on the CPU; try --device gpu or \
             gpu:NAME\n"
        );
        refused(&[command, "tales-7m", "--synthetic", "llama-3.2-1b:q4_0"], 2);
        let said = refused(&[command, "no-such-model", "-q", "--device", "auto"], 1);
        assert!(said.contains("no-such-model"), "{said}");
        let said = refused(&[command, "--synthetic", "gpt:q4_0", "-q", "--device", "auto"], 2);
        assert!(said.contains("'gpt' is neither a known shape"), "{said}");
    }
    refused(&["profile", "tales-7m", "-d", "many"], 2);
    refused(&["profile", "tales-7m", "-o", "xml"], 2);
    let said = refused(&["profile", "tales-7m", "-p", "0", "-s", "0", "--device", "auto"], 2);
    assert!(said.contains("nothing to measure: -s and -p are both 0"), "{said}");
}

#[cfg(feature = "gpu")]
mod on_a_gpu {
    use std::collections::BTreeSet;
    use std::process::Output;

    use gyrus_testkit::tempfile;
    use serde_json::Value;

    use super::{gyrus, refused};

    fn stdout(output: Output) -> String {
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// The device that tests are run on, as an option.
    fn device() -> Option<String> {
        let adapters = gyrus_gpu::adapters();
        if adapters.is_empty() {
            gyrus_testkit::skip(gyrus_testkit::Need::Gpu, "no GPU was found");
        }
        adapters.first().map(|adapter| format!("gpu:{}", adapter.name))
    }

    /// The paths of all values, with those of a list's elements as one.
    fn keys(value: &Value, path: &str, into: &mut BTreeSet<String>) {
        match value {
            Value::Object(fields) => {
                fields.iter().for_each(|(name, v)| keys(v, &format!("{path}.{name}"), into))
            }
            Value::Array(items) => items.iter().for_each(|v| keys(v, &format!("{path}[]"), into)),
            Value::Null => panic!("{path} is no number"),
            _ => drop(into.insert(path.trim_start_matches('.').to_owned())),
        }
    }

    /// Few kinds of matrices, so that few forms are tried.
    const SHAPE: &str = "dim=64,layers=2,heads=2,kv=1,ffn=64,vocab=128:q8_0";

    #[test]
    fn a_profile_is_numbers_and_a_picture() {
        let Some(device) = device() else { return };
        let folder = tempfile::tempdir().unwrap();
        let svg = folder.path().join("profile.svg");
        let mut command =
            gyrus(&["profile", "--synthetic", SHAPE, "--ctx", "256", "-p", "20", "-d", "100", "-q"]);
        command.args(["-s", "1,3", "--device", &device, "-o", "json", "--picture"]).arg(&svg);
        let json: Value = serde_json::from_str(&stdout(command.output().unwrap())).unwrap();
        let mut all = BTreeSet::new();
        keys(&json, "", &mut all);
        insta::assert_snapshot!(all.into_iter().collect::<Vec<_>>().join("\n"));

        assert_eq!(json["model"], SHAPE);
        let batches = json["batches"].as_array().unwrap();
        let names: Vec<&Value> = batches.iter().map(|batch| &batch["name"]).collect();
        let parallel = "decode of 3 sequences at depth 100";
        assert_eq!(names, ["decode at depth 100", parallel, "prefill of 20 tokens"]);
        let number = |value: &Value| value.as_f64().unwrap();
        for (batch, rows) in batches.iter().zip([1.0, 3.0, 20.0]) {
            let kernels = batch["kernels"].as_array().unwrap();
            let sum = |name: &str| kernels.iter().map(|kernel| number(&kernel[name])).sum::<f64>();
            assert_eq!(number(&batch["dispatches"]), sum("count"));
            assert_eq!(number(&batch["bytes"]), sum("bytes"));
            assert!((number(&batch["parts_microseconds"]) / sum("microseconds") - 1.0).abs() < 1e-9);
            let speed = rows / number(&batch["microseconds"]) * 1e6;
            assert!((number(&batch["tokens_per_second"]) / speed - 1.0).abs() < 1e-9);
            assert!(kernels.iter().all(|kernel| number(&kernel["microseconds"]) > 0.0), "{kernels:?}");
            assert!(number(&batch["memory_gigabytes_per_second"]) > 0.0);
            for kernel in kernels {
                assert!(number(&kernel["share_of_bandwidth"]) > 0.0, "{kernel}");
                assert!(["memory", "cache"].contains(&kernel["limit"].as_str().unwrap()), "{kernel}");
            }
            // Activations are in a cache.
            assert_eq!(kernels[0]["limit"], "cache", "{kernels:?}");
            // At least the weights of the two layers: 128, 64, 128 and 64 rows of 64, 34 bytes for 32 of them.
            assert!(number(&batch["bytes"]) > 2.0 * 384.0 * 68.0, "{batch}");
        }

        let picture = std::fs::read_to_string(&svg).unwrap();
        assert!(picture.starts_with("<svg xmlns=") && picture.ends_with("</svg>\n"));
        well_formed(&picture);
        let kernels: usize = batches.iter().map(|batch| batch["kernels"].as_array().unwrap().len()).sum();
        assert_eq!(picture.matches("class=\"pale\"").count(), kernels);
        assert!(!picture.contains("NaN") && !picture.contains("inf"));
    }

    /// Rows of `gyrus bench` on a GPU have the share of time in which it is idle, if it has timestamps.
    #[test]
    fn bench_rows_have_the_share_of_idle_time() {
        let Some(device) = device() else { return };
        let has_clock = gyrus_gpu::adapters()[0].timestamps;
        let bench = |output: &str| {
            let mut command =
                gyrus(&["bench", "--synthetic", SHAPE, "--ctx", "64", "-p", "20", "-n", "6", "-q"]);
            command.args(["-s", "1,2", "-r", "1", "--no-warmup", "--device", &device, "-o", output]);
            stdout(command.output().unwrap())
        };
        let json: Value = serde_json::from_str(&bench("json")).unwrap();
        let tests: Vec<&str> = json.as_array().unwrap().iter().map(|m| m["test"].as_str().unwrap()).collect();
        assert_eq!(tests, ["pp20", "tg6", "tg6x2"]);
        let share = |text: &str| -> Option<f64> { text.parse().ok() };
        for test in json.as_array().unwrap() {
            let idle = test["gpu_idle"].as_f64();
            assert_eq!(idle.is_some(), has_clock, "{test}");
            assert!(idle.is_none_or(|idle| (0.0..1.0).contains(&idle)), "{test}");
        }
        let csv = bench("csv");
        for line in csv.lines().skip(1) {
            let idle = share(line.rsplit(',').next().unwrap());
            assert_eq!(idle.is_some_and(|idle| (0.0..1.0).contains(&idle)), has_clock, "{line}");
        }
        let table = bench("md");
        assert!(table.lines().next().unwrap().ends_with("| tokens/s | GPU idle |"), "{table}");
        for line in table.lines().skip(2) {
            let idle = line.trim_end_matches(" |").rsplit("| ").next().unwrap();
            let idle = idle.strip_suffix(" %").and_then(share);
            assert_eq!(idle.is_some_and(|idle| (0.0..100.0).contains(&idle)), has_clock, "{line}");
        }
    }

    /// A prompt is computed in chunks of 512 rows, and measured as the sum of them.
    #[test]
    fn a_long_prompt_is_the_sum_of_its_chunks() {
        let Some(device) = device() else { return };
        let mut command = gyrus(&["profile", "--synthetic", SHAPE, "--ctx", "1024", "-s", "0", "-q"]);
        command.args(["-p", "512,513,1024", "--device", &device, "-o", "json"]);
        let json: Value = serde_json::from_str(&stdout(command.output().unwrap())).unwrap();
        let [one, more, two] = &json["batches"].as_array().unwrap()[..] else { panic!("{json}") };
        assert_eq!(two["name"], "prefill of 1024 tokens");
        assert_eq!((&more["rows"], &two["rows"]), (&513.into(), &1024.into()));
        let number = |batch: &Value, name: &str| batch[name].as_f64().unwrap();
        // Each chunk embeds its tokens; only the last one computes logits.
        let count = |batch: &Value, name: &str| {
            let kernels = batch["kernels"].as_array().unwrap();
            kernels.iter().find(|k| k["name"] == name).map_or(0, |k| k["count"].as_u64().unwrap())
        };
        for (batch, chunks) in [(one, 1), (more, 2), (two, 2)] {
            assert_eq!((count(batch, "embed"), count(batch, "gather")), (chunks, 1), "{batch}");
        }
        assert!(number(two, "flops") > 1.9 * number(one, "flops"), "{two}");
        assert!(number(more, "flops") > number(one, "flops"), "{more}");
        for batch in [one, more, two] {
            let kernels = batch["kernels"].as_array().unwrap();
            let count: f64 = kernels.iter().map(|kernel| number(kernel, "count")).sum();
            assert_eq!(number(batch, "dispatches"), count);
        }
    }

    /// Elements are closed in the order they were opened.
    fn well_formed(svg: &str) {
        let mut open: Vec<&str> = Vec::new();
        for tag in svg.split('<').skip(1) {
            let (tag, _) = tag.split_once('>').unwrap_or_else(|| panic!("'{tag}' does not end"));
            assert_eq!(tag.matches('"').count() % 2, 0, "{tag}");
            match tag.strip_prefix('/') {
                Some(name) => assert_eq!(open.pop(), Some(name)),
                None if tag.ends_with('/') => {}
                None => open.extend(tag.split_whitespace().next()),
            }
        }
        assert_eq!(open, [""; 0]);
    }

    #[test]
    fn batches_beyond_the_context_are_refused() {
        let Some(device) = device() else { return };
        let model = ["profile", "--synthetic", SHAPE, "--ctx", "256", "--device", &device, "-q"];
        for (more, said) in [
            (&["-d", "256"][..], "error: decode at depth 256: does not fit into the context of 256 tokens\n"),
            (&["-d", "18446744073709551615"], "tokens\n"),
            (
                &["-s", "0", "-p", "257"],
                "error: prefill of 257 tokens: does not fit into the context of 256 tokens\n",
            ),
        ] {
            let line = refused(&[&model[..], more].concat(), 1);
            assert!(line.ends_with(said), "{line}");
        }
    }

    #[test]
    fn the_fastest_variants_are_printed_and_saved() {
        let Some(device) = device() else { return };
        let cache = tempfile::tempdir().unwrap();
        let pipelines = cache.path().join("pipelines");
        let tune = |shape: &str, output: &str| {
            let mut command =
                gyrus(&["tune", "--synthetic", shape, "--ctx", "64", "--device", &device, "-o", output]);
            stdout(command.env("GYRUS_CACHE", cache.path()).output().unwrap())
        };
        let json: Value = serde_json::from_str(&tune(SHAPE, "json")).unwrap();
        assert_eq!(json["kept"], pipelines.to_str().unwrap());
        let kernels = json["kernels"].as_array().unwrap();
        let names: BTreeSet<&str> = kernels.iter().map(|kernel| kernel["name"].as_str().unwrap()).collect();
        let expected = ["matvec Q8_0 128 64 gated", "matvec Q8_0 128 64 plain", "matvec Q8_0 64 64 plain"];
        assert_eq!(names, BTreeSet::from(expected));
        for kernel in kernels {
            let number = |name: &str| kernel[name].as_f64().unwrap();
            assert!(number("trials") > 1.0, "{kernel}");
            assert!(number("best_microseconds") > 0.0 && number("rule_microseconds") > 0.0, "{kernel}");
            let gain = 1.0 - number("best_microseconds") / number("rule_microseconds");
            assert!((number("gain") - gain).abs() < 1e-9, "{kernel}");
        }
        let tunings = || {
            let files = std::fs::read_dir(&pipelines).unwrap().map(|file| file.unwrap().path());
            files.filter(|path| path.extension().is_some_and(|e| e == "tuning")).collect::<Vec<_>>()
        };
        let [saved] = &tunings()[..] else { panic!("one file is saved") };
        assert_eq!(std::fs::read_to_string(saved).unwrap().lines().count(), 1 + kernels.len());

        // f16 weights have no variants, and the saved tuning stays.
        let text = tune("dim=64,layers=1,heads=2,kv=1,ffn=64,vocab=128:f16", "md");
        assert!(text.contains("no kernel of this model has variants to choose from"), "{text}");
        assert_eq!(std::fs::read_to_string(saved).unwrap().lines().count(), 1 + kernels.len());
    }
}
