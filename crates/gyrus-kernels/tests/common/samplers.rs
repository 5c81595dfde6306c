//! Samplers and a text to draw after, for tests of distributions.

use std::collections::HashMap;
use std::sync::Arc;

use gyrus_kernels::grid::Noise;
use gyrus_kernels::{Breakers, Dry, DynamicTemperature, Mirostat, Sampler, Xtc};

/// A sampler to test.
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) sampler: Sampler,
}

/// What comes before the draw.
pub(crate) struct Past {
    pub(crate) logits: Vec<f32>,
    pub(crate) tokens: Vec<u32>,
}

/// Logits in which several tokens are likely, and tokens that repeat each other.
pub(crate) fn text() -> Past {
    let mut logits: Vec<f32> = Noise::new(21).gaussians(200).iter().map(|logit| 1.6 * logit).collect();
    // What would continue a repetition is likely.
    (logits[9], logits[33]) = (3.4, 3.1);
    Past { logits, tokens: vec![3, 14, 15, 9, 2, 6, 14, 15, 33, 2, 3, 14, 15] }
}

/// Every stage alone, in combinations, and in other orders.
pub(crate) fn cases() -> Vec<Case> {
    let base = Sampler { temperature: 1.0, seed: 77, ..Sampler::default() };
    let of = |change: fn(&mut Sampler)| {
        let mut sampler = base.clone();
        change(&mut sampler);
        sampler
    };
    let dry = |breakers: &[u32]| Dry {
        multiplier: 0.9,
        base: 1.5,
        allowed_length: 1,
        breakers: Arc::new(Breakers::new(breakers.iter().map(|token| vec![*token]))),
        ..Dry::default()
    };
    let llama_cpp = "penalties;dry;top_n_sigma;top_k;typ_p;top_p;min_p;xtc;temperature".parse().unwrap();
    let everything = Sampler {
        temperature: 1.3,
        top_k: 60,
        top_p: 0.9,
        min_p: 0.02,
        typical_p: 0.9,
        top_n_sigma: 2.0,
        presence_penalty: 0.3,
        xtc: Xtc { probability: 0.3, threshold: 0.06 },
        dry: dry(&[9]),
        logit_bias: vec![(7, 1.0)],
        ..base.clone()
    };
    let all = [
        ("nothing", base.clone()),
        ("temperature", of(|s| s.temperature = 0.6)),
        ("high temperature", of(|s| s.temperature = 2.5)),
        ("top-k", of(|s| s.top_k = 12)),
        ("top-p", of(|s| s.top_p = 0.7)),
        ("min-p", of(|s| s.min_p = 0.25)),
        ("repetition penalty", of(|s| s.repetition_penalty = 1.5)),
        ("presence penalty", of(|s| s.presence_penalty = 0.8)),
        ("frequency penalty", of(|s| s.frequency_penalty = 0.5)),
        ("penalties over a window", of(|s| (s.frequency_penalty, s.penalty_window) = (0.5, 4))),
        ("typical-p", of(|s| s.typical_p = 0.5)),
        ("top-n-sigma", of(|s| s.top_n_sigma = 1.2)),
        ("XTC", of(|s| s.xtc = Xtc { probability: 0.4, threshold: 0.025 })),
        ("XTC always", of(|s| s.xtc = Xtc { probability: 1.0, threshold: 0.015 })),
        ("DRY", Sampler { dry: dry(&[]), ..base.clone() }),
        ("DRY with breakers", Sampler { dry: dry(&[14]), ..base.clone() }),
        (
            "dynamic temperature",
            of(|s| s.dynamic_temperature = DynamicTemperature { range: 0.8, exponent: 1.3 }),
        ),
        ("mirostat", of(|s| s.mirostat = Some(Mirostat { tau: 3.0, eta: 0.1, mu: Some(5.0) }))),
        (
            "mirostat at a temperature",
            of(|s| {
                s.temperature = 0.7;
                s.mirostat = Some(Mirostat { tau: 3.0, eta: 0.1, mu: Some(4.0) });
            }),
        ),
        ("logit bias", of(|s| s.logit_bias = vec![(5, 2.0), (41, -1.5), (14, f32::NEG_INFINITY)])),
        ("top-k, then top-p and min-p", of(|s| (s.top_k, s.top_p, s.min_p) = (30, 0.9, 0.08))),
        ("everything, in the default order", everything.clone()),
        ("everything, in the order of llama.cpp", Sampler { order: llama_cpp, ..everything }),
        (
            "penalties after the cuts and a temperature",
            Sampler {
                temperature: 1.4,
                top_k: 25,
                repetition_penalty: 1.3,
                dry: dry(&[]),
                order: "temperature;top_k;penalties;dry".parse().unwrap(),
                ..base.clone()
            },
        ),
        (
            "min-p before top-p",
            Sampler { min_p: 0.1, top_p: 0.7, order: "min_p;top_p".parse().unwrap(), ..base.clone() },
        ),
        (
            "XTC before top-p and a temperature",
            Sampler {
                temperature: 0.8,
                top_p: 0.6,
                xtc: Xtc { probability: 0.5, threshold: 0.025 },
                order: "xtc;top_p;temperature".parse().unwrap(),
                ..base.clone()
            },
        ),
    ];
    all.into_iter().map(|(name, sampler)| Case { name, sampler }).collect()
}

/// Pearson's statistic of what was found, and its bound: four standard deviations above the mean. Rare tokens are
/// counted together; a token that the exact distribution does not have makes the statistic infinite.
pub(crate) fn chi_squared_bound(found: &HashMap<u32, u64>, exact: &[(u32, f64)], draws: u64) -> (f64, f64) {
    let draws = draws as f64;
    let (mut statistic, mut cells) = (0.0, 0);
    let (mut rare_found, mut rare_expected) = (0.0, 0.0);
    for (id, p) in exact {
        let (n, expected) = (found.get(id).copied().unwrap_or(0) as f64, p * draws);
        if expected < 10.0 {
            (rare_found, rare_expected) = (rare_found + n, rare_expected + expected);
        } else {
            statistic += (n - expected).powi(2) / expected;
            cells += 1;
        }
    }
    if rare_expected >= 5.0 {
        statistic += (rare_found - rare_expected).powi(2) / rare_expected;
        cells += 1;
    }
    if found.keys().any(|id| !exact.iter().any(|(other, p)| other == id && *p > 0.0)) {
        statistic = f64::INFINITY;
    }
    let freedom = f64::from((cells - 1).max(1));
    (statistic, freedom + 4.0 * (2.0 * freedom).sqrt() + 4.0)
}
