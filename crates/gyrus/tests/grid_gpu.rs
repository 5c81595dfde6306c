//! Every length of a prompt, however it is cut into chunks, on the GPU against the CPU.
//!
//! A fault of one chunk length hides from tests of a few lengths: a windowed attention that was wrong for one tail
//! length did. So the grid is model × precision × chunk size × every length. `GYRUS_CASES=100` runs all of it. The
//! quick form takes chunks of 16 at every length, since those and single rows share kernels that depend on positions,
//! and a whole prompt at every ninth.
#![cfg(feature = "gpu")]

mod adapter;
mod short_tales;
mod together;
mod written;

use std::borrow::Cow;

use adapter::adapter;
use gyrus::{Device, Model, Options, Precision, Sampler, Session, WeightSpec};
use gyrus_formats::Checkpoint;
use gyrus_gpu::{Gpu, GpuBackend};
use gyrus_kernels::{Backend, Batch, FileLayout, KV_BLOCK, KvSize, Plan, Records, RowKind};
use gyrus_testkit::{cases, data, distance, largest, npy};
use together::decode_together;

/// Positions of the grid.
const LENGTH: usize = 100;

/// Logits of every position.
type Rows = Vec<Vec<f32>>;

fn checkpoint(name: &str) -> Option<Checkpoint> {
    match name.strip_prefix("tales, window ") {
        Some(window) => short_tales::checkpoint(4, window.parse().unwrap()),
        None => Some(Checkpoint::open(&data(name)?).unwrap()),
    }
}

/// The data of a weight. The rows of gpt-oss's gates are every second column of a tensor.
fn weight<'c>(checkpoint: &'c Checkpoint, spec: &WeightSpec) -> Option<Cow<'c, [u8]>> {
    let FileLayout::Columns { first, step } = spec.layout else {
        return spec.data(|name| checkpoint.tensor(name).map(|tensor| tensor.data));
    };
    let (experts, rows, cols) = match *spec.shape.dims() {
        [experts, rows, cols] => (experts, rows, cols),
        [rows, cols] => (1, rows, cols),
        _ => (1, spec.shape.elems(), 1),
    };
    let size = spec.dtype.block_bytes();
    let data = checkpoint.tensor(&spec.name)?.data;
    let mut all = Vec::new();
    for (expert, row) in (0..experts).flat_map(|expert| (0..rows).map(move |row| (expert, row))) {
        for col in 0..cols {
            let at = (spec.first_row + expert * cols + col) * rows * step + first + row * step;
            all.extend_from_slice(&data[at * size..][..size]);
        }
    }
    Some(Cow::Owned(all))
}

struct Reference {
    plan: Plan,
    ids: Vec<u32>,
    rows: Rows,
}

/// What `exact` is held to: logits, and how far from them each position may be.
struct Truth {
    rows: Rows,
    bounds: Vec<f32>,
}

impl Truth {
    /// The CPU's logits. Small Gemma 4 and hybrids enlarge roundings, since they normalise heads of small size, whose
    /// variance is nearly zero at some positions. There two programs that are right in f32 differ from each other by more
    /// than 1e-4. So their truth is in f64, by transformers, with the change that rounding each projection and norm to f32
    /// makes at each position (`scripts/oracle/grid_f64.py`): more than 1e-4 at positions 23 and 53 of Gemma 4 and at 33 of
    /// Qwen 3.5, where that is the bound.
    fn of(name: &str, on_cpu: &Rows) -> Truth {
        let wide = name.starts_with("tiny/").then(|| data(name)).flatten();
        let Some(wide) = wide.map(|folder| folder.join("grid_f64.npy")).filter(|file| file.exists()) else {
            return Truth { rows: on_cpu.clone(), bounds: vec![1e-4; LENGTH] };
        };
        let wide = npy::read_f32(&wide);
        let rows = wide.values.chunks_exact(wide.shape[1]).map(|row| row.split_last().unwrap());
        let (bounds, rows) = rows.map(|(moved, logits)| (moved.max(1e-4), logits.to_vec())).unzip();
        Truth { rows, bounds }
    }
}

/// What the CPU computes, whose rows do not depend on chunks.
fn on_cpu(name: &str, precision: Precision) -> Option<Reference> {
    let model = Model::load(checkpoint(name)?, &Options { precision, ..Options::default() }).unwrap();
    let vocab = model.plan().vocab;
    let ids: Vec<u32> = (0..LENGTH).map(|i| ((i * 37 + 11) % vocab) as u32).collect();
    let mut rows = Rows::new();
    model.session().score(&ids, |_, logits| rows.push(logits.to_vec())).unwrap();
    Some(Reference { plan: model.plan().clone(), ids, rows })
}

