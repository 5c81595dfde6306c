// Rotary embedding of one head by one workgroup: see lib/rope.wgsl.
//
// Serves shapes that sixteen-byte pieces do not fit, and the fused head norm, which needs a whole head at
// once. NORM 1 normalises heads first and needs norm_word(head, at), norm_weights(word), norm_eps() and
// normed(head) from the kernel.
//
// An invocation reads the pairs it turns, element by element, and leaves results in workgroup memory, from
// which whole words are written. One token's heads are few and take no time but that of waiting for memory, so
// everything an invocation's first pair needs is asked for at once, before the sum over the head.

// MANY 1: a head has more slots than the workgroup has invocations.

// At least the elements of a head.
override ROOM: u32 = 128u;
var<workgroup> staged: array<f32, ROOM>;
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

// The two elements of slot i of a head: a pair that is turned, or two neighbours that pass.
fn slot(i: u32) -> vec2<u32> {
    let half = rope_dim() / 2u;
    if (i < half) {
#if PAIRING == split
        return vec2<u32>(rope_offset() + i, rope_offset() + i + half);
#else
        return vec2<u32>(rope_offset() + 2u * i, rope_offset() + 2u * i + 1u);
#endif
    }
    // Before the turned elements and after them; an odd offset puts one neighbour on either side.
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

// A slot's elements and what they are turned and multiplied by.
struct Slot {
    at: vec2<u32>,
    value: vec2<f32>,
    weight: vec2<f32>,
    turn: vec2<f32>,
}

fn fetch(token: u32, head: u32, origin: u32, i: u32) -> Slot {
    let at = slot(i);
    let value = vec2<f32>(value_at(head, origin, at.x), value_at(head, origin, at.y));
    var weight = vec2<f32>(1.0, 1.0);
#if NORM
    if (normed(head)) {
        weight = vec2<f32>(norm_weight(head, at.x), norm_weight(head, at.y));
    }
#endif
    var turn = vec2<f32>(1.0, 0.0);
    if (turned(head) && i < rope_dim() / 2u) {
        turn = cos_sin(phase(token, i)) * vec2<f32>(1.0, SIN_SIGN);
    }
    return Slot(at, value, weight, turn);
}

fn finish(it: Slot, factor: f32) {
    let v = it.value * it.weight * factor;
    staged[it.at.x] = v.x * it.turn.x - v.y * it.turn.y;
    staged[it.at.y] = v.x * it.turn.y + v.y * it.turn.x;
}

fn rope(token: u32, head: u32, here: Invocation) {
    let lane = here.local_index;
    let origin = source(token, head);
    let slots = head_dim() / 2u;
    // Invocations beyond the last slot have nothing to do; what they fetch instead is not used.
    let first = fetch(token, head, origin, min(lane, slots - 1u));
    var factor = 1.0;
#if NORM
    var squares = select(0.0, dot(first.value, first.value), lane < slots);
#if MANY
    for (var i = lane + WORKGROUP; i < slots; i += WORKGROUP) {
        let at = slot(i);
        let value = vec2<f32>(value_at(head, origin, at.x), value_at(head, origin, at.y));
        squares += dot(value, value);
    }
#endif
    let rms = inverseSqrt(workgroup_sum(squares, here) / f32(head_dim()) + norm_eps());
    factor = select(1.0, rms, normed(head));
#endif
    if (lane < slots) {
        finish(first, factor);
    }
#if MANY
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
