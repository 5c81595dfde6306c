// select_count: counts the tokens in the penalty windows of rows that begin: those with the flag SLOT_COUNT.
//
//   0  slots    [rows] SlotState, read; the flag is cleared
//   1  rows     [rows] (position of the last token, first entry in block_table), read
//   2  history  [rows, params.history] u32, read: tokens by position
//   3  counts   [rows, vocab] u32, written
//   4  params   SelectParams (immediates where the device has them)
//
// Grid: (rows), a workgroup a row. Twin: scalar::SelectState::new.

#include "params/SelectParams"
#define PARAMS SelectParams
#define PARAMS_BINDING 4
#include "lib/params.wgsl"
#include "select/slot.wgsl"

@group(0) @binding(0) var<storage, read_write> slots: array<SlotState>;
@group(0) @binding(1) var<storage, read> rows: array<vec2<u32>>;
@group(0) @binding(2) var<storage, read> history: array<u32>;
@group(0) @binding(3) var<storage, read_write> counts: array<atomic<u32>>;

const WORKGROUP: u32 = 256u;

var<workgroup> flags: u32;

@compute @workgroup_size(256)
fn KERNEL(@builtin(local_invocation_index) lane: u32, @builtin(workgroup_id) group: vec3<u32>) {
    let row = group.x;
    if (lane == 0u) {
        flags = slots[row].flags;
    }
    if ((workgroupUniformLoad(&flags) & SLOT_COUNT) == 0u) {
        return;
    }
    for (var token = lane; token < params.vocab; token += WORKGROUP) {
        atomicStore(&counts[row * params.vocab + token], 0u);
    }
    storageBarrier();
    let end = rows[row].x + 1u;
    let window = min(min(slots[row].penalty_window, params.history), end);
    for (var back = lane; back < window; back += WORKGROUP) {
        let token = history[row * params.history + (end - 1u - back) % params.history];
        if (token < params.vocab) {
            atomicAdd(&counts[row * params.vocab + token], 1u);
        }
    }
    if (lane == 0u) {
        slots[row].flags = flags & ~SLOT_COUNT;
    }
}
