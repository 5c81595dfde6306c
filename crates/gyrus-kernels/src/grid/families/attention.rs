//! Rotation of heads into the cache, and the plain attention kernel.

use super::paged::{Cache, paged, seen};
use crate::call::Storage;
use crate::call::engine::{self, Heads};
use crate::grid::case::{Case, CaseBuffer, Rule, largest, words};
use crate::grid::family::Point;
use crate::grid::noise::Noise;
use crate::kv::KvGroup;
use crate::params::AttendParams;
use crate::rope::{Pairing, Rope, RopeSpec};
use crate::scalar;
use crate::shader::Rungs;

pub(super) const EPS: f32 = 1e-6;
pub(super) const OUTPUT_SCALE: f64 = 1.25;

/// The rope of a sequence. Sequences may rotate at different speeds.
pub(super) fn rope(
    pairing: Pairing,
    head_dim: usize,
    (rope_dim, offset): (usize, usize),
    sequence: usize,
) -> Option<Rope> {
    let base = 1e4 * (1.0 + sequence as f64);
    let spec =
        RopeSpec { rope_dim, offset, output_scale: OUTPUT_SCALE, ..RopeSpec::new(pairing, head_dim, base) };
    Rope::new(spec).ok()
}

/// A row's heads of Q and K, normalised and rotated, and V.
pub(super) fn rotated(
    qkv: &[f32],
    heads: usize,
    spec: KvGroup,
    rope: &Rope,
    norms: Option<&[f32]>,
    position: u32,
) -> Vec<f32> {
    let mut qkv = qkv.to_vec();
    let mut phases = vec![[0.0; 2]; rope.pairs()];
    rope.phases(position, &mut phases);
    let n = spec.head_dim;
    for (i, head) in qkv.chunks_exact_mut(n).take(heads + spec.kv_heads).enumerate() {
        if let Some(norms) = norms {
            let x = head.to_vec();
            scalar::rms_norm(&x, &norms[if i < heads { 0 } else { n }..][..n], EPS, head);
        }
        rope.apply(head, &phases);
    }
    qkv
}

/// K or V after rows have written theirs: within one rounding to the cache's type. Nothing else may be written.
pub(super) fn cache_rule(cache: &Cache, which: usize, rows: &[(usize, u32)]) -> Rule {
    let n = cache.spec.head_dim;
    let words = &cache.device[which];
    let mut tolerances = vec![None; cache.blocks * crate::KV_BLOCK * cache.spec.row()];
    for &(sequence, position) in rows {
        for head in 0..cache.spec.kv_heads {
            let at = cache.at(sequence, position as usize, head);
            let values: Vec<f32> = (at..at + n).map(|i| scalar::element(words, cache.kv, i) as f32).collect();
            let most = largest(&values);
            for (i, value) in values.iter().enumerate() {
                // Half an ulp of f16, or one where a device rounds to zero.
                let of_f16 = (1e-3 * f64::from(value.abs()) + 1e-5).min(1e-3 * most);
                tolerances[at + i] = Some(if cache.kv == Storage::F16 { of_f16 } else { 3e-6 * most });
            }
        }
    }
    Rule::Near(cache.kv, tolerances)
}

