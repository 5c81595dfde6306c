//! Attention of few rows over splits of the KV cache: separate splits that are merged, and gathered ones.

use super::attention::{EPS, OUTPUT_SCALE, cache_rule, rope, rotated};
use super::paged::{Cache, paged, seen};
use crate::call::engine::{self, Heads, MOST_SPLITS};
use crate::call::{AttendCall, QuantizeCall, Source, SplitMode, Storage, Target};
use crate::grid::case::{Case, CaseBuffer, Int8, Step, largest};
use crate::grid::family::Point;
use crate::grid::noise::Noise;
use crate::kv::KvGroup;
use crate::params::AttendParams;
use crate::rope::{Pairing, Rope};
use crate::shader::Rungs;

/// Heads, KV heads and elements; elements that are rotated, and the first of them. Up to twelve query heads share a KV
/// head, which needs two workgroups, and so do eight of 256 elements.
type Form = (usize, usize, usize, (usize, usize));

const FORMS: [Form; 8] = [
    (2, 2, 64, (64, 0)),
    (6, 2, 96, (32, 16)),
    (8, 2, 64, (64, 0)),
    (8, 1, 128, (48, 80)),
    (12, 1, 32, (16, 4)),
    (11, 1, 64, (64, 0)),
    (4, 2, 192, (192, 0)),
    (8, 1, 256, (64, 0)),
];

/// Positions with one split, with several of one tile, and with splits of two tiles.
const POSITIONS: [&[u32]; 4] = [&[0, 63, 64, 570], &[1023], &[1600, 31], &[1535, 127, 128]];

pub(super) fn separate(point: &mut Point, rungs: Rungs) -> Option<Case> {
    let setup = Setup::of(point)?;
    let splits = setup.rows.iter().map(|(_, position)| engine::splits(*position, setup.window)).max()?;
    // Every other single row has its position as a parameter.
    let told = point.of(&[false, true]) && setup.rows.len() == 1;
    let position = told.then(|| setup.rows[0].1);
    let call = AttendCall { position, ..setup.call(SplitMode::Separate { splits }) };
    let head_dim = setup.spec.head_dim as u32;
    let merge = QuantizeCall {
        rows: setup.rows.len() as u32,
        cols: setup.params.n_heads * head_dim,
        source: Source::Merge { head_dim, window: setup.window },
        target: Target::F32,
    };
    let steps = vec![Step::new(call.launch(rungs).ok()?), Step::new(merge.launch(rungs).ok()?)];
    setup.case(point.seed, call, steps, false)
}

pub(super) fn gathered(point: &mut Point, rungs: Rungs) -> Option<Case> {
    let setup = Setup::of(point)?;
    let (tiles, kept) = (point.of(&[1, 2, 4]), point.of(&[true, false]));
    let call = setup.call(SplitMode::Gathered { tiles, kept });
    let steps = vec![Step::new(call.launch(rungs).ok()?)];
    setup.case(point.seed, call, steps, true)
}

struct Setup {
    spec: KvGroup,
    heads: Heads,
    params: AttendParams,
    rows: Vec<(usize, u32)>,
    window: u32,
    rotate: bool,
    sinks: bool,
    ropes: Vec<Rope>,
}

impl Setup {
    fn of(point: &mut Point) -> Option<Setup> {
        let (heads, kv_heads, head_dim, (rope_dim, offset)) = point.of(&FORMS);
        let positions = point.of(&POSITIONS);
        let (pairing, norm) = (point.of(&[Pairing::Split, Pairing::Adjacent]), point.of(&[true, false]));
        let (window, soft_cap) = point.of(&[(0, 0.0), (1, 0.0), (150, 5.0), (1500, 0.0)]);
        let rotate = point.of(&[false, true]);
        let sinks = point.of(&[false, true]);
        let params = AttendParams {
            n_heads: heads as u32,
            n_kv_heads: kv_heads as u32,
            stride: ((heads + 2 * kv_heads) * head_dim) as u32,
            window,
            // Sharper than usual, so that few positions have most of the weight.
            scale: 2.0 / (head_dim as f32).sqrt(),
            soft_cap,
            rope_dim: rope_dim as u32,
            rope_offset: offset as u32,
            eps: EPS,
            pass_scale: OUTPUT_SCALE as f32,
            turns_stride: rope_dim as u32 / 2 + 1,
            position: 0,
        };
        let ropes = (0..positions.len()).map(|s| rope(pairing, head_dim, (rope_dim, offset), s));
        Some(Setup {
            spec: KvGroup { layers: 1, kv_heads, head_dim, window: None },
            heads: Heads { pairing, norm, write: true },
            params,
            rows: positions.iter().copied().enumerate().collect(),
            window,
            rotate,
            sinks,
            ropes: ropes.collect::<Option<_>>()?,
        })
    }

