// rope_bwd_f16, rope_bwd_bf16, rope_bwd_f32: the gradient of rope_fwd with respect to x: the same, turned the other
// way.
//
//   0  x       [batch, n_heads, seq_len, head_dim], read
//   1  freqs   [seq_len, freqs_dim] f32: angles in radians, the position already multiplied in
//   2  y       as x, written
//   3  params  RoPEOpParams (immediates where the device has them)
//
// The last rope_dim elements of a head are turned, elements half of rope_dim apart forming a pair; those before them
// pass. All are multiplied by output_scale. Arithmetic in f32; angles are reduced exactly, whatever their size. Grid:
// lib/rope.wgsl. Twin: scalar::rope_op.

const SIN_SIGN: f32 = -1.0;
#include "lib/rope_op.wgsl"
