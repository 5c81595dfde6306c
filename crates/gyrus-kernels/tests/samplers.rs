//! Every sampler and combinations of them against the exact distribution, by chi-squared.

#[path = "common/samplers.rs"]
mod samplers;

use std::collections::HashMap;

use gyrus_kernels::{Counts, Past, Sampler, SamplerScratch};
use samplers::{Case, Past as Text, cases, chi_squared_bound};

const DRAWS: u64 = 10_000;

/// Draws many tokens after the same text.
fn draw(sampler: &Sampler, logits: &[f32], past: Past<'_>) -> HashMap<u32, u64> {
    let mut scratch = SamplerScratch::default();
    let mut found = HashMap::new();
    for step in 0..DRAWS {
        *found.entry(sampler.sample(logits, past, step, &mut scratch).id).or_insert(0) += 1;
    }
    found
}

#[test]
fn draws_have_the_exact_distribution() {
    let Text { logits, tokens } = samplers::text();
    for Case { name, sampler } in cases() {
        let mut counts = Counts::new();
        sampler.count(&tokens, &mut counts);
        let mu = sampler.mirostat.map_or(f32::NAN, |mirostat| mirostat.mu());
        let past = Past { counts: &counts, tokens: &tokens, mu };
        let (exact, close) = sampler.exact_after(&logits, past);
        assert!(!close, "{name}: rounding decides a cut");
        let found = draw(&sampler, &logits, past);
        let (statistic, bound) = chi_squared_bound(&found, &exact, DRAWS);
        assert!(statistic < bound, "{name}: {statistic} of at most {bound}");
    }
}

/// The cases differ from each other, so that a stage that did nothing would be seen.
#[test]
fn each_stage_changes_the_distribution() {
    let Text { logits, tokens } = samplers::text();
    let of = |sampler: &Sampler| {
        let mut counts = Counts::new();
        sampler.count(&tokens, &mut counts);
        let mu = sampler.mirostat.map_or(f32::NAN, |mirostat| mirostat.mu());
        let mut all = sampler.exact_after(&logits, Past { counts: &counts, tokens: &tokens, mu }).0;
        all.sort_by_key(|(id, _)| *id);
        all
    };
    let all: Vec<_> = cases().into_iter().map(|case| (of(&case.sampler), case.name)).collect();
    for (i, (a, name)) in all.iter().enumerate() {
        for (b, other) in &all[i + 1..] {
            let same =
                a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.0 == b.0 && (a.1 - b.1).abs() < 1e-4);
            assert!(!same, "{name} is as {other}");
        }
    }
}
