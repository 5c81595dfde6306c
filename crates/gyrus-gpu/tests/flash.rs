//! Flash attention against the scalar reference, over head sizes, groups of heads, windows, prefixes and sequences.

mod common;

use std::sync::{Mutex, MutexGuard, PoisonError};

use gyrus_gpu::GpuRunner;
use gyrus_kernels::call::engine::Paged;
use gyrus_kernels::call::{FlashCall, FlashTuning, Storage, Tile, push_tiles};
use gyrus_kernels::scalar::{self, KvCache, Question, element};
use gyrus_kernels::shader::Rungs;
use gyrus_kernels::{Batch, KV_BLOCK, KvGroup};
use gyrus_testkit::Rng;

/// A device, one at a time: several software adapters compete for the same threads.
fn device(rungs: Rungs) -> Option<(GpuRunner, MutexGuard<'static, ()>)> {
    static ONE: Mutex<()> = Mutex::new(());
    let guard = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    Some((common::device(rungs)?, guard))
}

/// Marks words that must not be written.
const CANARY: u32 = 0x7777_7777;

/// A cached prefix and the rows that follow it.
type Sequence = (u32, u32);

#[derive(Debug, Clone)]
struct Case {
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    window: u32,
    soft_cap: f32,
    kv: Storage,
    causal: bool,
    /// For each row its branch: which rows of its sequence it sees.
    tree: Option<Vec<u64>>,
    sequences: Vec<Sequence>,
    tuning: FlashTuning,
}

impl Case {
    fn new(heads: usize, kv_heads: usize, head_dim: usize) -> Case {
        Case {
            heads,
            kv_heads,
            head_dim,
            window: 0,
            soft_cap: 0.0,
            kv: Storage::F16,
            causal: true,
            tree: None,
            sequences: vec![(0, 37), (45, 20), (77, 1)],
            tuning: FlashTuning::default(),
        }
    }

    /// Sequence and position of each row.
    fn rows(&self) -> Vec<(usize, u32)> {
        let of = |(s, (prefix, n)): (usize, &Sequence)| (*prefix..prefix + n).map(move |p| (s, p));
        self.sequences.iter().enumerate().flat_map(of).collect()
    }

    fn stride(&self) -> usize {
        (self.heads + 2 * self.kv_heads) * self.head_dim
    }

    fn seen(&self, row: usize, (sequence, position): (usize, u32)) -> Vec<usize> {
        let (prefix, n) = self.sequences[sequence];
        let end = if self.causal { position + 1 } else { prefix + n };
        let window = if self.window == 0 { u32::MAX } else { self.window };
        (0..end)
            .filter(|p| p.abs_diff(position) < window)
            .filter(|p| match &self.tree {
                Some(branches) if *p >= prefix => branches[row] >> (p - prefix) & 1 == 1,
                _ => true,
            })
            .map(|p| p as usize)
            .collect()
    }
}

/// A case's numbers: caches on the host and for the device, block tables, rows of Q, K and V.
struct Scene {
    cache: KvCache,
    device: [Vec<u32>; 2],
    tables: Vec<Vec<u32>>,
    blocks: u32,
    qkv: Vec<f32>,
}

