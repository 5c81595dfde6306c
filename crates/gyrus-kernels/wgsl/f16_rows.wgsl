// f16_rows: rows of activations as halves times a number for each row, for kernels that multiply halves.
//
//   0  x         [m, k] f32, rows x_stride apart
//   1  norm      [k] f32 that a row is multiplied by, if NORM
//   2  h         [m, k rounded up to whole 64] f16: v · 2^e, then zeros
//   3  h_scales  [m] f32: 2^-e; with NORM also / sqrt(mean(x²) + eps), so that h · h_scale is the row's RMS norm
//   4  params    F16RowsParams (immediates where the device has them)
//
// e puts a row's largest magnitude between 2^14 and 2^15: nothing overflows, and what is up to 2^28 times smaller keeps
// the eleven bits of a half. A row with something infinite or not a number has that for its scale.
//
// Grid: a workgroup a row. Twin: scalar::f16_rows.

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

// Magnitudes compare like their bits, and what is not a number is above all.
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
    // A grid of two dimensions may have a few workgroups too many: they do the last row's work again.
    let own = min(index, params.m - 1u);
    let row = own * (params.x_stride / 4u);
    let quads = params.k / 4u;
    if (here.local_index == 0u) {
        atomicStore(&largest, 0u);
    }
    var most = vec4<u32>();
#if NORM
    var squares = vec4<f32>();
#endif
    for (var i = here.local_index; i < quads; i += WORKGROUP) {
        most = max(most, bitcast<vec4<u32>>(value(row, i)) & vec4<u32>(0x7fffffffu));
#if NORM
        squares = fma(x[row + i], x[row + i], squares);
#endif
    }
    workgroupBarrier();
    let of_four = max(max(most.x, most.y), max(most.z, most.w));
#if SUBGROUPS
    let of_subgroup = subgroupMax(of_four);
    if (here.subgroup_lane == 0u) {
        atomicMax(&largest, of_subgroup);
    }
#else
    atomicMax(&largest, of_four);
#endif
#if NORM
    let mean = workgroup_sum((squares.x + squares.y) + (squares.z + squares.w), here) / f32(params.k);
#endif
    workgroupBarrier();
    let bits = atomicLoad(&largest);
    // The exponent as it is stored, such that those of both factors exist.
    let exponent = clamp(bits >> 23u, 15u, 254u);
    let factor = bitcast<f32>((268u - exponent) << 23u);
    let start = own * ((params.k + 63u) / 64u * 8u);
    for (var i = here.local_index; i < (params.k + 63u) / 64u * 8u; i += WORKGROUP) {
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
        let back = bitcast<f32>((exponent - 14u) << 23u);
#if NORM
        let scale = bitcast<u32>(back * inverseSqrt(mean + params.eps));
#else
        let scale = bitcast<u32>(back);
#endif
        h_scales[own] = select(scale, bits, bits >= 0x7f800000u);
    }
}
