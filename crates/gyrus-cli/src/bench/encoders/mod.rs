//! `gyrus bench --synthetic whisper-large-v3:f16` and other encoders: windows of speech, the decoder that attends to them,
//! an hour of both, and texts, with random weights on a GPU.

mod plan;

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use gyrus::{Device, Precision};
use gyrus_gpu::{AdapterKind, Gpu, GpuBackend, Options};
use gyrus_kernels::call::TileCall;
use gyrus_kernels::grid::Noise;
use gyrus_kernels::{Backend, Batch, Inputs, KV_BLOCK, KvSize, Plan, RowKind, WeightLayout, WeightSpec};
use gyrus_tensor::{DType, quantize};
use serde::Serialize;

use self::plan::{POSITIONS, TEXT, WINDOW, operations};
use super::report::{Cell, Column, TableRow, median, table};
use crate::cli::BenchArgs;
use crate::synthetic::{EncoderDims, SpeechDims};
use crate::text::ratio;
use crate::usage::usage;

/// Windows of one pass of the encoder.
const WINDOWS: usize = 8;

/// Sequences that are decoded at once.
const SEQUENCES: usize = 16;

/// Windows of an hour.
const HOUR: usize = 120;

/// Rows of a pass over texts.
const TEXT_ROWS: usize = 8192;

#[derive(Debug, Serialize)]
struct Row {
    test: String,
    milliseconds: f64,
    /// Texts, windows or tokens a second.
    per_second: f64,
    teraflops: f64,
    /// The share of the rate of the tile kernel at the largest product of the encoder.
    of_tiles: Option<f64>,
    device: String,
}

pub(super) fn run(dims: EncoderDims, dtype: DType, args: &BenchArgs) -> Result<()> {
    let adapter = match args.model_options.options(Precision::Fast).device {
        Device::Gpu(name) => name,
        Device::Auto => None,
        other => return Err(usage(format!("encoders are measured on a GPU, not on {other}"))),
    };
    let gpu = Gpu::open(&Options { adapter, checked: false, ..Options::default() })?;
    let device = gpu.adapter().name.clone();
    // A software adapter runs for correctness only.
    let small = gpu.adapter().kind == AdapterKind::Software;
    let plan = plan::plan(dims, dtype)?;
    let rate = tile_rate(&gpu, dims, dtype, if small { 64 } else { WINDOWS * WINDOW }, args.repetitions)?;
    let mut bench = Bench { args, rate, device, rows: Vec::new(), differs: Vec::new() };
    match dims.speech {
        Some(speech) => bench.speech(gpu, plan, speech, small)?,
        None => bench.texts(gpu, plan, small)?,
    }
    table(&bench.rows, args.report.output)?;
    // A fault that does not change the speed.
    ensure!(bench.differs.is_empty(), "{} computed differently among others", bench.differs.join(" and "));
    Ok(())
}

/// Operations a second of the largest product of an encoder's layers in tiles.
fn tile_rate(gpu: &Gpu, dims: EncoderDims, dtype: DType, rows: usize, repetitions: usize) -> Result<f64> {
    let weight = WeightLayout::new(dtype, dims.ffn, dims.width)?;
    let launch = TileCall::new(weight, rows as u32).launch(gpu.rungs())?;
    let buffers = launch.slots().iter().map(|slot| gpu.buffer(slot.bytes)).collect::<Result<Vec<_>, _>>()?;
    let dispatch = gpu.bind(&launch, &buffers.iter().collect::<Vec<_>>())?;
    // The first runs raise the device's clock.
    let begun = Instant::now();
    let mut time = gpu.median_time(&[&dispatch], 4, repetitions)?;
    while begun.elapsed() < Duration::from_millis(500) {
        time = gpu.median_time(&[&dispatch], 4, repetitions)?;
    }
    Ok(ratio(2.0 * (rows * dims.ffn * dims.width) as f64, time.as_secs_f64()))
}