impl Scene {
    /// Slots that no sequence has written are NaN on the device.
    fn new(case: &Case, rng: &mut Rng) -> Scene {
        let spec = KvGroup { layers: 1, kv_heads: case.kv_heads, head_dim: case.head_dim, window: None };
        let lengths: Vec<usize> = case.sequences.iter().map(|(p, n)| (p + n) as usize).collect();
        let blocks: usize = lengths.iter().map(|length| length.div_ceil(KV_BLOCK)).sum::<usize>() + 2;
        let mut free: Vec<u32> = (0..blocks as u32).collect();
        let mut cache = KvCache::new(spec, blocks);
        let words = blocks * KV_BLOCK * spec.row() * case.kv.bytes() as usize / 4;
        let mut device = [vec![u32::MAX; words], vec![u32::MAX; words]];
        let mut tables = Vec::new();
        for length in lengths {
            let table: Vec<u32> =
                (0..length.div_ceil(KV_BLOCK)).map(|_| free.swap_remove(rng.below(free.len()))).collect();
            for position in 0..length {
                let mut vectors = [0, 1].map(|_| floats(rng, spec.row()));
                for (vector, words) in vectors.iter_mut().zip(&mut device) {
                    for (i, value) in vector.iter_mut().enumerate() {
                        let block = table[position / KV_BLOCK] as usize * case.kv_heads + i / case.head_dim;
                        let at = (block * KV_BLOCK + position % KV_BLOCK) * case.head_dim + i % case.head_dim;
                        scalar::set(words, case.kv, at, f64::from(*value));
                        *value = element(words, case.kv, at) as f32;
                    }
                }
                cache.write(0, &table, position, &vectors[0], &vectors[1]);
            }
            tables.push(table);
        }
        let qkv = floats(rng, case.rows().len() * case.stride());
        Scene { cache, device, tables, blocks: blocks as u32, qkv }
    }

    /// The device's results for some of the case's rows, given by their numbers.
    fn run(&self, runner: &GpuRunner, case: &Case, chosen: &[usize]) -> Vec<u32> {
        let all = case.rows();
        let positions: Vec<u32> = chosen.iter().map(|row| all[*row].1).collect();
        let sequences: Vec<u32> = chosen.iter().map(|row| all[*row].0 as u32).collect();
        let tables: Vec<&[u32]> = self.tables.iter().map(Vec::as_slice).collect();
        let tokens = vec![0; chosen.len()];
        let lengths = vec![0; tables.len()];
        let batch = Batch {
            tokens: &tokens,
            positions: &positions,
            sequences: &sequences,
            logits: &[],
            tables: &tables,
            lengths: &lengths,
        };
        assert!(batch.is_sound(1, &[self.blocks as usize]));
        let entries = self.tables.concat();
        let mut call = FlashCall {
            n_heads: case.heads as u32,
            n_kv_heads: case.kv_heads as u32,
            head_dim: case.head_dim as u32,
            q_stride: case.stride() as u32,
            scale: 1.0 / (case.head_dim as f32).sqrt(),
            window: case.window,
            soft_cap: case.soft_cap,
            causal: case.causal,
            tree: case.tree.is_some(),
            paged: Paged {
                kv: case.kv,
                blocks: self.blocks,
                rows: chosen.len() as u32,
                entries: entries.len() as u32,
            },
            tiles: 0,
        };
        let mut tiles: Vec<Tile> = Vec::new();
        push_tiles(&batch, call.tile_rows(case.tuning).unwrap(), case.causal, &mut tiles);
        if case.tree.is_some() {
            for tile in &mut tiles {
                tile.base = case.sequences[sequences[tile.first as usize] as usize].0;
            }
        }
        call.tiles = tiles.len() as u32;
        let launch = call.launch(runner.gpu().rungs(), case.tuning).unwrap();
        let firsts: Vec<u32> =
            (0..tables.len()).map(|s| tables[..s].iter().map(|t| t.len() as u32).sum()).collect();
        let rows = positions.iter().zip(&sequences).flat_map(|(p, s)| [*p, firsts[*s as usize]]).collect();
        let stride = case.stride();
        let qkv = chosen.iter().flat_map(|row| words(&self.qkv[row * stride..(row + 1) * stride])).collect();
        let written = chosen.len() * case.heads * case.head_dim;
        let [k, v] = self.device.clone();
        let tiles = bytemuck::pod_collect_to_vec(&tiles);
        let mut buffers = vec![qkv, k, v, rows, entries, vec![CANARY; written + 256], tiles];
        if let Some(branches) = &case.tree {
            buffers.push(
                chosen
                    .iter()
                    .flat_map(|row| [branches[*row] as u32, (branches[*row] >> 32) as u32])
                    .collect(),
            );
        }
        runner.run_launch(&launch, &mut buffers).unwrap();
        let mut out = buffers.swap_remove(5);
        assert!(out[written..].iter().all(|word| *word == CANARY), "{case:?}: written beyond the end");
        out.truncate(written);
        out
    }

