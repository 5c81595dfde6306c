// kv_shift: rotates cached keys by a number of positions, in place or while moving them to other slots; values then
// move too. This drops the front of a context without recomputing the rest.
//
//   0  k_cache  blocks of [n_kv_heads, KV_BLOCK, head_dim], STORAGE (f32 or f16); read and written
//   1  v_cache  likewise; absent if IN_PLACE
//   2  params   KVCacheShiftParams (immediates where the device has them): max_seq_len is the length of a block
//   3  moves    [new_len] (source, target) slots u32, read: block number · block length + place in the block
//   4  turns    as in lib/rotate_head.wgsl, one row. The factor after the turns is not read: cached keys already have
//               it
//
// No target is another move's source or target: KvShiftCall::moves checks that. One invocation computes a word of a
// head from the words that hold its elements and their partners. All loads precede all stores. Grid: (ceil(new_len /
// (ROWS * HEADS_PER_INVOCATION)), n_kv_heads). A workgroup has ROWS heads side by side with COLUMNS invocations each,
// and repeats that for HEADS_PER_INVOCATION heads; an invocation has WORDS_PER_INVOCATION words of a head, whose
// cosines and sines serve all its heads. Arithmetic in f32. Twin: scalar::kv_shift.

#include "params/KVCacheShiftParams"
#define PARAMS KVCacheShiftParams
#define PARAMS_BINDING 2
#include "lib/params.wgsl"
#include "lib/invocation.wgsl"
#define VECTOR 0
#include "lib/words.wgsl"
#include "lib/turns.wgsl"
#define KV_BLOCK params.max_seq_len
#include "lib/kv.wgsl"

@group(0) @binding(0) var<storage, read_write> k_cache: array<u32>;
#if !IN_PLACE
@group(0) @binding(1) var<storage, read_write> v_cache: array<u32>;
#endif
@group(0) @binding(3) var<storage, read> moves: array<vec2<u32>>;
@group(0) @binding(4) var<storage, read> turns: array<vec2<u32>>;

// The rotation of one element: y = x[own] * cosine + x[partner] * sine.
struct Rotation {
    partner: u32,
    cosine: f32,
    sine: f32,
}

fn rotation_of(element: u32) -> Rotation {
    let half = params.rope_dim / 2u;
    let at = element - params.rope_offset;
    if (element < params.rope_offset || at >= params.rope_dim) {
        return Rotation(element, 1.0, 0.0);
    }
#if PAIRING == split
    let is_second = at >= half;
    let pair = select(at, at - half, is_second);
    let partner = select(element + half, element - half, is_second);
#else
    let is_second = (at & 1u) == 1u;
    let pair = at / 2u;
    let partner = element ^ 1u;
#endif
    // A shift down, from 1 to 2^31, rotates backward.
    let is_down = params.shift - 1u < 0x80000000u;
    let phase = phase_at(turns[pair], select(0u - params.shift, params.shift, is_down));
    let cos_sins = cos_sin(select(phase, 0u - phase, is_down));
    return Rotation(partner, cos_sins.x, select(-cos_sins.y, cos_sins.y, is_second));
}

// The first word of a head.
fn head_at(slot: u32, kv_head: u32) -> u32 {
    return kv_row(slot / KV_BLOCK, kv_head, slot) * (params.head_dim / WORD_ELEMENTS);
}

fn element_at(head: u32, element: u32) -> f32 {
#if STORAGE == f32
    return bitcast<f32>(k_cache[head + element]);
#else
    let both = unpack(k_cache[head + element / 2u]);
    return select(both.x, both.y, (element & 1u) == 1u);
#endif
}

@compute @workgroup_size(WORKGROUP)
fn KERNEL(here: Invocation) {
    let column = here.local_index % COLUMNS;
    let first = (here.workgroup.x * HEADS_PER_INVOCATION * ROWS) + here.local_index / COLUMNS;
    let words_of_head = params.head_dim / WORD_ELEMENTS;
    var rotated: array<u32, WORDS_PER_INVOCATION * HEADS_PER_INVOCATION>;
#if !IN_PLACE
    var values: array<u32, WORDS_PER_INVOCATION * HEADS_PER_INVOCATION>;
#endif
    for (var k = 0u; k < WORDS_PER_INVOCATION; k += 1u) {
        // Invocations beyond the end repeat the last word and do not write: the barrier needs all of them.
        let word = min(column + k * COLUMNS, words_of_head - 1u);
        let low = rotation_of(word * WORD_ELEMENTS);
#if STORAGE != f32
        let high = rotation_of(word * WORD_ELEMENTS + 1u);
#endif
        for (var i = 0u; i < HEADS_PER_INVOCATION; i += 1u) {
            let head = head_at(moves[min(first + i * ROWS, params.new_len - 1u)].x, here.workgroup.y);
#if STORAGE == f32
            let own = element_at(head, word);
            rotated[k * HEADS_PER_INVOCATION + i] =
                bitcast<u32>(fma(own, low.cosine, element_at(head, low.partner) * low.sine));
#else
            let own = unpack(k_cache[head + word]);
            let partners = vec2<f32>(element_at(head, low.partner), element_at(head, high.partner));
            rotated[k * HEADS_PER_INVOCATION + i] =
                pack(fma(own, vec2<f32>(low.cosine, high.cosine), partners * vec2<f32>(low.sine, high.sine)));
#endif
#if !IN_PLACE
            values[k * HEADS_PER_INVOCATION + i] = v_cache[head + word];
#endif
        }
    }
    storageBarrier();
    for (var k = 0u; k < WORDS_PER_INVOCATION; k += 1u) {
        let word = column + k * COLUMNS;
        for (var i = 0u; i < HEADS_PER_INVOCATION; i += 1u) {
            if (word < words_of_head && first + i * ROWS < params.new_len) {
                let at = head_at(moves[first + i * ROWS].y, here.workgroup.y) + word;
                k_cache[at] = rotated[k * HEADS_PER_INVOCATION + i];
#if !IN_PLACE
                v_cache[at] = values[k * HEADS_PER_INVOCATION + i];
#endif
            }
        }
    }
}