/// Random data of a weight: a pool of values, repeated.
fn values(spec: &WeightSpec) -> Option<Vec<u8>> {
    const POOL: usize = 1 << 16;
    let (elements, row) = (spec.shape.elems(), spec.shape.row());
    let scale = if spec.shape.rank() == 1 { 0.1 } else { 1.0 / (row as f32).sqrt() };
    let mut noise = Noise::new(elements as u64);
    let pool: Vec<f32> = noise.gaussians(POOL.min(elements)).iter().map(|value| value * scale).collect();
    let pool = quantize(spec.dtype, &pool).ok()?;
    let bytes = spec.dtype.bytes_of(&spec.shape).ok()?;
    let mut data = Vec::with_capacity(bytes);
    while data.len() < bytes {
        data.extend_from_slice(&pool[..pool.len().min(bytes - data.len())]);
    }
    Some(data)
}

/// Sequences with blocks of their own in each KV group.
struct Sequences {
    tables: Vec<Vec<u32>>,
    groups: usize,
}

impl Sequences {
    /// This many, with so many positions in each group.
    fn new(count: usize, positions: &[usize]) -> Sequences {
        let table = |sequence: usize, positions: usize| {
            let blocks = positions.div_ceil(KV_BLOCK);
            ((sequence * blocks) as u32..((sequence + 1) * blocks) as u32).collect()
        };
        let of = |sequence| positions.iter().map(move |positions| table(sequence, *positions));
        Sequences { tables: (0..count).flat_map(of).collect(), groups: positions.len() }
    }

    fn sizes(&self) -> KvSize {
        let blocks = |group: usize| self.tables.iter().skip(group).step_by(self.groups).map(Vec::len).sum();
        let blocks: Vec<usize> = (0..self.groups).map(blocks).collect();
        let longest = self.tables.iter().map(Vec::len).max().unwrap_or(0);
        KvSize { positions: longest * KV_BLOCK, blocks, records: 0 }
    }
}

/// A batch of sequences.
struct Rows {
    tokens: Vec<u32>,
    positions: Vec<u32>,
    sequences: Vec<u32>,
    extents: Vec<u32>,
    wanted: Vec<u32>,
    features: Vec<f32>,
}

impl Rows {
    /// These positions of each of some sequences. `extents`: what one sees in each KV group.
    fn new(count: usize, positions: std::ops::Range<u32>, extents: &[u32]) -> Rows {
        let all: Vec<u32> = (0..count).flat_map(|_| positions.clone()).collect();
        Rows {
            tokens: all.iter().map(|position| position % 1000).collect(),
            sequences: (0..count as u32).flat_map(|s| positions.clone().map(move |_| s)).collect(),
            positions: all,
            extents: extents.repeat(count),
            wanted: Vec::new(),
            features: Vec::new(),
        }
    }

    /// As a batch of the sequences from number `first` on.
    fn run<T>(
        &self,
        on: &Sequences,
        first: usize,
        kind: RowKind,
        run: impl FnOnce(&Batch<'_>) -> Result<T>,
    ) -> Result<T> {
        let count = self.extents.len() / on.groups;
        let tables = on.tables.iter().skip(first * on.groups).take(count * on.groups);
        run(&Batch {
            tokens: &self.tokens,
            positions: &self.positions,
            sequences: &self.sequences,
            kind,
            logits: &self.wanted,
            tables: &tables.map(Vec::as_slice).collect::<Vec<_>>(),
            lengths: &vec![u32::MAX; count],
            records: &[],
            inputs: Inputs { extents: &self.extents, types: &[], features: &self.features },
        })
    }
}

struct Bench<'a> {
    args: &'a BenchArgs,
    rate: f64,
    device: String,
    rows: Vec<Row>,
    /// What is computed differently alone and among others.
    differs: Vec<String>,
}

