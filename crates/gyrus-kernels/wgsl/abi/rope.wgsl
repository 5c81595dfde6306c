// rope_f16, rope_f32: rotates heads in place, adjacent elements forming a pair.
//
//   0  x             [seq_len, n_heads, head_dim], rows row_stride apart; read and written
//   1  params        RoPEParams (immediates where the device has them)
//   2  freqs         [rope_dim / 2], by FREQS; absent if inline
//   3  position_ids  [POSITIONS, seq_len] u32; absent if POSITIONS is 0
//
// Arithmetic in f32. Grid: abi/lib/rope.wgsl. Twin: abi::scalar::rope.

#define PAIRING adjacent
#define FREQS_BINDING 2
#define POSITIONS_BINDING 3
#include "abi/lib/rope_in_place.wgsl"
