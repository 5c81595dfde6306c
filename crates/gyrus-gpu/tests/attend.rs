//! Attention of up to 16 rows over splits of the KV cache, and the merge of the splits.

mod common;
#[path = "attend/gathered.rs"]
mod gathered;
#[path = "common/named.rs"]
mod named;
#[path = "common/numbers.rs"]
mod numbers;

use common::device;
use gyrus_gpu::GpuRunner;
use gyrus_kernels::call::engine::{self, Heads, MOST_SPLITS, Paged, SPLIT_TILE};
use gyrus_kernels::call::{AttendCall, QuantizeCall, Source, SplitMode, Storage, Target};
use gyrus_kernels::grid::Runner;
use gyrus_kernels::params::AttendParams;
use gyrus_kernels::scalar::{self, KvCache, Question};
use gyrus_kernels::shader::Rungs;
use gyrus_kernels::{KV_BLOCK, KvGroup, KvShape, Pairing, Precision, Rope, RopeSpec};
use gyrus_testkit::Rng;
use named::{Buffers, run};
use numbers::{floats, values, words};

const UNTOUCHED: u32 = 0x7fc0_1234;
/// Two f16 NaNs.
const NOTHING: u32 = 0x7e01_fe02;

/// Positions with 1, 1, 2, 9, 16 and 24 splits of one tile, 13 of two and 17 of three.
const POSITIONS: [u32; 8] = [0, 63, 64, 570, 1023, 1535, 1600, 3200];

fn assert_close(found: &[f32], expected: &[f32], tolerance: f32, what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    let most = expected.iter().fold(0f32, |most, v| most.max(v.abs()));
    for (i, (f, e)) in found.iter().zip(expected).enumerate() {
        assert!((f - e).abs() <= tolerance * most, "{what}: element {i} is {f}, expected {e} (of {most})");
    }
}

/// The heads of a model.
#[derive(Debug, Clone, Copy)]
struct Form {
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    pairing: Pairing,
    norm: bool,
    /// How many elements are rotated, and the first of them.
    rope: (usize, usize),
}

const fn form(
    (heads, kv_heads, head_dim): (usize, usize, usize),
    pairing: Pairing,
    norm: bool,
    rope: (usize, usize),
) -> Form {
    Form { heads, kv_heads, head_dim, pairing, norm, rope }
}

/// One, three, four and eight query heads a key head, and eleven and twelve, which need two workgroups each.
const FORMS: [Form; 6] = [
    form((2, 2, 64), Pairing::Split, true, (64, 0)),
    form((6, 2, 96), Pairing::Adjacent, false, (32, 16)),
    form((8, 2, 64), Pairing::Adjacent, true, (64, 0)),
    form((8, 1, 128), Pairing::Split, false, (48, 80)),
    form((12, 1, 32), Pairing::Split, true, (16, 4)),
    form((11, 1, 64), Pairing::Split, false, (64, 0)),
];

/// One row of each of several sequences, whose blocks are scattered over the cache.
struct Scene {
    form: Form,
    heads: usize,
    spec: KvGroup,
    /// Position of each row.
    positions: Vec<u32>,
    tables: Vec<Vec<u32>>,
    blocks: usize,
    /// The device's K and V: NaN except at earlier positions of the sequences.
    caches: [Vec<u32>; 2],
    qkv: Vec<f32>,
    ropes: Vec<Rope>,
    norms: [Vec<f32>; 2],
}

