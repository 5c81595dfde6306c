//! Times the kernels of a decode step at the shapes of a 1B model: mat-vecs and attention, for one sequence and for 16.

use std::collections::HashMap;
use std::time::Duration;

use anyhow::Result;
use gyrus_gpu::{AdapterKind, Buffer, Dispatch, Gpu};
use gyrus_kernels::call::engine::{self, Heads, Paged};
use gyrus_kernels::call::{
    AttendCall, Input, MatVecCall, MatVecSizes, MatVecTuning, QuantizeCall, Results, Source, SplitMode,
    Storage, Target,
};
use gyrus_kernels::grid::Noise;
use gyrus_kernels::params::AttendParams;
use gyrus_kernels::{Activation, KV_BLOCK, KvShape, Launch, Pairing, Rope, RopeSpec, WeightLayout};
use gyrus_tensor::DType;

const WIDTH: usize = 2048;
const HEADS: u32 = 32;
const KV_HEADS: u32 = 8;
const HEAD_DIM: u32 = 64;

/// Bytes of weights or KV caches that a pass cycles through. It exceeds the last-level cache of every device, so that each
/// is read from memory, as in a step of a whole model.
const ROTATED: u64 = 256 << 20;

/// A kernel to time.
pub(super) struct Timed {
    pub(super) name: String,
    pub(super) shape: String,
    /// Bytes of the weights or of the KV cache.
    pub(super) bytes: u64,
    kernel: Kernel,
}

enum Kernel {
    MatVec(MatVecCall),
    /// The same product with int8 cooperative matrices.
    Int8Matrix(MatVecCall),
    Attend {
        sequences: u32,
        depth: u32,
        mode: SplitMode,
    },
    /// Merges the splits of attention and quantises the result to int8.
    Merge {
        sequences: u32,
        depth: u32,
    },
}

/// A mat-vec of a model for a batch of sequences.
struct Product {
    what: &'static str,
    sequences: u32,
    rows: usize,
    cols: usize,
    input: Input,
    gate: Option<Activation>,
    accumulate: bool,
}

impl Product {
    fn new(what: &'static str, rows: usize, cols: usize, input: Input) -> Product {
        Product { what, sequences: 1, rows, cols, input, gate: None, accumulate: false }
    }

    fn gated(self) -> Product {
        Product { gate: Some(Activation::Silu), ..self }
    }

    fn added(self) -> Product {
        Product { accumulate: true, ..self }
    }

    fn of(self, sequences: u32) -> Product {
        Product { sequences, ..self }
    }

    /// The call that a model makes on this device, with as many rows of the matrix as the device can bind.
    fn call(&self, gpu: &Gpu, dtype: DType) -> Result<MatVecCall> {
        let Product { sequences, input, gate, accumulate, .. } = *self;
        let layout = WeightLayout::new(dtype, self.rows, self.cols)?;
        let most = if is_software(gpu) { 4096 } else { layout.rows_within(gpu.largest_buffer()) };
        let layout = layout.with_rows(layout.rows().min(most));
        let most = gpu.most_invocations();
        let (n, k) = (layout.rows(), layout.cols());
        let sizes = MatVecSizes::H200;
        let tuning = MatVecTuning::of(n, k, most, &sizes).for_rows(sequences, k, &sizes);
        Ok(MatVecCall { input, gate, accumulate, tuning, ..MatVecCall::new(layout, sequences) })
    }
}

/// A position at which attention has the largest number of splits.
const MOST_DIVIDED: u32 = engine::SPLIT_TILE * engine::MOST_SPLITS - 1;

fn products() -> Vec<Product> {
    let eps = 1e-5;
    let (norm, merge) =
        (Input::Norm { eps }, Input::Merge { head_dim: HEAD_DIM, window: 0, position: Some(MOST_DIVIDED) });
    let (int8, norm_int8) = (Input::Int8 { norm: false }, Input::Int8 { norm: true });
    vec![
        Product::new("norm · q k v", 3072, WIDTH, norm),
        Product::new("merge · output", WIDTH, WIDTH, merge).added(),
        Product::new("norm · gate up", 16_384, WIDTH, norm).gated(),
        Product::new("down", WIDTH, 8192, Input::F32).added(),
        Product::new("norm · head", 128_256, WIDTH, norm),
        // Shapes of an 8B model.
        Product::new("norm · gate up", 28_672, 4096, norm).gated(),
        Product::new("down", 4096, 14_336, Input::F32).added(),
        // A batch of sequences.
        Product::new("q k v", 3072, WIDTH, norm_int8).of(16),
        Product::new("output", WIDTH, WIDTH, int8).added().of(16),
        Product::new("gate up", 16_384, WIDTH, norm_int8).gated().of(16),
        Product::new("down", WIDTH, 8192, int8).added().of(16),
        Product::new("head", 128_256, WIDTH, norm_int8).of(16),
    ]
}

