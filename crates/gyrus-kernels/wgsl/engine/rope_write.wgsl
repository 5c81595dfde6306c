// rope_write: prepares attention. Normalises each head of Q and K if NORM, turns them by their row's phases, and
// writes K and V to the cache. Q stays in qkv.
//
//   0  qkv            [rows, stride] f32: Q, K, V side by side; Q is read and written
//   1  k_cache        blocks of [n_kv_heads, KV_BLOCK, head_dim], KV (f32 or f16); written
//   2  v_cache        likewise
//   3  params         RopeWriteParams (immediates where the device has them)
//   4  phases         [rows, rope_dim / 2] pairs (cos, sin) f32, scales included
//   5  rows           [rows] (position, first entry in block_table) u32
//   6  block_table    u32
//   7  q_norm_weight  [head_dim] f32, if NORM
//   8  k_norm_weight  [head_dim] f32, if NORM
//
// Grid: (n_heads + 2 n_kv_heads, rows), a workgroup a head. Arithmetic in f32. Twin: Rope::apply and
// scalar::rms_norm.

#include "params/RopeWriteParams"
#define PARAMS RopeWriteParams
#define PARAMS_BINDING 3
#include "lib/params.wgsl"
#include "lib/invocation.wgsl"

override WORKGROUP: u32 = 64u;
override ROOM: u32 = 128u;

@group(0) @binding(0) var<storage, read_write> qkv: array<f32>;
#if KV == f16
@group(0) @binding(1) var<storage, read_write> k_cache: array<u32>;
@group(0) @binding(2) var<storage, read_write> v_cache: array<u32>;
#else
@group(0) @binding(1) var<storage, read_write> k_cache: array<f32>;
@group(0) @binding(2) var<storage, read_write> v_cache: array<f32>;
#endif
@group(0) @binding(4) var<storage, read> phases: array<vec2<f32>>;
@group(0) @binding(5) var<storage, read> rows: array<vec2<u32>>;
@group(0) @binding(6) var<storage, read> block_table: array<u32>;
#if NORM
@group(0) @binding(7) var<storage, read> q_norm_weight: array<f32>;
@group(0) @binding(8) var<storage, read> k_norm_weight: array<f32>;
#include "lib/sum.wgsl"
#endif
#include "lib/kv.wgsl"

var<workgroup> staged: array<f32, ROOM>;

@compute @workgroup_size(WORKGROUP)
fn KERNEL(here: Invocation) {
    let row = here.group.y;
    let head = here.group.x;
    let first_value = params.n_heads + params.n_kv_heads;
    let origin = row * params.stride + head * params.head_dim;
    var squares = 0.0;
    for (var i = here.lane; i < params.head_dim; i += WORKGROUP) {
        let value = qkv[origin + i];
        staged[i] = value;
        squares += value * value;
    }
#if NORM
    let rms = inverseSqrt(workgroup_sum(squares, here) / f32(params.head_dim) + params.eps);
    if (head < first_value) {
        for (var i = here.lane; i < params.head_dim; i += WORKGROUP) {
            var weight: f32;
            if (head < params.n_heads) {
                weight = q_norm_weight[i];
            } else {
                weight = k_norm_weight[i];
            }
            staged[i] *= rms * weight;
        }
    }
#endif
    workgroupBarrier();
    if (head < first_value) {
        let half = params.rope_dim / 2u;
        for (var pair = here.lane; pair < half; pair += WORKGROUP) {
#if PAIRING == split
            let a = params.rope_offset + pair;
            let b = a + half;
#else
            let a = params.rope_offset + 2u * pair;
            let b = a + 1u;
#endif
            let turn = phases[row * half + pair];
            let x = staged[a];
            let y = staged[b];
            staged[a] = x * turn.x - y * turn.y;
            staged[b] = x * turn.y + y * turn.x;
        }
        if (params.pass_scale != 1.0) {
            for (var i = here.lane; i < params.head_dim; i += WORKGROUP) {
                if (i < params.rope_offset || i >= params.rope_offset + params.rope_dim) {
                    staged[i] *= params.pass_scale;
                }
            }
        }
    }
    workgroupBarrier();
    if (head < params.n_heads) {
        for (var i = here.lane; i < params.head_dim; i += WORKGROUP) {
            qkv[origin + i] = staged[i];
        }
        return;
    }
    let is_value = head >= first_value;
    let kv_head = head - select(params.n_heads, first_value, is_value);
    let to = kv_at(row, rows[row].x, kv_head);
#if KV == f16
    for (var word = here.lane; word < params.head_dim / 2u; word += WORKGROUP) {
        let packed = pack2x16float(vec2<f32>(staged[2u * word], staged[2u * word + 1u]));
        if (is_value) {
            v_cache[to / 2u + word] = packed;
        } else {
            k_cache[to / 2u + word] = packed;
        }
    }
#else
    for (var i = here.lane; i < params.head_dim; i += WORKGROUP) {
        if (is_value) {
            v_cache[to + i] = staged[i];
        } else {
            k_cache[to + i] = staged[i];
        }
    }
#endif
}
