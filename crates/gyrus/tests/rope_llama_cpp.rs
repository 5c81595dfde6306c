//! Logits of models with every rope scaling in GGUF, compared with llama.cpp.

mod tiny_llama;

use gyrus::{Model, Options, Precision};
use gyrus_formats::gguf::Writer;
use gyrus_testkit::{npy, oracle, tempfile};

/// More positions than the original context of the models, fewer than their extended context.
const LENGTH: u32 = 60;

#[test]
fn logits_with_every_scaling_match_llama_cpp() {
    type Keys<'a> = &'a dyn Fn(&mut Writer<'_>);
    type Factors<'a> = &'a [(&'a str, Vec<f32>)];
    let eight = |f: fn(f32) -> f32| -> Vec<f32> { (0..8).map(|i| f(i as f32)).collect() };
    let scaled = |w: &mut Writer<'_>, kind: &str| {
        w.string("llama.rope.scaling.type", kind).f32("llama.rope.scaling.factor", 8.0);
        w.u32("llama.rope.scaling.original_context_length", 32);
    };
    let long =
        [("rope_factors_short.weight", eight(|_| 1.0)), ("rope_factors_long.weight", eight(|i| 1.0 + i))];
    let cases: [(&str, Keys<'_>, Factors<'_>); 7] = [
        ("plain", &|_| {}, &[]),
        ("base", &|w| _ = w.f32("llama.rope.freq_base", 500.0), &[]),
        ("linear", &|w| scaled(w, "linear"), &[]),
        ("yarn", &|w| scaled(w, "yarn"), &[]),
        (
            "yarn with a factor",
            &|w| {
                scaled(w, "yarn");
                w.f32("llama.rope.scaling.attn_factor", 0.7);
            },
            &[],
        ),
        ("factors", &|_| {}, &[("rope_freqs.weight", eight(|i| 1.0 + i / 2.0))]),
        (
            "longrope",
            &|w| {
                w.string("llama.rope.scaling.type", "longrope").f32("llama.rope.scaling.attn_factor", 1.3);
                w.u32("llama.rope.scaling.original_context_length", 32);
            },
            &long,
        ),
    ];
    let folder = tempfile::tempdir().unwrap();
    let ids: Vec<u32> = (0..LENGTH).map(|i| (i * 29 + 7) % tiny_llama::VOCAB as u32).collect();
    let mut plain = Vec::new();
    for (name, keys, factors) in cases {
        let (model, logits) = (folder.path().join("model.gguf"), folder.path().join("logits.npy"));
        std::fs::write(&model, tiny_llama::file(16, keys, factors)).unwrap();
        let mut arguments =
            vec!["logits".to_owned(), model.display().to_string(), logits.display().to_string()];
        arguments.extend(ids.iter().map(u32::to_string));
        if oracle("llama_cpp.py", &arguments).is_none() {
            return;
        }
        let theirs = npy::read_f32(&logits);
        let options = Options { precision: Precision::Exact, ..Options::default() };
        let mut ours = Vec::new();
        let mut session = Model::open(&model, &options).unwrap().session();
        session.score(&ids, |_, row| ours.extend_from_slice(row)).unwrap();
        let apart = |a: &[f32], b: &[f32]| {
            a.iter().zip(b).map(|(a, b)| f64::from((a - b).abs())).sum::<f64>() / a.len() as f64
        };
        let off = apart(&ours, &theirs.values);
        println!("{name}: logits differ by {off:.5} on average");
        // Random weights amplify roundings.
        assert!(off < 0.01, "{name}: {off}");
        if name == "plain" {
            plain = ours;
        } else {
            let unscaled = apart(&ours, &plain);
            assert!(unscaled > 0.1, "{name}: the scaling has no effect on the logits: {unscaled}");
        }
    }
}