/// Every kernel.
pub(super) fn timed(gpu: &Gpu) -> Result<Vec<Timed>> {
    let mut all = Vec::new();
    for dtype in [DType::Q4_0, DType::Q8_0, DType::Q4_K] {
        for product in products() {
            let call = product.call(gpu, dtype)?;
            let MatVecCall { weight, tuning, rows: sequences, .. } = call;
            let by_int8_matrix = gpu.capabilities().can_use_int8_matrix(&call, Results::F32);
            let sequences = if sequences > 1 { format!("{sequences} sequences, ") } else { String::new() };
            let shape = format!("{sequences}{} {} × {}", dtype.name(), weight.rows(), weight.cols());
            let mut push = |name: &str, shape, kernel| {
                let name = format!("{name} {}", product.what);
                all.push(Timed { name, shape, bytes: weight.total_bytes(), kernel });
            };
            push("matvec", format!("{shape}, {tuning}"), Kernel::MatVec(call));
            if by_int8_matrix {
                push("matvec_int8_matrix", shape, Kernel::Int8Matrix(call));
            }
        }
    }
    for (sequences, depth) in [(1, 512), (1, 4096), (16, 512), (16, 4096)] {
        let splits = engine::splits(depth, 0);
        let mut ways = vec![(SplitMode::Separate { splits }, format!("{splits} splits"))];
        // For a batch: attention that also merges its splits, in different tile sizes.
        if sequences > 1 {
            ways.extend([(1, true), (2, true), (4, true), (4, false)].map(|(tiles, kept)| {
                let kept_in = if kept { "workgroup memory" } else { "a buffer" };
                let how = format!("{tiles} of {splits} splits at once, stored in {kept_in}");
                (SplitMode::Gathered { tiles, kept }, how)
            }));
        }
        let shape = format!("{sequences} at depth {depth}, {HEADS}/{KV_HEADS} heads of {HEAD_DIM}");
        for (mode, how) in ways {
            let call = attend(sequences, depth, mode);
            if gpu.capabilities().can_attend_split(&call) {
                all.push(Timed {
                    name: "attend".to_owned(),
                    shape: format!("{shape}, {how}"),
                    bytes: 2
                        * u64::from(sequences * (depth + 1) * KV_HEADS * HEAD_DIM)
                        * Storage::F16.bytes(),
                    kernel: Kernel::Attend { sequences, depth, mode },
                });
            }
        }
        if sequences > 1 {
            all.push(Timed {
                name: "attend: merge · quantise".to_owned(),
                shape: format!("{shape}, {splits} splits"),
                bytes: u64::from(sequences * HEADS * splits * HEAD_DIM) * 4,
                kernel: Kernel::Merge { sequences, depth },
            });
        }
    }
    Ok(all)
}

/// Attention of a batch of sequences at this depth.
fn attend(sequences: u32, depth: u32, mode: SplitMode) -> AttendCall {
    let blocks = sequences * blocks_of(depth);
    let params = AttendParams {
        n_heads: HEADS,
        n_kv_heads: KV_HEADS,
        stride: (HEADS + 2 * KV_HEADS) * HEAD_DIM,
        scale: 1.0 / (HEAD_DIM as f32).sqrt(),
        rope_dim: HEAD_DIM,
        pass_scale: 1.0,
        ..Default::default()
    };
    AttendCall {
        params,
        heads: Heads { pairing: Pairing::Adjacent, norm: false, write: true },
        rotate: true,
        mode,
        sinks: false,
        position: (sequences == 1).then_some(depth),
        paged: Paged {
            cache: KvShape { kv: Storage::F16, blocks, n_kv_heads: params.n_kv_heads, head_dim: HEAD_DIM },
            rows: sequences,
            entries: blocks,
        },
    }
}

