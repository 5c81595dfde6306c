// The prefill kernels: several tokens, with Q, K and V in separate buffers.

@group(0) @binding(0) var<storage, read_write> q: array<WORD>;
@group(0) @binding(1) var<storage, read> k: array<WORD>;
@group(0) @binding(2) var<storage, read> v: array<WORD>;
@group(0) @binding(3) var<storage, read_write> k_cache: array<WORD>;
@group(0) @binding(4) var<storage, read_write> v_cache: array<WORD>;
#define PARAMS_BINDING 5
#define NORM 0

fn tokens() -> u32 { return params.k_elem_offset; }

fn source(token: u32, head: u32) -> u32 {
    if (head >= first_value()) {
        return (token * params.n_kv_heads + head - first_value()) * params.head_dim;
    }
    if (head >= first_key()) {
        return (token * params.n_kv_heads + head - first_key()) * params.head_dim;
    }
    return (token * params.n_heads + head) * params.head_dim;
}

fn load(head: u32, at: u32) -> WORD {
    if (head >= first_value()) {
        return v[at];
    }
    if (head >= first_key()) {
        return k[at];
    }
    return q[at];
}

fn store(head: u32, at: u32, word: WORD) {
    if (head >= first_value()) {
        v_cache[at] = word;
    } else if (head >= first_key()) {
        k_cache[at] = word;
    } else {
        q[at] = word;
    }
}

#include "abi/lib/rope_qkv.wgsl"