pub(super) fn rope_write(point: &mut Point, rungs: Rungs) -> Option<Case> {
    let kv = point.of(&[Storage::F16, Storage::F32]);
    let pairing = point.of(&[Pairing::Split, Pairing::Adjacent]);
    let (head_dim, rope_dim, offset): (usize, usize, usize) =
        point.of(&[(64, 64, 0), (80, 32, 0), (192, 64, 128), (6, 6, 0), (128, 128, 0), (96, 32, 16)]);
    let (heads, kv_heads) = point.of(&[(4, 2), (3, 1), (2, 2), (8, 4), (0, 2)]);
    let norm = point.of(&[true, false]);
    let count: usize = point.of(&[6, 1, 3]);
    let own_ropes = point.of(&[false, true]);
    let write = point.of(&[true, true, false]);
    let rows: Vec<(usize, u32)> = [(0, 130), (1, 31), (1, 32), (0, 0), (0, 1), (1, 159)][..count].to_vec();
    let lengths = [160, 160];
    let spec = KvGroup { layers: 1, kv_heads, head_dim, window: None };
    let stride = (heads + if write { 2 * kv_heads } else { 0 }) * head_dim;
    let params = AttendParams {
        n_heads: heads as u32,
        n_kv_heads: kv_heads as u32,
        rope_dim: rope_dim as u32,
        rope_offset: offset as u32,
        stride: stride as u32,
        eps: EPS,
        pass_scale: OUTPUT_SCALE as f32,
        turns_stride: if own_ropes { rope_dim as u32 / 2 + 1 } else { 0 },
        ..Default::default()
    };
    let heads_of = Heads { pairing, norm, write };
    let launch = engine::rope_write(rungs, params, heads_of, paged(&spec, kv, &lengths, count)).ok()?;
    let ropes: Vec<Rope> = (0..2)
        .map(|s| rope(pairing, head_dim, (rope_dim, offset), if own_ropes { s } else { 0 }))
        .collect::<Option<_>>()?;
    let seed = point.seed;
    let twin = move || {
        let mut noise = Noise::new(seed);
        let mut cache = Cache::new(&mut noise, spec, kv, &lengths);
        let before = cache.device.clone();
        let qkv = noise.gaussians(rows.len() * stride);
        let norms = noise.gaussians(2 * head_dim);
        let (mut after, mut tolerances) = (Vec::new(), Vec::new());
        for (qkv, &(sequence, position)) in qkv.chunks_exact(stride).zip(&rows) {
            let mut row = rotated(qkv, heads, spec, &ropes[sequence], norm.then_some(&norms), position);
            let kv = row.split_off(heads * head_dim);
            if write {
                let [k, v] = [0, 1].map(|i| kv[i * spec.row()..][..spec.row()].to_vec());
                cache.write(sequence, position as usize, [k, v]);
            }
            // K and V in `qkv` are not read again and may or may not be rotated.
            tolerances.extend(std::iter::repeat_n(Some(3e-6 * largest(&row)), row.len()));
            tolerances.extend(std::iter::repeat_n(Some(f64::INFINITY), kv.len()));
            after.extend(row.into_iter().chain(kv));
        }
        let table = cache.tables.concat();
        let turns = if own_ropes {
            rows.iter().flat_map(|row| engine::turns(&ropes[row.0], 0)).collect()
        } else {
            engine::turns(&ropes[0], 0)
        };
        let mut buffers = vec![
            CaseBuffer {
                name: "qkv",
                before: words(&qkv),
                after: words(&after),
                rule: Rule::Near(Storage::F32, tolerances),
            },
            CaseBuffer::read("rows", cache.rows(&rows)),
            CaseBuffer::read("block_table", table),
            CaseBuffer::read("turns", turns),
            CaseBuffer::floats("head_norms", &norms),
        ];
        for (which, (name, before)) in ["k_cache", "v_cache"].into_iter().zip(before).enumerate() {
            let rule = cache_rule(&cache, which, &rows);
            buffers.push(CaseBuffer { name, before, after: cache.device[which].clone(), rule });
        }
        buffers
    };
    let name = format!(
        "{heads_of:?}, {heads} heads, {kv_heads} of KV, {kv:?}, {rope_dim} from {offset}, {count} rows"
    );
    Some(Case::new(name, launch, twin))
}

pub(super) fn attention(point: &mut Point, rungs: Rungs) -> Option<Case> {
    let kv = point.of(&[Storage::F16, Storage::F32]);
    let head_dim: usize = point.of(&[64, 80, 192, 6]);
    let (heads, kv_heads) = point.of(&[(4, 2), (7, 1), (2, 2), (3, 3)]);
    let window = point.of(&[0, 40, 1]);
    let soft_cap = point.of(&[0.0, 2.0]);
    let count: usize = point.of(&[6, 1]);
    let sinks = point.of(&[false, true]);
    let around = point.of(&[false, true]) && window != 0;
    let rows: Vec<(usize, u32)> = [(0, 130), (0, 1), (1, 31), (1, 32), (0, 0), (1, 159)][..count].to_vec();
    let lengths = [140, 160];
    let spec = KvGroup { layers: 1, kv_heads, head_dim, window: None };
    let stride = (heads + 2 * kv_heads) * head_dim;
    let scale = 1.0 / (head_dim as f32).sqrt();
    let params = AttendParams {
        n_heads: heads as u32,
        n_kv_heads: kv_heads as u32,
        stride: stride as u32,
        scale,
        window,
        soft_cap,
        ..Default::default()
    };
    let launch = engine::attention(rungs, params, sinks, around, paged(&spec, kv, &lengths, count)).ok()?;
    let seed = point.seed;
    let twin = move || {
        let mut noise = Noise::new(seed);
        let cache = Cache::new(&mut noise, spec, kv, &lengths);
        let qkv = noise.gaussians(rows.len() * stride);
        let of_heads = noise.floats(heads, 6.0);
        let each = qkv.chunks_exact(stride).zip(&rows);
        let out: Vec<f32> = each
            .flat_map(|(qkv, (sequence, position))| {
                let end = lengths[*sequence];
                let near = |p: &u32| p.abs_diff(*position) < window;
                let seen = match around {
                    true => (0..end).filter(near).map(|p| p as usize).collect(),
                    false => seen(*position, window),
                };
                let q = &qkv[..heads * head_dim];
                cache.attend(q, *sequence, &seen, (scale, soft_cap), sinks.then_some(&of_heads))
            })
            .collect();
        let most = largest(&out);
        let mut buffers = cache.buffers(&qkv, &rows);
        buffers.push(CaseBuffer::floats("sinks", &of_heads));
        let ends = rows.iter().flat_map(|(sequence, _)| [lengths[*sequence] - 1, 0]).collect();
        buffers.push(CaseBuffer::read("ends", ends));
        buffers.push(CaseBuffer::near("out", &out, |_| 3e-6 * most));
        buffers
    };
    let name = format!(
        "{heads} heads of {head_dim}, {kv_heads} of KV, {kv:?}, window {window} around {around}, {count} rows"
    );
    Some(Case::new(name, launch, twin))
}
