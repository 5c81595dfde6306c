// add_gated: out[r][i] += sigmoid(gate[r]) * x[r][i], an expert that every row has.
//
//   0  x       [rows, count] f32, read
//   1  gate    [rows] f32, read
//   2  out     [rows, count] f32, read and written
//   3  params  ElementwiseParams (immediates where the device has them)
//
// Grid: (ceil(count / WORKGROUP), rows). Twin: scalar::add_gated.

#include "params/ElementwiseParams"
#define PARAMS ElementwiseParams
#define PARAMS_BINDING 3
#include "lib/params.wgsl"
#include "lib/invocation.wgsl"

override WORKGROUP: u32 = 256u;

@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read> gate: array<f32>;
@group(0) @binding(2) var<storage, read_write> out: array<f32>;

@compute @workgroup_size(WORKGROUP)
fn KERNEL(here: Invocation) {
    let i = here.workgroup.x * WORKGROUP + here.local_index;
    let row = here.workgroup.y;
    if (i < params.count) {
        out[row * params.count + i] += x[row * params.count + i] / (1.0 + exp(-gate[row]));
    }
}
