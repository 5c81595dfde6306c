// quantize_rows: rows of activations as signed bytes, v ≈ scale·q in blocks of 32, scale the largest magnitude / 127.
//
//   0  x         [m, k] f32, rows x_stride apart
//   1  q         [m, 2, k / 32] vectors of sixteen signed bytes: of all blocks the first sixteen, then the last, so
//                that invocations that take neighbouring blocks read neighbouring vectors
//   2  q_scales  [m, k / 32] of two words: the scale (f32), and the sums of the first and last sixteen bytes (i16)
//   3  params    QuantizeRowsParams (immediates where the device has them)
//
// One invocation a block. Rounds to the nearest, ties to even. Twin: scalar::quantize_rows.

#include "params/QuantizeRowsParams"
#define PARAMS QuantizeRowsParams
#define PARAMS_BINDING 3
#include "lib/params.wgsl"
#include "lib/invocation.wgsl"

override WORKGROUP: u32 = 64u;

@group(0) @binding(0) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read_write> q: array<vec4<u32>>;
@group(0) @binding(2) var<storage, read_write> q_scales: array<vec2<u32>>;

// Magnitudes compare like their bits, and what is not a number is above all: it ends up in the scale and is seen.
fn most(a: vec4<f32>, b: vec4<u32>) -> vec4<u32> {
    return max(bitcast<vec4<u32>>(a) & vec4<u32>(0x7fffffffu), b);
}

fn bytes(v: vec4<f32>, inverse: f32) -> vec4<i32> {
    return vec4<i32>(clamp(round(v * inverse), vec4<f32>(-127.0), vec4<f32>(127.0)));
}

struct Sixteen {
    words: vec4<u32>,
    sum: i32,
}

fn sixteen(a: vec4<f32>, b: vec4<f32>, c: vec4<f32>, d: vec4<f32>, inverse: f32) -> Sixteen {
    let p = bytes(a, inverse);
    let q = bytes(b, inverse);
    let r = bytes(c, inverse);
    let s = bytes(d, inverse);
    let sums = (p + q) + (r + s);
    return Sixteen(
        vec4<u32>(pack4xI8(p), pack4xI8(q), pack4xI8(r), pack4xI8(s)), (sums.x + sums.y) + (sums.z + sums.w));
}

@compute @workgroup_size(WORKGROUP)
fn KERNEL(here: Invocation) {
    let blocks = params.k / 32u;
    let index = group_index(here) * WORKGROUP + here.lane;
    let row = index / blocks;
    let block = index % blocks;
    if (row >= params.m) {
        return;
    }
    let at = row * (params.x_stride / 4u) + 8u * block;
    let a = x[at];
    let b = x[at + 1u];
    let c = x[at + 2u];
    let d = x[at + 3u];
    let e = x[at + 4u];
    let f = x[at + 5u];
    let g = x[at + 6u];
    let h = x[at + 7u];
    let all = most(a, most(b, most(c, most(d, most(e, most(f, most(g, most(h, vec4<u32>()))))))));
    let largest = bitcast<f32>(max(max(all.x, all.y), max(all.z, all.w)));
    let inverse = select(0.0, 127.0 / largest, largest > 0.0);
    let first = sixteen(a, b, c, d, inverse);
    let last = sixteen(e, f, g, h, inverse);
    q[2u * row * blocks + block] = first.words;
    q[(2u * row + 1u) * blocks + block] = last.words;
    let sums = (bitcast<u32>(first.sum) & 0xffffu) | (bitcast<u32>(last.sum) << 16u);
    q_scales[index] = vec2<u32>(bitcast<u32>(largest / 127.0), sums);
}
