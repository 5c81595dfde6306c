// expert_tiles: sorts the slots of a batch's rows by expert and divides those of each expert into tiles, for tiles.wgsl.
//
//   0  routes  [rows, 2 * USED] f32, read (lib/experts.wgsl)
//   1  order   u32, written: `most` tiles of four words (expert, first place, slots, 0), then the slot of each place.
//              Slot s of row r has the number r * USED + s
//   2  params  ExpertTilesParams (immediates where the device has them)
//
// A tile has up to TILE_ROWS slots of one expert; tiles beyond the last have none. Slots of one expert are in any order,
// since no result of tiles.wgsl depends on it. Grid: one workgroup. Twin: scalar::routed, by
// the products of tiles.wgsl.

#include "params/ExpertTilesParams"
#define PARAMS ExpertTilesParams
#define PARAMS_BINDING 2
#include "lib/params.wgsl"
#include "lib/invocation.wgsl"

#define WORKGROUP 256u

#define ROUTE_BINDING 0
#include "lib/experts.wgsl"
@group(0) @binding(1) var<storage, read_write> order: array<u32>;

// Slots of each expert.
var<workgroup> counts: array<atomic<u32>, EXPERT_COUNT>;
// The next place of each expert.
var<workgroup> places: array<atomic<u32>, EXPERT_COUNT>;
var<workgroup> all_tiles: u32;

@compute @workgroup_size(WORKGROUP)
fn KERNEL(here: Invocation) {
    let lane = here.local_index;
    for (var expert = lane; expert < EXPERT_COUNT; expert += WORKGROUP) {
        atomicStore(&counts[expert], 0u);
    }
    workgroupBarrier();
    for (var slot = lane; slot < params.slots; slot += WORKGROUP) {
        atomicAdd(&counts[expert_of(slot / USED, slot % USED)], 1u);
    }
    workgroupBarrier();
    for (var expert = lane; expert < EXPERT_COUNT; expert += WORKGROUP) {
        var place = 0u;
        var tile = 0u;
        for (var other = 0u; other < expert; other += 1u) {
            let count = atomicLoad(&counts[other]);
            place += count;
            tile += (count + TILE_ROWS - 1u) / TILE_ROWS;
        }
        let count = atomicLoad(&counts[expert]);
        atomicStore(&places[expert], place);
        for (var first = 0u; first < count; first += TILE_ROWS) {
            order[4u * tile] = expert;
            order[4u * tile + 1u] = place + first;
            order[4u * tile + 2u] = min(TILE_ROWS, count - first);
            order[4u * tile + 3u] = 0u;
            tile += 1u;
        }
        if (expert == EXPERT_COUNT - 1u) {
            all_tiles = tile;
        }
    }
    workgroupBarrier();
    for (var word = 4u * all_tiles + lane; word < 4u * params.most; word += WORKGROUP) {
        order[word] = 0u;
    }
    for (var slot = lane; slot < params.slots; slot += WORKGROUP) {
        let place = atomicAdd(&places[expert_of(slot / USED, slot % USED)], 1u);
        order[4u * params.most + place] = slot;
    }
}