    fn expected(&self, case: &Case) -> Vec<f32> {
        let width = case.heads * case.head_dim;
        let mut expected = Vec::new();
        for (row, at) in case.rows().into_iter().enumerate() {
            let mut out = vec![0.0; width];
            let question = Question {
                q: &self.qkv[row * case.stride()..][..width],
                table: &self.tables[at.0],
                seen: &case.seen(row, at),
                scale: 1.0 / (case.head_dim as f32).sqrt(),
                soft_cap: (case.soft_cap != 0.0).then_some(case.soft_cap),
            };
            scalar::attend(&self.cache, 0, question, &mut out);
            expected.extend(out);
        }
        expected
    }
}

fn floats(rng: &mut Rng, n: usize) -> Vec<f32> {
    (0..n).map(|_| rng.gaussian() as f32).collect()
}

fn words(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

/// Compares with the scalar reference. Scores are sums of up to 256 products in f32 and reach about 5: their error, which is that
/// of a weight, stays below 3e-6.
fn check(runner: &GpuRunner, case: &Case, seed: u64) {
    let scene = Scene::new(case, &mut Rng::new(seed));
    let rows: Vec<usize> = (0..case.rows().len()).collect();
    let found = scene.run(runner, case, &rows);
    let expected = scene.expected(case);
    let most = expected.iter().fold(0f32, |most, v| most.max(v.abs()));
    let mut worst = 0f32;
    for (i, (found, expected)) in found.iter().zip(&expected).enumerate() {
        let found = f32::from_bits(*found);
        let error = (found - expected).abs();
        let row = i / (case.heads * case.head_dim);
        assert!(error <= 3e-6 * most, "{case:?}: element {i} of row {row} is {found}, expected {expected}");
        worst = worst.max(error / most);
    }
    println!("{} heads of {}, {} KV: worst error {worst:.1e}", case.heads, case.head_dim, case.kv_heads);
}

/// Every head size with every group of heads; other parameters alternate.
fn grid() -> Vec<Case> {
    let mut cases = Vec::new();
    for head_dim in [64, 80, 96, 128, 256] {
        for sharing in [1, 2, 3, 4, 8] {
            let n = cases.len();
            let mut case = Case::new(2 * sharing, 2, head_dim);
            case.window = [0, 40, 0, 1, 0, 33, 7][n % 7];
            case.soft_cap = [0.0, 0.0, 2.5][n % 3];
            case.kv = [Storage::F16, Storage::F32][n % 2];
            case.causal = n % 4 != 3;
            case.tuning.ahead = Some(n % 5 >= 2);
            cases.push(case);
        }
    }
    cases
}

#[test]
fn heads_of_every_size_in_groups_of_every_size() {
    let Some((runner, _guard)) = device(Rungs::ALL) else { return };
    // Every other case has all sizes of heads and of groups, but not all pairs.
    let step = if gyrus_testkit::cases(1) > 1 { 1 } else { 2 };
    for (seed, case) in grid().iter().enumerate().step_by(step) {
        check(&runner, case, seed as u64);
    }
}

#[test]
fn each_rung_off() {
    let all = Rungs::ALL;
    let rungs = [
        Rungs { f16: false, ..all },
        Rungs { subgroups: false, ..all },
        Rungs { immediates: false, ..all },
        Rungs::NONE,
    ];
    for (n, rungs) in rungs.into_iter().enumerate() {
        let Some((runner, _guard)) = device(rungs) else { return };
        for (seed, case) in grid().iter().enumerate().skip(n).step_by(8) {
            check(&runner, case, seed as u64);
        }
    }
}

#[test]
fn chunks_after_long_prefixes() {
    let Some((runner, _guard)) = device(Rungs::ALL) else { return };
    for window in [0, 100] {
        let sequences = vec![(700, 43), (31, 2), (0, 1), (256, 9)];
        check(&runner, &Case { window, sequences, ..Case::new(4, 1, 64) }, 700);
    }
}

#[test]
fn other_heads_and_tunings() {
    let Some((runner, _guard)) = device(Rungs::ALL) else { return };
    let sequences = vec![(3, 21)];
    for (heads, kv_heads, head_dim) in [(71, 1, 64), (12, 1, 16), (3, 3, 32), (10, 2, 192), (5, 1, 240)] {
        check(&runner, &Case { sequences: sequences.clone(), ..Case::new(heads, kv_heads, head_dim) }, 8);
    }
    let default = FlashTuning::default();
    for (head_dim, tuning) in [
        (64, FlashTuning { queries: Some(64), ..default }),
        (64, FlashTuning { queries: Some(64), keys: Some(64), memory: Some(48 << 10), ..default }),
        (64, FlashTuning { keys: Some(16), ..default }),
        (128, FlashTuning { queries: Some(16), keys: Some(128), ..default }),
        (128, FlashTuning { key_dims: Some(16), value_keys: Some(4), ..default }),
        (128, FlashTuning { key_dims: Some(16), value_keys: Some(32), ahead: Some(true), ..default }),
        (96, FlashTuning { key_dims: Some(96), value_keys: Some(8), ahead: Some(true), ..default }),
        (256, FlashTuning { memory: Some(16 << 10), ..default }),
        (80, FlashTuning { memory: Some(8 << 10), ..default }),
    ] {
        check(&runner, &Case { tuning, ..Case::new(6, 2, head_dim) }, 9);
    }
}

/// Two branches that part at the second node, a row that sees only itself in the tree, and one that sees nothing.
#[test]
fn rows_of_a_tree_see_their_branch() {
    let Some((runner, _guard)) = device(Rungs::ALL) else { return };
    let branches = |n: u32| -> Vec<u64> {
        (0..n)
            .scan(Vec::new(), |all: &mut Vec<u64>, i| {
                let parent = if i < 2 { 0 } else { all[i as usize - 2] };
                let root = u64::from(i > 0);
                all.push(parent | root | 1 << i);
                all.last().copied()
            })
            .collect()
    };
    for kv in [Storage::F16, Storage::F32] {
        let mut tree = branches(64);
        tree.extend(branches(5));
        tree.extend([0, 2]);
        let sequences = vec![(50, 64), (0, 5), (0, 2)];
        check(&runner, &Case { kv, tree: Some(tree), sequences, ..Case::new(6, 2, 64) }, 64);
    }
}

/// A row has the same bits in a whole prompt, in chunks, alone, and beside other sequences in any order.
#[test]
fn neighbours_change_no_bit() {
    let Some((runner, _guard)) = device(Rungs::ALL) else { return };
    for (head_dim, window) in [(64, 0), (128, 40)] {
        let case = Case { window, sequences: vec![(20, 50), (0, 33)], ..Case::new(6, 2, head_dim) };
        let scene = Scene::new(&case, &mut Rng::new(3));
        let width = case.heads * case.head_dim;
        let whole = scene.run(&runner, &case, &(0..83).collect::<Vec<_>>());
        let interleaved: Vec<usize> = (0..33).flat_map(|i| [50 + i, i]).collect();
        for rows in
            [(0..17).collect(), (17..50).collect(), vec![49], vec![60], (50..83).collect(), interleaved]
        {
            let found = scene.run(&runner, &case, &rows);
            for (row, found) in rows.iter().zip(found.chunks_exact(width)) {
                assert_eq!(found, &whole[row * width..(row + 1) * width], "row {row}");
            }
        }
    }
}
