// embed: y[r] = scale·table[tokens[r]], from an embedding table of any weight type. With ADD it adds to y: learned
// positions and types.
//
//   0  quants  the table in planes, by WEIGHT (lib/weights.wgsl)
//   1  high    likewise, if the type has high bits
//   2  scales  likewise, if the type is quantised
//   3  tokens  [tokens, TOKEN_STRIDE] u32: the first of each is an id, to which offset is added; ids beyond the
//              vocabulary are clamped to the last
//   4  y       [tokens, y_stride] f32, written in dim columns
//   5  params  EmbedParams (immediates where the device has them)
//
// A table in several parts takes one dispatch per part; each writes the rows whose entries it has. Grid: one invocation
// per unit of a row, folded over x and y. Exact but for the rounding of the product with scale. Twin:
// scalar::Reference.

#include "params/EmbedParams"
#define PARAMS EmbedParams
#define PARAMS_BINDING 5
#include "lib/params.wgsl"
#include "lib/invocation.wgsl"

override WORKGROUP: u32 = 64u;

#define QUANTS_BINDING 0
#define HIGH_BINDING 1
#define SCALES_BINDING 2
#include "lib/weights.wgsl"

@group(0) @binding(3) var<storage, read> tokens: array<u32>;
@group(0) @binding(4) var<storage, read_write> y: array<vec4<f32>>;

@compute @workgroup_size(WORKGROUP)
fn KERNEL(here: Invocation) {
    let units = weight_units(params.dim);
    let index = workgroup_index(here) * WORKGROUP + here.local_index;
    let row = index / units;
    if (row >= params.tokens) {
        return;
    }
    let unit = index % units;
    let id = min(min(tokens[row * TOKEN_STRIDE], params.vocab) + params.offset, params.vocab - 1u);
    if (id < params.first || id - params.first >= params.rows) {
        return;
    }
    var values = weight_values(id - params.first, unit, params.dim);
    for (var i = 0u; i < UNIT_VECTORS; i += 1u) {
        let at = unit * UNIT_VECTORS + i;
        if (at < params.dim / 4u) {
#if ADD
            y[row * (params.y_stride / 4u) + at] += params.scale * values[i];
#else
            y[row * (params.y_stride / 4u) + at] = params.scale * values[i];
#endif
        }
    }
}
