//! `gyrus bench --kernels flash`: prefill attention in every tile shape. `flash_default`: in those that are chosen by
//! default, with and without cooperative matrices.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Result, ensure};
use gyrus_gpu::{AdapterKind, Buffer, Gpu, GpuError, GpuRunner, Options};
use gyrus_kernels::call::engine::{Paged, attention};
use gyrus_kernels::call::{FlashCall, FlashTuning, Storage, Tile, push_tiles};
use gyrus_kernels::grid::Runner;
use gyrus_kernels::params::AttendParams;
use gyrus_kernels::{Batch, KV_BLOCK, KvShape, Launch};
use serde::Serialize;

use super::report::{Cell, Column, TableRow, table};
use crate::cli::BenchArgs;
use crate::text::ratio;

/// Query heads, key heads and elements of a head.
const HEADS: [(u32, u32, u32); 4] = [(32, 8, 64), (16, 8, 128), (32, 8, 128), (20, 20, 64)];

#[derive(Debug, Serialize)]
struct Row {
    kernel: &'static str,
    shape: String,
    /// The tile shape.
    division: String,
    microseconds: f64,
    /// Products with keys that are seen and with their values, two operations for each element.
    teraflops: f64,
    /// Largest difference from the single-row kernel, relative to its largest output.
    difference: f64,
    device: String,
}

/// Rows of one sequence at a depth.
struct Prompt {
    call: FlashCall,
    depth: u32,
    /// Q, the caches, positions, block table and output.
    buffers: [Buffer; 6],
}

/// Times tiles of every shape, or only those that are chosen by default if `short`.
pub(super) fn run(args: &BenchArgs, short: bool) -> Result<()> {
    let options = Options { adapter: args.adapter.clone(), checked: false, ..Options::default() };
    let runner = GpuRunner::new(Gpu::open(&options)?);
    let software = runner.gpu().adapter().kind == AdapterKind::Software;
    let (tokens, depths) = if software { (32, [0, 96]) } else { (512, [0, 3584]) };
    let tokens = args.tokens.unwrap_or(tokens);
    let mut rows = Vec::new();
    for (heads, kv_heads, head_dim) in HEADS {
        for depth in depths {
            let prompt = Prompt::new(runner.gpu(), [heads, kv_heads, head_dim], tokens, depth)?;
            prompt.measure(&runner, args.repetitions, software || short, &mut rows)?;
        }
    }
    table(&rows, args.report.output)
}

impl Prompt {
    fn new(gpu: &Gpu, [heads, kv_heads, head_dim]: [u32; 3], tokens: u32, depth: u32) -> Result<Prompt> {
        ensure!(tokens > 0, "no tokens to measure");
        let blocks = (depth + tokens).div_ceil(KV_BLOCK as u32);
        let cache = KvShape { kv: Storage::F16, blocks, n_kv_heads: kv_heads, head_dim };
        let paged = Paged { cache, rows: tokens, entries: blocks };
        let width = heads * head_dim;
        let mut state = 1u32;
        let mut noise = || {
            state ^= state << 13;
            state ^= state >> 17;
            state ^= state << 5;
            state
        };
        let q: Vec<f32> =
            (0..tokens * width).map(|_| (noise() as f32 / u32::MAX as f32 - 0.5) * 8.0).collect();
        // f16 values with magnitude between 0.5 and 1.
        let mut cache = || -> Vec<u32> {
            let pairs = blocks as usize * KV_BLOCK * (kv_heads * head_dim) as usize / 2;
            (0..pairs).map(|_| noise() & 0x83ff_83ff | 0x3800_3800).collect()
        };
        let (k, v) = (cache(), cache());
        let positions: Vec<u32> = (depth..depth + tokens).flat_map(|position| [position, 0]).collect();
        // Blocks are in random order.
        let mut table: Vec<u32> = (0..blocks).collect();
        (1..table.len()).for_each(|i| table.swap(i, noise() as usize % (i + 1)));
        let upload = |words: &[u32]| gpu.upload(bytemuck::cast_slice(words));
        let buffers = [
            gpu.upload(bytemuck::cast_slice(&q))?,
            upload(&k)?,
            upload(&v)?,
            upload(&positions)?,
            upload(&table)?,
            gpu.buffer(4 * u64::from(tokens) * u64::from(width))?,
        ];
        let call = FlashCall {
            n_heads: heads,
            q_stride: width,
            scale: 1.0 / (head_dim as f32).sqrt(),
            window: 0,
            soft_cap: 0.0,
            causal: true,
            tree: false,
            sinks: false,
            paged,
            tiles: 0,
        };
        Ok(Prompt { call, depth, buffers })
    }

