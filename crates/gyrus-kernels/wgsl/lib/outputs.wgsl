// The epilogue of a mat-vec: multiplies by 1 / rms, applies the gate, writes y.
//
// Needs lib/lanes.wgsl or lib/lanes_subgroup32.wgsl; INPUT, NORM, GATE, ACCUMULATE, ROWS and OUTPUTS (outputs of a row
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
#if GATE != none
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

// Output number `output` of this workgroup for a row.
fn output_of(output: u32, row: u32) -> f32 {
#if NORM
    let factor = row_factors[row];
#else
    let factor = 1.0;
#endif
#if GATE != none
    return activated(result(2u * output, row) * factor) * (result(2u * output + 1u, row) * factor);
#else
    return result(output, row) * factor;
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
        let value = output_of(i % OUTPUTS, row);
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