impl Scene {
    fn new(seed: u64, form: Form, positions: &[u32]) -> Scene {
        let rng = &mut Rng::new(seed);
        let Form { heads, kv_heads, head_dim, pairing, rope: (rope_dim, offset), .. } = form;
        let spec = KvGroup { layers: 1, kv_heads, head_dim, window: None };
        // Each sequence has one block more than it needs, and some blocks belong to none.
        let lengths: Vec<usize> = positions.iter().map(|p| *p as usize / KV_BLOCK + 2).collect();
        let blocks = lengths.iter().sum::<usize>() + 3;
        let mut order: Vec<u32> = (0..blocks as u32).collect();
        for i in (1..blocks).rev() {
            order.swap(i, rng.below(i + 1));
        }
        let mut rest = order.as_slice();
        let tables: Vec<Vec<u32>> = lengths
            .iter()
            .map(|length| {
                let (table, others) = rest.split_at(*length);
                rest = others;
                table.to_vec()
            })
            .collect();
        let stride = (heads + 2 * kv_heads) * head_dim;
        // Sequences may rotate at different speeds.
        let ropes = (0..positions.len()).map(|i| {
            let base = 1e4 * (1.0 + i as f64);
            let spec =
                RopeSpec { rope_dim, offset, output_scale: 1.25, ..RopeSpec::new(pairing, head_dim, base) };
            Rope::new(spec).unwrap()
        });
        let mut scene = Scene {
            form,
            heads,
            spec,
            positions: positions.to_vec(),
            tables,
            blocks,
            caches: [(), ()].map(|()| vec![NOTHING; blocks * KV_BLOCK * spec.row() / 2]),
            qkv: floats(rng, positions.len() * stride),
            ropes: ropes.collect(),
            norms: [floats(rng, head_dim), floats(rng, head_dim)],
        };
        for (row, length) in positions.iter().enumerate() {
            for (position, head) in (0..*length).flat_map(|p| (0..kv_heads).map(move |h| (p, h))) {
                let at = scene.at(row, position, head);
                for cache in &mut scene.caches {
                    for i in at..at + head_dim {
                        scalar::set(cache, Storage::F16, i, rng.gaussian());
                    }
                }
            }
        }
        scene
    }

    fn name(&self, runner: &GpuRunner) -> String {
        format!("{:?} on {}", self.form, runner.name())
    }

    fn stride(&self) -> usize {
        (self.form.heads + 2 * self.form.kv_heads) * self.form.head_dim
    }

    /// Index of the first element of a head's vector in the cache.
    fn at(&self, row: usize, position: u32, head: usize) -> usize {
        let position = position as usize;
        let block = self.tables[row][position / KV_BLOCK] as usize;
        ((block * self.spec.kv_heads + head) * KV_BLOCK + position % KV_BLOCK) * self.spec.head_dim
    }

    fn vector(&self, cache: &[u32], row: usize, position: u32, head: usize) -> Vec<f32> {
        let at = self.at(row, position, head);
        (at..at + self.form.head_dim).map(|i| scalar::element(cache, Storage::F16, i) as f32).collect()
    }

    fn params(&self, window: u32, soft_cap: f32) -> AttendParams {
        let Form { heads, kv_heads, head_dim, rope: (rope_dim, offset), .. } = self.form;
        AttendParams {
            n_heads: heads as u32,
            n_kv_heads: kv_heads as u32,
            stride: self.stride() as u32,
            window,
            // Sharper than usual, so that few positions have most of the weight.
            scale: 2.0 / (head_dim as f32).sqrt(),
            soft_cap,
            rope_dim: rope_dim as u32,
            rope_offset: offset as u32,
            eps: 1e-6,
            pass_scale: 1.25,
            turns_stride: rope_dim as u32 / 2 + 1,
            position: 0,
        }
    }

    fn heads(&self) -> Heads {
        let Form { pairing, norm, .. } = self.form;
        Heads { pairing, norm, write: true }
    }

    fn paged(&self, rows: usize) -> Paged {
        let entries = self.tables.iter().map(Vec::len).sum::<usize>() as u32;
        let cache = KvShape::of(&self.spec, Precision::Fast, self.blocks);
        Paged { cache, rows: rows as u32, entries }
    }

    /// All buffers that a kernel may bind, for these rows; the last row's block table comes first.
    fn buffers(&self, rows: &[usize]) -> Buffers {
        let last = *rows.last().unwrap();
        let order: Vec<usize> = (last..self.tables.len()).chain(0..last).collect();
        let mut starts = vec![0; self.tables.len()];
        let mut block_table: Vec<u32> = Vec::new();
        for &row in &order {
            starts[row] = block_table.len() as u32;
            block_table.extend(&self.tables[row]);
        }
        let stride = self.stride();
        let qkv = rows.iter().flat_map(|row| &self.qkv[row * stride..][..stride]).copied();
        let tables = rows.iter().flat_map(|row| engine::turns(&self.ropes[*row], 0));
        let partials = rows.len() * self.form.heads * MOST_SPLITS as usize * (self.form.head_dim + 4);
        let [k, v] = self.caches.clone();
        Buffers::from([
            ("qkv", words(&qkv.collect::<Vec<f32>>())),
            ("k_cache", k),
            ("v_cache", v),
            ("rows", rows.iter().flat_map(|row| [self.positions[*row], starts[*row]]).collect()),
            ("block_table", block_table),
            ("partials", vec![UNTOUCHED; partials + 4]),
            ("turns", tables.collect()),
            ("head_norms", words(&self.norms.concat())),
        ])
    }

