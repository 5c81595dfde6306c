// f16_rows: rows of activations as f16 with one f32 scale a row, for the f16 mat-mul.
//
//   0  x         [m, k] f32, rows x_stride apart
//   1  norm      [k] f32, the weight of an RMS norm that rows are multiplied by, if NORM
//   2  h         [m, k rounded up to a multiple of 128] f16: v · 2^e, then zeros
//   3  h_scales  [m] f32: 2^-e; with NORM also / sqrt(mean(x²) + eps), so that h · h_scale is the row's RMS norm
//   4  params    F16RowsParams (immediates where the device has them)
//
// e puts the largest magnitude of a row between 2^14 and 2^15: nothing overflows, and values up to 2^28 times smaller
// keep all eleven bits of f16. A row that contains NaN or infinity gets it as its scale.
//
// Grid: a workgroup a row, folded over x and y. Twin: scalar::f16_rows.

#define STORAGE f16
#define VECTOR 1
#include "lib/words.wgsl"
#include "params/F16RowsParams"
#define PARAMS F16RowsParams
#define PARAMS_BINDING 4
#include "lib/params.wgsl"
#include "lib/invocation.wgsl"

override WORKGROUP: u32 = 256u;

@group(0) @binding(0) var<storage, read> x: array<vec4<f32>>;
#if NORM
@group(0) @binding(1) var<storage, read> norm: array<vec4<f32>>;
#include "lib/sum.wgsl"
#endif
@group(0) @binding(2) var<storage, read_write> h: array<vec4<u32>>;
@group(0) @binding(3) var<storage, read_write> h_scales: array<u32>;

// Magnitudes compare like their bits, and NaN compares above every number.
var<workgroup> largest: atomic<u32>;

fn value(row: u32, at: u32) -> vec4<f32> {
#if NORM
    return x[row + at] * norm[at];
#else
    return x[row + at];
#endif
}

@compute @workgroup_size(WORKGROUP)
fn KERNEL(here: Invocation) {
    let index = workgroup_index(here);
    // A folded grid may have a few workgroups too many: they repeat the last row.
    let row_index = min(index, params.m - 1u);
    let row = row_index * (params.x_stride / 4u);
    let quads = params.k / 4u;
    if (here.local_index == 0u) {
        atomicStore(&largest, 0u);
    }
    var max_bits = vec4<u32>();
#if NORM
    var squares = vec4<f32>();
#endif
    for (var i = here.local_index; i < quads; i += WORKGROUP) {
        max_bits = max(max_bits, bitcast<vec4<u32>>(value(row, i)) & vec4<u32>(0x7fffffffu));
#if NORM
        squares = fma(x[row + i], x[row + i], squares);
#endif
    }
    workgroupBarrier();
    let lane_max = max(max(max_bits.x, max_bits.y), max(max_bits.z, max_bits.w));
#if SUBGROUPS
    let subgroup_max = subgroupMax(lane_max);
    if (here.subgroup_lane == 0u) {
        atomicMax(&largest, subgroup_max);
    }
#else
    atomicMax(&largest, lane_max);
#endif
#if NORM
    let mean = workgroup_sum((squares.x + squares.y) + (squares.z + squares.w), here) / f32(params.k);
#endif
    workgroupBarrier();
    let bits = atomicLoad(&largest);
    // The biased exponent, clamped so that both factors are normal numbers.
    let exponent = clamp(bits >> 23u, 15u, 254u);
    let factor = bitcast<f32>((268u - exponent) << 23u);
    let start = row_index * ((params.k + 127u) / 128u * 16u);
    for (var i = here.local_index; i < (params.k + 127u) / 128u * 16u; i += WORKGROUP) {
        var low = vec4<f32>();
        var high = vec4<f32>();
        if (2u * i < quads) {
            low = value(row, 2u * i);
        }
        if (2u * i + 1u < quads) {
            high = value(row, 2u * i + 1u);
        }
        h[start + i] = words(Elements(low * factor, high * factor));
    }
    if (here.local_index == 0u) {
        let inverse_factor = bitcast<f32>((exponent - 14u) << 23u);
#if NORM
        let scale = bitcast<u32>(inverse_factor * inverseSqrt(mean + params.eps));
#else
        let scale = bitcast<u32>(inverse_factor);
#endif
        h_scales[row_index] = select(scale, bits, bits >= 0x7f800000u);
    }
}
