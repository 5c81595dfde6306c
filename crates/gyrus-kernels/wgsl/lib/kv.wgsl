// Index into the paged KV cache of one layer: blocks of [n_kv_heads, KV_BLOCK, HEAD_DIM], KV f32 or f16. Needs
// rows[row] = (position, first entry of the row's block table) and block_table.

// The first element of a head's vector at a position of a row's sequence.
fn kv_at(row: u32, position: u32, kv_head: u32) -> u32 {
    let block = block_table[rows[row].y + position / KV_BLOCK];
    return ((block * params.n_kv_heads + kv_head) * KV_BLOCK + position % KV_BLOCK) * HEAD_DIM;
}