    fn most_splits(&self, rows: &[usize], window: u32) -> u32 {
        rows.iter().map(|row| engine::splits(self.positions[*row], window)).max().unwrap()
    }

    fn rope_write(&self, runner: &GpuRunner, rows: &[usize], buffers: &mut Buffers) {
        let rungs = runner.gpu().rungs();
        let launch = engine::rope_write(rungs, self.params(0, 0.0), self.heads(), self.paged(rows.len()));
        run(runner, &launch.unwrap(), buffers);
    }

    fn call(&self, rows: &[usize], (window, soft_cap): (u32, f32), rotate: bool) -> AttendCall {
        AttendCall {
            sinks: false,
            params: self.params(window, soft_cap),
            heads: self.heads(),
            rotate,
            mode: SplitMode::Separate { splits: self.most_splits(rows, window) },
            // Every other single row has its position as a parameter.
            position: (rows.len() == 1 && rows[0].is_multiple_of(2)).then(|| self.positions[rows[0]]),
            paged: self.paged(rows.len()),
        }
    }

    fn attend(
        &self,
        runner: &GpuRunner,
        rows: &[usize],
        how: (u32, f32),
        rotate: bool,
        buffers: &mut Buffers,
    ) {
        let launch = self.call(rows, how, rotate).launch(runner.gpu().rungs());
        run(runner, &launch.unwrap(), buffers);
    }

    fn merge(&self, rows: &[usize], window: u32, target: Target) -> QuantizeCall {
        let head_dim = self.spec.head_dim as u32;
        let cols = self.heads as u32 * head_dim;
        QuantizeCall { rows: rows.len() as u32, cols, source: Source::Merge { head_dim, window }, target }
    }

    fn merged(&self, runner: &GpuRunner, rows: &[usize], window: u32, buffers: &mut Buffers) -> Vec<f32> {
        let width = self.heads * self.spec.head_dim;
        let call = self.merge(rows, window, Target::F32);
        buffers.insert("q", vec![UNTOUCHED; rows.len() * width]);
        run(runner, &call.launch(runner.gpu().rungs()).unwrap(), buffers);
        values(&buffers.remove("q").unwrap())
    }

    /// A row's heads of Q and K, normalised and rotated by the scalar reference, and V.
    fn rotated(&self, row: usize) -> Vec<f32> {
        let Form { heads, kv_heads, head_dim, norm, .. } = self.form;
        let mut qkv = self.qkv[row * self.stride()..][..self.stride()].to_vec();
        let mut phases = vec![[0.0; 2]; self.ropes[row].pairs()];
        self.ropes[row].phases(self.positions[row], &mut phases);
        for (i, head) in qkv.chunks_exact_mut(head_dim).take(heads + kv_heads).enumerate() {
            if norm {
                let x = head.to_vec();
                scalar::rms_norm(&x, &self.norms[usize::from(i >= heads)], 1e-6, head);
            }
            self.ropes[row].apply(head, &phases);
        }
        qkv
    }

    /// The caches hold their earlier contents and the rows' own K and V.
    fn check_caches(&self, runner: &GpuRunner, rows: &[usize], buffers: &Buffers) {
        let Form { heads, kv_heads, head_dim, .. } = self.form;
        let name = self.name(runner);
        for (i, cache) in ["k_cache", "v_cache"].into_iter().enumerate() {
            let (found, mut before) = (&buffers[cache], self.caches[i].clone());
            for &row in rows {
                let rotated = self.rotated(row);
                for head in 0..kv_heads {
                    let found_vector = self.vector(found, row, self.positions[row], head);
                    let expected = &rotated[(heads + i * kv_heads + head) * head_dim..][..head_dim];
                    // Half an ulp of f16, or one where a device rounds to zero.
                    for (found, expected) in found_vector.iter().zip(expected) {
                        let off = (found - expected).abs();
                        assert!(
                            off <= 1e-3 * expected.abs() + 1e-5,
                            "{name}: row {row} in {cache}: {found}, not {expected}"
                        );
                    }
                    let at = self.at(row, self.positions[row], head) / 2;
                    before[at..at + head_dim / 2].copy_from_slice(&found[at..at + head_dim / 2]);
                }
            }
            assert!(*found == before, "{name}: {cache} was written where no row of the batch is");
        }
    }

