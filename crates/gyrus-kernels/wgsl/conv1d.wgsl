// conv1d: a one-dimensional convolution, y[o][t] = f(bias[o] + Σ w[o][c][k] * x[c][t * stride + k - padding]) over
// input channels c and taps k; x is zero beyond its ends.
//
//   0  x       [in_channels, in_length] f32, read
//   1  weight  [out_channels, in_channels, TAPS] in words of STORAGE (f32, f16), read
//   2  out     [out_channels, out_length] f32, or with ROWS [out_length, out_channels]; written
//   3  params  Conv1DParams (immediates where the device has them)
//   4  bias    [out_channels] f32, read; absent unless BIAS
//
// ACTIVATION is none or one of lib/activation.wgsl. Grid: (ceil(out_length / TILE_TIMES), ceil(out_channels /
// TILE_CHANNELS)). 16 x 16 invocations compute a tile; each has CHANNELS x TIMES outputs, 16 apart. STEP input channels
// at a time are staged in workgroup memory. Sums in f32, starting with the bias, over channels, then taps, whatever the
// tile. Twin: scalar::conv1d.

#include "params/Conv1DParams"
#define PARAMS Conv1DParams
#define PARAMS_BINDING 3
#include "lib/params.wgsl"
#include "lib/invocation.wgsl"
#define VECTOR 0
#include "lib/words.wgsl"
#if ACTIVATION != none
#include "lib/activation.wgsl"
#endif

@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read> weight: array<u32>;
@group(0) @binding(2) var<storage, read_write> out: array<f32>;
#if BIAS
@group(0) @binding(4) var<storage, read> bias: array<f32>;
#endif

#define WORKGROUP 256u
const TILE_CHANNELS: u32 = 16u * CHANNELS;
const TILE_TIMES: u32 = 16u * TIMES;
// Samples of a channel that a tile reads, and weights of an output channel in one step.
const SPAN: u32 = (TILE_TIMES - 1u) * STRIDE + TAPS;
const DEPTH: u32 = STEP * TAPS;

var<workgroup> samples: array<f32, STEP * SPAN>;
// An odd stride between rows of weights avoids bank conflicts.
const WEIGHT_STRIDE: u32 = TILE_CHANNELS + 1u;
var<workgroup> weights: array<f32, DEPTH * WEIGHT_STRIDE>;

fn weight_at(i: u32) -> f32 {
#if STORAGE == f32
    return bitcast<f32>(weight[i]);
#else
    let both = unpack(weight[i / 2u]);
    return select(both.x, both.y, (i & 1u) == 1u);
#endif
}

@compute @workgroup_size(WORKGROUP)
fn KERNEL(here: Invocation) {
    let column = here.local_index % 16u;
    let line = here.local_index / 16u;
    let first_time = here.workgroup.x * TILE_TIMES;
    let first_channel = here.workgroup.y * TILE_CHANNELS;
    // Negative in the padding.
    let first_sample = i32(first_time * STRIDE) - i32(params.padding);
    let depth = params.in_channels * TAPS;
    var sums: array<f32, CHANNELS * TIMES>;
#if BIAS
    for (var i = 0u; i < CHANNELS; i += 1u) {
        let start = bias[min(first_channel + line + 16u * i, params.out_channels - 1u)];
        for (var j = 0u; j < TIMES; j += 1u) {
            sums[i * TIMES + j] = start;
        }
    }
#endif
    for (var channel = 0u; channel < params.in_channels; channel += STEP) {
        workgroupBarrier();
        for (var i = here.local_index; i < STEP * SPAN; i += WORKGROUP) {
            let c = channel + i / SPAN;
            let t = first_sample + i32(i % SPAN);
            let in_range = c < params.in_channels && t >= 0 && t < i32(params.in_length);
            let at = select(0u, c * params.in_length + u32(t), in_range);
            samples[i] = select(0.0, x[at], in_range);
        }
        for (var i = here.local_index; i < DEPTH * TILE_CHANNELS; i += WORKGROUP) {
            let o = first_channel + i / DEPTH;
            let d = channel * TAPS + i % DEPTH;
            let in_range = o < params.out_channels && d < depth;
            let at = select(0u, o * depth + d, in_range);
            weights[i % DEPTH * WEIGHT_STRIDE + i / DEPTH] = select(0.0, weight_at(at), in_range);
        }
        workgroupBarrier();
        for (var c = 0u; c < STEP; c += 1u) {
            for (var k = 0u; k < TAPS; k += 1u) {
                var w: array<f32, CHANNELS>;
                for (var i = 0u; i < CHANNELS; i += 1u) {
                    w[i] = weights[(c * TAPS + k) * WEIGHT_STRIDE + line + 16u * i];
                }
                for (var j = 0u; j < TIMES; j += 1u) {
                    let sample = samples[c * SPAN + (column + 16u * j) * STRIDE + k];
                    for (var i = 0u; i < CHANNELS; i += 1u) {
                        sums[i * TIMES + j] = fma(w[i], sample, sums[i * TIMES + j]);
                    }
                }
            }
        }
    }
    for (var i = 0u; i < CHANNELS; i += 1u) {
        let o = first_channel + line + 16u * i;
        for (var j = 0u; j < TIMES; j += 1u) {
            let t = first_time + column + 16u * j;
            if (o < params.out_channels && t < params.out_length) {
#if ACTIVATION == none
                let y = sums[i * TIMES + j];
#else
                let y = activated(sums[i * TIMES + j]);
#endif
#if ROWS
                out[t * params.out_channels + o] = y;
#else
                out[o * params.out_length + t] = y;
#endif
            }
        }
    }
}
