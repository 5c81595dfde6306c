//! Samplers and log-probabilities compared with llama.cpp.

mod tiny_llama;

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
    let mirostat = Some(Mirostat { tau: 2.5, eta: 0.1, mu: None });
    let dynamic = DynamicTemperature { range: 0.7, exponent: 1.4 };
    vec![
        (Sampler { temperature: 0.7, ..base.clone() }, json!([["temp", 0.7]])),
        (
            Sampler { temperature: 1.2, dynamic_temperature: dynamic, ..base.clone() },
            json!([["temp_ext", 1.2, 0.7, 1.4]]),
        ),
        (Sampler { top_k: 9, ..base.clone() }, json!([["top_k", 9]])),
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
    let (model, logits) = (folder.path().join("model.gguf"), folder.path().join("logits.npy"));
    std::fs::write(&model, tiny_llama::file(16, |_| {}, &[])).unwrap();
    let options = Options { precision: Precision::Exact, ..Options::default() };
    let prompt: Vec<u32> = (0..20).map(|i| (i * 29 + 7) % tiny_llama::VOCAB as u32).collect();
    let mut session = Model::open(&model, &options).unwrap().session();
    let sampler = Sampler { temperature: 1.0, seed: 3, ..Sampler::default() };
    let request = Request::ids(prompt.clone()).sampler(sampler).max_tokens(30).ignore_end(true);
    let mut generation = session.generate(request.top_logprobs(5)).unwrap();
    let mut found = Vec::new();
    while let Some(event) = generation.next().unwrap() {
        if let Event::Token { id, logprob, top, .. } = event {
            found.push((id, logprob.unwrap(), top.to_vec()));
        }
    }
    drop(generation);
    let mut arguments = vec!["logits".to_owned(), model.display().to_string(), logits.display().to_string()];
    arguments.extend(session.tokens().iter().map(u32::to_string));
    if oracle("llama_cpp.py", &arguments).is_none() {
        return;
    }
    let theirs = npy::read_f32(&logits);
    assert_eq!(found.len(), 30);
    for (position, (id, logprob, top)) in (prompt.len()..).zip(&found) {
        let row = &theirs.values[(position - 1) * tiny_llama::VOCAB..position * tiny_llama::VOCAB];
        let sum: f64 = row.iter().map(|logit| f64::from(*logit).exp()).sum();
        let of = |id: u32| f64::from(row[id as usize]) - sum.ln();
        for (id, logprob) in top.iter().chain([&(*id, *logprob)]) {
            let apart = (f64::from(*logprob) - of(*id)).abs();
            assert!(apart < 5e-3, "position {position}, token {id}: {apart}");
        }
        let most = (0..row.len() as u32).map(of).fold(f64::MIN, f64::max);
        assert!((f64::from(top[0].1) - most).abs() < 5e-3, "position {position}");
    }
}
