// rope_batch_kv_write_f16, rope_batch_kv_write_f32: rotates Q and K of several tokens of a sequence,
// adjacent elements forming a pair, and writes K and V to the cache.
//
//   0  q             [T, n_heads, head_dim], rotated in place; T is params.k_elem_offset
//   1  k             [T, n_kv_heads, head_dim], read
//   2  v             [T, n_kv_heads, head_dim], read
//   3  k_cache       blocks of [n_kv_heads, max_seq_len, head_dim]; T slots from pos + slot_offset are written
//   4  v_cache       likewise
//   5  params        RoPEQKVWriteParams (immediates where the device has them)
//   6  freqs         [rope_dim / 2], by FREQS; absent if inline
//   7  block_table   u32, if PAGED
//   8  position_ids  [POSITIONS, T] u32; absent if POSITIONS is 0
//
// Arithmetic in f32. Grid: abi/lib/rope.wgsl. Twin: abi::scalar::rope.

#define PAIRING adjacent
#define FREQS_BINDING 6
#define BLOCK_TABLE_BINDING 7
#define POSITIONS_BINDING 8
#include "lib/words.wgsl"
#include "abi/lib/rope_rows.wgsl"
