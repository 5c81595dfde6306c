// What the kernels share that rotate Q and K and write K and V to the cache. Heads are numbered consecutively: Q's,
// then K's, then V's.

#include "params/RoPEQKVWriteParams"
#define PARAMS RoPEQKVWriteParams
#include "lib/params.wgsl"
#include "lib/words.wgsl"
#include "abi/lib/cache.wgsl"

fn first_key() -> u32 { return params.n_heads; }
fn first_value() -> u32 { return params.n_heads + params.n_kv_heads; }

fn heads() -> u32 { return params.n_heads + 2u * params.n_kv_heads; }
fn head_dim() -> u32 { return params.head_dim; }
fn rope_dim() -> u32 { return select(params.rope_dim, params.head_dim, params.rope_dim == 0u); }
fn rope_offset() -> u32 { return params.rope_offset; }
fn theta() -> f32 { return params.theta; }
fn first_position() -> u32 { return params.pos; }
fn freq_scale() -> f32 { return params.freq_scale; }
fn is_rotated(head: u32) -> bool { return head < first_value(); }
fn head_scale(head: u32) -> f32 { return 1.0; }

fn target_of(token: u32, head: u32) -> u32 {
    let slot = params.pos + params.slot_offset + token;
    if (head >= first_value()) {
        return cache_at(slot, head - first_value());
    }
    if (head >= first_key()) {
        return cache_at(slot, head - first_key());
    }
    return source(token, head);
}

override SIN_SIGN: f32 = 1.0;

#include "abi/lib/frequencies.wgsl"
#include "abi/lib/rope.wgsl"
