//! `gyrus bench --kernels tiles`: prefill mat-muls at the shapes of a 1B model, in every tile shape.

use anyhow::Result;
use gyrus_gpu::{Buffer, Dispatch, Gpu, GpuRunner, Options};
use gyrus_kernels::call::{F16RowsCall, Storage, SumTilesCall, TileCall, TileShape, TileTuning};
use gyrus_kernels::grid::{Noise, Runner};
use gyrus_kernels::shader::Rungs;
use gyrus_kernels::{Activation, Launch, LaunchError, Plane, WeightLayout};
use gyrus_tensor::DType;
use serde::Serialize;

use super::report::{Cell, Column, TableRow, table};
use crate::cli::BenchArgs;
use crate::text::ratio;
use crate::usage::usage;

/// Outputs and inputs: Q, K and V; the attention's output; gate and up; down.
const SHAPES: [(u32, u32); 4] = [(3072, 2048), (2048, 2048), (16_384, 2048), (2048, 8192)];

/// Bytes of weight copies to cycle through, so that weights come from memory, as in a whole model.
const WEIGHTS: u64 = 192 << 20;

/// Bytes of workgroup memory that the largest tiles need.
const MEMORY: u32 = 48 << 10;

#[derive(Debug, Serialize)]
struct Row {
    kernel: String,
    /// Rows × outputs × inputs.
    shape: String,
    tile: String,
    microseconds: f64,
    teraflops: f64,
    /// Weights, activations and outputs, each counted once.
    gigabytes_per_second: f64,
    device: String,
}

struct Timed {
    kernel: String,
    shape: String,
    tile: String,
    launch: Launch,
    /// Adds up the partial sums of a split-K launch.
    sum: Option<Launch>,
    weight: Option<WeightLayout>,
    operations: f64,
}

/// Whether the argument names these kernels.
pub(super) fn wanted(part: &str) -> bool {
    !part.is_empty() && ["tiles", "f16_rows"].iter().any(|name| part.contains(name))
}

pub(super) fn run(part: &str, args: &BenchArgs) -> Result<()> {
    let options = Options { adapter: args.adapter.clone(), checked: false, ..Options::default() };
    let runner = GpuRunner::new(Gpu::open(&options)?);
    let gpu = runner.gpu();
    let software = gpu.adapter().kind == gyrus_gpu::AdapterKind::Software;
    let tokens = args.tokens.unwrap_or(if software { 32 } else { 512 });
    let mut timed = all(tokens, gpu.rungs())?;
    timed.retain(|timed| timed.kernel.contains(part));
    if timed.is_empty() {
        return Err(usage(format!("no kernel's name contains '{part}'")));
    }
    let mut rows = Vec::new();
    for timed in timed {
        let copies = match timed.weight {
            Some(weight) if !software => (WEIGHTS / weight.total_bytes()).clamp(1, 16),
            _ => 1,
        };
        let dispatches = bound(gpu, &timed, copies)?;
        let dispatches: Vec<&Dispatch> = dispatches.iter().collect();
        let time = gpu.median_time(&dispatches, if software { 1 } else { 4 }, args.repetitions)?;
        let seconds = time.as_secs_f64() / copies as f64;
        let bytes: u64 = timed.launch.slots().iter().map(|slot| slot.bytes).sum();
        rows.push(Row {
            kernel: timed.kernel,
            shape: timed.shape,
            tile: timed.tile,
            microseconds: seconds * 1e6,
            teraflops: ratio(timed.operations, seconds) * 1e-12,
            gigabytes_per_second: ratio(bytes as f64, seconds) * 1e-9,
            device: runner.name(),
        });
    }
    table(&rows, args.report.output)
}

