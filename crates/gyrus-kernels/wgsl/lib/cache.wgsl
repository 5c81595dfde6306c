// Where a head lies in the cache: blocks of [n_kv_heads, max_seq_len, head_dim]. With PAGED, slot s is in
// block block_table[s / max_seq_len]; without, there is one block, the head-major cache of old.

#if PAGED
@group(0) @binding(BLOCK_TABLE_BINDING) var<storage, read> block_table: array<u32>;
#endif

fn cache_at(slot: u32, kv_head: u32) -> u32 {
    let length = params.max_seq_len;
#if PAGED
    let row = (block_table[slot / length] * params.n_kv_heads + kv_head) * length + slot % length;
#else
    let row = kv_head * length + slot;
#endif
    return row * params.head_dim;
}
