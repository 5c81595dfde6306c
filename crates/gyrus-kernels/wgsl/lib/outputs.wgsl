// The epilogue of a mat-vec: multiplies by 1 / rms, applies the gate, writes y.
//
// Needs lib/lanes.wgsl or lib/lanes_subgroup32.wgsl; INPUT, NORM, GATE, EXPERTS, BIAS, ACCUMULATE, ROWS and OUTPUTS (outputs of a row
// that a workgroup writes); y; parameters with m, n, y_stride and y_offset; and result(column, row), the sum of one
// output of this workgroup. With NORM it needs `factors` of all rows, or lib/rms.wgsl for a single row. With INPUT
// squares the kernel itself computes row_factors.

#if NORM
var<workgroup> row_factors: array<f32, ROWS>;
#endif
#if GATE != none
#define ACTIVATION GATE
#include "lib/activation.wgsl"
#endif

// The row of the weight matrix for a column of the grid. Columns beyond the end use the last row.
// With a GATE, even columns are gate rows and odd columns are up rows.
fn weight_row(column: u32) -> u32 {
    let last = min(column, params.n - 1u);
#if EXPERTS == each
#if GATE != none
    return expert_row(expert, (last & 1u) * (params.n / 2u) + last / 2u, params.n);
#else
    return expert_row(expert, last, params.n);
#endif
#elif GATE != none
    return (last & 1u) * (params.n / 2u) + last / 2u;
#else
    return last;
#endif
}

#if INPUT != squares
// Computes 1 / rms of the workgroup's rows. It is valid after the next barrier. All invocations must call it together.
fn load_factors(first_row: u32, thread: Thread) {
#if NORM
#if INPUT == int8
    if (thread.index < ROWS) {
        row_factors[thread.index] = factors[min(first_row + thread.index, params.m - 1u)];
    }
#else
    row_factors[0] = inverse_rms(thread);
#endif
#endif
}
#endif

// A value of a column of the grid plus its bias; with EXPERTS sum plus the weighted biases of all of the row's experts.
fn with_bias(value: f32, column: u32) -> f32 {
#if BIAS
#if EXPERTS == sum
    var sum = value;
    for (var slot = 0u; slot < USED; slot += 1u) {
        sum = fma(chosen_weights[slot], biases[chosen[slot] * params.n + weight_row(column)], sum);
    }
    return sum;
#else
    return value + biases[weight_row(column)];
#endif
#else
    return value;
#endif
}

// Output number `output` of this workgroup for a row, from the column `first_column` of the grid on.
fn output_of(output: u32, row: u32, first_column: u32) -> f32 {
#if NORM
    let factor = row_factors[row];
#else
    let factor = 1.0;
#endif
#if GATE != none
    let column = first_column + 2u * output;
    return gated(
        with_bias(result(2u * output, row) * factor, column),
        with_bias(result(2u * output + 1u, row) * factor, column + 1u));
#else
    return with_bias(result(output, row) * factor, first_column + output);
#endif
}

// All invocations of a workgroup must call it together.
fn write_outputs(first_row: u32, first_column: u32, thread: Thread) {
#if GATE != none
    let first_output = first_column / 2u;
    let width = params.n / 2u;
#else
    let first_output = first_column;
    let width = params.n;
#endif
    for (var i = thread.index; i < ROWS * OUTPUTS; i += WORKGROUP) {
        let row = i / OUTPUTS;
        let column = first_output + i % OUTPUTS;
        let value = output_of(i % OUTPUTS, row, first_column);
        if (first_row + row < params.m && column < width) {
            let at = (first_row + row) * params.y_stride + params.y_offset + column;
#if ACCUMULATE
            y[at] += value;
#else
            y[at] = value;
#endif
        }
    }
}
