// Rotary embedding of one head by one workgroup, two words an invocation: see abi/lib/rope.wgsl.
//
// For single tokens, whose few heads are bound by memory latency: all loads of an invocation are issued at once, words
// are written where they were read, and a workgroup of one subgroup needs no barrier. Needs rope_dim / 2, rope_offset
// and head_dim / 2 to be multiples of WORD_ELEMENTS, and at most WORKGROUP pairs of words. NORM as in
// abi/lib/rope_staged.wgsl.

#if NORM
#include "lib/sum.wgsl"
#endif

#define ROTATED vec2<f32>
#include "lib/rotate_pairs.wgsl"

#if STORAGE == f32
fn word_values(word: u32) -> vec2<f32> { return vec2<f32>(bitcast<f32>(word), 0.0); }
fn word_of(values: vec2<f32>) -> u32 { return bitcast<u32>(values.x); }
#else
fn word_values(word: u32) -> vec2<f32> { return unpack(word); }
fn word_of(values: vec2<f32>) -> u32 { return pack(values); }
#endif

// The words of slot i of a head: two words of rotated pairs, or two neighbours that pass through.
fn slot_words(i: u32) -> vec2<u32> {
    let half = rope_dim() / 2u / WORD_ELEMENTS;
    let offset = rope_offset() / WORD_ELEMENTS;
    if (i < half) {
#if PAIRING == split
        return vec2<u32>(offset + i, offset + i + half);
#else
        return vec2<u32>(offset + 2u * i, offset + 2u * i + 1u);
#endif
    }
    let passed = vec2<u32>(2u * (i - half), 2u * (i - half) + 1u);
    return passed + select(vec2<u32>(0u, 0u), vec2<u32>(2u * half, 2u * half), passed >= vec2<u32>(offset, offset));
}

fn rope(token: u32, head: u32, here: Invocation) {
    let slots = head_dim() / 2u / WORD_ELEMENTS;
    // Invocations beyond the last slot take part in the sum with 0.
    let i = min(here.local_index, slots - 1u);
    let at = slot_words(i);
    let origin = source(token, head) / WORD_ELEMENTS;
    let a_word = load(head, origin + at.x);
    let b_word = load(head, origin + at.y);
#if NORM
    let a_norm = norm_word(head, at.x);
    let b_norm = norm_word(head, at.y);
#endif
    // Not inside a branch, or these loads would wait for those above.
    let rotated_pieces = rope_dim() / 2u / WORD_ELEMENTS;
    let pair = min(i, rotated_pieces - 1u) * WORD_ELEMENTS;
    var first = cos_sin(phase(token, pair));
    var second = first;
#if STORAGE != f32
    second = cos_sin(phase(token, pair + 1u));
#endif
    let rotates = is_rotated(head) && i < rotated_pieces;
    first = select(vec2<f32>(1.0, 0.0), first, rotates);
    second = select(vec2<f32>(1.0, 0.0), second, rotates);
    let cosine = vec2<f32>(first.x, second.x);
    let sine = vec2<f32>(first.y, second.y) * SIN_SIGN;
    var a = word_values(a_word);
    var b = word_values(b_word);
    var factor = head_scale(head);
#if NORM
    let squares = select(0.0, dot(a, a) + dot(b, b), here.local_index < slots);
    let rms = inverseSqrt(workgroup_sum(squares, here) / f32(head_dim()) + norm_eps());
    factor *= select(1.0, rms, is_normed(head));
    if (is_normed(head)) {
        a *= norm_weights(a_norm);
        b *= norm_weights(b_norm);
    }
#endif
    a *= factor;
    b *= factor;
#if PAIRING == adjacent && STORAGE != f32
    let x = select(a, vec2<f32>(a.x, b.x), rotates);
    let y = select(b, vec2<f32>(a.y, b.y), rotates);
    let rotated = rotate_pairs(x, y, cosine, sine);
    a = select(rotated.x, vec2<f32>(rotated.x.x, rotated.y.x), rotates);
    b = select(rotated.y, vec2<f32>(rotated.x.y, rotated.y.y), rotates);
#else
    let rotated = rotate_pairs(a, b, cosine, sine);
    a = rotated.x;
    b = rotated.y;
#endif
    if (here.local_index < slots) {
        let destination = target_of(token, head) / WORD_ELEMENTS;
        store(head, destination + at.x, word_of(a));
        store(head, destination + at.y, word_of(b));
    }
}
