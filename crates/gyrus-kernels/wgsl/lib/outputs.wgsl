// What stands behind a mat-vec's sums: 1 / rms of the rows, the gate, the place in y.
//
// Needs lib/lanes.wgsl or lib/lanes_near.wgsl, INPUT, NORM, GATE, ACCUMULATE, ROWS, OUTPUTS (results of a row that a
// workgroup writes), y, parameters with m, n, y_stride and y_offset, result(column, row), the sum of a row and column of
// this workgroup, and with NORM `factors` of all rows, or of one row what lib/rms.wgsl makes it of. With INPUT squares
// the kernel itself finds row_factors.

#if NORM
var<workgroup> row_factors: array<f32, ROWS>;
#endif
#if GATE != none
#define ACTIVATION GATE
#include "lib/activation.wgsl"
#endif

// The row of the matrix that a column of the grid takes; those beyond the end take the last one's.
fn weight_row(column: u32) -> u32 {
    let last = min(column, params.n - 1u);
#if GATE != none
    return (last & 1u) * (params.n / 2u) + last / 2u;
#else
    return last;
#endif
}

#if INPUT != squares
// Finds 1 / rms of the workgroup's rows, for after the next barrier. All invocations must call it together.
fn find_factors(first_row: u32, here: Member) {
#if NORM
#if INPUT == int8
    if (here.place < ROWS) {
        row_factors[here.place] = factors[min(first_row + here.place, params.m - 1u)];
    }
#else
    row_factors[0] = inverse_rms(here);
#endif
#endif
}
#endif

// A row's result number `output` of this workgroup.
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
fn write_outputs(first_row: u32, first_column: u32, here: Member) {
#if GATE != none
    let first_output = first_column / 2u;
    let width = params.n / 2u;
#else
    let first_output = first_column;
    let width = params.n;
#endif
    for (var i = here.place; i < ROWS * OUTPUTS; i += WORKGROUP) {
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
