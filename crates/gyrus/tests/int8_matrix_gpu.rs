//! Sequences of which there are so many that matrices of bytes multiply them, in a whole model, where a device has such
//! matrices; where it has none, the same by mat-vecs.
#![cfg(feature = "gpu")]

mod adapter;
mod together;
mod written;

use adapter::adapter;
use gyrus::{Device, Model, Options, Sampler, Session};
use gyrus_formats::Checkpoint;
use gyrus_tensor::DType;
use together::decode_together;

const VOCAB: u32 = 512;
const LAYERS: u32 = 2;
/// The least that matrices take.
const DIM: u32 = 1024;
/// Not the width of the model, so that gated results become bytes where they are made; and columns enough for it.
const FFN: u32 = 4096;
const HEADS: u32 = 16;
const KV_HEADS: u32 = 8;

/// A Llama of random numbers that shrink with depth as trained ones do.
fn checkpoint() -> Checkpoint {
    let kv = DIM / HEADS * KV_HEADS;
    let matrices = [
        ("attn_q", DIM, DIM),
        ("attn_k", kv, DIM),
        ("attn_v", kv, DIM),
        ("attn_output", DIM, DIM),
        ("ffn_gate", FFN, DIM),
        ("ffn_up", FFN, DIM),
        ("ffn_down", DIM, FFN),
    ];
    let mut state = 1u64;
    let mut noise = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as u32
    };
    // Blocks of a half and 32 quants of four bits.
    let mut blocks = |rows: u32, cols: u32| -> Vec<u8> {
        (0..rows * cols / 32)
            .flat_map(|_| {
                let scale = 0x1c00 + (noise() % 0x400) as u16;
                let quants = [noise(), noise(), noise(), noise()].map(u32::to_le_bytes);
                scale.to_le_bytes().into_iter().chain(quants.into_iter().flatten())
            })
            .collect()
    };
    let ones = |count: u32| -> Vec<u8> { (0..count).flat_map(|_| 1f32.to_le_bytes()).collect() };
    let mut tensors = vec![
        ("token_embd.weight".to_owned(), DType::Q4_0, vec![VOCAB as usize, DIM as usize], blocks(VOCAB, DIM)),
        ("output_norm.weight".to_owned(), DType::F32, vec![DIM as usize], ones(DIM)),
    ];
    for layer in 0..LAYERS {
        for norm in ["attn_norm", "ffn_norm"] {
            let name = format!("blk.{layer}.{norm}.weight");
            tensors.push((name, DType::F32, vec![DIM as usize], ones(DIM)));
        }
        for (name, rows, cols) in matrices {
            let name = format!("blk.{layer}.{name}.weight");
            tensors.push((name, DType::Q4_0, vec![rows as usize, cols as usize], blocks(rows, cols)));
        }
    }
    let numbers = [
        ("vocab_size", VOCAB),
        ("context_length", 1024),
        ("embedding_length", DIM),
        ("block_count", LAYERS),
        ("feed_forward_length", FFN),
        ("attention.head_count", HEADS),
        ("attention.head_count_kv", KV_HEADS),
        ("rope.dimension_count", DIM / HEADS),
    ];
    written::checkpoint("llama", 1e-5, &numbers, &tensors)
}

/// Sixteen texts at once get what each gets alone, and what eight get, which are too few for matrices.
#[test]
fn texts_by_matrices_are_as_if_alone() {
    const TOKENS: usize = 4;
    let Some(name) = adapter() else { return };
    let device = Device::Gpu(Some(name));
    let options = Options { device, context: Some(128), sessions: 25, ..Options::default() };
    let model = Model::load(checkpoint(), &options).unwrap();
    // Hot, so that every bit of the logits counts.
    let sampler =
        |text: u32| Sampler { temperature: 4.0, top_k: 40, seed: text.into(), ..Sampler::default() };
    let write = |texts: std::ops::Range<u32>| {
        let begin = |text: u32| {
            let mut session = model.session();
            let ids: Vec<u32> = (0..2 + 3 * text).map(|i| (i * 37 + 11 * text + 3) % VOCAB).collect();
            session.set_tokens(&ids).unwrap();
            session
        };
        let mut sessions: Vec<Session> = texts.clone().map(begin).collect();
        let samplers: Vec<Sampler> = texts.map(sampler).collect();
        decode_together(&mut sessions, &samplers, TOKENS, |_| true).unwrap();
        sessions.iter().map(|session| session.tokens().to_vec()).collect::<Vec<_>>()
    };
    let together = write(0..16);
    assert_eq!(write(0..8), together[..8]);
    for text in [3, 15] {
        assert_eq!(write(text..text + 1), together[text as usize..][..1], "text {text}");
    }
    assert_ne!(together[3][11..], together[4][14..]);
}
