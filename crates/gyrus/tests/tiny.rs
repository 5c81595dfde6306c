//! Models of about a megabyte against f32 logits of transformers.

use gyrus::{Model, Options, Precision};
use gyrus_testkit::{data, npy};

fn exact() -> Options {
    Options { precision: Precision::Exact, ..Options::default() }
}

/// Compares the logits of all positions with the reference.
fn compare(folder: &str, tolerance: f32) {
    let Some(path) = data(folder) else { return };
    let model = Model::open(&path, &exact()).unwrap();
    let text = std::fs::read_to_string(path.join("ref.json")).unwrap();
    let reference: serde_json::Value = serde_json::from_str(&text).unwrap();
    let ids: Vec<u32> = serde_json::from_value(reference["ids"].clone()).unwrap();
    let logits = npy::read_f32(&path.join("ref_logits_f32.npy"));
    let vocab = model.plan().vocab;
    assert_eq!(logits.shape, [ids.len(), vocab]);
    let mut worst = 0f32;
    let mut session = model.session();
    session
        .score(&ids, |position, row| {
            for (a, b) in row.iter().zip(&logits.values[position * vocab..]) {
                worst = worst.max((a - b).abs());
            }
        })
        .unwrap();
    println!("{folder}: worst logit differs by {worst:e}");
    assert!(worst < tolerance, "{folder}: {worst}");
}

/// One test for each folder of `tiny`: all logits of 80 positions within this distance of transformers' in f32.
macro_rules! matches_transformers {
    ($($name:ident $tolerance:literal)*) => {$(
        #[test]
        fn $name() {
            compare(concat!("tiny/", stringify!($name)), $tolerance);
        }
    )*};
}

matches_transformers! {
    gemma 3e-5
    gemma2 3e-5
    gemma3 3e-5
    gemma4 1e-4
    granite 3e-5
    llama 3e-5
    mistral 3e-5
    olmo2 3e-5
    phi3 5e-5
    qwen2 5e-5
    qwen3 3e-5
    smollm3 1e-4
}
