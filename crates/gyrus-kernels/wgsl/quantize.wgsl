// quantize: rows of activations to int8 for mat-vecs, v ≈ scale·q in blocks of 32 (lib/int8.wgsl).
//
//   0  x         SOURCE f32, norm, squares: [m, k] f32, rows x_stride apart. SOURCE merge: the splits of attention of
//                [m, k / HEAD_DIM] heads (lib/merge.wgsl)
//   1  q         TARGET int8: rows as in lib/int8_rows.wgsl. TARGET f32: [m, k] f32
//   2  q_scales  TARGET int8: likewise
//   3  params    QuantizeParams (immediates where the device has them)
//   4  weight    SOURCE norm, squares: [k] f32, the weight of an RMS norm; x is multiplied by it
//   5  factors   SOURCE norm: [m] f32, written: 1 / rms of the rows. A mat-vec multiplies its results by them.
//                SOURCE squares: `squares` instead, [m, k / 32] f32, written: sums of squares of the rows' blocks
//   6  rows      SOURCE merge: [m] (position, first entry in block_table)
//
// Eight invocations quantise a block. Grid: (ceil(k / 4 / WORKGROUP), m); SOURCE norm: (1, m), a workgroup per row of K
// elements. Twin: scalar::quantize_rows.

#include "params/QuantizeParams"
#define PARAMS QuantizeParams
#define PARAMS_BINDING 3
#include "lib/params.wgsl"
#include "lib/invocation.wgsl"

#if SOURCE == norm
#define WORKGROUP 256u
#else
#define WORKGROUP 128u
#endif
#define LANES 32u
#define INT8_SUMS 1
#include "lib/lanes.wgsl"

#if SOURCE == merge
@group(0) @binding(0) var<storage, read> partials: array<vec4<f32>>;
@group(0) @binding(6) var<storage, read> rows: array<vec2<u32>>;
#include "lib/merge.wgsl"
#else
@group(0) @binding(0) var<storage, read> x: array<vec4<f32>>;
#endif
#if TARGET == int8
#define Q_BINDING 1
#define Q_SCALES_BINDING 2
#include "lib/int8.wgsl"
#include "lib/int8_rows.wgsl"
#else
@group(0) @binding(1) var<storage, read_write> q: array<vec4<f32>>;
#endif
#if SOURCE == norm
@group(0) @binding(4) var<storage, read> weight: array<vec4<f32>>;
@group(0) @binding(5) var<storage, read_write> factors: array<f32>;
var<workgroup> squares: array<f32, K / 32>;
#include "lib/rms.wgsl"
#elif SOURCE == squares
@group(0) @binding(4) var<storage, read> weight: array<vec4<f32>>;
@group(0) @binding(5) var<storage, read_write> squares: array<f32>;
#endif

@compute @workgroup_size(WORKGROUP)
fn KERNEL(here: Invocation) {
    let thread = thread_of(here);
    let row = here.workgroup.y;
#if SOURCE == norm
    for (var first = 0u; first < K / 4u; first += LOADS * WORKGROUP) {
        // All loads are issued before the first is used.
        var inputs: array<vec4<f32>, LOADS>;
        var weights: array<vec4<f32>, LOADS>;
#repeat P LOADS
        {
            let four = min(first + P * WORKGROUP + thread.index, K / 4u - 1u);
            inputs[P] = x[row * (params.x_stride / 4u) + four];
            weights[P] = weight[four];
        }
#end
#repeat P LOADS
        {
            // Invocations beyond the end repeat the last vector and do not write: the barriers need all of them.
            let four = first + P * WORKGROUP + thread.index;
            let quantized = to_int8(inputs[P] * weights[P], thread);
            let sum = block_squares(inputs[P], thread);
            if (four < K / 4u) {
                write_int8(quantized, row, four, K / 32u);
                if ((four & 7u) == 0u) {
                    squares[four / 8u] = sum;
                }
            }
        }
#end
    }
    workgroupBarrier();
    let factor = inverse_rms(thread);
    if (thread.index == 0u) {
        factors[row] = factor;
    }
#else
    let blocks = params.k / 32u;
    let index = here.workgroup.x * WORKGROUP + thread.index;
    // Invocations beyond the end repeat the last vector and do not write: the barriers need all of them.
    let four = min(index, 8u * blocks - 1u);
#if SOURCE == merge
    let head = four / (HEAD_DIM / 4u);
    let splits = splits_of(rows[row].x, params.window);
    let v = merged(row, params.k / HEAD_DIM, head, four % (HEAD_DIM / 4u), splits.count);
#else
    let v = x[row * (params.x_stride / 4u) + four];
#endif
#if SOURCE == squares
    let quantized = to_int8(v * weight[four], thread);
    let sum = block_squares(v, thread);
    if (index < 8u * blocks) {
        write_int8(quantized, row, four, blocks);
        if ((four & 7u) == 0u) {
            squares[row * blocks + four / 8u] = sum;
        }
    }
#elif TARGET == int8
    let quantized = to_int8(v, thread);
    if (index < 8u * blocks) {
        write_int8(quantized, row, four, blocks);
    }
#else
    if (index < 8u * blocks) {
        q[row * (params.k / 4u) + four] = v;
    }
#endif
#endif
}
