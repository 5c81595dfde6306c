//! Small models against f32 logits of transformers.

mod reference;

use gyrus::{Model, Options, Precision};
use gyrus_testkit::data;
use reference::{distance, logits};

/// Compares the logits of all positions with the reference.
fn compare(folder: &str, tolerance: f32) {
    let Some(path) = data(folder) else { return };
    let options = Options { precision: Precision::Exact, ..Options::default() };
    let model = Model::open(&path, &options).unwrap();
    let (_, ids, expected) = reference::read(&path);
    let worst = distance(&logits(&model, &ids), &expected);
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
    ernie4_5 3e-5
    gemma 3e-5
    gemma2 3e-5
    gemma3 3e-5
    gemma4 1e-4
    gemma4moe 1e-4
    gpt_oss 1e-4
    granite 3e-5
    llama 3e-5
    mistral 3e-5
    mixtral 3e-5
    olmo2 3e-5
    phi3 5e-5
    qwen2 5e-5
    qwen3 3e-5
    qwen35 5e-5
    qwen35moe 1e-4
    qwen3moe 3e-5
    qwen3next 5e-5
    smollm3 1e-4
}