    /// Times the single-row kernel, then every tile shape, or only the default one if `short`.
    fn measure(
        &self,
        runner: &GpuRunner,
        repetitions: usize,
        short: bool,
        rows: &mut Vec<Row>,
    ) -> Result<()> {
        let gpu = runner.gpu();
        let params = AttendParams {
            n_heads: self.call.n_heads,
            n_kv_heads: self.call.paged.cache.n_kv_heads,

            stride: self.call.q_stride,
            scale: self.call.scale,
            ..Default::default()
        };
        let launch = attention(gpu.rungs(), params, false, false, self.call.paged)?;
        let (time, expected) = self.time(gpu, &launch, None, repetitions)?;
        rows.push(self.row("attention", "a workgroup per row and head".to_owned(), time, 0.0, runner));
        let mut seen = BTreeSet::new();
        for tuning in tunings(short, gpu.rungs().cooperative) {
            let Ok(tile_rows) = self.call.tile_rows(tuning) else { continue };
            let tiles = self.tiles(tile_rows);
            let launch = FlashCall { tiles: tiles.len() as u32, ..self.call }.launch(gpu.rungs(), tuning)?;
            if !seen.insert(launch.variant().key()) {
                continue;
            }
            let tiles = gpu.upload(bytemuck::cast_slice(&tiles))?;
            let (time, found) = match self.time(gpu, &launch, Some(&tiles), repetitions) {
                // More workgroup memory than the device has.
                Err(GpuError::Shader { .. }) => continue,
                other => other?,
            };
            let most = expected.iter().fold(0f32, |most, v| most.max(v.abs()));
            let apart = found.iter().zip(&expected).map(|(f, e)| (f - e).abs());
            // A NaN stays: the largest of others would hide it.
            let apart = apart.fold(0f32, |most, d| if most.is_nan() || d <= most { most } else { d });
            let difference = f64::from(apart / most);
            let of = |name: &str| {
                launch.variant().overrides.iter().find(|(n, _)| *n == name).map_or(0.0, |(_, value)| *value)
            };
            let ahead = if tuning.ahead == Some(true) { " prefetched" } else { "" };
            let default = if tuning == FlashTuning::default() { " (default)" } else { "" };
            let division = format!(
                "{}×{} by {}, {}{ahead}{default}",
                of("QUERIES"),
                of("KEYS"),
                of("KEY_DIMS"),
                of("VALUE_KEYS")
            );
            let division = if tuning.cooperative { "f16 cooperative matrices".to_owned() } else { division };
            rows.push(self.row("flash", division, time, difference, runner));
        }
        Ok(())
    }

    fn tiles(&self, tile_rows: u32) -> Vec<Tile> {
        let rows = self.call.paged.rows;
        let positions: Vec<u32> = (self.depth..self.depth + rows).collect();
        let zeros = vec![0; rows as usize];
        let batch = Batch {
            tokens: &zeros,
            positions: &positions,
            sequences: &zeros,
            kind: gyrus_kernels::RowKind::Prompt,
            logits: &[],
            tables: &[],
            lengths: &[],
            records: &[],
            inputs: Default::default(),
        };
        let mut tiles = Vec::new();
        push_tiles(&batch, tile_rows, None, &mut tiles);
        tiles
    }

    /// The time of a launch, and its output.
    fn time(
        &self,
        gpu: &Gpu,
        launch: &Launch,
        tiles: Option<&Buffer>,
        repetitions: usize,
    ) -> Result<(Duration, Vec<f32>), GpuError> {
        let buffers: Vec<&Buffer> = self.buffers.iter().chain(tiles).collect();
        let dispatch = gpu.bind(launch, &buffers)?;
        let time = gpu.median_time(&[&dispatch], 8, repetitions)?;
        Ok((time, bytemuck::pod_collect_to_vec(&gpu.read(&self.buffers[5])?)))
    }

    fn row(
        &self,
        kernel: &'static str,
        division: String,
        time: Duration,
        difference: f64,
        runner: &GpuRunner,
    ) -> Row {
        let FlashCall { n_heads, paged, .. } = self.call;
        let KvShape { n_kv_heads, head_dim, .. } = paged.cache;
        let (rows, depth) = (u64::from(paged.rows), u64::from(self.depth));
        let seen = rows * depth + rows * (rows + 1) / 2;
        let operations = 4 * seen * u64::from(n_heads) * u64::from(head_dim);
        Row {
            kernel,
            shape: format!("{rows} at depth {depth}, {n_heads}/{n_kv_heads} heads of {head_dim}"),
            division,
            microseconds: time.as_secs_f64() * 1e6,
            teraflops: ratio(operations as f64, time.as_secs_f64()) * 1e-12,
            difference,
            device: runner.name(),
        }
    }
}

fn tunings(short: bool, cooperative: bool) -> Vec<FlashTuning> {
    let mut tunings = vec![FlashTuning::default()];
    if cooperative {
        tunings.push(FlashTuning { cooperative, ..Default::default() });
    }
    if short {
        return tunings;
    }
    for queries in [16, 32, 64] {
        for keys in [32, 64] {
            for kib in [16, 32, 48] {
                for ahead in [false, true] {
                    tunings.push(FlashTuning {
                        queries: Some(queries),
                        keys: Some(keys),
                        ahead: Some(ahead),
                        memory: Some(kib << 10),
                        ..Default::default()
                    });
                }
            }
        }
    }
    tunings
}

impl TableRow for Row {
    const COLUMNS: &'static [Column] = &[
        Column::Text("kernel", "kernel"),
        Column::Text("shape", "rows"),
        Column::Text("division", "tile: queries×keys by dims, values"),
        Column::Number("microseconds", "µs"),
        Column::Number("teraflops", "TFLOP/s"),
        Column::Number("difference", "difference"),
    ];

    fn device(&self) -> &str {
        &self.device
    }

    fn cells(&self) -> Vec<Cell> {
        vec![
            Cell::plain(self.kernel),
            Cell::quoted(&self.shape),
            Cell::quoted(&self.division),
            Cell::number(self.microseconds, 2, 1),
            Cell::number(self.teraflops, 3, 2),
            Cell::scientific(self.difference),
        ]
    }
}
