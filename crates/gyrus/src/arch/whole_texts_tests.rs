//! Plans for whole texts: one place for the keys and values of all layers, and the logits of plans that have one for each.

use std::sync::Arc;

use gyrus_formats::Checkpoint;
use gyrus_kernels::{Batch, Inputs, KV_BLOCK, KvSize, Plan, Precision, RowKind};
use gyrus_testkit::repository;

use super::plan::{Head, build_with};
use crate::loader::Loader;
use crate::model::Options;

/// Longer than the windows of the small models.
const ROWS: usize = 70;
const BLOCKS: usize = ROWS.div_ceil(KV_BLOCK);

/// The logits of the last row of a text in one pass.
fn logits(checkpoint: &Arc<Checkpoint>, plan: &Plan) -> Vec<f32> {
    let groups = plan.kv.len();
    let kv = KvSize { positions: BLOCKS * KV_BLOCK, blocks: vec![BLOCKS; groups], records: 0 };
    let options = Options { precision: plan.precision, threads: Some(2), ..Options::default() };
    let fixed = &[kv];
    let progress = &|_, _| {};
    let loader = Loader { checkpoint, plan, max_context: ROWS, options: &options, progress, fixed };
    let mut backend = loader.load().unwrap().backend;
    let table: Vec<u32> = (0..BLOCKS as u32).collect();
    let batch = Batch {
        tokens: &(0..ROWS).map(|row| (row * 7 % plan.vocab) as u32).collect::<Vec<u32>>(),
        positions: &(0..ROWS as u32).collect::<Vec<u32>>(),
        sequences: &[0; ROWS],
        kind: RowKind::Prompt,
        logits: &[ROWS as u32 - 1],
        tables: &vec![&table[..]; groups],
        lengths: &[ROWS as u32],
        records: &[],
        inputs: Inputs::default(),
    };
    backend.forward(&batch).unwrap().to_vec()
}

#[test]
fn all_layers_share_one_place_for_keys_of_whole_texts() {
    // Gemma 4 has layers that share keys, and Gemma 3 windows.
    for name in ["llama", "qwen3", "gemma3", "gemma4", "smollm3"] {
        let checkpoint =
            Arc::new(Checkpoint::open(&repository().join("tests/data/tiny").join(name)).unwrap());
        for precision in [Precision::Exact, Precision::Fast] {
            let plan = |head| build_with(&checkpoint, head, precision, None).unwrap().1;
            let (continued, whole) = (plan(Head::Logits), plan(Head::Answer));
            let layers = |plan: &Plan| plan.kv.iter().map(|group| group.layers).sum::<usize>();
            assert!(layers(&continued) > continued.kv.len(), "{name}: one layer a group shows nothing");
            assert!(whole.kv.iter().all(|group| group.layers == 1), "{name}: {:?}", whole.kv);
            let (want, found) = (logits(&checkpoint, &continued), logits(&checkpoint, &whole));
            assert!(want.iter().any(|logit| *logit != want[0]));
            assert!(want == found, "{name} {precision:?}: other logits");
        }
    }
}
