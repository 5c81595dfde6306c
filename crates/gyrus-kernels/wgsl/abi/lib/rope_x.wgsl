// The body of rope_q, rope_k and their backward kernels, which differ in the direction.

#include "params/RoPEDims"
#include "params/RoPEBase"
#include "lib/words.wgsl"

@group(0) @binding(0) var<storage, read_write> x: array<WORD>;
@group(0) @binding(1) var<uniform> dims: RoPEDims;
@group(0) @binding(2) var<uniform> base: RoPEBase;

fn tokens() -> u32 { return dims.seq_len; }
fn heads() -> u32 { return dims.n_heads; }
fn head_dim() -> u32 { return dims.head_dim; }
fn rope_dim() -> u32 { return dims.head_dim; }
fn rope_offset() -> u32 { return 0u; }
fn theta() -> f32 { return base.rope_base; }
fn first_position() -> u32 { return dims.pos_offset; }
fn freq_scale() -> f32 { return 1.0; }
fn source(token: u32, head: u32) -> u32 { return (token * dims.n_heads + head) * dims.head_dim; }
fn target_of(token: u32, head: u32) -> u32 { return source(token, head); }
fn is_rotated(head: u32) -> bool { return true; }
fn head_scale(head: u32) -> f32 { return 1.0; }
fn load(head: u32, at: u32) -> WORD { return x[at]; }
fn store(head: u32, at: u32, word: WORD) { x[at] = word; }

#define PAIRING adjacent
#define FREQS_BINDING 3
#define POSITIONS 0
#define PASS_THROUGH 0
#define NORM 0
#include "abi/lib/frequencies.wgsl"
#include "abi/lib/rope.wgsl"
