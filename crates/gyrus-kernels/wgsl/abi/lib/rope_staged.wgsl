// Rotary embedding of one head by one workgroup: see abi/lib/rope.wgsl.
//
// For shapes that sixteen-byte pieces do not fit, and for the fused head norm, which needs a whole head at once. NORM 1
// normalises heads first and needs norm_word(head, at), norm_weights(word), norm_eps() and is_normed(head) from the
// kernel.
//
// An invocation reads the pairs it rotates element by element and stages results in workgroup memory, from which whole
// words are written. The few heads of one token are bound by memory latency, so all loads of an invocation's first pair
// are issued at once, before the sum over the head.
//
// SLOT_LOOP 1: a head has more slots than the workgroup has invocations.

#define ROTATED f32
#include "lib/rotate_pairs.wgsl"

// At least head_dim.
override STAGE_ELEMENTS: u32 = 128u;
var<workgroup> staged: array<f32, STAGE_ELEMENTS>;
#if NORM
#include "lib/sum.wgsl"

fn norm_weight(head: u32, element: u32) -> f32 {
    let weights = norm_weights(norm_word(head, element / WORD_ELEMENTS));
    return select(weights.x, weights.y, element % WORD_ELEMENTS == 1u);
}
#endif

fn value_at(head: u32, origin: u32, element: u32) -> f32 {
    let at = origin + element;
#if STORAGE == f32
    return bitcast<f32>(load(head, at));
#else
    let values = unpack(load(head, at / 2u));
    return select(values.x, values.y, at % 2u == 1u);
#endif
}

// The two elements of slot i of a head: a rotated pair, or two neighbours that pass through.
fn slot(i: u32) -> vec2<u32> {
    let half = rope_dim() / 2u;
    if (i < half) {
#if PAIRING == split
        return vec2<u32>(rope_offset() + i, rope_offset() + i + half);
#else
        return vec2<u32>(rope_offset() + 2u * i, rope_offset() + 2u * i + 1u);
#endif
    }
    // Before the rotated elements and after them; an odd offset puts one neighbour on either side.
    var first = 2u * (i - half);
    var second = first + 1u;
    if (first >= rope_offset()) {
        first += rope_dim();
    }
    if (second >= rope_offset()) {
        second += rope_dim();
    }
    return vec2<u32>(first, second);
}

// A slot's elements, their norm weights, and the cosine and sine of their rotation.
struct Slot {
    at: vec2<u32>,
    value: vec2<f32>,
    weight: vec2<f32>,
    cos_sins: vec2<f32>,
}

fn fetch(token: u32, head: u32, origin: u32, i: u32) -> Slot {
    let at = slot(i);
    let value = vec2<f32>(value_at(head, origin, at.x), value_at(head, origin, at.y));
    var weight = vec2<f32>(1.0, 1.0);
#if NORM
    if (is_normed(head)) {
        weight = vec2<f32>(norm_weight(head, at.x), norm_weight(head, at.y));
    }
#endif
    var cos_sins = vec2<f32>(1.0, 0.0);
    if (is_rotated(head) && i < rope_dim() / 2u) {
        cos_sins = cos_sin(phase(token, i)) * vec2<f32>(1.0, SIN_SIGN);
    }
    return Slot(at, value, weight, cos_sins);
}

fn finish(it: Slot, factor: f32) {
    let v = it.value * it.weight * factor;
    let rotated = rotate_pairs(v.x, v.y, it.cos_sins.x, it.cos_sins.y);
    staged[it.at.x] = rotated.x;
    staged[it.at.y] = rotated.y;
}

fn rope(token: u32, head: u32, here: Invocation) {
    let lane = here.local_index;
    let origin = source(token, head);
    let slots = head_dim() / 2u;
    // Invocations beyond the last slot load the last one and do not use it.
    let first = fetch(token, head, origin, min(lane, slots - 1u));
    var factor = 1.0;
#if NORM
    var squares = select(0.0, dot(first.value, first.value), lane < slots);
#if SLOT_LOOP
    for (var i = lane + WORKGROUP; i < slots; i += WORKGROUP) {
        let at = slot(i);
        let value = vec2<f32>(value_at(head, origin, at.x), value_at(head, origin, at.y));
        squares += dot(value, value);
    }
#endif
    let rms = inverseSqrt(workgroup_sum(squares, here) / f32(head_dim()) + norm_eps());
    factor = select(1.0, rms, is_normed(head));
#endif
    if (lane < slots) {
        finish(first, factor);
    }
#if SLOT_LOOP
    for (var i = lane + WORKGROUP; i < slots; i += WORKGROUP) {
        finish(fetch(token, head, origin, i), factor);
    }
#endif
    workgroupBarrier();
    let scale = head_scale(head);
    let destination = target_of(token, head) / WORD_ELEMENTS;
    for (var word = lane; word < head_dim() / WORD_ELEMENTS; word += WORKGROUP) {
#if STORAGE == f32
        store(head, destination + word, bitcast<u32>(staged[word] * scale));
#else
        store(head, destination + word, pack(vec2<f32>(staged[2u * word], staged[2u * word + 1u]) * scale));
#endif
    }
}
