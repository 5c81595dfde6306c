// The KV cache of the published kernels: blocks of [n_kv_heads, max_seq_len, head_dim]. PAGED: slot s is in block
// block_table[s / max_seq_len]. Otherwise the cache is one contiguous block.

#define KV_BLOCK params.max_seq_len
#if PAGED
#include "lib/kv.wgsl"
@group(0) @binding(BLOCK_TABLE_BINDING) var<storage, read> block_table: array<u32>;
#endif

fn cache_at(slot: u32, kv_head: u32) -> u32 {
#if PAGED
    return kv_row(block_table[slot / KV_BLOCK], kv_head, slot) * params.head_dim;
#else
    return (kv_head * KV_BLOCK + slot) * params.head_dim;
#endif
}
