//! A smaller Tales that runs the same kernels with a sixth of the work, for software adapters.

use gyrus_formats::{Checkpoint, TensorView};
use gyrus_testkit::data;

use crate::written::{self, Tensor};

/// The vocabulary size.
pub(crate) const VOCAB: u32 = 512;
const LAYERS: u32 = 2;
const HEAD_DIM: u32 = 64;
const DIM: u32 = 256;
/// Differs from `DIM`, as in the whole model.
const FFN: u32 = 384;

/// The first `rows` rows and `cols` columns of a quantised matrix; `cols` is a multiple of the block size.
fn cut(tensor: &TensorView<'_>, rows: u32, cols: u32) -> Vec<u8> {
    let bytes = |elems: usize| tensor.dtype.bytes_of_elems(elems).unwrap();
    let all = tensor.data.chunks_exact(bytes(tensor.shape.row()));
    all.take(rows as usize).flat_map(|row| &row[..bytes(cols as usize)]).copied().collect()
}

/// The first layers of Tales in Q8_0, with `kv_heads` of its four KV heads, two query heads for each of them, fewer
/// hidden elements and no tokenizer. `window` is the sliding window; 0 for none.
#[allow(dead_code, reason = "some tests use `changed` only")]
pub(crate) fn checkpoint(kv_heads: u32, window: u32) -> Option<Checkpoint> {
    changed(kv_heads, window, |_, _| {})
}

/// As [`checkpoint`]; `change` may modify the bytes of each tensor, by its name.
#[allow(dead_code, reason = "some tests use `untied` only")]
pub(crate) fn changed(kv_heads: u32, window: u32, change: impl Fn(&str, &mut Vec<u8>)) -> Option<Checkpoint> {
    build(kv_heads, window, false, change)
}

/// As [`checkpoint`] with a matrix of its own for the logits, and an embedding of one token that is not a number.
#[allow(dead_code, reason = "few tests use it")]
pub(crate) fn untied(token: u32) -> Option<Checkpoint> {
    build(2, 0, true, |name, bytes| {
        if name == "token_embd.weight" {
            let row = bytes.len() / VOCAB as usize;
            // The scale of the row's first block.
            bytes[token as usize * row..][..2].copy_from_slice(&0x7e00u16.to_le_bytes());
        }
    })
}

fn build(
    kv_heads: u32,
    window: u32,
    untied: bool,
    change: impl Fn(&str, &mut Vec<u8>),
) -> Option<Checkpoint> {
    let whole = Checkpoint::open(&data("tales/tales-7m-q8_0.gguf")?).unwrap();
    let (q, kv) = (2 * kv_heads * HEAD_DIM, kv_heads * HEAD_DIM);
    let parts: [(&str, &[u32]); 11] = [
        ("attn_norm", &[DIM]),
        ("attn_q", &[q, DIM]),
        ("attn_k", &[kv, DIM]),
        ("attn_v", &[kv, DIM]),
        ("attn_q_norm", &[HEAD_DIM]),
        ("attn_k_norm", &[HEAD_DIM]),
        ("attn_output", &[DIM, q]),
        ("ffn_norm", &[DIM]),
        ("ffn_gate", &[FFN, DIM]),
        ("ffn_up", &[FFN, DIM]),
        ("ffn_down", &[DIM, FFN]),
    ];
    let mut shapes: Vec<(String, &[u32])> =
        vec![("token_embd.weight".to_owned(), &[VOCAB, DIM]), ("output_norm.weight".to_owned(), &[DIM])];
    if untied {
        shapes.push(("output.weight".to_owned(), &[VOCAB, DIM]));
    }
    for layer in 0..LAYERS {
        shapes.extend(parts.map(|(name, dims)| (format!("blk.{layer}.{name}.weight"), dims)));
    }
    let tensors: Vec<Tensor> = shapes
        .into_iter()
        .map(|(name, dims)| {
            // Tales has one matrix for both.
            let source = if name == "output.weight" { "token_embd.weight" } else { name.as_str() };
            let tensor = whole.tensor(source).unwrap();
            let rows = if dims.len() == 2 { dims[0] } else { 1 };
            let shape = dims.iter().map(|dim| *dim as usize).collect();
            let mut bytes = cut(&tensor, rows, dims[dims.len() - 1]);
            change(&name, &mut bytes);
            let dtype = tensor.dtype;
            (name, dtype, shape, bytes)
        })
        .collect();
    let numbers = [
        ("vocab_size", VOCAB),
        ("context_length", 4096),
        ("embedding_length", DIM),
        ("block_count", LAYERS),
        ("feed_forward_length", FFN),
        ("attention.head_count", 2 * kv_heads),
        ("attention.head_count_kv", kv_heads),
        ("attention.key_length", HEAD_DIM),
        ("attention.value_length", HEAD_DIM),
        ("attention.sliding_window", window),
    ];
    Some(written::checkpoint("qwen3", 1e-6, &numbers, &tensors))
}