/// What to time, tiles of every kind that the rungs have.
fn all(tokens: u32, rungs: Rungs) -> Result<Vec<Timed>> {
    let mut all = Vec::new();
    for (n, k) in SHAPES {
        all.extend(products(tokens, rungs, DType::Q4_0, n, k, None)?);
    }
    for dtype in [DType::Q8_0, DType::Q4_K, DType::F16] {
        all.extend(products(tokens, rungs, dtype, 16_384, 2048, None)?);
    }
    all.extend(products(tokens, rungs, DType::Q4_0, 16_384, 2048, Some(Activation::Silu))?);
    for (cols, norm) in [(2048, None), (2048, Some(1e-5)), (8192, None)] {
        let launch = F16RowsCall { rows: tokens, cols, x_stride: cols, norm }.launch(rungs)?;
        let kernel = if norm.is_some() { "f16_rows with norm" } else { "f16_rows" }.to_owned();
        let shape = format!("{tokens} × {cols}");
        all.push(Timed {
            kernel,
            shape,
            tile: String::new(),
            launch,
            sum: None,
            weight: None,
            operations: 0.0,
        });
    }
    Ok(all)
}

fn products(
    tokens: u32,
    rungs: Rungs,
    dtype: DType,
    n: u32,
    k: u32,
    gate: Option<Activation>,
) -> Result<Vec<Timed>> {
    let weight = WeightLayout::new(dtype, n as usize, k as usize)?;
    let plain = Rungs { cooperative: false, ..rungs };
    let mut forms: Vec<(Rungs, Option<TileShape>, u32)> = vec![(rungs, None, 1)];
    if rungs.cooperative {
        forms.extend(cooperative().into_iter().map(|shape| (rungs, Some(shape), 1)));
    }
    let sizes = [(128, 128), (128, 64), (64, 64)].map(|(rows, columns)| TileShape::new(rows, columns));
    forms.extend(sizes.map(|shape| (plain, Some(shape), 1)));
    // Few outputs: sums are worth dividing.
    if n == 2048 && gate.is_none() {
        let splits = [(0, 2), (0, 4), (1, 2), (1, 4), (2, 2), (2, 4)];
        forms.extend(splits.map(|(size, splits)| (rungs, Some(sizes[size]), splits)));
    }
    let mut timed = Vec::new();
    for (rungs, shape, splits) in forms {
        let call = TileCall {
            gate,
            splits,
            y_stride: if gate.is_some() { n / 2 } else { n },
            tuning: TileTuning { shape, memory: Some(MEMORY), ..Default::default() },
            ..TileCall::new(weight, tokens)
        };
        let launch = match call.launch(rungs) {
            // A gate wants an even number of subgroups side by side.
            Err(LaunchError::Tuning { .. }) if gate.is_some() => continue,
            other => other?,
        };
        let gated = if gate.is_some() { " gated" } else { "" };
        timed.push(Timed {
            kernel: format!("{} {}{gated}", launch.variant().name, dtype.name().to_lowercase()),
            shape: format!("{tokens} × {n} × {k}"),
            tile: shape.map_or_else(|| "default".to_owned(), |shape| described(shape, rungs, splits)),
            sum: (splits > 1).then(|| SumTilesCall::after(&call).launch(rungs)).transpose()?,
            launch,
            weight: Some(weight),
            operations: 2.0 * f64::from(tokens) * f64::from(n) * f64::from(k),
        });
    }
    Ok(timed)
}

fn cooperative() -> Vec<TileShape> {
    let (large, tall, small) = (TileShape::new(128, 128), TileShape::new(128, 64), TileShape::new(64, 64));
    let wide = TileShape::new(64, 128);
    let mut all = vec![
        large,
        TileShape { matrices: [4, 4], ..large },
        tall,
        TileShape { step: 64, ..tall },
        TileShape { matrices: [4, 4], ..tall },
        wide,
        TileShape { matrices: [4, 2], ..wide },
        small,
        TileShape { step: 64, ..small },
        TileShape { matrices: [4, 2], ..small },
        TileShape::new(32, 64),
    ];
    // Few rows: a product takes the time in which workgroups wait for their steps along k.
    let few = [
        (64, 64, [2, 2], 64),
        (64, 64, [2, 1], 128),
        (64, 32, [1, 1], 128),
        (32, 32, [1, 1], 64),
        (32, 32, [1, 1], 128),
        (32, 32, [1, 1], 256),
    ];
    all.extend(few.map(|(rows, columns, matrices, step)| TileShape {
        matrices,
        step,
        ..TileShape::new(rows, columns)
    }));
    all
}

