//! `gyrus bench --kernels`: single kernels on a GPU, against the bandwidth of its memory.

use std::time::Duration;

use anyhow::{Result, bail};
use gyrus_gpu::{Gpu, GpuRunner, Options};
use gyrus_kernels::Direction;
use gyrus_kernels::Pairing;
use gyrus_kernels::call::{Cache, Freqs, RopeCall, RopeKernel, RopeTuning, Storage};
use gyrus_kernels::grid::{Runner, rope_buffers};
use gyrus_kernels::params::{NormEpsParams, RoPEOpParams, RoPEParams, RoPEQKVWriteParams};
use serde::Serialize;

use super::report::{Cell, Column, TableRow, table};
use super::{decode, rows, select};
use crate::cli::BenchArgs;
use crate::text::ratio;
use crate::usage::usage;

const HEADS: u32 = 32;
const KV_HEADS: u32 = 8;
const HEAD_DIM: u32 = 128;

#[derive(Debug, Serialize)]
struct Row {
    kernel: String,
    shape: String,
    microseconds: f64,
    /// Bytes of tensors read and written; tables are not counted.
    bytes: u64,
    gigabytes_per_second: f64,
    /// Of the bandwidth of a copy on the same device.
    share_of_copy: f64,
    device: String,
}

pub(super) fn run(part: &str, args: &BenchArgs) -> Result<()> {
    let options = Options { adapter: args.adapter.clone(), checked: false, ..Options::default() };
    let mut runner = GpuRunner::new(Gpu::open(&options)?);
    runner.tuning = RopeTuning { workgroup: args.workgroup, lanes: args.lanes };
    let software = runner.gpu().adapter().kind == gyrus_gpu::AdapterKind::Software;
    let tokens = args.tokens.unwrap_or(if software { 256 } else { 65_536 });
    let mut jobs: Vec<Job> = timed(tokens).into_iter().map(Job::Rope).collect();
    jobs.extend(decode::timed(runner.gpu())?.into_iter().map(Job::Decode));
    jobs.extend(select::timed(args.workgroup, args.by_launch)?.into_iter().map(Job::Select));
    jobs.extend(rows::timed(software).into_iter().map(Job::Other));
    if !jobs.iter().any(|job| job.name().contains(part)) {
        let mut names: Vec<String> = Vec::new();
        for name in jobs.iter().map(Job::name) {
            if !names.contains(&name) {
                names.push(name);
            }
        }
        names.extend(["tiles".to_owned(), "flash".to_owned()]);
        return Err(usage(format!("no kernel's name contains '{part}'; there are: {}", names.join(", "))));
    }
    jobs.retain(|job| job.name().contains(part));
    let copied = u64::from(tokens) * u64::from(HEADS + KV_HEADS) * u64::from(HEAD_DIM) * 2;
    jobs.insert(0, Job::Copy(copied));
    // Small ones first: a kernel of a few microseconds is slower right after one that moved gigabytes.
    let mut order: Vec<usize> = (0..jobs.len()).collect();
    order.sort_by_key(|&at| jobs[at].bytes());
    let mut times = vec![Duration::ZERO; jobs.len()];
    for at in order {
        times[at] = jobs[at].time(&mut runner, args.repetitions)?;
    }
    let bandwidth = ratio(2.0 * copied as f64, times[0].as_secs_f64());
    let rows: Vec<Row> =
        jobs.iter().zip(times).map(|(job, time)| row(job, time, bandwidth, &runner)).collect();
    table(&rows, args.report.output)
}

/// Something to time.
enum Job {
    /// A copy of this many bytes, the reference for bandwidth.
    Copy(u64),
    Rope(Timed),
    Decode(decode::Timed),
    Select(select::Timed),
    Other(rows::Timed),
}

impl Job {
    fn name(&self) -> String {
        match self {
            Job::Copy(_) => "copy".to_owned(),
            Job::Rope(timed) => timed.name(),
            Job::Decode(timed) => timed.name.clone(),
            Job::Select(timed) => timed.name.clone(),
            Job::Other(timed) => timed.name.clone(),
        }
    }

    fn shape(&self) -> String {
        match self {
            Job::Copy(bytes) => format!("{bytes} bytes"),
            Job::Rope(timed) => timed.shape.clone(),
            Job::Decode(timed) => timed.shape.clone(),
            Job::Select(timed) => timed.shape.clone(),
            Job::Other(timed) => timed.shape.clone(),
        }
    }

    /// Bytes read and written.
    fn bytes(&self) -> u64 {
        match self {
            Job::Copy(bytes) => 2 * bytes,
            Job::Rope(timed) => timed.bytes,
            Job::Decode(timed) => timed.bytes,
            Job::Select(timed) => timed.bytes,
            Job::Other(timed) => timed.bytes,
        }
    }

    fn time(&self, runner: &mut GpuRunner, repetitions: usize) -> Result<Duration> {
        match self {
            Job::Copy(bytes) => Ok(runner.gpu().median_copy_time(*bytes, repetitions)?),
            Job::Rope(timed) => {
                let Some(mut buffers) = rope_buffers(timed.call, 1) else {
                    bail!("{} was refused", timed.name())
                };
                let launch = timed.call.launch(runner.rungs(), runner.rope_tuning())?;
                Ok(runner.time(&launch, &mut buffers, timed.chain, repetitions)?)
            }
            Job::Decode(timed) => timed.time(runner.gpu(), repetitions),
            Job::Select(timed) => timed.time(runner.gpu(), repetitions),
            Job::Other(timed) => timed.time(runner.gpu(), repetitions),
        }
    }
}

