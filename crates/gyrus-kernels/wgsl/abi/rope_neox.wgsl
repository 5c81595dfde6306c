// rope_neox_f16, rope_neox_f32: rotates heads in place, elements rope_dim / 2 apart forming a pair.
//
//   0  x             [seq_len, n_heads, head_dim], rows row_stride apart; read and written
//   1  params        RoPEParams (immediates where the device has them)
//   2  position_ids  [POSITIONS, seq_len] u32; absent if POSITIONS is 0
//   3  freqs         [rope_dim / 2], by FREQS; absent if inline
//
// Arithmetic in f32. Grid: abi/lib/rope.wgsl. Twin: abi::scalar::rope.

#define PAIRING split
#define FREQS_BINDING 3
#define POSITIONS_BINDING 2
#include "abi/lib/rope_in_place.wgsl"