    /// The scalar reference's attention, on the cache that the kernel wrote.
    fn expected(&self, row: usize, (window, soft_cap): (u32, f32), buffers: &Buffers) -> Vec<f32> {
        let Form { heads, kv_heads, head_dim, .. } = self.form;
        let mut cache = KvCache::new(self.spec, self.blocks);
        let position = self.positions[row];
        for p in 0..=position {
            let [k, v] = ["k_cache", "v_cache"].map(|name| -> Vec<f32> {
                (0..kv_heads).flat_map(|head| self.vector(&buffers[name], row, p, head)).collect()
            });
            cache.write(0, &self.tables[row], p as usize, &k, &v);
        }
        let first = if window == 0 { 0 } else { (position + 1).saturating_sub(window) };
        let seen: Vec<usize> = (first as usize..=position as usize).collect();
        let question = Question {
            q: &self.rotated(row)[..heads * head_dim],
            table: &self.tables[row],
            seen: &seen,
            scale: self.params(0, 0.0).scale,
            soft_cap: (soft_cap != 0.0).then_some(soft_cap),
            sinks: None,
        };
        let mut out = vec![0.0; heads * head_dim];
        scalar::attend(&cache, 0, question, &mut out);
        out
    }

    /// Only the splits that a row has were written, and no padding.
    fn check_written(&self, runner: &GpuRunner, rows: &[usize], window: u32, partials: &[u32]) {
        let Form { heads, head_dim, .. } = self.form;
        let name = self.name(runner);
        for (i, part) in partials.chunks_exact(head_dim + 4).enumerate() {
            let (row, split) = (rows[i / (heads * MOST_SPLITS as usize)], i as u32 % MOST_SPLITS);
            let there = split < engine::splits(self.positions[row], window);
            let written = part[..head_dim + 2].iter().all(|word| *word != UNTOUCHED);
            let untouched = part.iter().all(|word| *word == UNTOUCHED);
            let padding = part[head_dim + 2..] == [UNTOUCHED; 2];
            assert!(
                if there { written && padding } else { untouched },
                "{name}: split {split} of row {row}, window {window}"
            );
        }
        let rest = rows.len() * heads * MOST_SPLITS as usize * (head_dim + 4);
        assert_eq!(partials[rest..], [UNTOUCHED; 4], "{name}");
    }

    /// Checks these rows with each window and cap; returns the partial results of each.
    fn check(&self, runner: &GpuRunner, ways: &[(u32, f32)]) -> Vec<Vec<u32>> {
        let all: Vec<usize> = (0..self.positions.len()).collect();
        let width = self.form.heads * self.form.head_dim;
        let name = self.name(runner);
        let mut ready = self.buffers(&all);
        self.rope_write(runner, &all, &mut ready);
        self.check_caches(runner, &all, &ready);
        let mut bits = Vec::new();
        for &way in ways {
            let mut buffers = ready.clone();
            self.attend(runner, &all, way, false, &mut buffers);
            self.check_written(runner, &all, way.0, &buffers["partials"]);
            let found = self.merged(runner, &all, way.0, &mut buffers);
            for &row in &all {
                let expected = self.expected(row, way, &ready);
                let what = format!("{name}: row {row}, window and cap {way:?}");
                assert_close(&found[row * width..][..width], &expected, 5e-6, &what);
            }
            // Rotating in the same kernel changes neither the results nor the cache.
            let mut rotating = self.buffers(&all);
            self.attend(runner, &all, way, true, &mut rotating);
            assert!(rotating["partials"] == buffers["partials"], "{name}: {way:?}, rotating");
            for cache in ["k_cache", "v_cache"] {
                assert!(rotating[cache] == ready[cache], "{name}: {way:?}, {cache} when rotating");
            }
            // Other rows and their order change nothing.
            let few = [6, 3];
            let mut some = self.buffers(&few);
            self.attend(runner, &few, way, true, &mut some);
            self.check_caches(runner, &few, &some);
            let merged = self.merged(runner, &few, way.0, &mut some);
            for (row, merged) in few.into_iter().zip(merged.chunks_exact(width)) {
                assert_eq!(merged, &found[row * width..][..width], "{name}: row {row} beside one other");
            }
            bits.push(buffers.remove("partials").unwrap());
        }
        bits
    }
}

