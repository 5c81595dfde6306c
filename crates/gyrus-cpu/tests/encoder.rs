//! The ops of encoders on the CPU: a plan with an encoder of features, and a forward pass that attends to it, compared with
//! the scalar twins, and with itself in other batches.

use std::sync::Arc;

use gyrus_cpu::CpuBackend;
use gyrus_kernels::scalar::Reference;
use gyrus_kernels::{
    Activation, Backend, BackendError, Batch, BufferId, BufferSpec, ENCODED, HIDDEN, Inputs, KV_BLOCK,
    KvGroup, KvLayer, KvSize, Op, Output, Pairing, Plan, Precision, Rope, RopeId, RopeSpec, RowKind, Rows,
    Span, WeightId, WeightSpec,
};
use gyrus_tensor::{DType, Shape};
use gyrus_testkit::{Rng, distance};

const VOCAB: usize = 50;
const DIM: usize = 32;
const HEADS: usize = 2;
const FEATURES: usize = 5;
/// Entries of the tables of positions; the encoder's begins with two that no row has.
const POSITIONS: usize = 130;
const BLOCKS: usize = 40;

/// A plan in the making.
struct Builder {
    buffers: Vec<BufferSpec>,
    weights: Vec<WeightSpec>,
}

impl Builder {
    fn buffer(&mut self, name: &'static str, width: usize, rows: Rows) -> BufferId {
        self.buffers.push(BufferSpec { name, width, rows });
        BufferId(self.buffers.len() as u16 - 1)
    }

    fn weight(&mut self, shape: &[usize]) -> WeightId {
        let id = self.weights.len();
        self.weights.push(WeightSpec::new(format!("w{id}"), DType::F32, Shape::new(shape).unwrap()));
        WeightId(id as u32)
    }

    fn product(&mut self, x: BufferId, out: BufferId, accumulate: bool) -> Op {
        let shape = [self.buffers[usize::from(out.0)].width, self.buffers[usize::from(x.0)].width];
        Op::MatMul { x, weights: vec![self.weight(&shape)], accumulate, out }
    }

    fn norm(&mut self, x: BufferId, bias: bool, out: BufferId) -> Op {
        let (weight, bias) = (self.weight(&[DIM]), bias.then(|| self.weight(&[DIM])));
        Op::LayerNorm { x, weight, bias, eps: 1e-5, out }
    }
}

/// An encoder of features with two convolutions, and a forward pass with attention around each row and to the encoder.
fn plan(precision: Precision) -> Plan {
    let mut b = Builder { buffers: Vec::new(), weights: Vec::new() };
    let (own, cross) = (KvLayer { group: 0, index: 0 }, KvLayer { group: 1, index: 0 });
    let heads = HEADS as u16;
    let attention = |qkv, kv, span, out| Op::Attention {
        qkv,
        heads,
        kv,
        span,
        scale: 0.25,
        soft_cap: None,
        sinks: None,
        out,
    };
    let features = b.buffer("features", FEATURES, Rows::Slots(2));
    let unfolded = b.buffer("unfolded", 3 * FEATURES, Rows::Slots(2));
    let first = b.buffer("first", DIM, Rows::Slots(2));
    let wide = b.buffer("wide", 3 * DIM, Rows::Batch);
    let stream = b.buffer("stream", DIM, Rows::Batch);
    let normed = b.buffer("normed", DIM, Rows::Batch);
    let qkv = b.buffer("qkv", 3 * DIM, Rows::Batch);
    let kv = b.buffer("kv", 2 * DIM, Rows::Batch);
    let query = b.buffer("query", DIM, Rows::Batch);
    let attended = b.buffer("attended", DIM, Rows::Batch);
    let up = b.buffer("up", 2 * DIM, Rows::Batch);
    let last = b.buffer("last", DIM, Rows::Logits);
    let encoded = b.buffer("encoded", DIM, Rows::Logits);

    let bias = b.weight(&[DIM]);
    let encode = vec![
        Op::Features { out: features },
        Op::Unfold { x: features, taps: 3, out: unfolded },
        b.product(unfolded, first, false),
        Op::Bias { x: first, first: 0, bias },
        Op::Activate { x: first, activation: Activation::Gelu },
        Op::Unfold { x: first, taps: 3, out: wide },
        b.product(wide, stream, false),
        Op::Activate { x: stream, activation: Activation::Gelu },
        Op::AddPositions { table: b.weight(&[POSITIONS, DIM]), offset: 2, out: stream },
        b.norm(stream, true, normed),
        b.product(normed, qkv, false),
        Op::RopeWrite { qkv, heads, kv: own, write: true, norms: None, rope: None },
        attention(qkv, own, Span::Whole, attended),
        b.product(attended, stream, true),
        b.norm(stream, true, stream),
        b.product(stream, kv, false),
        Op::RopeWrite { qkv: kv, heads: 0, kv: cross, write: true, norms: None, rope: None },
        Op::Gather { x: stream, out: encoded },
    ];
    let forward = vec![
        Op::Embed { table: b.weight(&[VOCAB, DIM]), scale: 1.0, out: stream },
        Op::AddPositions { table: b.weight(&[POSITIONS, DIM]), offset: 0, out: stream },
        Op::AddTypes { table: b.weight(&[2, DIM]), out: stream },
        b.norm(stream, false, normed),
        b.product(normed, qkv, false),
        Op::RopeWrite { qkv, heads, kv: own, write: true, norms: None, rope: Some(RopeId(0)) },
        attention(qkv, own, Span::Around(9), attended),
        b.product(attended, stream, true),
        b.norm(stream, true, normed),
        b.product(normed, query, false),
        attention(query, cross, Span::Whole, attended),
        b.product(attended, stream, true),
        b.product(stream, up, false),
        Op::Activate { x: up, activation: Activation::Relu },
        b.product(up, stream, true),
        Op::Gather { x: stream, out: last },
        b.norm(last, true, last),
        Op::Activate { x: last, activation: Activation::Tanh },
    ];
    let group = KvGroup { layers: 1, kv_heads: HEADS, head_dim: DIM / HEADS, window: None };
    let spec = RopeSpec::new(Pairing::Split, DIM / HEADS, 10_000.0);
    Plan {
        precision,
        vocab: VOCAB,
        buffers: b.buffers,
        weights: b.weights,
        ropes: vec![Rope::new(spec).unwrap()],
        kv: vec![group, group],
        delta: Vec::new(),
        encode,
        layers: Vec::new(),
        forward,
        outputs: vec![Output { name: ENCODED, buffer: encoded }, Output { name: HIDDEN, buffer: last }],
    }
}

