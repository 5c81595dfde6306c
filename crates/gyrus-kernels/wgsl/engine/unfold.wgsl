// unfold: the inputs of a convolution over the rows of each sequence, side by side, so that a matrix product computes it:
// out[r][c·taps + t] = x[r·stride + t − taps / 2][c], and 0 where the sequence of row r has no such row.
//
//   0  x       [rows·x_slots, channels] f32, read
//   1  rows    [rows] (position, first entry in block_table) u32: the rows of a sequence are adjacent and begin with
//              position 0
//   2  out     [rows·out_slots, channels·taps] f32, written
//   3  params  UnfoldParams (immediates where the device has them)
//
// The stride is x_slots / out_slots. Grid: (ceil(channels·taps / WORKGROUP), rows·out_slots). A copy, so exact. Twin:
// scalar::unfold.

#include "params/UnfoldParams"
#define PARAMS UnfoldParams
#define PARAMS_BINDING 3
#include "lib/params.wgsl"
#include "lib/invocation.wgsl"

override WORKGROUP: u32 = 256u;

@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read> rows: array<vec2<u32>>;
@group(0) @binding(2) var<storage, read_write> out: array<f32>;

@compute @workgroup_size(WORKGROUP)
fn KERNEL(here: Invocation) {
    let i = here.workgroup.x * WORKGROUP + here.local_index;
    let width = params.channels * params.taps;
    if (i >= width) {
        return;
    }
    let to = here.workgroup.y;
    let row = to / params.out_slots;
    // One more than the row of x, which may be before the first.
    let after = to * (params.x_slots / params.out_slots) + i % params.taps + 1u;
    let skipped = params.taps / 2u;
    let source = max(after, skipped + 1u) - skipped - 1u;
    let source_row = min(source / params.x_slots, params.rows - 1u);
    // Rows of one sequence have one distance to their positions.
    let inside = after > skipped && source < params.rows * params.x_slots
        && source_row - rows[source_row].x == row - rows[row].x;
    let value = x[select(0u, source, inside) * params.channels + i / params.taps];
    out[to * width + i] = select(0.0, value, inside);
}
