// Rotary embedding of one head by one workgroup, staged in workgroup memory: see lib/rope.wgsl.
//
// Serves shapes that sixteen-byte pieces do not fit, and the fused head norm, which needs a whole head at
// once. NORM 1 normalises heads first and needs
// norm_weight(head, element), norm_eps() and normed(head) from the kernel.

// Elements of a head.
override HEAD_DIM: u32 = 128u;
var<workgroup> staged: array<f32, HEAD_DIM>;
#if NORM
#include "lib/sum.wgsl"
#endif

fn rope(token: u32, head: u32, here: Invocation) {
    let lane = here.lane;
    let origin = source(token, head);
#if NORM
    var squares = 0.0;
#endif
    for (var word = lane; word < head_dim() / WORD_ELEMENTS; word += WORKGROUP) {
        let bits = load(head, origin / WORD_ELEMENTS + word);
#if STORAGE == f32
        let value = bitcast<f32>(bits);
        staged[word] = value;
#if NORM
        squares += value * value;
#endif
#else
        let values = unpack(bits);
        staged[2u * word] = values.x;
        staged[2u * word + 1u] = values.y;
#if NORM
        squares += dot(values, values);
#endif
#endif
    }
#if NORM
    let rms = inverseSqrt(workgroup_sum(squares, here) / f32(head_dim()) + norm_eps());
    if (normed(head)) {
        for (var i = lane; i < head_dim(); i += WORKGROUP) {
            staged[i] *= rms * norm_weight(head, i);
        }
    }
#endif
    workgroupBarrier();
    if (turned(head)) {
        let half = rope_dim() / 2u;
        for (var pair = lane; pair < half; pair += WORKGROUP) {
#if PAIRING == split
            let a = rope_offset() + pair;
            let b = a + half;
#else
            let a = rope_offset() + 2u * pair;
            let b = a + 1u;
#endif
            let turn = cos_sin(phase(token, pair)) * vec2<f32>(1.0, SIN_SIGN);
            let x = staged[a];
            let y = staged[b];
            staged[a] = x * turn.x - y * turn.y;
            staged[b] = x * turn.y + y * turn.x;
        }
    }
    workgroupBarrier();
    let scale = head_scale(head);
    let to = target_of(token, head);
    for (var word = lane; word < head_dim() / WORD_ELEMENTS; word += WORKGROUP) {
#if STORAGE == f32
        store(head, to / WORD_ELEMENTS + word, bitcast<u32>(staged[word] * scale));
#else
        store(head, to / WORD_ELEMENTS + word,
            pack(vec2<f32>(staged[2u * word], staged[2u * word + 1u]) * scale));
#endif
    }
}