/// Values of a weight by its name: random, and around 1 for norms.
fn values(spec: &WeightSpec) -> Vec<u8> {
    let seed = spec.name.bytes().fold(7, |sum: u64, byte| sum * 31 + u64::from(byte));
    let mut rng = Rng::new(seed);
    let scale = if spec.shape.rank() == 1 { 0.5 } else { (1.0 / spec.shape.row() as f64).sqrt() };
    let values = (0..spec.shape.elems()).map(|_| (scale * rng.gaussian()) as f32);
    values.flat_map(f32::to_le_bytes).collect()
}

fn cpu(precision: Precision, threads: usize) -> CpuBackend {
    let (plan, size) = (plan(precision), sizes());
    CpuBackend::new(plan, &size, threads, |spec| Arc::new(values(spec))).unwrap()
}

fn sizes() -> KvSize {
    KvSize { positions: BLOCKS * KV_BLOCK, blocks: vec![BLOCKS; 2], records: 0 }
}

/// A sequence: rows of the encoder, tokens, and where its blocks are.
struct Sequence {
    features: Vec<f32>,
    encoded_rows: usize,
    tokens: Vec<u32>,
    types: Vec<u32>,
    tables: [Vec<u32>; 2],
}

fn sequences(lengths: &[(usize, usize)]) -> Vec<Sequence> {
    let mut free: Vec<u32> = (0..BLOCKS as u32).rev().collect();
    let mut rng = Rng::new(3);
    let mut one = |&(encoded_rows, rows): &(usize, usize)| {
        let blocks = encoded_rows.max(rows).div_ceil(KV_BLOCK);
        let table: Vec<u32> = free.split_off(free.len() - blocks);
        Sequence {
            features: (0..2 * encoded_rows * FEATURES).map(|_| rng.gaussian() as f32).collect(),
            encoded_rows,
            tokens: (0..rows).map(|_| rng.below(VOCAB) as u32).collect(),
            types: (0..rows).map(|row| u32::from(row > rows / 2)).collect(),
            tables: [table.clone(), table[..encoded_rows.div_ceil(KV_BLOCK)].to_vec()],
        }
    };
    lengths.iter().map(&mut one).collect()
}

