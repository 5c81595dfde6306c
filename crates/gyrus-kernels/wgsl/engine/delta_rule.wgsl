// delta_rule: the gated delta rule of each value head over the rows of each sequence, in order.
//
//   0  x         [rows, x_stride] f32, read: inputs of the convolution, of which the last three are part of the state
//   1  state     [records, state_stride] f32, read and written: three inputs of each channel, then columns of matrices,
//                [value_heads, value_dim, key_dim]
//   2  prepared  [rows, prepared_stride] f32, read: as delta_conv writes it
//   3  params    DeltaParams (immediates where the device has them)
//   4  runs      [runs] vec4<u32>, read: see lib/delta_runs.wgsl
//   5  rows      [rows, 2] u32, read: position, and a word that is not used
//   6  out       [rows, value_heads value_dim] f32, written
//
// Columns of a matrix do not depend on each other. A workgroup has COLUMNS of one head, and LANES invocations share a
// column, whose elements stay in registers: vector i of lane l is vector i * LANES + l of the column. Sums in f32 in a
// fixed order, by the same code for every row, so that results do not depend on where a chunk ends.
// Grid: (value_heads * value_dim / COLUMNS, runs). Twin: scalar::delta_rule.

#include "params/DeltaParams"
#define PARAMS DeltaParams
#define PARAMS_BINDING 3
#include "lib/params.wgsl"
#include "lib/invocation.wgsl"

override WORKGROUP: u32 = 64u;
override LANES: u32 = 4u;

@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> state: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> prepared: array<vec4<f32>>;
@group(0) @binding(4) var<storage, read> runs: array<vec4<u32>>;
@group(0) @binding(5) var<storage, read> rows: array<u32>;
@group(0) @binding(6) var<storage, read_write> out: array<f32>;

#include "lib/lanes.wgsl"
#include "lib/delta_runs.wgsl"

// The element of a prepared row.
fn prepared_at(row: u32, at: u32) -> f32 {
    return prepared[row * (params.prepared_stride / 4u) + at / 4u][at % 4u];
}

// Writes four channels of the last three inputs.
fn write_inputs(run: Run, channel: u32, channels: u32) {
    var before: array<vec4<f32>, 3>;
    let stride = params.state_stride / 4u;
    for (var i = 0u; i < 3u; i += 1u) {
        if (run.source != NO_RECORD) {
            before[i] = state[run.source * stride + (i * channels + channel) / 4u];
        } else {
            before[i] = vec4<f32>(0.0);
        }
    }
    for (var i = 0u; i < 3u; i += 1u) {
        // The i-th of the last three inputs: that many rows after the state before, or a row.
        let index = run.count + i;
        var value = vec4<f32>(0.0);
        if (index >= 3u) {
            let at = (run.first + index - 3u) * params.x_stride + channel;
            value = vec4<f32>(x[at], x[at + 1u], x[at + 2u], x[at + 3u]);
        } else if (index == 2u) {
            value = before[2];
        } else {
            value = before[1];
        }
        state[run.sink * stride + (i * channels + channel) / 4u] = value;
    }
}

@compute @workgroup_size(WORKGROUP)
fn KERNEL(here: Invocation) {
    let thread = thread_of(here);
    let run = run_at(here.workgroup.y);
    let lane = thread.index % LANES;
    let column = here.workgroup.x * (WORKGROUP / LANES) + thread.index / LANES;
    let head = column / params.value_dim;
    let key_width = params.key_heads * params.key_dim;
    let channels = 2u * key_width + params.value_heads * params.value_dim;
    let key_head = select(head / (params.value_heads / params.key_heads), head % params.key_heads, params.tiled == 1u);
    let stride = params.state_stride / 4u;
    let vectors = params.key_dim / 4u;
    let column_at = 3u * channels / 4u + column * vectors + lane;
    let row_vectors = params.prepared_stride / 4u;
    let query_at = key_head * vectors + lane;
    let key_at = key_width / 4u + query_at;

    var s: array<vec4<f32>, VECTORS>;
    for (var i = 0u; i < VECTORS; i += 1u) {
        s[i] = vec4<f32>(0.0);
        if (run.source != NO_RECORD) {
            s[i] = state[run.source * stride + column_at + i * LANES];
        }
    }
    for (var step = 0u; step < run.count; step += 1u) {
        let row = run.first + step;
        var key: array<vec4<f32>, VECTORS>;
        var query: array<vec4<f32>, VECTORS>;
        for (var i = 0u; i < VECTORS; i += 1u) {
            key[i] = prepared[row * row_vectors + key_at + i * LANES];
            query[i] = prepared[row * row_vectors + query_at + i * LANES];
        }
        let decay = prepared_at(row, channels + params.value_heads + head);
        let value = prepared_at(row, 2u * key_width + column);
        let beta = prepared_at(row, channels + head);
        var sums = vec4<f32>(0.0);
        for (var i = 0u; i < VECTORS; i += 1u) {
            sums = fma(s[i], key[i], sums);
        }
        let predicted = reduce_sum((sums.x + sums.y) + (sums.z + sums.w), thread);
        let u = fma(-decay, predicted, value) * beta;
        sums = vec4<f32>(0.0);
        for (var i = 0u; i < VECTORS; i += 1u) {
            s[i] = fma(key[i], vec4<f32>(u), s[i] * decay);
            sums = fma(s[i], query[i], sums);
        }
        let result = reduce_sum((sums.x + sums.y) + (sums.z + sums.w), thread);
        if (lane == 0u) {
            out[row * params.value_heads * params.value_dim + column] = result;
        }
    }
    if (run.count > 0u) {
        for (var i = 0u; i < VECTORS; i += 1u) {
            state[run.sink * stride + column_at + i * LANES] = s[i];
        }
        let invocations = here.num_workgroups.x * WORKGROUP;
        for (var i = here.workgroup.x * WORKGROUP + thread.index; i < channels / 4u; i += invocations) {
            write_inputs(run, 4u * i, channels);
        }
    }
}