impl Bench<'_> {
    /// The median time of something that is run several times, after runs that are not counted.
    fn time(&self, small: bool, mut run: impl FnMut() -> Result<()>) -> Result<f64> {
        let begun = Instant::now();
        let warm = if small { Duration::ZERO } else { Duration::from_millis(500) };
        loop {
            run()?;
            if begun.elapsed() >= warm {
                break;
            }
        }
        let mut times = Vec::new();
        for _ in 0..self.args.repetitions {
            let begun = Instant::now();
            run()?;
            times.push(begun.elapsed().as_secs_f64());
        }
        Ok(median(&times))
    }

    fn push(&mut self, test: String, seconds: f64, count: usize, operations: f64, of_tiles: bool) {
        let speed = ratio(operations, seconds);
        self.rows.push(Row {
            test,
            milliseconds: 1e3 * seconds,
            per_second: ratio(count as f64, seconds),
            teraflops: 1e-12 * speed,
            of_tiles: of_tiles.then(|| ratio(speed, self.rate)),
            device: self.device.clone(),
        });
    }

    /// Windows, steps of the decoder, and an hour of both.
    fn speech(&mut self, gpu: Gpu, plan: Plan, speech: SpeechDims, small: bool) -> Result<()> {
        let (windows, sequences) = if small { (1, 2) } else { (WINDOWS, SEQUENCES) };
        let on = Sequences::new(sequences, &[WINDOW, WINDOW, TEXT]);
        let mut sizes = on.sizes();
        // Windows of one pass share the encoder's own cache with those of the next.
        let shared = WINDOW.div_ceil(KV_BLOCK);
        sizes.blocks[0] = windows * shared;
        let on = Sequences {
            tables: (0..)
                .zip(on.tables)
                .map(|(i, table)| match i % 3 {
                    0 => table.iter().map(|block| block % (windows * shared) as u32).collect(),
                    _ => table,
                })
                .collect(),
            groups: on.groups,
        };
        let mut backend = GpuBackend::new(gpu, plan.clone(), sizes, values, |_| {})?;
        let extents = [WINDOW as u32, 0, 0];
        let frame = |rows: &Rows| Noise::new(1).gaussians(2 * rows.positions.len() * speech.mels);
        let work = |windows: usize| operations(&plan, &plan.encode, windows * WINDOW, WINDOW);
        let with_features = |mut rows: Rows| {
            rows.features = frame(&rows);
            rows
        };
        let batch = |count: usize| with_features(Rows::new(count, 0..WINDOW as u32, &extents));
        let mut counts = vec![1, windows];
        counts.dedup();
        for count in counts {
            let rows = batch(count);
            let seconds = self.time(small, || encode(&mut backend, &rows, &on, 0))?;
            self.push(format!("encode {count} × 30 s"), seconds, count, work(count), true);
        }
        let tokens = self.args.gen_tokens.iter().copied().max().unwrap_or(0).min(TEXT);
        ensure!(tokens > 0, "no tokens to decode: -n is 0");
        let tokens = if small { 2 } else { tokens };
        let step = |count: usize, position: usize| {
            let mut rows = Rows::new(count, position as u32..position as u32 + 1, &[0, WINDOW as u32, 0]);
            rows.wanted = (0..count as u32).collect();
            rows
        };
        // The decoder sees whether a window alone is encoded as it is among others.
        encode(&mut backend, &batch(windows), &on, 0)?;
        let among_others = decode(&mut backend, &step(1, 0), &on)?;
        encode(&mut backend, &batch(1), &on, 0)?;
        let alone = decode(&mut backend, &step(1, 0), &on)?;
        if among_others != alone {
            self.differs.push("a window is".to_owned());
        }
        for count in [1, sequences] {
            let rows = step(count, tokens - 1);
            let seconds = self.time(small, || decode(&mut backend, &rows, &on).map(drop))?;
            let work = operations(&plan, &plan.forward, count, WINDOW);
            self.push(format!("decode {count} row at depth {}", tokens - 1), seconds, count, work, false);
        }
        // An hour: sixteen windows are encoded in two passes, then decoded together.
        let hour = if small { sequences } else { HOUR };
        let (rows, steps): (Rows, Vec<Rows>) =
            (batch(windows), (0..tokens).map(|position| step(sequences, position)).collect());
        let begun = Instant::now();
        let mut left = hour;
        let mut encoding = Duration::ZERO;
        while left > 0 {
            let of_group = left.min(sequences);
            let encoded = Instant::now();
            for first in (0..of_group).step_by(windows) {
                encode(&mut backend, &rows, &on, first)?;
            }
            encoding += encoded.elapsed();
            // The last group has fewer windows, and decodes as many rows as the others.
            for step in &steps {
                std::hint::black_box(decode(&mut backend, step, &on)?);
            }
            left -= of_group;
        }
        let seconds = begun.elapsed().as_secs_f64();
        let steps = hour.div_ceil(sequences) * tokens;
        let decoding = operations(&plan, &plan.forward, steps * sequences, WINDOW);
        let test = format!(
            "{hour} windows with {tokens} tokens each, encoder {:.2} s of it",
            encoding.as_secs_f64()
        );
        self.push(test, seconds, hour, work(hour) + decoding, false);
        Ok(())
    }

    /// Texts of several lengths, as many in a pass as its rows hold.
    fn texts(&mut self, gpu: Gpu, plan: Plan, small: bool) -> Result<()> {
        let rows = if small { 128 } else { TEXT_ROWS };
        let lengths: Vec<usize> = [16, 32, 128, POSITIONS].into_iter().filter(|n| *n <= rows).collect();
        let shortest = lengths.iter().copied().min().unwrap_or(1);
        let sizes = Sequences::new(rows / shortest, &[shortest]).sizes();
        let blocks = vec![sizes.blocks[0].max(rows.div_ceil(KV_BLOCK))];
        let sizes = KvSize { positions: POSITIONS, blocks, records: 0 };
        let mut backend = GpuBackend::new(gpu, plan.clone(), sizes, values, |_| {})?;
        for length in lengths {
            let count = rows / length;
            let on = Sequences::new(count, &[length]);
            let mut batch = Rows::new(count, 0..length as u32, &[length as u32]);
            batch.wanted = (0..batch.tokens.len() as u32).collect();
            let run = |backend: &mut GpuBackend, batch: &Rows| {
                batch.run(&on, 0, RowKind::Prompt, |batch| Ok(backend.forward(batch)?.to_vec()))
            };
            let mut first = Rows::new(1, 0..length as u32, &[length as u32]);
            first.wanted = (0..length as u32).collect();
            let alone = run(&mut backend, &first)?;
            let among_others = run(&mut backend, &batch)?;
            if !among_others.starts_with(&alone) {
                self.differs.push(format!("a text of {length} tokens is"));
            }
            let seconds = self.time(small, || run(&mut backend, &batch).map(drop))?;
            let work = operations(&plan, &plan.forward, count * length, length);
            self.push(format!("{count} texts of {length} tokens"), seconds, count, work, true);
        }
        Ok(())
    }
}

