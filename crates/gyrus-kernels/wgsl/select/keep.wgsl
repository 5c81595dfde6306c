// select_keep: copies the logits of rows whose samplers run on the host, before the next step overwrites them.
//
//   0  logits  [rows, vocab] f32, read
//   1  slots   [rows] SlotState, read
//   2  kept    [rows, vocab] u32, written: the bits of the logits of rows with SLOT_HOST
//   3  params  SelectParams (immediates where the device has them)
//
// Grid: (slices, rows). Twin: scalar::kept_logits.

#include "params/SelectParams"
#define PARAMS SelectParams
#define PARAMS_BINDING 3
#include "lib/params.wgsl"
#include "select/slot.wgsl"

@group(0) @binding(0) var<storage, read> logits: array<u32>;
@group(0) @binding(1) var<storage, read> slots: array<SlotState>;
@group(0) @binding(2) var<storage, read_write> kept: array<u32>;

const WORKGROUP: u32 = 256u;

@compute @workgroup_size(256)
fn KERNEL(@builtin(local_invocation_index) lane: u32, @builtin(workgroup_id) group: vec3<u32>) {
    if ((slots[group.y].flags & SLOT_HOST) == 0u) {
        return;
    }
    let base = group.y * params.vocab;
    for (var i = group.x * WORKGROUP + lane; i < params.vocab; i += params.slices * WORKGROUP) {
        kept[base + i] = logits[base + i];
    }
}
