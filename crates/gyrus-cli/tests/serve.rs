//! Loads of many requests, and the memory of the KV cache that they share, with the built-in model.

mod common;

use common::{refused, run, said, stdout};
use gyrus_testkit::tempfile;
use serde_json::Value;

fn json(args: &[&str], more: &[&str]) -> Value {
    serde_json::from_str(&stdout(&[args, more].concat(), "")).unwrap()
}

const SERVE: [&str; 6] = ["bench", "tales-7m", "--serve", "-q", "-o", "json"];
/// Six requests of 80 tokens, of which 64 are common.
const SIX: [&str; 8] =
    ["--requests", "6", "--prompt-length", "80", "--output-length", "9", "--shared-prefix", "64"];

fn number(report: &Value, path: &str) -> f64 {
    report.pointer(path).and_then(Value::as_f64).unwrap_or_else(|| panic!("{path}: {report:#}"))
}

#[test]
fn a_load_adds_up_and_shares_its_prefix() {
    let folder = tempfile::tempdir().unwrap();
    let svg = folder.path().join("load.svg");
    for rate in ["one", "all", "200"] {
        let more = [&SIX[..], &["--rate", rate, "--svg", svg.to_str().unwrap()]].concat();
        let report = json(&SERVE, &more);
        for (path, value) in [
            ("/requests", 6.0),
            ("/finished", 6.0),
            ("/prompt_tokens", 480.0),
            ("/generated_tokens", 54.0),
            // The first computes the prefix, the others find it.
            ("/cached_tokens", 5.0 * 64.0),
            ("/hit_rate", 320.0 / 480.0),
            ("/preemptions", 0.0),
            ("/first_token_seconds/count", 6.0),
            ("/queue_seconds/count", 6.0),
            ("/between_tokens_seconds/count", 48.0),
        ] {
            assert_eq!(number(&report, path), value, "{rate}: {path}");
        }
        assert_eq!(report["failures"], serde_json::json!({}));
        let seconds = number(&report, "/seconds");
        assert!((number(&report, "/generated_tokens_per_second") * seconds - 54.0).abs() < 1e-6);
        assert!(number(&report, "/request_seconds/max") <= seconds);
        assert!(number(&report, "/queue_seconds/max") <= number(&report, "/first_token_seconds/max"));
        assert!(std::fs::read_to_string(&svg).unwrap().ends_with("</svg>\n"));
    }
    let report = json(&SERVE, &[&SIX[..], &["--no-prefix-cache"]].concat());
    assert_eq!((number(&report, "/cached_tokens"), number(&report, "/finished")), (0.0, 6.0));
    assert_eq!(report["load"]["prefix_cache"], false);
}

/// Blocks for fewer tokens than the load needs: sequences are preempted, and all finish.
#[test]
fn a_load_finishes_in_a_small_cache() {
    let doctor = |kv: &str| json(&["doctor", "--model", "tales-7m", "--json", "--kv-memory", kv], &[]);
    let one = number(&doctor("1MiB"), "/model/kv_cache/total_tokens");
    // Eight sequences grow from 64 to 192 tokens; the cache holds two or three of them.
    let bytes = ((1 << 20) as f64 * 512.0 / one).ceil() as u64;
    let load = ["--requests", "8", "--prompt-length", "64", "--output-length", "128", "--kv-memory"];
    let report = json(&SERVE, &[&load[..], &[&bytes.to_string()]].concat());
    assert!(number(&report, "/kv_cache/total_tokens") <= 544.0, "{report:#}");
    assert_eq!(number(&report, "/finished"), 8.0, "{report:#}");
    assert_eq!(number(&report, "/generated_tokens"), 8.0 * 128.0);
    assert!(number(&report, "/preemptions") > 0.0, "{report:#}");
}

#[test]
fn a_prompt_joins_running_sequences() {
    let args = ["--join", "300", "--running", "3", "--prompt-length", "20"];
    let report = json(&SERVE, &args);
    assert_eq!((&report["running"], &report["join_tokens"]), (&3.into(), &300.into()));
    // A gap in which the prompt is sent counts to neither: one for each sequence, and more on a busy machine.
    assert!(number(&report, "/before_seconds/count") >= 3.0 * 48.0, "{report:#}");
    assert!(number(&report, "/during_seconds/count") > 0.0, "{report:#}");
    assert!(number(&report, "/joined_seconds") > 0.0 && number(&report, "/alone_seconds") > 0.0);
}

#[test]
fn the_cache_is_described_where_a_model_is_loaded() {
    let args = ["run", "tales-7m", "Once", "-n", "1", "--ctx", "256", "--kv-memory", "4MiB"];
    let output = run(&args, "");
    let said = said(&output);
    assert!(said.contains(" · KV cache: ") && said.contains(", longest sequence 256 · loaded in"), "{said}");
    let text = stdout(&["doctor", "--model", "tales-7m"], "");
    assert!(text.contains("1024 tokens in total, longest sequence 1024"), "{text}");
    let report = json(&["doctor", "--model", "tales-7m", "--ctx", "64", "--json"], &[]);
    assert_eq!(number(&report, "/model/kv_cache/longest_sequence"), 64.0);
}

#[test]
fn more_than_sixteen_sequences_decode_at_once() {
    let args = ["bench", "tales-7m", "-p", "0", "-n", "4", "-s", "40", "-r", "1", "-q", "-o", "json"];
    let report = json(&args, &[]);
    assert_eq!(report[0]["test"], "tg4x40");
    let said = refused(&["bench", "tales-7m", "-s", "129"], 2);
    assert!(said.contains("129 is not in 1..=128"), "{said}");
}

#[test]
fn what_cannot_be_served_is_refused_with_its_flags() {
    for (more, code, part) in [
        (&["--kv-memory", "2XB"][..], 2, "'2XB' for '--kv-memory <SIZE>'"),
        (&["--kv-memory", "16"], 1, "--kv-memory sets the bytes"),
        (&["--prompt-length", "5000"], 2, "--prompt-length 5000"),
        (&["--prompt-length", "100", "--ctx", "128", "--output-length", "29"], 2, "a context of 129 tokens"),
        (&["--duration", "5"], 2, "--duration 5 needs requests per second, not --rate all"),
        (&["--join", "2000"], 1, "a context of"),
        (&["--join", "100", "--ctx", "64"], 2, "--join 100 with --prompt-length 512"),
        (&["--strict-prefixes", "--no-prefix-cache"], 2, "--strict-prefixes"),
    ] {
        let said = refused(&[&SERVE[..], more].concat(), code);
        assert!(said.contains(part), "{more:?}: {said}");
    }
}