/// KV cache blocks of a sequence at this depth.
fn blocks_of(depth: u32) -> u32 {
    (depth + 1).div_ceil(KV_BLOCK as u32)
}

fn is_software(gpu: &Gpu) -> bool {
    gpu.adapter().kind == AdapterKind::Software
}

impl Timed {
    /// The time of one dispatch in a sequence of dispatches that each read their own weights or KV cache.
    pub(super) fn time(&self, gpu: &Gpu, repetitions: usize) -> Result<Duration> {
        let launch = self.launch(gpu)?;
        let copies = if is_software(gpu) { 2 } else { (ROTATED.div_ceil(self.bytes)).clamp(2, 256) };
        // Buffers that all dispatches share, and contents of those that each has for itself.
        let mut shared: HashMap<&str, Buffer> = HashMap::new();
        let mut contents: HashMap<&str, Vec<u32>> = HashMap::new();
        let mut noise = Noise::new(1);
        for slot in launch.slots() {
            let words = (slot.bytes / 4) as usize;
            match slot.name {
                "quants" | "high" => drop(contents.insert(slot.name, noise.words(words))),
                // f16 values with magnitude between 0.5 and 1.
                "scales" | "k_cache" | "v_cache" => {
                    let values =
                        noise.words(words).iter().map(|bits| bits & 0x83ff_83ff | 0x3800_3800).collect();
                    contents.insert(slot.name, values);
                }
                name => {
                    shared.insert(name, self.shared(gpu, name, words, &mut noise)?);
                }
            }
        }
        let dispatches: Vec<Dispatch> = (0..copies)
            .map(|_| {
                let mut own: HashMap<&str, Buffer> = HashMap::new();
                for (name, words) in &contents {
                    own.insert(*name, gpu.upload(bytemuck::cast_slice(words))?);
                }
                let all: Vec<&Buffer> = launch
                    .slots()
                    .iter()
                    .map(|slot| own.get(slot.name).unwrap_or_else(|| &shared[slot.name]))
                    .collect();
                gpu.bind(&launch, &all)
            })
            .collect::<Result<_, _>>()?;
        let all: Vec<&Dispatch> = dispatches.iter().collect();
        Ok(gpu.median_time(&all, 1, repetitions)? / copies as u32)
    }

    fn launch(&self, gpu: &Gpu) -> Result<Launch> {
        let rungs = gpu.rungs();
        Ok(match &self.kernel {
            Kernel::MatVec(call) if call.workgroup_bytes() > gpu.workgroup_memory() => {
                // Models do the same on a device with little workgroup memory.
                let norm = matches!(call.input, Input::Norm { .. });
                MatVecCall { input: Input::Int8 { norm }, ..*call }.launch(rungs)?
            }
            Kernel::MatVec(call) => call.launch(rungs)?,
            Kernel::Int8Matrix(call) => call.launch_int8_matrix(rungs, Results::F32)?,
            Kernel::Attend { sequences, depth, mode } => attend(*sequences, *depth, *mode).launch(rungs)?,
            Kernel::Merge { sequences, .. } => {
                let source = Source::Merge { head_dim: HEAD_DIM, window: 0 };
                let (rows, cols) = (*sequences, HEADS * HEAD_DIM);
                QuantizeCall { rows, cols, source, target: Target::Int8 }.launch(rungs)?
            }
        })
    }

    /// A buffer that is small compared with the weights or the KV cache.
    fn shared(&self, gpu: &Gpu, name: &str, words: usize, noise: &mut Noise) -> Result<Buffer> {
        let words = match name {
            "rows" => match self.kernel {
                Kernel::Attend { sequences, depth, .. } | Kernel::Merge { sequences, depth } => {
                    (0..sequences).flat_map(|sequence| [depth, sequence * blocks_of(depth)]).collect()
                }
                Kernel::MatVec(_) | Kernel::Int8Matrix(_) => vec![MOST_DIVIDED, 0],
            },
            "block_table" => (0..words as u32).collect(),
            "turns" => {
                let rope = Rope::new(RopeSpec::new(Pairing::Adjacent, HEAD_DIM as usize, 5e5))?;
                engine::turns(&rope, 1 << 13)
            }
            "y" => vec![0; words],
            _ => noise.elements(Storage::F32, words),
        };
        Ok(gpu.upload(bytemuck::cast_slice(&words))?)
    }
}