fn described(shape: TileShape, rungs: Rungs, splits: u32) -> String {
    let TileShape { rows, columns, matrices: [a, b], step, .. } = shape;
    let splits = if splits > 1 { format!(", k in {splits} parts") } else { String::new() };
    if !rungs.cooperative {
        return format!("{rows}×{columns}{splits}");
    }
    format!("{rows}×{columns}×{step}, {a}×{b} a subgroup{splits}")
}

/// What is timed, so many times, each with buffers of its own. Numbers are such that none overflows: what a card draws, and
/// with it its clock, follows from the bits it moves.
fn bound(gpu: &Gpu, timed: &Timed, copies: u64) -> Result<Vec<Dispatch>> {
    let mut noise = Noise::new(1);
    let mut uploads: Vec<Vec<u8>> = Vec::new();
    for slot in timed.launch.slots() {
        let words = (slot.bytes / 4) as usize;
        let quantized = timed.weight.is_some_and(|weight| weight.dtype().is_quantized());
        let contents = match slot.name {
            "y" | "h" | "h_scales" => vec![0; words],
            name if name == Plane::Scales.name() => vec![0x2400_2400; words],
            name if name == Plane::High.name() || name == Plane::Quants.name() && quantized => {
                let some = noise.words(words.min(1 << 16));
                some.iter().copied().cycle().take(words).collect()
            }
            "x" if timed.weight.is_none() => noise.elements(Storage::F32, words),
            "x_scales" | "norm" => vec![1f32.to_bits(); words],
            _ => noise.elements(Storage::F16, words),
        };
        uploads.push(contents.iter().flat_map(|word: &u32| word.to_le_bytes()).collect());
    }
    let mut dispatches = Vec::new();
    for _ in 0..copies {
        let buffers: Vec<Buffer> = uploads.iter().map(|bytes| gpu.upload(bytes)).collect::<Result<_, _>>()?;
        dispatches.push(gpu.bind(&timed.launch, &buffers.iter().collect::<Vec<_>>())?);
        if let (Some(sum), Some(parts)) = (&timed.sum, buffers.last()) {
            let [scales, y] = [1, 2].map(|i| gpu.buffer(sum.slots()[i].bytes));
            dispatches.push(gpu.bind(sum, &[parts, &scales?, &y?])?);
        }
    }
    Ok(dispatches)
}

impl TableRow for Row {
    const COLUMNS: &'static [Column] = &[
        Column::Text("kernel", "kernel"),
        Column::Text("shape", "shape"),
        Column::Text("tile", "tile"),
        Column::Number("microseconds", "µs"),
        Column::Number("teraflops", "TFLOP/s"),
        Column::Number("gigabytes_per_second", "GB/s"),
    ];

    fn device(&self) -> &str {
        &self.device
    }

    fn cells(&self) -> Vec<Cell> {
        vec![
            Cell::plain(&self.kernel),
            Cell::plain(&self.shape),
            Cell::quoted(&self.tile),
            Cell::number(self.microseconds, 2, 2),
            Cell::number(self.teraflops, 2, 1),
            Cell::number(self.gigabytes_per_second, 1, 0),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Devices with cooperative matrices are rare; that their rows can be made is seen anywhere.
    #[test]
    fn rows_exist_on_every_rung() {
        let of = |rungs| all(512, rungs).unwrap().len();
        assert_eq!(of(Rungs::NONE), 8 * 4 + 2 * 6 + 3);
        assert_eq!(of(Rungs::ALL), 8 * (4 + cooperative().len()) + 2 * 6 + 3 - 1);
    }
}
