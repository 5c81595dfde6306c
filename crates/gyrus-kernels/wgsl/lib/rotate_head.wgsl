// A head of Q or K, normalised if NORM and turned by its position, by a team of LANES invocations.
//
// Needs HEAD_DIM, OWNED (pairs of an invocation), PAIRING (split, adjacent), NORM, parameters with rope_dim, rope_offset, eps, pass_scale and
// turns_stride, and
//   turns       [rows or 1, pairs + 1] of two words: each pair's turns per position (lib/turns.wgsl), then the factor
//               on cosine and sine, f32
//   head_norms  [2, HEAD_DIM] f32, if NORM: the weights of Q's norm and of K's
// An invocation owns every LANES-th pair; beyond the pairs that are turned, neighbours that are not are pairs too.

#include "lib/turns.wgsl"

#define HEAD_PAIRS (HEAD_DIM / 2u)

fn pair_elements(pair: u32) -> vec2<u32> {
    let half = params.rope_dim / 2u;
    if (pair < half) {
#if PAIRING == split
        return vec2<u32>(params.rope_offset + pair, params.rope_offset + pair + half);
#else
        return vec2<u32>(params.rope_offset + 2u * pair, params.rope_offset + 2u * pair + 1u);
#endif
    }
    let rest = 2u * (pair - half);
    let at = select(rest, rest + params.rope_dim, rest >= params.rope_offset);
    return vec2<u32>(at, at + 1u);
}

// All invocations of a workgroup must call this together. `which` is 0 for Q, 1 for K.
fn rotate_head(
    values: ptr<function, array<vec2<f32>, OWNED>>, which: u32, row: u32, position: u32, lane: u32, thread: Thread) {
    // Turns first: they depend on the position alone, and the values may still be on their way.
    let table = row * params.turns_stride;
    let half = params.rope_dim / 2u;
    let scale = bitcast<f32>(turns[table + half].x);
    var turn: array<vec2<f32>, OWNED>;
#repeat I OWNED
    turn[I] = scale * cos_sin(phase_at(turns[table + min(lane + I * LANES, half)], position));
#end
#if NORM
    var weights: array<vec2<f32>, OWNED>;
    var squares = 0.0;
#repeat I OWNED
    {
        let at = pair_elements(min(lane + I * LANES, HEAD_PAIRS - 1u)) + which * HEAD_DIM;
        weights[I] = vec2<f32>(head_norms[at.x], head_norms[at.y]);
        if (lane + I * LANES < HEAD_PAIRS) {
            squares += dot((*values)[I], (*values)[I]);
        }
    }
#end
    let factor = inverseSqrt(reduce_sum(squares, thread) / f32(HEAD_DIM) + params.eps);
#repeat I OWNED
    (*values)[I] *= factor * weights[I];
#end
#endif
#repeat I OWNED
    {
        let v = (*values)[I];
        let turned = vec2<f32>(v.x * turn[I].x - v.y * turn[I].y, v.x * turn[I].y + v.y * turn[I].x);
        (*values)[I] = select(v * params.pass_scale, turned, lane + I * LANES < half);
    }
#end
}
