// The body of rope and rope_neox, which differ in the pairing and two binding numbers.

#include "params/RoPEParams"
#define PARAMS RoPEParams
#define PARAMS_BINDING 1
#include "lib/params.wgsl"
#include "lib/words.wgsl"

@group(0) @binding(0) var<storage, read_write> x: array<WORD>;

fn tokens() -> u32 { return params.seq_len; }
fn heads() -> u32 { return params.n_heads; }
fn head_dim() -> u32 { return params.head_dim; }
fn rope_dim() -> u32 { return select(params.rope_dim, params.head_dim, params.rope_dim == 0u); }
fn rope_offset() -> u32 { return params.rope_offset; }
fn theta() -> f32 { return params.theta; }
fn first_position() -> u32 { return params.pos_offset; }
fn freq_scale() -> f32 { return 1.0; }

fn source(token: u32, head: u32) -> u32 {
    let stride = select(params.row_stride, params.n_heads * params.head_dim, params.row_stride == 0u);
    return token * stride + head * params.head_dim;
}
fn target_of(token: u32, head: u32) -> u32 { return source(token, head); }
fn is_rotated(head: u32) -> bool { return true; }
fn head_scale(head: u32) -> f32 { return 1.0; }
fn load(head: u32, at: u32) -> WORD { return x[at]; }
fn store(head: u32, at: u32, word: WORD) { x[at] = word; }

#define PASS_THROUGH 0
#define NORM 0
override SIN_SIGN: f32 = 1.0;

#include "abi/lib/frequencies.wgsl"
#include "abi/lib/rope.wgsl"
