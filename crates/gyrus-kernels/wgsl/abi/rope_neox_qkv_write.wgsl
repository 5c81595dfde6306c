// rope_neox_qkv_write_f16, rope_neox_qkv_write_f32: rotates Q and K of one token, elements half of rope_dim apart
// forming a pair, and writes K and V to the cache.
//
//   0  qkv           Q [n_heads, head_dim] from 0, K [n_kv_heads, head_dim] from k_elem_offset, V likewise from
//                    v_elem_offset; Q is rotated in place, K and V are only read
//   1  k_cache       blocks of [n_kv_heads, max_seq_len, head_dim]; slot pos + slot_offset is written
//   2  v_cache       likewise
//   3  params        RoPEQKVWriteParams (immediates where the device has them)
//   4  freqs         [rope_dim / 2], by FREQS; absent if inline
//   5  block_table   u32, if PAGED
//   6  position_ids  [POSITIONS, 1] u32; absent if POSITIONS is 0
//
// Arithmetic in f32. Grid: abi/lib/rope.wgsl. Twin: abi::scalar::rope.

#define PAIRING split
#define FREQS_BINDING 4
#define BLOCK_TABLE_BINDING 5
#define POSITIONS_BINDING 6
#define NORM 0
#include "lib/words.wgsl"
#include "abi/lib/rope_row.wgsl"
