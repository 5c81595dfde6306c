// The decode kernels: one token, with Q, K and V side by side in one row.

@group(0) @binding(0) var<storage, read_write> qkv: array<WORD>;
@group(0) @binding(1) var<storage, read_write> k_cache: array<WORD>;
@group(0) @binding(2) var<storage, read_write> v_cache: array<WORD>;
#define PARAMS_BINDING 3

fn tokens() -> u32 { return 1u; }

fn source(token: u32, head: u32) -> u32 {
    if (head >= first_value()) {
        return params.v_elem_offset + (head - first_value()) * params.head_dim;
    }
    if (head >= first_key()) {
        return params.k_elem_offset + (head - first_key()) * params.head_dim;
    }
    return head * params.head_dim;
}

fn load(head: u32, at: u32) -> WORD { return qkv[at]; }

fn store(head: u32, at: u32, word: WORD) {
    if (head >= first_value()) {
        v_cache[at] = word;
    } else if (head >= first_key()) {
        k_cache[at] = word;
    } else {
        qkv[at] = word;
    }
}

#include "abi/lib/rope_qkv.wgsl"
