// delta_conv: prepares rows of Gated DeltaNet. A causal convolution of each channel over the rows of a sequence, SiLU, the
// L2 norm of query and key heads, and two factors for each value head: sigmoid(b), exp(a * softplus(alpha + bias)).
//
//   0  x         [rows, channels + value_width + 2 value_heads] f32, read: channels, output gate, b, alpha
//   1  state     [records, state_stride] f32, read: the last three inputs of each channel, oldest first, then matrices
//   2  weights   [4 channels + 2 value_heads] f32, read: taps of each channel, oldest first; a; bias
//   3  params    DeltaParams (immediates where the device has them)
//   4  runs      [runs] vec4<u32>, read: see lib/delta_runs.wgsl
//   5  row_runs  [rows] u32, read: the run of each row
//   6  rows      [rows, 2] u32, read: position, and a word that is not used
//   7  out       [rows, prepared_stride] f32, written: queries, keys, values, then the two factors of all value heads
//
// Grid: (2 key_heads + value_heads + 1, rows), a workgroup a head, the last the factors. ELEMENTS_PER_INVOCATION times
// WORKGROUP is at least the size of a head. Sums in f32. Twin: scalar::delta_conv.

#include "params/DeltaParams"
#define PARAMS DeltaParams
#define PARAMS_BINDING 3
#include "lib/params.wgsl"
#include "lib/invocation.wgsl"

override WORKGROUP: u32 = 64u;

@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read> state: array<f32>;
@group(0) @binding(2) var<storage, read> weights: array<f32>;
@group(0) @binding(4) var<storage, read> runs: array<vec4<u32>>;
@group(0) @binding(5) var<storage, read> row_runs: array<u32>;
@group(0) @binding(6) var<storage, read> rows: array<u32>;
@group(0) @binding(7) var<storage, read_write> out: array<f32>;

#include "lib/delta_runs.wgsl"
#include "lib/sum.wgsl"

// The input of a channel `back` rows before a row.
fn input_of(run: Run, row: u32, back: u32, channel: u32, channels: u32) -> f32 {
    let index = row - run.first;
    if (index >= back) {
        return x[(row - back) * params.x_stride + channel];
    }
    if (run.source == NO_RECORD) {
        return 0.0;
    }
    return state[run.source * params.state_stride + (3u + index - back) * channels + channel];
}

fn convolved(run: Run, row: u32, channel: u32, channels: u32) -> f32 {
    var sum = weights[4u * channel] * input_of(run, row, 3u, channel, channels);
    sum = fma(weights[4u * channel + 1u], input_of(run, row, 2u, channel, channels), sum);
    sum = fma(weights[4u * channel + 2u], input_of(run, row, 1u, channel, channels), sum);
    sum = fma(weights[4u * channel + 3u], x[row * params.x_stride + channel], sum);
    return sum / (1.0 + exp(-sum));
}

@compute @workgroup_size(WORKGROUP)
fn KERNEL(here: Invocation) {
    let row = here.workgroup.y;
    let head = here.workgroup.x;
    let key_width = params.key_heads * params.key_dim;
    let value_width = params.value_heads * params.value_dim;
    let channels = 2u * key_width + value_width;
    let run = run_at(row_runs[row]);
    let to = row * params.prepared_stride;
    let is_key = head < 2u * params.key_heads;
    let is_value = !is_key && head < 2u * params.key_heads + params.value_heads;
    let dim = select(select(0u, params.value_dim, is_value), params.key_dim, is_key);
    let first = select(2u * key_width + (head - 2u * params.key_heads) * params.value_dim, head * params.key_dim, is_key);
    var values: array<f32, ELEMENTS_PER_INVOCATION>;
    var squares = 0.0;
    for (var i = 0u; i < ELEMENTS_PER_INVOCATION; i += 1u) {
        let at = here.local_index + i * WORKGROUP;
        if (at < dim) {
            values[i] = convolved(run, row, first + at, channels);
            squares = fma(values[i], values[i], squares);
        }
    }
    let sum = workgroup_sum(squares, here);
    let scale = select(1.0, params.query_scale, head < params.key_heads);
    let factor = select(1.0, scale * inverseSqrt(sum + params.eps), is_key);
    for (var i = 0u; i < ELEMENTS_PER_INVOCATION; i += 1u) {
        let at = here.local_index + i * WORKGROUP;
        if (at < dim) {
            out[to + first + at] = values[i] * factor;
        }
    }
    if (dim == 0u) {
        let gates = row * params.x_stride + channels + value_width;
        for (var i = here.local_index; i < params.value_heads; i += WORKGROUP) {
            out[to + channels + i] = 1.0 / (1.0 + exp(-x[gates + i]));
            let stored = weights[4u * channels + i];
            let a = select(stored, -exp(stored), params.a_is_log == 1u);
            let v = x[gates + params.value_heads + i] + weights[4u * channels + params.value_heads + i];
            // Beyond 20, the logarithm is v itself in f32.
            let softplus = select(log(1.0 + exp(min(v, 20.0))), v, v > 20.0);
            out[to + channels + params.value_heads + i] = exp(a * softplus);
        }
    }
}