/// A plan on the GPU, with the cache of one sequence.
struct OnGpu {
    backend: GpuBackend,
    table: Vec<u32>,
    /// The record of the state before the next chunk, of a plan with states.
    state: Option<u32>,
}

impl OnGpu {
    fn new(adapter: &str, name: &str, plan: &Plan, positions: usize) -> Option<OnGpu> {
        let options = gyrus_gpu::Options { adapter: Some(adapter.to_owned()), ..Default::default() };
        let checkpoint = checkpoint(name)?;
        let bytes = |spec: &WeightSpec| weight(&checkpoint, spec);
        let blocks = positions.div_ceil(KV_BLOCK);
        let gpu = Gpu::open(&options).unwrap();
        let backend = GpuBackend::new(
            gpu,
            plan.clone(),
            KvSize::full(&plan.kv, blocks * KV_BLOCK).with_records(2),
            bytes,
            |_| {},
        )
        .unwrap();
        // In an order of their own, as blocks are in an engine that has run for a while.
        let table = (0..blocks as u32).rev().collect();
        Some(OnGpu { backend, table, state: None })
    }

    /// The record that a chunk writes.
    fn next_state(&self) -> u32 {
        u32::from(self.state == Some(0))
    }

    /// Computes a chunk behind `first` positions, and every row's logits.
    fn rows(&mut self, ids: &[u32], first: usize, count: usize) -> Rows {
        let vocab = self.backend.plan().vocab;
        let records = Records { from: self.state, to: self.next_state() };
        let has_state = !self.backend.plan().delta.is_empty();
        let batch = Batch {
            tokens: &ids[first..first + count],
            positions: &(first..first + count).map(|p| p as u32).collect::<Vec<_>>(),
            sequences: &vec![0; count],
            kind: if count > 16 { RowKind::Prompt } else { RowKind::Generated },
            logits: &(0..count as u32).collect::<Vec<_>>(),
            tables: &vec![self.table.as_slice(); self.backend.plan().kv.len()],
            lengths: &[ids.len() as u32],
            records: if has_state { std::slice::from_ref(&records) } else { &[] },
            inputs: Default::default(),
        };
        self.backend.forward(&batch).unwrap().chunks_exact(vocab).map(<[f32]>::to_vec).collect()
    }
}

#[test]
fn every_length_in_every_chunking_is_as_on_the_cpu() {
    let Some(adapter) = adapter() else { return };
    let whole = cases(1) > 1;
    let chunks: &[usize] = if whole {
        &[1, 2, 3, 5, 8, 9, 15, 16, 17, 24, 31, 32, 33, 48, 64, 65, LENGTH]
    } else {
        &[16, LENGTH]
    };
    let models = [
        "tales, window 16",
        "tales, window 65",
        "tiny/llama",
        "tiny/qwen3",
        "tiny/qwen3moe",
        "tiny/gpt_oss",
        "tiny/mixtral",
        "tiny/gemma4moe",
        "tiny/mistral",
        "tiny/gemma2",
        "tiny/gemma4",
        "tiny/qwen35",
        "tiny/qwen35moe",
        "tiny/qwen3next",
        "tiny/gemma",
        "tiny/gemma3",
        "tiny/ernie4_5",
        "tiny/granite",
        "tiny/olmo2",
        "tiny/phi3",
        "tiny/qwen2",
        "tiny/smollm3",
        "tales, window 0",
        "tales, window 1",
        "tales, window 33",
        "tales, window 64",
    ];
    for name in &models[..if whole { models.len() } else { 14 }] {
        let (Some(exact), Some(fast)) = (on_cpu(name, Precision::Exact), on_cpu(name, Precision::Fast))
        else {
            continue;
        };
        let cpu = largest(exact.rows.iter().zip(&fast.rows).map(|(a, b)| distance(a, b)));
        assert!(cpu.is_finite(), "{name}, fast on the CPU: {cpu}");
        // The f16 of prompts' activations rounds even where int8 happens to round little.
        // Heads of a hybrid that are as small as here enlarge it at single positions (see tiny_gpu).
        let is_hybrid = name.starts_with("tiny/qwen35") || *name == "tiny/qwen3next";
        let bound_of_fast = (3.0 * cpu).max(if is_hybrid { 0.1 } else { 4e-3 });
        let truth = Truth::of(name, &exact.rows);
        for (at, row) in exact.rows.iter().enumerate() {
            let (far, bound) = (distance(&truth.rows[at], row), truth.bounds[at]);
            assert!(far <= bound, "{name} on the CPU: logits at {at} are off by {far}, {bound} is allowed");
        }
        let in_fast = Truth { rows: exact.rows.clone(), bounds: vec![bound_of_fast; LENGTH] };
        for (precision, reference, truth) in
            [(Precision::Fast, &fast, &in_fast), (Precision::Exact, &exact, &truth)]
        {
            let Some(mut gpu) = OnGpu::new(&adapter, name, &reference.plan, LENGTH) else { return };
            // The position that is nearest to its bound, or farthest beyond it.
            let mut worst = (0.0, 0.0, 0, 0, 0);
            let chunks = if precision == Precision::Exact && !whole { &chunks[1..] } else { chunks };
            for &chunk in chunks {
                gpu.state = None;
                for first in (0..LENGTH).step_by(chunk) {
                    // The last is a whole chunk, which the next ones attend to.
                    let longest = chunk.min(LENGTH - first);
                    let step = if chunk == LENGTH && !whole { 9 } else { 1 };
                    for count in (1..=longest).rev().step_by(step).collect::<Vec<_>>().into_iter().rev() {
                        let rows = gpu.rows(&reference.ids, first, count);
                        for (i, row) in rows.iter().enumerate() {
                            let far = distance(&truth.rows[first + i], row);
                            let share = far / truth.bounds[first + i];
                            if share.is_nan() || share > worst.0 {
                                worst = (share, far, chunk, first + count, first + i);
                            }
                        }
                    }
                    gpu.state = Some(gpu.next_state());
                }
            }
            let (share, far, chunk, length, position) = worst;
            let bound = truth.bounds[position];
            println!(
                "{name}, {precision:?}: {far:e} on the GPU at {position} ({bound:e}), fast on the CPU {cpu:e}"
            );
            assert!(
                share <= 1.0,
                "{name}, {precision:?}, {length} tokens in chunks of {chunk}: logits at {position} are off by {far}, \
                 {bound} is allowed",
            );
        }
    }
}

