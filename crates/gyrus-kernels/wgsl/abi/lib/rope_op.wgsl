// The body of rope_fwd and rope_bwd, which differ in the direction.

#include "params/RoPEOpParams"
#define PARAMS RoPEOpParams
#define PARAMS_BINDING 3
#include "lib/params.wgsl"
#include "lib/words.wgsl"
#include "lib/turns.wgsl"

@group(0) @binding(0) var<storage, read> x: array<WORD>;
@group(0) @binding(1) var<storage, read> freqs: array<f32>;
@group(0) @binding(2) var<storage, read_write> y: array<WORD>;

fn tokens() -> u32 { return params.batch * params.seq_len; }
fn heads() -> u32 { return params.n_heads; }
fn head_dim() -> u32 { return params.head_dim; }
fn rope_dim() -> u32 { return params.rope_dim; }
fn rope_offset() -> u32 { return params.head_dim - params.rope_dim; }

fn source(token: u32, head: u32) -> u32 {
    let sequence = token / params.seq_len;
    let row = (sequence * params.n_heads + head) * params.seq_len + token % params.seq_len;
    return row * params.head_dim;
}
fn target_of(token: u32, head: u32) -> u32 { return source(token, head); }
fn is_rotated(head: u32) -> bool { return true; }
fn head_scale(head: u32) -> f32 { return params.output_scale; }
fn load(head: u32, at: u32) -> WORD { return x[at]; }
fn store(head: u32, at: u32, word: WORD) { y[at] = word; }

fn phase(token: u32, pair: u32) -> u32 {
    return phase_of_angle(freqs[(token % params.seq_len) * params.freqs_dim + pair]);
}

#define PAIRING split
#define PASS_THROUGH 1
#define NORM 0
#include "abi/lib/rope.wgsl"
