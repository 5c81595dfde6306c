// Normalises (if NORM) and rotates one head of Q or K at a position, by a group of LANES invocations.
//
// Needs HEAD_DIM, PAIRS_PER_LANE, PAIRING (split, adjacent), NORM, parameters with rope_dim, rope_offset, eps,
// pass_scale and turns_stride, and
//   turns       [rows or 1, pairs + 1] of two words: the turns per position of each pair (lib/turns.wgsl), then the
//               factor
//               on cosine and sine, f32
//   head_norms  [2, HEAD_DIM] f32, if NORM: the norm weights of Q and of K
// A lane has every LANES-th pair. Elements that are not rotated form pairs of neighbours after the rotated ones.

#include "lib/turns.wgsl"
#define ROTATED f32
#include "lib/rotate_pairs.wgsl"

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
    values: ptr<function, array<vec2<f32>, PAIRS_PER_LANE>>, which: u32, row: u32, position: u32, lane: u32,
    thread: Thread) {
    // Cosines and sines first: they depend on the position alone, and the loads of the values may still be in flight.
    let table = row * params.turns_stride;
    let half = params.rope_dim / 2u;
    let scale = bitcast<f32>(turns[table + half].x);
    var cos_sins: array<vec2<f32>, PAIRS_PER_LANE>;
#repeat I PAIRS_PER_LANE
    cos_sins[I] = scale * cos_sin(phase_at(turns[table + min(lane + I * LANES, half)], position));
#end
#if NORM
    var weights: array<vec2<f32>, PAIRS_PER_LANE>;
    var squares = 0.0;
#repeat I PAIRS_PER_LANE
    {
        let at = pair_elements(min(lane + I * LANES, HEAD_PAIRS - 1u)) + which * HEAD_DIM;
        weights[I] = vec2<f32>(head_norms[at.x], head_norms[at.y]);
        if (lane + I * LANES < HEAD_PAIRS) {
            squares += dot((*values)[I], (*values)[I]);
        }
    }
#end
    let factor = inverseSqrt(reduce_sum(squares, thread) / f32(HEAD_DIM) + params.eps);
#repeat I PAIRS_PER_LANE
    (*values)[I] *= factor * weights[I];
#end
#endif
#repeat I PAIRS_PER_LANE
    {
        let v = (*values)[I];
        let rotated = rotate_pairs(v.x, v.y, cos_sins[I].x, cos_sins[I].y);
        (*values)[I] =
            select(v * params.pass_scale, vec2<f32>(rotated.x, rotated.y), lane + I * LANES < half);
    }
#end
}
