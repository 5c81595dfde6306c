// rope_k_backward: the gradient of rope_k: rotates backward, adjacent elements forming a pair, in f32 and in place.
//
//   0  x      [seq_len, n_kv_heads, head_dim] f32; read and written
//   1  dims   RoPEDims, a uniform: seq_len, n_kv_heads, head_dim, pos_offset
//   2  base   RoPEBase, a uniform
//   3  freqs  [head_dim / 2], by FREQS; absent if inline
//
// Grid: abi/lib/rope.wgsl, two-dimensional beyond 65,535 workgroups. Twin: abi::scalar::rope.

const SIN_SIGN: f32 = -1.0;
#include "abi/lib/rope_x.wgsl"
