// The KV cache of the rows of a batch. Needs lib/kv.wgsl's constants, HEAD_DIM, block_table, and
// rows[row] = (position, first entry of the row's block table).

#include "lib/kv.wgsl"

// The first element of a head's vector at a position of a row's sequence.
fn kv_at(row: u32, position: u32, kv_head: u32) -> u32 {
    return kv_row(block_table[rows[row].y + position / KV_BLOCK], kv_head, position) * HEAD_DIM;
}
