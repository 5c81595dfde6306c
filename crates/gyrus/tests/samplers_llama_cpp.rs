//! Samplers and log-probabilities compared with llama.cpp.

mod tiny_llama;

use std::path::Path;
use std::sync::Arc;

use gyrus::{
    Breakers, Dry, DynamicTemperature, Event, Mirostat, Model, Options, Precision, Request, Sampler, Xtc,
};
use gyrus_kernels::{Counts, Past};
use gyrus_testkit::{Rng, npy, oracle, tempfile};
use serde_json::{Value, json};

/// Tokens that repeat each other.
const TOKENS: [u32; 14] = [9, 3, 14, 15, 9, 2, 6, 14, 15, 33, 2, 3, 14, 15];

/// Samplers, and the stages of llama.cpp that mean the same.
fn cases() -> Vec<(Sampler, Value)> {
    let base = Sampler { temperature: 1.0, ..Sampler::default() };
    let dry = |breakers: &[Vec<u32>]| Dry {
        multiplier: 0.9,
        base: 1.5,
        allowed_length: 1,
        window: 64,
        breakers: Arc::new(Breakers::new(breakers.to_vec())),
    };
    let dried = |breakers: &[Vec<u32>]| {
        (Sampler { dry: dry(breakers), ..base.clone() }, json!([["dry", 0.9, 1.5, 1, 64, breakers]]))
    };
    let penalised = |window: u32, repetition: f32, frequency: f32, presence: f32| {
        let sampler = Sampler {
            repetition_penalty: repetition,
            frequency_penalty: frequency,
            presence_penalty: presence,
            penalty_window: window,
            ..base.clone()
        };
        (sampler, json!([["penalties", window, repetition, frequency, presence]]))
    };
    let mirostat = Some(Mirostat { tau: 2.5, eta: 0.1, mu: None });
    let dynamic = DynamicTemperature { range: 0.7, exponent: 1.4 };
    vec![
        (Sampler { temperature: 0.7, ..base.clone() }, json!([["temp", 0.7]])),
        (
            Sampler { temperature: 1.2, dynamic_temperature: dynamic, ..base.clone() },
            json!([["temp_ext", 1.2, 0.7, 1.4]]),
        ),
        (Sampler { top_k: 9, ..base.clone() }, json!([["top_k", 9]])),
        penalised(64, 1.3, 0.0, 0.0),
        penalised(64, 1.0, 0.25, 0.0),
        penalised(64, 1.0, 0.0, 0.4),
        penalised(5, 1.3, 0.25, 0.4),
        penalised(1, 0.7, -0.5, 0.4),
        (Sampler { top_p: 0.7, ..base.clone() }, json!([["top_p", 0.7, 0]])),
        (Sampler { min_p: 0.1, ..base.clone() }, json!([["min_p", 0.1, 0]])),
        (Sampler { typical_p: 0.5, ..base.clone() }, json!([["typical", 0.5, 0]])),
        (Sampler { typical_p: 0.9, ..base.clone() }, json!([["typical", 0.9, 0]])),
        (Sampler { top_n_sigma: 1.3, ..base.clone() }, json!([["top_n_sigma", 1.3]])),
        (
            Sampler { xtc: Xtc { probability: 1.0, threshold: 0.03 }, ..base.clone() },
            json!([["xtc", 1.0, 0.03, 0, 1]]),
        ),
        (Sampler { mirostat, ..base.clone() }, json!([["mirostat_v2", 1, 2.5, 0.1]])),
        (
            Sampler { logit_bias: vec![(4, 1.5), (14, -2.0), (77, f32::NEG_INFINITY)], ..base.clone() },
            json!([["logit_bias", [4, 1.5], [14, -2.0], [77, -1e38]]]),
        ),
        dried(&[]),
        dried(&[vec![9]]),
        dried(&[vec![3]]),
        dried(&[vec![33, 2], vec![6]]),
        dried(&[vec![2, 3]]),
        // Fewer than top-n-sigma leaves: the library keeps what that drops, with a probability of 0, whose logarithm spoils
        // the entropy of typical-p.
        (
            Sampler {
                temperature: 0.8,
                repetition_penalty: 1.2,
                frequency_penalty: 0.1,
                penalty_window: 8,
                top_k: 9,
                typical_p: 0.95,
                top_p: 0.9,
                min_p: 0.02,
                top_n_sigma: 2.5,
                xtc: Xtc { probability: 1.0, threshold: 0.08 },
                dry: dry(&[]),
                order: "penalties;dry;top_n_sigma;top_k;typ_p;top_p;min_p;xtc;temperature".parse().unwrap(),
                ..base.clone()
            },
            json!([
                ["penalties", 8, 1.2, 0.1, 0.0],
                ["dry", 0.9, 1.5, 1, 64, []],
                ["top_n_sigma", 2.5],
                ["top_k", 9],
                ["typical", 0.95, 0],
                ["top_p", 0.9, 0],
                ["min_p", 0.02, 0],
                ["xtc", 1.0, 0.08, 0, 1],
                ["temp", 0.8]
            ]),
        ),
    ]
}

