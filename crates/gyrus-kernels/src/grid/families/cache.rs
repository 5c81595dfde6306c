//! Changes of a paged cache between steps: blocks are copied, keys rotated further and moved.

use crate::call::{KvCopyCall, KvShiftCall, Storage, engine};
use crate::grid::case::{Case, CaseBuffer, Rule};
use crate::grid::family::Point;
use crate::grid::noise::Noise;
use crate::kv::{KV_BLOCK, KvShape};
use crate::rope::{Magnitude, Pairing, Rope, RopeSpec, Scaling, Yarn};
use crate::scalar::{self, element};
use crate::shader::Rungs;

const BLOCKS: u32 = 7;

fn elements(cache: KvShape) -> usize {
    cache.blocks as usize * KV_BLOCK * (cache.n_kv_heads * cache.head_dim) as usize
}

fn filled(noise: &mut Noise, cache: KvShape) -> Vec<u32> {
    let mut words = vec![0; elements(cache) * cache.kv.bytes() as usize / 4];
    (0..elements(cache)).for_each(|i| scalar::set(&mut words, cache.kv, i, noise.gaussian()));
    words
}

pub(super) fn copy(point: &mut Point, rungs: Rungs) -> Option<Case> {
    let kv = point.of(&[Storage::F16, Storage::F32]);
    let head_dim = point.of(&[64, 6, 2, 512]);
    let n_kv_heads = point.of(&[2, 1, 3]);
    let cache = KvShape { kv, blocks: BLOCKS, n_kv_heads, head_dim };
    let pairs = [[6, 0], [2, 5], [6, 3]];
    let call = KvCopyCall { cache, pairs: 3 };
    let list = call.pairs(&pairs).ok()?;
    let seed = point.seed;
    let twin = move || {
        let mut noise = Noise::new(seed);
        let mut buffers = vec![CaseBuffer::read("pairs", list.clone())];
        for name in ["k_cache", "v_cache"] {
            let before = filled(&mut noise, cache);
            let mut after = before.clone();
            scalar::kv_copy(&call, &mut after, &pairs);
            buffers.push(CaseBuffer::exact(name, before, after));
        }
        buffers
    };
    Some(Case::new(format!("{cache:?}"), call.launch(rungs).ok()?, twin))
}

pub(super) fn shift(point: &mut Point, rungs: Rungs) -> Option<Case> {
    let kv = point.of(&[Storage::F16, Storage::F32]);
    let pairing = point.of(&[Pairing::Split, Pairing::Adjacent]);
    let (head_dim, rope_dim, offset): (u32, u32, u32) = point.of(&[
        (64, 64, 0),
        (80, 32, 0),
        (192, 64, 128),
        (6, 6, 0),
        (128, 128, 0),
        (10, 4, 2),
        (512, 512, 0),
    ]);
    let in_place = point.of(&[true, false]);
    let by = point.of(&[-1_000_003, -1, 77, i32::MIN, 0]);
    let (n_kv_heads, each) = (point.of(&[2, 1, 3]), point.of(&[1, 2, 3, 4]));
    let cache = KvShape { kv, blocks: BLOCKS, n_kv_heads, head_dim };
    let yarn = Yarn { magnitude: Magnitude::Given(1.3), ..Yarn::new(4.0, 4096.0) };
    let spec = RopeSpec {
        rope_dim: rope_dim as usize,
        offset: offset as usize,
        scaling: Scaling::Yarn(yarn),
        ..RopeSpec::new(pairing, head_dim as usize, 1e4)
    };
    let rope = Rope::new(spec).ok()?;
    // Some of the slots. If not in place, targets are blocks that are no source, but for one slot that stays.
    let sources = [0, 31, 32, 70, 71, 5, 95, 33, 34, 35, 36];
    let targets = [128, 200, 223, 70, 131, 132, 133, 134, 135, 136, 137];
    let targets = if in_place { sources } else { targets };
    let moves: Vec<[u32; 2]> = sources.into_iter().zip(targets).map(|(s, t)| [s, t]).collect();
    let call = KvShiftCall { in_place, each, ..KvShiftCall::new(cache, &rope, by, moves.len() as u32) };
    let list = call.moves(&moves).ok()?;
    let seed = point.seed;
    let twin = move || {
        let mut noise = Noise::new(seed);
        let [k, v] = [(), ()].map(|()| filled(&mut noise, cache));
        let (mut k_after, mut v_after) = (k.clone(), v.clone());
        scalar::kv_shift(&call, &rope, 0, &mut k_after, &mut v_after, &moves);
        let mut buffers = vec![
            CaseBuffer::read("moves", list.clone()),
            CaseBuffer::read("turns", engine::turns(&rope, 0)),
            CaseBuffer {
                rule: rotated(&call, &k_after, targets),
                ..CaseBuffer::exact("k_cache", k, k_after)
            },
        ];
        if !in_place {
            buffers.push(CaseBuffer::exact("v_cache", v, v_after));
        }
        buffers
    };
    Some(Case::new(format!("{call:?}"), call.launch(rungs).ok()?, twin))
}

/// Rotated elements differ by at most two roundings to the cache's type, or the errors of f32. All others have the bits
/// they had.
fn rotated(call: &KvShiftCall, after: &[u32], targets: [u32; 11]) -> Rule {
    let KvShape { kv, n_kv_heads, head_dim, .. } = call.cache;
    let (heads, n) = (n_kv_heads as usize, head_dim as usize);
    let unit = if kv == Storage::F16 { 2f64.powi(-11) } else { 5e-7 };
    let mut tolerances = vec![None; elements(call.cache)];
    if call.by != 0 {
        for (slot, head) in
            targets.into_iter().flat_map(|slot| (0..heads).map(move |head| (slot as usize, head)))
        {
            let at = ((slot / KV_BLOCK * heads + head) * KV_BLOCK + slot % KV_BLOCK) * n;
            let most = (at..at + n).fold(0f64, |most, i| most.max(element(after, kv, i).abs()));
            let first = at + call.rope_offset as usize;
            tolerances[first..first + call.rope_dim as usize].fill(Some(2.0 * unit * most));
        }
    }
    Rule::Near(kv, tolerances)
}
