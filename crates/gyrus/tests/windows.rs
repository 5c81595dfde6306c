//! Layers with a window hold the blocks of their window: memory, long sequences, and tokens that are taken back.

use gyrus::{Event, Model, Options, Precision, Prompt, Request, Session};
use gyrus_testkit::data;

fn open(chunk: usize) -> Option<Model> {
    let path = data("tiny/gemma3")?;
    let options = Options {
        precision: Precision::Exact,
        context: Some(2048),
        chunk,
        threads: Some(2),
        ..Options::default()
    };
    Some(Model::open(&path, &options).unwrap())
}

fn ids(count: usize, seed: usize) -> Vec<u32> {
    (0..count).map(|i| ((i * 37 + seed * 101 + i * i % 7) % 96) as u32).collect()
}

/// Logits of the last token.
fn last(model: &Model, ids: &[u32]) -> Vec<u32> {
    let mut bits = Vec::new();
    model
        .session()
        .score(ids, |position, row| {
            if position + 1 == ids.len() {
                bits = row.iter().map(|logit| logit.to_bits()).collect();
            }
        })
        .unwrap();
    bits
}

/// Global layers have all positions of the context, windowed layers those of the window, a chunk and 256 more.
#[test]
fn the_cache_is_what_global_layers_and_windows_need() {
    let Some(model) = open(64) else { return };
    let [local, global] = model.plan().kv[..] else { panic!("two groups") };
    assert_eq!((local.window, global.window), (Some(16), None));
    // f32, K and V.
    let position = 2 * local.kv_heads * local.head_dim * 4;
    let kept = (16 + 128 + 64 + 128usize).div_ceil(32) * 32 + 32;
    assert_eq!(model.context().cache_bytes, (position * (2048 * global.layers + kept * local.layers)) as u64);
}

/// A sequence is longer than the pool of its windowed layers, and its bits do not depend on when blocks are freed.
#[test]
fn long_sequences_free_the_blocks_that_left_the_window() {
    let (Some(small), Some(large)) = (open(33), open(512)) else { return };
    for length in [100, 700, 2047] {
        let ids = ids(length, 1);
        assert_eq!(last(&small, &ids), last(&large, &ids), "{length} tokens");
    }
}

/// Greedy tokens that continue a session, and their log-probabilities.
fn continued(session: &mut Session) -> Vec<(u32, Option<f32>)> {
    let request = Request::new(Prompt::Continue).max_tokens(4).ignore_end(true).logprobs(true);
    let mut generation = session.generate(request).unwrap();
    let mut tokens = Vec::new();
    while let Some(event) = generation.next().unwrap() {
        if let Event::Token { id, logprob, .. } = event {
            tokens.push((id, logprob));
        }
    }
    tokens
}

/// Tokens that are taken back are as if they had never been, whether their window is still held or not.
#[test]
fn tokens_that_are_taken_back_leave_no_trace() {
    let Some(model) = open(64) else { return };
    for kept in [1, 40, 300, 500, 590, 599] {
        let (long, other) = (ids(600, 1), ids(64, 2));
        let tokens = [&long[..kept], &other].concat();
        let mut fresh = model.session();
        fresh.set_tokens(&tokens).unwrap();
        let expected = continued(&mut fresh);
        drop(fresh);
        let mut session = model.session();
        session.prefill(&long).unwrap();
        session.set_tokens(&tokens).unwrap();
        assert_eq!(continued(&mut session), expected, "{kept} tokens kept");
    }
}