/// Every sampler keeps the tokens that llama.cpp's keeps, with the same probabilities.
#[test]
fn samplers_keep_what_those_of_llama_cpp_keep() {
    let folder = tempfile::tempdir().unwrap();
    for seed in 0..5 {
        let mut random = Rng::new(seed);
        let logits: Vec<f32> =
            (0..300).map(|_| (1.0 + seed as f64 / 2.0) * random.gaussian()).map(|l| l as f32).collect();
        let stages: Vec<Value> = cases().into_iter().map(|(_, stages)| json!({ "stages": stages })).collect();
        let given = json!({ "logits": logits, "tokens": TOKENS, "cases": stages });
        let paths = ["cases.json", "results.json"].map(|name| folder.path().join(name));
        std::fs::write(&paths[0], given.to_string()).unwrap();
        if oracle("samplers.py", &paths).is_none() {
            return;
        }
        let theirs: Vec<Vec<(u32, f64)>> =
            serde_json::from_slice(&std::fs::read(&paths[1]).unwrap()).unwrap();
        for ((sampler, stages), mut theirs) in cases().into_iter().zip(theirs) {
            let mut counts = Counts::new();
            sampler.count(&TOKENS, &mut counts);
            let mu = sampler.mirostat.map_or(f32::NAN, |mirostat| mirostat.mu());
            let (mut ours, close) =
                sampler.exact_after(&logits, Past { counts: &counts, tokens: &TOKENS, mu });
            // Tokens whose probability is 0 may or may not be counted as kept.
            theirs.retain(|(_, p)| *p > 1e-30);
            ours.retain(|(_, p)| *p > 1e-30);
            theirs.sort_by_key(|(id, _)| *id);
            ours.sort_by_key(|(id, _)| *id);
            if close {
                continue;
            }
            let ids = |all: &[(u32, f64)]| all.iter().map(|(id, _)| *id).collect::<Vec<_>>();
            assert_eq!(ids(&ours), ids(&theirs), "{stages} of seed {seed}");
            for ((id, ours), (_, theirs)) in ours.iter().zip(&theirs) {
                assert!((ours - theirs).abs() < 1e-4, "{stages} of seed {seed}: token {id}: {ours} {theirs}");
            }
        }
    }
}

/// Log-probabilities of generated tokens and of the most likely ones in `exact`, on a file of F32.
#[test]
fn log_probabilities_match_llama_cpp() {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("model.gguf");
    std::fs::write(&model, tiny_llama::file(16, |_| {}, &[])).unwrap();
    compare_logprobs(&model, |_| (0..20).map(|i| (i * 29 + 7) % tiny_llama::VOCAB as u32).collect(), 1);
}

/// The same of SmolLM2, whose values are written as F32 first.
#[test]
fn log_probabilities_of_smollm2_match_llama_cpp() {
    const PROMPTS: [&str; 3] = [
        "The capital of France is Paris, and the capital of Germany is",
        "def fibonacci(n):\n    \"\"\"The n-th Fibonacci number.\"\"\"\n",
        "Once upon a time, in a land far away, there lived a young girl named",
    ];
    let Some(quantised) = gyrus_testkit::model("SmolLM2-135M-Instruct.Q4_1.gguf") else { return };
    // In the repository's folder for builds: it has half a gigabyte.
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let model = folder.path().join("f32.gguf");
    if oracle("dequantize.py", &[&quantised, &model]).is_none() {
        return;
    }
    let of = |model: &Model, n: usize| model.prompt_tokens(&Request::text(PROMPTS[n])).unwrap();
    for n in 0..PROMPTS.len() {
        compare_logprobs(&model, |model| of(model, n), n as u64);
    }
}

/// Generates, and compares the log-probabilities with those of llama.cpp's logits behind the same tokens.
fn compare_logprobs(path: &Path, prompt: impl Fn(&Model) -> Vec<u32>, seed: u64) {
    let options = Options { precision: Precision::Exact, context: Some(96), ..Options::default() };
    let model = Model::open(path, &options).unwrap();
    let (prompt, vocab) = (prompt(&model), model.plan().vocab);
    let mut session = model.session();
    let sampler = Sampler { temperature: 1.0, seed, ..Sampler::default() };
    let request = Request::ids(prompt.clone()).sampler(sampler).max_tokens(30).ignore_end(true);
    let mut generation = session.generate(request.top_logprobs(5)).unwrap();
    let mut found = Vec::new();
    while let Some(event) = generation.next().unwrap() {
        if let Event::Token { id, logprob, top, .. } = event {
            found.push((id, logprob.unwrap(), top.to_vec()));
        }
    }
    drop(generation);
    let folder = tempfile::tempdir().unwrap();
    let logits = folder.path().join("logits.npy");
    let mut arguments = vec!["logits".to_owned(), path.display().to_string(), logits.display().to_string()];
    arguments.extend(session.tokens().iter().map(u32::to_string));
    if oracle("llama_cpp.py", &arguments).is_none() {
        return;
    }
    let theirs = npy::read_f32(&logits);
    assert_eq!(found.len(), 30);
    let mut furthest = 0f64;
    for (position, (id, logprob, top)) in (prompt.len()..).zip(&found) {
        let row = &theirs.values[(position - 1) * vocab..position * vocab];
        let largest = row.iter().fold(f64::MIN, |most, logit| most.max(f64::from(*logit)));
        let sum: f64 = row.iter().map(|logit| (f64::from(*logit) - largest).exp()).sum();
        let of = |id: u32| f64::from(row[id as usize]) - largest - sum.ln();
        for (id, logprob) in top.iter().chain([&(*id, *logprob)]) {
            let apart = (f64::from(*logprob) - of(*id)).abs();
            assert!(apart < 5e-3, "position {position}, token {id}: {apart}");
            furthest = furthest.max(apart);
        }
        let most = (0..row.len() as u32).map(of).fold(f64::MIN, f64::max);
        assert!((f64::from(top[0].1) - most).abs() < 5e-3, "position {position}");
    }
    println!("{}: at most {furthest:.1e} apart", path.display());
}