/// What the encoder and the forward pass return for these sequences in one batch each.
fn run(backend: &mut dyn Backend, all: &[&Sequence]) -> Result<(Vec<f32>, Vec<f32>), BackendError> {
    let tables: Vec<&[u32]> = all.iter().flat_map(|s| s.tables.iter().map(Vec::as_slice)).collect();
    let rows = |of: &dyn Fn(&Sequence) -> usize| -> (Vec<u32>, Vec<u32>) {
        let rows = all.iter().zip(0..).flat_map(|(s, i)| (0..of(s) as u32).map(move |p| (p, i)));
        rows.unzip()
    };
    let lengths = vec![POSITIONS as u32; all.len()];
    let extents: Vec<u32> = all.iter().flat_map(|s| [s.tokens.len() as u32, s.encoded_rows as u32]).collect();
    let encoder_extents: Vec<u32> = all.iter().flat_map(|s| [s.encoded_rows as u32; 2]).collect();
    let features: Vec<f32> = all.iter().flat_map(|s| s.features.iter().copied()).collect();
    let (positions, numbers) = rows(&|s| s.encoded_rows);
    let wanted: Vec<u32> = (0..positions.len() as u32).collect();
    let batch = Batch {
        tokens: &vec![0; positions.len()],
        positions: &positions,
        sequences: &numbers,
        kind: RowKind::Prompt,
        logits: &wanted,
        tables: &tables,
        lengths: &lengths,
        records: &[],
        inputs: Inputs { extents: &encoder_extents, types: &[], features: &features },
    };
    let encoded = backend.encode(&batch)?.to_vec();
    let (positions, numbers) = rows(&|s| s.tokens.len());
    let wanted: Vec<u32> = (0..positions.len() as u32).collect();
    let (tokens, types): (Vec<u32>, Vec<u32>) =
        all.iter().flat_map(|s| s.tokens.iter().copied().zip(s.types.iter().copied())).unzip();
    let batch = Batch {
        tokens: &tokens,
        positions: &positions,
        sequences: &numbers,
        logits: &wanted,
        inputs: Inputs { extents: &extents, types: &types, features: &[] },
        ..batch
    };
    Ok((encoded, backend.forward(&batch)?.to_vec()))
}

const LENGTHS: [(usize, usize); 5] = [(40, 33), (1, 1), (64, 100), (100, 31), (7, 64)];

#[test]
fn encoders_match_their_scalar_twins() {
    let all = sequences(&LENGTHS);
    let all: Vec<&Sequence> = all.iter().collect();
    let mut twin = Reference::new(plan(Precision::Exact), &sizes(), values).unwrap();
    let want = run(&mut twin, &all).unwrap();
    for (precision, most) in [(Precision::Exact, 5e-5), (Precision::Fast, 2e-2)] {
        let got = run(&mut cpu(precision, 2), &all).unwrap();
        let distances = [distance(&got.0, &want.0), distance(&got.1, &want.1)];
        assert!(distances.iter().all(|d| *d <= most), "{precision:?}: {distances:?}");
    }
}

/// A sequence has the same bits alone and in a batch, on any number of threads.
#[test]
fn encoders_do_not_depend_on_the_batch() {
    let all = sequences(&LENGTHS);
    let each: Vec<&Sequence> = all.iter().collect();
    for precision in [Precision::Exact, Precision::Fast] {
        let (encoded, hidden) = run(&mut cpu(precision, 1), &each).unwrap();
        let mut alone = (Vec::new(), Vec::new());
        let mut backend = cpu(precision, 3);
        for one in &each {
            let (encoded, hidden) = run(&mut backend, &[one]).unwrap();
            alone.0.extend(encoded);
            alone.1.extend(hidden);
        }
        assert_eq!(alone, (encoded, hidden), "{precision:?}");
    }
}

/// What a pass demands of a batch is checked, by the CPU and by the twin.
#[test]
fn batches_without_what_the_pass_demands_are_unsound() {
    let all = sequences(&[(40, 33)]);
    type Change = fn(&mut Sequence);
    let changes: [(&str, Change); 5] = [
        ("features", |s| s.features.truncate(10)),
        ("types", |s| s.types[3] = 2),
        ("table of the encoder's rows", |s| s.tables[1].truncate(1)),
        ("own table", |s| s.tables[0].truncate(1)),
        ("position", |s| {
            s.tokens = vec![0; POSITIONS + 1];
            s.types = vec![0; POSITIONS + 1];
            s.tables[0] = (0..5).collect();
        }),
    ];
    for (what, change) in changes {
        let mut one = Sequence {
            features: all[0].features.clone(),
            tokens: all[0].tokens.clone(),
            types: all[0].types.clone(),
            tables: all[0].tables.clone(),
            encoded_rows: all[0].encoded_rows,
        };
        change(&mut one);
        let mut twin = Reference::new(plan(Precision::Exact), &sizes(), values).unwrap();
        let backends: [&mut dyn Backend; 2] = [&mut cpu(Precision::Exact, 1), &mut twin];
        for backend in backends {
            let error = run(backend, &[&one]).unwrap_err();
            assert!(matches!(error, BackendError::UnsoundBatch), "{what}: {error}");
        }
    }
}
