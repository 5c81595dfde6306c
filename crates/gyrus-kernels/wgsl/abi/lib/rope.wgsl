// Rotary embedding of heads: the implementation of every published rope kernel.
//
// A kernel enumerates the heads of tokens: heads of Q and K are rotated, heads of V are only copied. It defines
//
//   tokens(), heads()                            their numbers
//   head_dim(), rope_dim(), rope_offset()
//   source(token, head), target_of(token, head)  first element of a head in the buffer it is read from and written to
//   is_rotated(head)                             whether a head is rotated
//   load(head, at), store(head, at, word)        access to a WORD of the head's buffers
//   head_scale(head)                             factor on the result
//   phase(token, pair)                           a 32-bit fraction of a turn, see lib/turns.wgsl
//   SIN_SIGN                                     1.0 rotates forward, -1.0 backward: the inverse, and the gradient
//
// and the host defines
//
//   PAIRING       adjacent: elements 2i, 2i + 1 form pair i. split: elements i, i + rope_dim / 2.
//   PASS_THROUGH  whether elements outside the rotated ones must be written too.
//   VECTOR        1: sixteen bytes at a time, for aligned shapes (head_dim, rope_dim / 2, the offset and all strides
//                 are
//                 multiples of VECTOR_ELEMENTS). 0: a workgroup a head.
//   STAGED        with VECTOR 0. 0: two words an invocation, for single tokens. 1: for every other shape.
//
// Arithmetic is f32 whatever the storage. Every element is read before its pair is written, and every word is written
// by one invocation, so that source and target may be the same buffer. Grid: VECTOR: one invocation per piece, folded
// over x and y. Otherwise (heads, tokens), the tokens folded over y and z.

#include "lib/invocation.wgsl"
#include "lib/words.wgsl"
#include "lib/turns.wgsl"

// Invocations of a workgroup.
override WORKGROUP: u32 = 64u;

@compute @workgroup_size(WORKGROUP)
fn KERNEL(here: Invocation) {
#if VECTOR
    rope(workgroup_index(here) * WORKGROUP + here.local_index);
#else
    let token = here.workgroup.z * here.num_workgroups.y + here.workgroup.y;
    if (token < tokens()) {
        rope(token, here.workgroup.x, here);
    }
#endif
}

#if VECTOR
// Invocations that share the heads of a token. One invocation takes every HEAD_LANES-th head and computes its cosines
// and sines once for all of them.
override HEAD_LANES: u32 = 1u;
// Pieces of a head: pairs of vectors that are rotated, then, with PASS_THROUGH, single vectors that are copied. An
// override constant, so that the compiler knows the divisor.
override PIECES: u32 = 1u;

#define ROTATED vec4<f32>
#include "lib/rotate_pairs.wgsl"

// Cosines and sines of eight pairs (four if STORAGE is f32).
struct Rotation {
    cos: Elements,
    sin: Elements,
}

fn four_rotations(token: u32, pair: u32) -> array<vec4<f32>, 2> {
    let a = cos_sin(phase(token, pair));
    let b = cos_sin(phase(token, pair + 1u));
    let c = cos_sin(phase(token, pair + 2u));
    let d = cos_sin(phase(token, pair + 3u));
    return array<vec4<f32>, 2>(vec4<f32>(a.x, b.x, c.x, d.x), vec4<f32>(a.y, b.y, c.y, d.y) * SIN_SIGN);
}

fn rotation_at(token: u32, pair: u32) -> Rotation {
    let low = four_rotations(token, pair);
#if STORAGE == f32
    return Rotation(Elements(low[0], vec4<f32>()), Elements(low[1], vec4<f32>()));
#else
    let high = four_rotations(token, pair + 4u);
    return Rotation(Elements(low[0], high[0]), Elements(low[1], high[1]));
#endif
}

// Two vectors of words: the first and the second elements of pairs (split), or consecutive pairs (adjacent).
struct Pair {
    a: vec4<u32>,
    b: vec4<u32>,
}