fn encode(backend: &mut GpuBackend, rows: &Rows, on: &Sequences, first: usize) -> Result<()> {
    rows.run(on, first, RowKind::Prompt, |batch| Ok(backend.encode(batch).map(drop)?))
}

/// A step of all rows, and the largest of each one's logits.
fn decode(backend: &mut GpuBackend, rows: &Rows, on: &Sequences) -> Result<Vec<f32>> {
    let logits = |batch: &Batch<'_>| {
        let logits = backend.forward(batch)?;
        let width = logits.len() / batch.rows().max(1);
        let largest = |row: &[f32]| row.iter().copied().fold(f32::MIN, f32::max);
        Ok(logits.chunks_exact(width.max(1)).map(largest).collect())
    };
    rows.run(on, 0, RowKind::Generated, logits)
}

impl TableRow for Row {
    const COLUMNS: &'static [Column] = &[
        Column::Text("test", "test"),
        Column::Number("milliseconds", "ms"),
        Column::Number("per_second", "a second"),
        Column::Number("teraflops", "TFLOP/s"),
        Column::Number("of_tiles", "of the tile GEMM"),
    ];

    fn device(&self) -> &str {
        &self.device
    }

    fn cells(&self) -> Vec<Cell> {
        vec![
            Cell::quoted(&self.test),
            Cell::number(self.milliseconds, 4, 2),
            Cell::number(self.per_second, 3, 1),
            Cell::number(self.teraflops, 3, 1),
            self.of_tiles.map_or_else(|| Cell::plain("-"), Cell::share),
        ]
    }
}
