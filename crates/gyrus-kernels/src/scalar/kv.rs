use crate::call::{KvCopyCall, KvShiftCall};
use crate::kv::{KV_BLOCK, KvShape};
use crate::rope::{Rope, rotate_pair};

use super::{element, set};

/// Copies blocks of K or V.
pub fn kv_copy(call: &KvCopyCall, cache: &mut [u32], pairs: &[[u32; 2]]) {
    let KvShape { kv, n_kv_heads, head_dim, .. } = call.cache;
    let block = n_kv_heads as usize * KV_BLOCK * head_dim as usize * kv.bytes() as usize / 4;
    for [source, target] in pairs.iter().map(|pair| pair.map(|number| number as usize)) {
        cache.copy_within(source * block..(source + 1) * block, target * block);
    }
}

/// Rotates and moves keys and moves values, for sequences that may reach this length. Angles and sums are in `f64`.
pub fn kv_shift(
    call: &KvShiftCall,
    rope: &Rope,
    length: usize,
    k_cache: &mut [u32],
    v_cache: &mut [u32],
    moves: &[[u32; 2]],
) {
    let KvShape { kv, n_kv_heads, head_dim, .. } = call.cache;
    let (heads, n) = (n_kv_heads as usize, head_dim as usize);
    let at = |slot: u32, head: usize| {
        let slot = slot as usize;
        ((slot / KV_BLOCK * heads + head) * KV_BLOCK + slot % KV_BLOCK) * n
    };
    let spectrum = rope.spectrum(length);
    for &[source, target] in moves {
        for head in 0..heads {
            let (from, to) = (at(source, head), at(target, head));
            let read =
                |words: &[u32]| -> Vec<f64> { (from..from + n).map(|i| element(words, kv, i)).collect() };
            let (mut key, value) = (read(k_cache), read(v_cache));
            for pair in 0..rope.pairs() {
                let angle = spectrum.angle(pair, call.by.unsigned_abs()) * f64::from(call.by.signum());
                let (sin, cos) = angle.sin_cos();
                let (a, b) = rope.elements(pair);
                [key[a], key[b]] = rotate_pair([key[a], key[b]], [cos, sin]);
            }
            for i in 0..n {
                set(k_cache, kv, to + i, key[i]);
                set(v_cache, kv, to + i, value[i]);
            }
        }
    }
}
