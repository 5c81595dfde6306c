//! Batch invariance: the logits of a token depend on its sequence alone, bit for bit. Chunk size and thread count do
//! not change them.

use gyrus::{Event, Model, Options, Precision, Request};
use gyrus_testkit::data;

fn tales(options: Options) -> Option<Model> {
    Some(Model::open(&data("tales/tales-7m-q8_0.gguf")?, &options).unwrap())
}

/// Prefills `ids` and decodes some tokens greedily. Returns ids and the bits of their log-probabilities.
fn story(model: &Model, ids: &[u32], steps: usize) -> Vec<(u32, u32)> {
    let mut session = model.session();
    let mut generation = session
        .generate(Request::ids(ids.to_vec()).max_tokens(steps).ignore_end(true).logprobs(true))
        .unwrap();
    let mut all = Vec::new();
    while let Some(event) = generation.next().unwrap() {
        if let Event::Token { id, logprob, .. } = event {
            all.push((id, logprob.unwrap().to_bits()));
        }
    }
    all
}

fn prompt(n: u32) -> Vec<u32> {
    (0..n).map(|i| (i * 37 + 11) % 4096).collect()
}

#[test]
fn results_do_not_depend_on_chunks_and_threads() {
    for precision in [Precision::Exact, Precision::Fast] {
        let ids = prompt(600);
        let mut first = None;
        for (chunk, threads) in [(512, 1), (512, 2), (64, 2), (37, 1), (33, 2), (32, 1), (7, 2), (1, 1)] {
            let options = Options { precision, chunk, threads: Some(threads), ..Options::default() };
            let Some(model) = tales(options) else { return };
            let got = story(&model, &ids, 8);
            let expected = first.get_or_insert_with(|| got.clone());
            assert_eq!(&got, expected, "{precision:?}, chunks of {chunk}, {threads} threads");
        }
    }
}
