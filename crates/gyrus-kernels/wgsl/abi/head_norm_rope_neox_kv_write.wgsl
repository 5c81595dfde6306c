// head_norm_rope_neox_kv_write_f16, head_norm_rope_neox_kv_write_f32: RMS norm of each head of Q and K of one
// token, then rotary embedding with elements rope_dim / 2 apart forming a pair, then K and V to the cache.
//
//   0  qkv            as in rope_neox_qkv_write
//   1  k_cache        blocks of [n_kv_heads, max_seq_len, head_dim]; slot pos + slot_offset is written
//   2  v_cache        likewise
//   3  params         RoPEQKVWriteParams (immediates where the device has them)
//   4  q_norm_weight  [head_dim]
//   5  k_norm_weight  [head_dim]
//   6  norm_eps       NormEpsParams, a uniform
//   7  freqs          [rope_dim / 2], by FREQS; absent if inline
//   8  block_table    u32, if PAGED
//   9  position_ids   [POSITIONS, 1] u32; absent if POSITIONS is 0
//
// NORM_PLUS_ONE 1: the norm's factor is 1 + weight, as in Gemma checkpoints. Sums and products in f32; the normalised
// head is not rounded before the rotation. One workgroup a head. Twin: abi::scalar::rope.

#define PAIRING split
#define FREQS_BINDING 7
#define BLOCK_TABLE_BINDING 8
#define POSITIONS_BINDING 9
#define NORM 1
#include "lib/words.wgsl"

#include "params/NormEpsParams"
@group(0) @binding(4) var<storage, read> q_norm_weight: array<WORD>;
@group(0) @binding(5) var<storage, read> k_norm_weight: array<WORD>;
@group(0) @binding(6) var<uniform> norm_params: NormEpsParams;

fn norm_eps() -> f32 { return norm_params.norm_eps; }
fn is_normed(head: u32) -> bool { return head < first_value(); }

fn norm_word(head: u32, at: u32) -> u32 {
    if (head >= first_key()) {
        return k_norm_weight[at];
    }
    return q_norm_weight[at];
}

// The factors of a word's elements.
fn norm_weights(word: u32) -> vec2<f32> {
#if STORAGE == f32
    let weights = vec2<f32>(bitcast<f32>(word), 0.0);
#else
    let weights = unpack(word);
#endif
#if NORM_PLUS_ONE
    return weights + 1.0;
#else
    return weights;
#endif
}

#include "abi/lib/rope_row.wgsl"
