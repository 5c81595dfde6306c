// select_take: reduces the slices of select_argmax to a token, and advances the row's slot.
//
//   0  partials  [rows, SLICES] of (key, token), read
//   1  tokens    [rows] u32, advanced
//   2  rows      [rows] (position, first entry in block_table), advanced
//   3  emitted   [EMITTED, MAX_ROWS] u32, written at the row's step
//   4  params    SelectParams (immediates where the device has them)
//   5  slots     [rows] SlotState, advanced
//   6  history   [rows, params.history] u32, tokens by position; only with PENALTIES
//   7  counts    [rows, vocab] u32, advanced; only with PENALTIES
//
// Grid: (rows). Twins: Sampler::draw, scalar::SelectState.

#include "params/SelectParams"
#define PARAMS SelectParams
#define PARAMS_BINDING 4
#include "lib/params.wgsl"
#include "select/slot.wgsl"

@group(0) @binding(0) var<storage, read> partials: array<vec2<u32>>;
@group(0) @binding(1) var<storage, read_write> tokens: array<u32>;
@group(0) @binding(2) var<storage, read_write> rows: array<vec2<u32>>;
@group(0) @binding(3) var<storage, read_write> emitted: array<u32>;
@group(0) @binding(5) var<storage, read_write> slots: array<SlotState>;
#if PENALTIES
@group(0) @binding(6) var<storage, read_write> history: array<u32>;
@group(0) @binding(7) var<storage, read_write> counts: array<u32>;
#endif
#include "select/keys.wgsl"
#include "select/layout.wgsl"
#include "select/advance.wgsl"

var<workgroup> best_key: atomic<u32>;
var<workgroup> best_token: atomic<u32>;

@compute @workgroup_size(64)
fn KERNEL(@builtin(local_invocation_index) lane: u32, @builtin(workgroup_id) group: vec3<u32>) {
    if (lane == 0u) {
        atomicStore(&best_key, NO_KEY);
        atomicStore(&best_token, 0xffffffffu);
    }
    var own_best = vec2<u32>(NO_KEY, 0xffffffffu);
    if (lane < params.slices) {
        own_best = partials[group.x * SLICES + lane];
    }
    workgroupBarrier();
    atomicMax(&best_key, own_best.x);
    workgroupBarrier();
    let best = atomicLoad(&best_key);
    if (own_best.x == best) {
        atomicMin(&best_token, own_best.y);
    }
    workgroupBarrier();
    if (lane == 0u) {
        let slot = slots[group.x];
        let position = next_position(group.x, slot);
        if (position == HELD) {
            emit(group.x, slot, HELD);
        } else {
            let is_chosen = best != NOT_FINITE && best != NO_KEY;
            let chosen = select(NOT_FINITE, atomicLoad(&best_token), is_chosen);
            advance(group.x, slot, position, chosen);
        }
    }
}
