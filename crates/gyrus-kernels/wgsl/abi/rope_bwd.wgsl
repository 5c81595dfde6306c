// rope_bwd_f16, rope_bwd_bf16, rope_bwd_f32: the gradient of rope_fwd with respect to x: the same rotation backward.
//
//   0  x       [batch, n_heads, seq_len, head_dim], read
//   1  freqs   [seq_len, freqs_dim] f32: angles in radians, already multiplied by the position
//   2  y       as x, written
//   3  params  RoPEOpParams (immediates where the device has them)
//
// The last rope_dim elements of a head are rotated, elements rope_dim / 2 apart forming a pair; those before them pass
// through. All are multiplied by output_scale. Arithmetic in f32; the range reduction of angles is exact. Grid:
// abi/lib/rope.wgsl. Twin: abi::scalar::rope.

const SIN_SIGN: f32 = -1.0;
#include "abi/lib/rope_op.wgsl"
