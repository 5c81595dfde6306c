// scale: x = factor * x, then with a cap x = cap * tanh(x / cap).
//
//   0  x       [rows, count] f32, read and written
//   1  params  ScaleParams (immediates where the device has them)
//
// Grid: (ceil(count / WORKGROUP), rows). Twin: scalar::Reference.

#include "params/ScaleParams"
#define PARAMS ScaleParams
#define PARAMS_BINDING 1
#include "lib/params.wgsl"
#include "lib/invocation.wgsl"

override WORKGROUP: u32 = 256u;

@group(0) @binding(0) var<storage, read_write> x: array<f32>;

@compute @workgroup_size(WORKGROUP)
fn KERNEL(here: Invocation) {
    let i = here.workgroup.x * WORKGROUP + here.local_index;
    if (i < params.count) {
        let at = here.workgroup.y * params.count + i;
        var value = params.factor * x[at];
        if (params.cap != 0.0) {
            // Beyond 15, tanh is 1 in f32, and its implementation as a quotient of exponentials would overflow. The
            // clamp may drop a NaN, so the select kernels would not see it: the sum keeps it.
            let u = value / params.cap;
            value = params.cap * tanh(clamp(u, -15.0, 15.0)) + (value - value);
        }
        x[at] = value;
    }
}
