//! Flash attention is batch-invariant. The op-test grid compares it with its twin.

mod common;

use common::device;
use gyrus_gpu::GpuRunner;
use gyrus_kernels::call::engine::Paged;
use gyrus_kernels::call::{FlashCall, FlashTuning, Storage, Tile, push_tiles};
use gyrus_kernels::scalar;
use gyrus_kernels::shader::Rungs;
use gyrus_kernels::{Batch, Demands, KV_BLOCK, KvShape};
use gyrus_testkit::Rng;

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
    sequences: Vec<Sequence>,
}

impl Case {
    /// Sequence and position of each row.
    fn rows(&self) -> Vec<(usize, u32)> {
        let of = |(s, (prefix, n)): (usize, &Sequence)| (*prefix..prefix + n).map(move |p| (s, p));
        self.sequences.iter().enumerate().flat_map(of).collect()
    }

    fn stride(&self) -> usize {
        (self.heads + 2 * self.kv_heads) * self.head_dim
    }
}

/// A case's numbers: the caches of a device, block tables, rows of Q, K and V.
struct Scene {
    device: [Vec<u32>; 2],
    tables: Vec<Vec<u32>>,
    blocks: u32,
    qkv: Vec<f32>,
}

impl Scene {
    /// Slots that no sequence has written are NaN on the device.
    fn new(case: &Case, rng: &mut Rng) -> Scene {
        let row = case.kv_heads * case.head_dim;
        let lengths: Vec<usize> = case.sequences.iter().map(|(p, n)| (p + n) as usize).collect();
        let blocks: usize = lengths.iter().map(|length| length.div_ceil(KV_BLOCK)).sum::<usize>() + 2;
        let mut free: Vec<u32> = (0..blocks as u32).collect();
        let words = blocks * KV_BLOCK * row / 2;
        let mut device = [vec![u32::MAX; words], vec![u32::MAX; words]];
        let mut tables = Vec::new();
        for length in lengths {
            let table: Vec<u32> =
                (0..length.div_ceil(KV_BLOCK)).map(|_| free.swap_remove(rng.below(free.len()))).collect();
            for (position, i) in (0..length).flat_map(|position| (0..row).map(move |i| (position, i))) {
                let block = table[position / KV_BLOCK] as usize * case.kv_heads + i / case.head_dim;
                let at = (block * KV_BLOCK + position % KV_BLOCK) * case.head_dim + i % case.head_dim;
                device.iter_mut().for_each(|words| scalar::set(words, Storage::F16, at, rng.gaussian()));
            }
            tables.push(table);
        }
        let qkv = floats(rng, case.rows().len() * case.stride());
        Scene { device, tables, blocks: blocks as u32, qkv }
    }

    /// The device's results for some of the case's rows, given by their numbers.
    fn run(&self, runner: &GpuRunner, case: &Case, tuning: FlashTuning, chosen: &[usize]) -> Vec<u32> {
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
            kind: gyrus_kernels::RowKind::Prompt,
            logits: &[],
            tables: &tables,
            lengths: &lengths,
            records: &[],
            inputs: Default::default(),
        };
        assert!(batch.is_sound(1, &[self.blocks as usize], &Demands::of_decoder(1)));
        let entries = self.tables.concat();
        let mut call = FlashCall {
            n_heads: case.heads as u32,
            q_stride: case.stride() as u32,
            scale: 1.0 / (case.head_dim as f32).sqrt(),
            window: case.window,
            soft_cap: 0.0,
            causal: true,
            tree: false,
            sinks: false,
            paged: Paged {
                cache: KvShape {
                    kv: Storage::F16,
                    blocks: self.blocks,
                    n_kv_heads: case.kv_heads as u32,
                    head_dim: case.head_dim as u32,
                },
                rows: chosen.len() as u32,
                entries: entries.len() as u32,
            },
            tiles: 0,
        };
        let mut tiles: Vec<Tile> = Vec::new();
        push_tiles(&batch, call.tile_rows(tuning).unwrap(), None, &mut tiles);
        call.tiles = tiles.len() as u32;
        let launch = call.launch(runner.gpu().rungs(), tuning).unwrap();
        let firsts: Vec<u32> =
            (0..tables.len()).map(|s| tables[..s].iter().map(|t| t.len() as u32).sum()).collect();
        let rows = positions.iter().zip(&sequences).flat_map(|(p, s)| [*p, firsts[*s as usize]]).collect();
        let stride = case.stride();
        let qkv = chosen.iter().flat_map(|row| words(&self.qkv[row * stride..(row + 1) * stride])).collect();
        let written = chosen.len() * case.heads * case.head_dim;
        let [k, v] = self.device.clone();
        let tiles = bytemuck::pod_collect_to_vec(&tiles);
        let mut buffers = vec![qkv, k, v, rows, entries, vec![CANARY; written + 256], tiles];
        runner.run_launch(&launch, &mut buffers).unwrap();
        let mut out = buffers.swap_remove(5);
        assert!(out[written..].iter().all(|word| *word == CANARY), "{case:?}: written beyond the end");
        out.truncate(written);
        out
    }
}

fn floats(rng: &mut Rng, n: usize) -> Vec<f32> {
    (0..n).map(|_| rng.gaussian() as f32).collect()
}

fn words(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

/// A row has the same bits in a whole prompt, in chunks, alone, and beside other sequences in any order.
#[test]
fn neighbours_change_no_bit() {
    let Some(runner) = device(Rungs::ALL) else { return };
    // Tensor cores where the device has them.
    let tunings = [false, true].map(|cooperative| FlashTuning { cooperative, ..Default::default() });
    let tunings =
        tunings.into_iter().filter(|tuning| !tuning.cooperative || runner.gpu().rungs().cooperative);
    for (tuning, (head_dim, window)) in tunings.flat_map(|tuning| [(64, 0), (128, 40)].map(|of| (tuning, of)))
    {
        let case = Case { heads: 6, kv_heads: 2, head_dim, window, sequences: vec![(20, 50), (0, 33)] };
        let scene = Scene::new(&case, &mut Rng::new(3));
        let width = case.heads * case.head_dim;
        let whole = scene.run(&runner, &case, tuning, &(0..83).collect::<Vec<_>>());
        let interleaved: Vec<usize> = (0..33).flat_map(|i| [50 + i, i]).collect();
        for rows in
            [(0..17).collect(), (17..50).collect(), vec![49], vec![60], (50..83).collect(), interleaved]
        {
            let found = scene.run(&runner, &case, tuning, &rows);
            for (row, found) in rows.iter().zip(found.chunks_exact(width)) {
                assert_eq!(found, &whole[row * width..(row + 1) * width], "row {row}, {tuning:?}");
            }
        }
    }
}