fn rotate_pair(pair: Pair, rotation: Rotation, scale: f32) -> Pair {
    let a = elements(pair.a);
    let b = elements(pair.b);
#if PAIRING == split
    let x = a;
    let y = b;
#elif STORAGE == f32
    let x = Elements(vec4<f32>(a.low.xz, b.low.xz), vec4<f32>());
    let y = Elements(vec4<f32>(a.low.yw, b.low.yw), vec4<f32>());
#else
    let x = Elements(vec4<f32>(a.low.xz, a.high.xz), vec4<f32>(b.low.xz, b.high.xz));
    let y = Elements(vec4<f32>(a.low.yw, a.high.yw), vec4<f32>(b.low.yw, b.high.yw));
#endif
    let low = rotate_pairs(x.low, y.low, rotation.cos.low, rotation.sin.low);
    let high = rotate_pairs(x.high, y.high, rotation.cos.high, rotation.sin.high);
    let u = Elements(low.x * scale, high.x * scale);
    let v = Elements(low.y * scale, high.y * scale);
#if PAIRING == split
    return Pair(words(u), words(v));
#elif STORAGE == f32
    return Pair(
        words(Elements(vec4<f32>(u.low.x, v.low.x, u.low.y, v.low.y), vec4<f32>())),
        words(Elements(vec4<f32>(u.low.z, v.low.z, u.low.w, v.low.w), vec4<f32>())));
#else
    return Pair(
        words(Elements(
            vec4<f32>(u.low.x, v.low.x, u.low.y, v.low.y), vec4<f32>(u.low.z, v.low.z, u.low.w, v.low.w))),
        words(Elements(
            vec4<f32>(u.high.x, v.high.x, u.high.y, v.high.y), vec4<f32>(u.high.z, v.high.z, u.high.w, v.high.w))));
#endif
}

fn fetch(token: u32, head: u32, first: u32, second: u32) -> Pair {
    let origin = source(token, head);
    return Pair(load(head, (origin + first) / VECTOR_ELEMENTS), load(head, (origin + second) / VECTOR_ELEMENTS));
}

fn scaled(vector: vec4<u32>, scale: f32) -> vec4<u32> {
    if (scale == 1.0) {
        return vector;
    }
    let values = elements(vector);
    return words(Elements(values.low * scale, values.high * scale));
}

fn rope(flat: u32) {
    let rotated_pieces = rope_dim() / (2u * VECTOR_ELEMENTS);
    let piece = flat % PIECES;
    let lane = (flat / PIECES) % HEAD_LANES;
    let token = flat / (PIECES * HEAD_LANES);
    if (token >= tokens()) {
        return;
    }
    if (piece >= rotated_pieces) {
        // The vectors before the rotated elements, then those after them.
        var element = (piece - rotated_pieces) * VECTOR_ELEMENTS;
        if (element >= rope_offset()) {
            element += rope_dim();
        }
        for (var head = lane; head < heads(); head += HEAD_LANES) {
            let origin = (source(token, head) + element) / VECTOR_ELEMENTS;
            let to = (target_of(token, head) + element) / VECTOR_ELEMENTS;
            store(head, to, scaled(load(head, origin), head_scale(head)));
        }
        return;
    }
#if PAIRING == split
    let first = rope_offset() + piece * VECTOR_ELEMENTS;
    let second = first + rope_dim() / 2u;
#else
    let first = rope_offset() + piece * 2u * VECTOR_ELEMENTS;
    let second = first + VECTOR_ELEMENTS;
#endif
    // The loads of the first head are in flight while cosines and sines are computed.
    var pair = fetch(token, lane, first, second);
    let rotation = rotation_at(token, piece * VECTOR_ELEMENTS);
    for (var head = lane; head < heads(); head += HEAD_LANES) {
        if (head != lane) {
            pair = fetch(token, head, first, second);
        }
        if (is_rotated(head)) {
            pair = rotate_pair(pair, rotation, head_scale(head));
        }
        let to = target_of(token, head);
        store(head, (to + first) / VECTOR_ELEMENTS, pair.a);
        store(head, (to + second) / VECTOR_ELEMENTS, pair.b);
    }
}
#elif STAGED
#include "abi/lib/rope_staged.wgsl"
#else
#include "abi/lib/rope_words.wgsl"
#endif