    fn lengths(&self) -> Vec<u32> {
        self.rows.iter().map(|(_, position)| position + 1).collect()
    }

    fn call(&self, mode: SplitMode) -> AttendCall {
        AttendCall {
            params: self.params,
            heads: self.heads,
            rotate: self.rotate,
            mode,
            position: None,
            sinks: self.sinks,
            paged: paged(&self.spec, Storage::F16, &self.lengths(), self.rows.len()),
        }
    }

    fn case(self, seed: u64, call: AttendCall, steps: Vec<Step>, int8: bool) -> Option<Case> {
        let name = format!("{call:?}, {:?}", self.rows);
        let twin = move || self.twin(&mut Noise::new(seed), int8);
        Some(Case { workgroup_bytes: call.workgroup_bytes(), ..Case::chain(name, steps, twin) })
    }

    fn twin(&self, noise: &mut Noise, int8: bool) -> Vec<CaseBuffer> {
        let (heads, head_dim) = (self.params.n_heads as usize, self.spec.head_dim);
        let (width, stride) = (heads * head_dim, self.params.stride as usize);
        let mut cache = Cache::new(noise, self.spec, Storage::F16, &self.lengths());
        let before = cache.device.clone();
        let qkv = noise.gaussians(self.rows.len() * stride);
        let norms = noise.gaussians(2 * head_dim);
        let sinks = noise.floats(heads, 6.0);
        let (mut out, mut errors) = (Vec::new(), Vec::new());
        for (qkv, &(sequence, position)) in qkv.chunks_exact(stride).zip(&self.rows) {
            let mut row = qkv.to_vec();
            if self.rotate {
                let norms = self.heads.norm.then_some(norms.as_slice());
                row = rotated(qkv, heads, self.spec, &self.ropes[sequence], norms, position);
                let [k, v] = [0, 1].map(|i| row[width + i * self.spec.row()..][..self.spec.row()].to_vec());
                cache.write(sequence, position as usize, [k, v]);
            }
            let seen = seen(position, self.window);
            let scale = (self.params.scale, self.params.soft_cap);
            let of_heads = self.sinks.then_some(sinks.as_slice());
            let row = cache.attend(&row[..width], sequence, &seen, scale, of_heads);
            // The row's own key and value may be rounded to the other of two neighbouring f16.
            let error = if self.rotate { 2e-3 } else { 5e-6 } * largest(&row);
            errors.push(error as f32);
            out.extend(row);
        }
        let rows_of = self.rows.len();
        let turns = self.rows.iter().flat_map(|row| engine::turns(&self.ropes[row.0], 0)).collect();
        let mut buffers = vec![
            CaseBuffer::floats("qkv", &qkv),
            CaseBuffer::read("rows", cache.rows(&self.rows)),
            CaseBuffer::read("block_table", cache.tables.concat()),
            CaseBuffer::read("turns", turns),
            CaseBuffer::floats("head_norms", &norms),
            CaseBuffer::floats("sinks", &sinks),
            CaseBuffer::scratch("partials", rows_of * heads * MOST_SPLITS as usize * (head_dim + 4)),
        ];
        let written: &[(usize, u32)] = if self.rotate { &self.rows } else { &[] };
        for (which, (name, before)) in ["k_cache", "v_cache"].into_iter().zip(before).enumerate() {
            let rule = cache_rule(&cache, which, written);
            buffers.push(CaseBuffer { name, before, after: cache.device[which].clone(), rule });
        }
        if int8 {
            let rows = Int8 { scales: "q_scales", cols: width, precision: 5e-7, errors, values: out };
            buffers.extend(CaseBuffer::int8("q", rows));
        } else {
            buffers.push(CaseBuffer::near("q", &out, |i| errors[i / width].into()));
        }
        buffers
    }
}
