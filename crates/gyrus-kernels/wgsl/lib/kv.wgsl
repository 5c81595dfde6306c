// The layout of a layer's paged KV cache: blocks of [n_kv_heads, KV_BLOCK, head_dim]. Needs KV_BLOCK, positions of a
// block, and parameters with n_kv_heads.

// The row of the cache that holds a head's vector at `position`, which is in block `block`. A row has head_dim
// elements.
fn kv_row(block: u32, kv_head: u32, position: u32) -> u32 {
    return (block * params.n_kv_heads + kv_head) * KV_BLOCK + position % KV_BLOCK;
}
