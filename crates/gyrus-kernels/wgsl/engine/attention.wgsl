// attention: out = softmax(scale · q Kᵀ) V for each head of each row over the row's own sequence: positions up to its
// own, and with a window only the last `window` of them. AROUND: positions on both sides, fewer than `window` away. The
// plain kernel that the faster ones are tested against.
//
//   0  qkv          [rows, stride] f32, read: Q comes first
//   1  k_cache      blocks of [n_kv_heads, KV_BLOCK, HEAD_DIM], KV (f32 or f16), read
//   2  v_cache      likewise
//   3  params       AttendParams (immediates where the device has them)
//   4  rows         [rows] (position, first entry in block_table) u32
//   5  block_table  u32
//   6  out          [rows, n_heads, HEAD_DIM] f32, written
//   7  sinks        [n_heads] f32, if SINKS: a score of each head that joins the softmax and has no value
//   8  ends         [rows] like rows, if AROUND: the last position that a row of this sequence attends to
//
// Grid: (n_heads, rows), a workgroup a head. Tiles of WORKGROUP positions begin at multiples of WORKGROUP, so that the
// sums of a row do not depend on other rows. An invocation scores one position of a tile, then accumulates its elements
// over all positions of the tile. Sums in f32. Twin: scalar::attention.

#include "params/AttendParams"
#define PARAMS AttendParams
#define PARAMS_BINDING 3
#include "lib/params.wgsl"
#include "lib/invocation.wgsl"

override WORKGROUP: u32 = 128u;
// Elements of a head that an invocation accumulates, at most four.
override ELEMENTS_PER_INVOCATION: u32 = 1u;

@group(0) @binding(0) var<storage, read> qkv: array<f32>;
#if KV == f16
@group(0) @binding(1) var<storage, read> k_cache: array<u32>;
@group(0) @binding(2) var<storage, read> v_cache: array<u32>;
#else
@group(0) @binding(1) var<storage, read> k_cache: array<f32>;
@group(0) @binding(2) var<storage, read> v_cache: array<f32>;
#endif
@group(0) @binding(4) var<storage, read> rows: array<vec2<u32>>;
@group(0) @binding(5) var<storage, read> block_table: array<u32>;
@group(0) @binding(6) var<storage, read_write> out: array<f32>;
#if SINKS
@group(0) @binding(7) var<storage, read> sinks: array<f32>;
#endif
#if AROUND
@group(0) @binding(8) var<storage, read> ends: array<vec2<u32>>;
#endif
#include "lib/kv_rows.wgsl"

var<workgroup> query: array<f32, HEAD_DIM>;
var<workgroup> weights: array<f32, WORKGROUP>;
var<workgroup> reduced: array<f32, WORKGROUP>;

// The score of a masked position, below every score. It is finite: compilers may assume that infinities do not exist.
const MASKED: f32 = -1e30;

fn score(at: u32) -> f32 {
    var sum = 0.0;
#if KV == f16
    for (var i = 0u; i < HEAD_DIM / 2u; i += 1u) {
        sum += dot(unpack2x16float(k_cache[at / 2u + i]), vec2<f32>(query[2u * i], query[2u * i + 1u]));
    }
#else
    for (var i = 0u; i < HEAD_DIM; i += 1u) {
        sum += k_cache[at + i] * query[i];
    }
#endif
    let scaled = sum * params.scale;
    if (params.soft_cap == 0.0) {
        return scaled;
    }
    return params.soft_cap * tanh(clamp(scaled / params.soft_cap, -15.0, 15.0));
}

fn value(at: u32, element: u32) -> f32 {
#if KV == f16
    let pair = unpack2x16float(v_cache[(at + element) / 2u]);
    return select(pair.x, pair.y, element % 2u == 1u);
#else
    return v_cache[at + element];
#endif
}

@compute @workgroup_size(WORKGROUP)
fn KERNEL(here: Invocation) {
    let row = here.workgroup.y;
    let head = here.workgroup.x;
    let lane = here.local_index;
    let kv_head = head / (params.n_heads / params.n_kv_heads);
    for (var i = lane; i < HEAD_DIM; i += WORKGROUP) {
        query[i] = qkv[row * params.stride + head * HEAD_DIM + i];
    }
    workgroupBarrier();
    let own = rows[row].x;
    var first = 0u;
    if (params.window != 0u && own + 1u > params.window) {
        first = own + 1u - params.window;
    }
#if AROUND
    // Saturating.
    let last = min(ends[row].x, own + min(params.window - 1u, 0xffffffffu - own));
#else
    let last = own;
#endif
#if SINKS
    var running_max = sinks[head];
    var exp_sum = 1.0;
#else
    var running_max = MASKED;
    var exp_sum = 0.0;
#endif
    var sums = vec4<f32>();
    for (var tile = first / WORKGROUP * WORKGROUP; tile <= last; tile += WORKGROUP) {
        let position = tile + lane;
        let is_visible = position >= first && position <= last;
        var own_score = MASKED;
        if (is_visible) {
            own_score = score(kv_at(row, position, kv_head));
        }
        reduced[lane] = own_score;
        workgroupBarrier();
        for (var stride = WORKGROUP / 2u; stride > 0u; stride /= 2u) {
            if (lane < stride) {
                reduced[lane] = max(reduced[lane], reduced[lane + stride]);
            }
            workgroupBarrier();
        }
        let new_max = max(running_max, reduced[0]);
        let rescale = exp(running_max - new_max);
        running_max = new_max;
        weights[lane] = select(0.0, exp(own_score - running_max), is_visible);
        workgroupBarrier();
        sums *= rescale;
        exp_sum *= rescale;
        let end = min(WORKGROUP, last + 1u - tile);
        for (var j = 0u; j < end; j += 1u) {
            let weight = weights[j];
            exp_sum += weight;
            if (tile + j >= first) {
                let at = kv_at(row, tile + j, kv_head);
                for (var k = 0u; k < ELEMENTS_PER_INVOCATION; k += 1u) {
                    let element = lane + k * WORKGROUP;
                    if (element < HEAD_DIM) {
                        sums[k] += weight * value(at, element);
                    }
                }
            }
        }
        workgroupBarrier();
    }
    for (var k = 0u; k < ELEMENTS_PER_INVOCATION; k += 1u) {
        let element = lane + k * WORKGROUP;
        if (element < HEAD_DIM) {
            out[(row * params.n_heads + head) * HEAD_DIM + element] = sums[k] / exp_sum;
        }
    }
}
