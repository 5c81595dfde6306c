// add: out[r][first + i] += scale * x[r][i], the residual connection; with an x_stride of 0 a bias.
//
//   0  x       [rows, x_stride] f32, read; one row if x_stride is 0
//   1  out     [rows, out_stride] f32, read and written
//   2  params  AddParams (immediates where the device has them)
//
// Grid: (ceil(count / WORKGROUP), rows). Twin: scalar::Reference.

#include "params/AddParams"
#define PARAMS AddParams
#define PARAMS_BINDING 2
#include "lib/params.wgsl"
#include "lib/invocation.wgsl"

override WORKGROUP: u32 = 256u;

@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> out: array<f32>;

@compute @workgroup_size(WORKGROUP)
fn KERNEL(here: Invocation) {
    let i = here.workgroup.x * WORKGROUP + here.local_index;
    let row = here.workgroup.y;
    if (i < params.count) {
        out[row * params.out_stride + params.first + i] += params.scale * x[row * params.x_stride + i];
    }
}