/// Rows of up to 16 have the bits that they have alone, also where their attention has other splits than the last
/// row's: with a window, and from 1,536 positions on, where splits become longer.
#[test]
fn chunks_of_up_to_16_rows_are_single_rows_bit_for_bit() {
    let Some(adapter) = adapter() else { return };
    for (name, first, end) in
        [("tales, window 16", 50, 140), ("tales, window 100", 90, 200), ("tales, window 0", 1525, 1545)]
    {
        let Some(checkpoint) = checkpoint(name) else { return };
        let model = Model::load(checkpoint, &Options { context: Some(64), ..Options::default() }).unwrap();
        let ids: Vec<u32> = (0..end).map(|i| (i * 37 + 11) as u32 % short_tales::VOCAB).collect();
        let Some(mut gpu) = OnGpu::new(&adapter, name, model.plan(), end) else { return };
        for begin in (0..first).step_by(256) {
            gpu.rows(&ids, begin, (first - begin).min(256));
        }
        let bits = |rows: Rows| rows.concat().into_iter().map(f32::to_bits).collect::<Vec<_>>();
        let alone: Vec<Vec<u32>> = (first..end).map(|at| bits(gpu.rows(&ids, at, 1))).collect();
        let starts = if cases(1) > 1 { 1 } else { 5 };
        for at in (first..end).step_by(starts) {
            for count in [2, 3, 9, 16] {
                let count = count.min(end - at);
                let together = bits(gpu.rows(&ids, at, count));
                assert!(
                    together == alone[at - first..][..count].concat(),
                    "{name}: {count} rows from {at} on"
                );
            }
        }
    }
}

/// Sequences that decode together have the tokens that each has alone, though the farthest has fewer splits than others.
#[test]
fn sequences_at_different_depths_of_a_window_are_as_if_alone() {
    const TOKENS: usize = 10;
    let Some(adapter) = adapter() else { return };
    let Some(checkpoint) = checkpoint("tales, window 16") else { return };
    let device = Device::Gpu(Some(adapter));
    let options = Options { device, context: Some(128), sessions: 8, ..Options::default() };
    let model = Model::load(checkpoint, &options).unwrap();
    // Hot, so that a wrong distribution shows in the tokens.
    let sampler = Sampler { temperature: 4.0, seed: 5, ..Sampler::default() };
    let begin = |depth: u32| {
        let mut session = model.session();
        session
            .set_tokens(&(0..depth).map(|i| (i * 37 + 11) % short_tales::VOCAB).collect::<Vec<_>>())
            .unwrap();
        session
    };
    let depths = [61, 66, 71, 90];
    let mut together: Vec<Session> = depths.map(begin).into();
    let samplers = vec![sampler.clone(); depths.len()];
    decode_together(&mut together, &samplers, TOKENS, |_| true).unwrap();
    for (depth, together) in depths.into_iter().zip(&together) {
        let mut alone = [begin(depth)];
        decode_together(&mut alone, &samplers[..1], TOKENS, |_| true).unwrap();
        assert_eq!(alone[0].tokens(), together.tokens(), "depth {depth}");
    }
}