/// No window and no cap, a window of less than a tile, one that ends within a tile, and more than one tile a split.
const WAYS: [(u32, f32); 4] = [(0, 0.0), (1, 0.0), (150, 5.0), (1500, 0.0)];

#[test]
fn every_form_of_attention() {
    let Some(runner) = device(Rungs::ALL) else { return };
    for (seed, form) in FORMS.into_iter().enumerate() {
        Scene::new(seed as u64, form, &POSITIONS).check(&runner, &WAYS);
    }
}

/// Optional features change no bit.
#[test]
fn attention_without_any_rung() {
    let (Some(with), Some(without)) = (device(Rungs::ALL), device(Rungs::NONE)) else { return };
    for (seed, form) in [(10, FORMS[0]), (14, FORMS[4])] {
        let scene = Scene::new(seed, form, &POSITIONS);
        let bits = [&with, &without].map(|runner| scene.check(runner, &WAYS[2..]));
        assert!(bits[0] == bits[1], "{form:?}");
    }
}

/// The number of a row's splits depends on its position and window: one a tile up to the maximum, and then more than half
/// of the maximum.
#[test]
fn splits_depend_on_positions() {
    let of = |window| POSITIONS.map(|position| engine::splits(position, window));
    assert_eq!(of(0), [1, 1, 2, 9, 16, 24, 13, 17]);
    assert_eq!(of(1), [1; 8]);
    // The window begins in the middle of a tile.
    assert_eq!(of(150), [1, 1, 2, 3, 3, 3, 4, 4]);
    for position in 0..100_000 {
        for window in [0, 1, 64, 1024, 1025, 4096] {
            let splits = engine::splits(position, window);
            let seen = if window == 0 { position + 1 } else { window.min(position + 1) };
            assert!((1..=MOST_SPLITS).contains(&splits), "{position}, {window}: {splits}");
            let least = seen.div_ceil(SPLIT_TILE).min(MOST_SPLITS / 2 + 1);
            assert!(splits >= least, "{position}, {window}: {splits}");
        }
    }
}

/// Calls without a kernel are refused with a reason.
#[test]
fn unsupported_calls_are_refused() {
    let scene = Scene::new(1, FORMS[0], &[3]);
    let error = |call: AttendCall| call.launch(Rungs::ALL).unwrap_err().to_string();
    let call = scene.call(&[0], (0, 0.0), false);
    let AttendCall { params, paged, .. } = call;
    let f32s = KvShape { kv: Storage::F32, ..paged.cache };
    let f32s = AttendCall { paged: Paged { cache: f32s, ..paged }, ..call };
    assert_eq!(error(f32s), "attend: elements of type f32 are not supported");
    let narrow = KvShape { head_dim: 48, ..paged.cache };
    let narrow = AttendCall { paged: Paged { cache: narrow, ..paged }, ..call };
    assert_eq!(error(narrow), "attend: head_dim is 48, a multiple of 32 is needed");
    let none = AttendCall { paged: Paged { rows: 0, ..paged }, ..call };
    assert_eq!(error(none), "attend: the number of rows is 0");
    let uneven = AttendCall { params: AttendParams { n_heads: 3, ..params }, ..call };
    assert!(error(uneven).contains("heads"));
    // Rows have keys and values only if they are written.
    for (stride, rotate) in [(383, true), (params.n_heads * 64 - 1, false)] {
        let short = AttendCall { params: AttendParams { stride, ..params }, rotate, ..call };
        let needed = format!("attend: stride is {stride}, at least {} is needed", stride + 1);
        assert_eq!(error(short), needed);
    }
    let beyond = AttendCall { params: AttendParams { rope_offset: 2, ..params }, ..call };
    assert!(error(AttendCall { rotate: true, ..beyond }).contains("2 to 2+64 are to be rotated"));
    assert!(beyond.launch(Rungs::ALL).is_ok());
    for tiles in [0, 3, 5] {
        let needed = format!("attend_gathered: tiles is {tiles}, 1, or 2 or 4 of small heads is needed");
        assert_eq!(error(AttendCall { mode: SplitMode::Gathered { tiles, kept: true }, ..call }), needed);
    }
}