fn row(job: &Job, time: Duration, bandwidth: f64, runner: &GpuRunner) -> Row {
    let bytes = job.bytes();
    let speed = ratio(bytes as f64, time.as_secs_f64());
    Row {
        kernel: job.name(),
        shape: job.shape(),
        microseconds: time.as_secs_f64() * 1e6,
        bytes,
        gigabytes_per_second: speed * 1e-9,
        share_of_copy: ratio(speed, bandwidth),
        device: runner.name(),
    }
}

/// A call to time.
struct Timed {
    call: RopeCall,
    shape: String,
    bytes: u64,
    /// Dispatches in a dependent chain.
    chain: u32,
}

impl Timed {
    fn name(&self) -> String {
        let backward = self.call.direction == Direction::Inverse;
        let suffix = if backward && !self.call.name().contains("bwd") { " backward" } else { "" };
        format!("{}{suffix}", self.call.name())
    }
}

fn timed(tokens: u32) -> Vec<Timed> {
    let mut all = Vec::new();
    let directions = [Direction::Forward, Direction::Inverse];
    let element = |storage: Storage| storage.bytes();
    for (pairing, storage) in
        [(Pairing::Split, Storage::F16), (Pairing::Adjacent, Storage::F16), (Pairing::Split, Storage::F32)]
    {
        for direction in directions {
            let params = RoPEParams {
                seq_len: if storage == Storage::F32 { tokens / 2 } else { tokens },
                head_dim: HEAD_DIM,
                n_heads: HEADS + KV_HEADS,
                theta: 5e5,
                ..Default::default()
            };
            let elements = u64::from(params.seq_len) * u64::from((HEADS + KV_HEADS) * HEAD_DIM);
            let kernel = RopeKernel::InPlace { pairing, params };
            all.push(Timed {
                call: RopeCall { kernel, storage, direction, freqs: Freqs::Turns, positions: 0 },
                shape: format!("{} × ({HEADS}+{KV_HEADS}) × {HEAD_DIM} in place", params.seq_len),
                bytes: 2 * elements * element(storage),
                chain: 8,
            });
        }
    }
    for storage in [Storage::F16, Storage::Bf16] {
        for direction in directions {
            let params = RoPEOpParams {
                batch: 1,
                n_heads: HEADS + KV_HEADS,
                seq_len: tokens,
                head_dim: HEAD_DIM,
                rope_dim: HEAD_DIM,
                freqs_dim: HEAD_DIM,
                output_scale: 1.0,
                _pad0: 0,
            };
            let elements = u64::from(tokens) * u64::from((HEADS + KV_HEADS) * HEAD_DIM);
            let kernel = RopeKernel::Op { params };
            all.push(Timed {
                call: RopeCall { kernel, storage, direction, freqs: Freqs::Turns, positions: 0 },
                shape: format!("1 × {} × {tokens} × {HEAD_DIM}", HEADS + KV_HEADS),
                bytes: 2 * elements * element(storage),
                chain: 8,
            });
        }
    }
    let qkv = RoPEQKVWriteParams {
        n_kv_heads: KV_HEADS,
        head_dim: HEAD_DIM,
        max_seq_len: 4096,
        pos: 512,
        theta: 5e5,
        n_heads: HEADS,
        k_elem_offset: HEADS * HEAD_DIM,
        v_elem_offset: (HEADS + KV_HEADS) * HEAD_DIM,
        freq_scale: 1.0,
        ..Default::default()
    };
    let token = u64::from((HEADS + 2 * KV_HEADS) * HEAD_DIM) * 4;
    let cache = Cache::Contiguous;
    let batch = RoPEQKVWriteParams { k_elem_offset: tokens.min(4096), pos: 0, ..qkv };
    let eps = NormEpsParams { norm_eps: 1e-6, ..Default::default() };
    for (kernel, shape, bytes, chain) in [
        (
            RopeKernel::BatchKvWrite { pairing: Pairing::Split, params: batch, cache },
            format!("{} × ({HEADS}+2·{KV_HEADS}) × {HEAD_DIM}", batch.k_elem_offset),
            token * u64::from(batch.k_elem_offset),
            8,
        ),
        (
            RopeKernel::QkvWrite { pairing: Pairing::Split, params: qkv, cache },
            format!("1 × ({HEADS}+2·{KV_HEADS}) × {HEAD_DIM}, in a chain"),
            token,
            1000,
        ),
        (
            RopeKernel::HeadNorm { params: qkv, eps, plus_one: false, cache },
            format!("1 × ({HEADS}+2·{KV_HEADS}) × {HEAD_DIM}, in a chain"),
            token,
            1000,
        ),
    ] {
        let (storage, direction, freqs) = (Storage::F16, Direction::Forward, Freqs::Turns);
        all.push(Timed {
            call: RopeCall { kernel, storage, direction, freqs, positions: 0 },
            shape,
            bytes,
            chain,
        });
    }
    all
}

impl TableRow for Row {
    const COLUMNS: &'static [Column] = &[
        Column::Text("kernel", "kernel"),
        Column::Text("shape", "shape"),
        Column::Number("microseconds", "µs"),
        Column::Number("gigabytes_per_second", "GB/s"),
        Column::Number("share_of_copy", "of copy"),
    ];

    fn device(&self) -> &str {
        &self.device
    }

    fn cells(&self) -> Vec<Cell> {
        vec![
            Cell::plain(&self.kernel),
            Cell::quoted(&self.shape),
            Cell::number(self.microseconds, 2, 2),
            Cell::number(self.gigabytes_per_second, 1, 0),
            Cell::share(self.share_of_copy),
        ]
    }
}
