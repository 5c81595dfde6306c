//! Plans with encoders on a GPU: an encoder of features with convolutions and a forward pass that attends to it, as a text
//! encoder and as a decoder with logits, compared with the scalar twins and with themselves in other batches.

mod common;

use common::device;
use gyrus_gpu::{Gpu, GpuBackend};
use gyrus_kernels::scalar::Reference;
use gyrus_kernels::shader::Rungs;
use gyrus_kernels::{
    Activation, Backend, BackendError, Batch, BufferId, BufferSpec, ENCODED, HIDDEN, Inputs, KV_BLOCK,
    KvGroup, KvLayer, KvSize, LOGITS, Op, Output, Pairing, Plan, Precision, Rope, RopeId, RopeSpec, RowKind,
    Rows, Span, WeightId, WeightSpec,
};
use gyrus_tensor::{DType, Shape, quantize};
use gyrus_testkit::Rng;

const VOCAB: usize = 52;
const DIM: usize = 64;
const FEATURES: usize = 32;
/// Entries of the tables of positions; the encoder's begins with two that no row has.
const POSITIONS: usize = 300;
const BLOCKS: usize = 60;

/// What a plan is.
#[derive(Debug, Clone, Copy)]
struct Kind {
    precision: Precision,
    /// The type of matrices.
    dtype: DType,
    head_dim: usize,
    /// Whether the forward pass is a decoder's, with logits; else a text encoder's.
    decodes: bool,
}

/// A plan in the making.
struct Builder {
    dtype: DType,
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
        let dtype = if shape.len() == 1 { DType::F32 } else { self.dtype };
        self.weights.push(WeightSpec::new(format!("w{id}"), dtype, Shape::new(shape).unwrap()));
        WeightId(id as u32)
    }

    fn product(&mut self, x: BufferId, out: BufferId, accumulate: bool) -> Op {
        let shape = [self.buffers[usize::from(out.0)].width, self.buffers[usize::from(x.0)].width];
        Op::MatMul { x, weights: vec![self.weight(&shape)], accumulate, out }
    }

    fn bias(&mut self, x: BufferId, first: usize, width: usize) -> Op {
        Op::Bias { x, first: first as u32, bias: self.weight(&[width]) }
    }

    fn norm(&mut self, x: BufferId, bias: bool, out: BufferId) -> Op {
        let (weight, bias) = (self.weight(&[DIM]), bias.then(|| self.weight(&[DIM])));
        Op::LayerNorm { x, weight, bias, eps: 1e-5, out }
    }
}

/// An encoder of features with two convolutions, and a forward pass with attention around each row, or causal, and to the
/// encoder.
fn plan(kind: Kind) -> Plan {
    let Kind { precision, dtype, head_dim, decodes } = kind;
    let mut b = Builder { dtype, buffers: Vec::new(), weights: Vec::new() };
    let [own, cross, text] = [0, 1, 2].map(|group| KvLayer { group, index: 0 });
    let heads = (DIM / head_dim) as u16;
    let scale = 1.0 / (head_dim as f32).sqrt();
    let attention =
        |qkv, kv, span, out| Op::Attention { qkv, heads, kv, span, scale, soft_cap: None, sinks: None, out };
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
    let logits = b.buffer("logits", VOCAB, Rows::Logits);

    let encode = vec![
        Op::Features { out: features },
        Op::Unfold { x: features, taps: 3, out: unfolded },
        b.product(unfolded, first, false),
        b.bias(first, 0, DIM),
        Op::Activate { x: first, activation: Activation::Gelu },
        Op::Unfold { x: first, taps: 3, out: wide },
        b.product(wide, stream, false),
        b.bias(stream, 0, DIM),
        Op::Activate { x: stream, activation: Activation::Gelu },
        Op::AddPositions { table: b.weight(&[POSITIONS, DIM]), offset: 2, out: stream },
        b.norm(stream, true, normed),
        b.product(normed, qkv, false),
        // Keys have no bias.
        b.bias(qkv, 0, DIM),
        b.bias(qkv, 2 * DIM, DIM),
        Op::RopeWrite { qkv, heads, kv: own, write: true, norms: None, rope: None },
        attention(qkv, own, Span::Whole, attended),
        b.product(attended, stream, true),
        b.bias(stream, 0, DIM),
        b.norm(stream, true, stream),
        b.product(stream, kv, false),
        b.bias(kv, DIM, DIM),
        Op::RopeWrite { qkv: kv, heads: 0, kv: cross, write: true, norms: None, rope: None },
        Op::Gather { x: stream, out: encoded },
    ];
    let (group, span, rope) = match decodes {
        true => (text, Span::Causal, None),
        false => (own, Span::Around(9), Some(RopeId(0))),
    };
    let mut forward = vec![
        Op::Embed { table: b.weight(&[VOCAB, DIM]), scale: 1.0, out: stream },
        Op::AddPositions { table: b.weight(&[POSITIONS, DIM]), offset: 0, out: stream },
    ];
    if !decodes {
        forward.push(Op::AddTypes { table: b.weight(&[2, DIM]), out: stream });
    }
    forward.extend([
        b.norm(stream, false, normed),
        b.product(normed, qkv, false),
        b.bias(qkv, 0, 3 * DIM),
        Op::RopeWrite { qkv, heads, kv: group, write: true, norms: None, rope },
        attention(qkv, group, span, attended),
        b.product(attended, stream, true),
        b.bias(stream, 0, DIM),
        b.norm(stream, true, normed),
        b.product(normed, query, false),
        b.bias(query, 0, DIM),
        attention(query, cross, Span::Whole, attended),
        b.product(attended, stream, true),
        b.norm(stream, true, normed),
        b.product(normed, up, false),
        b.bias(up, 0, 2 * DIM),
        Op::Activate { x: up, activation: if decodes { Activation::Gelu } else { Activation::Relu } },
        b.product(up, stream, true),
        Op::Gather { x: stream, out: last },
        b.norm(last, true, last),
    ]);
    let result = if decodes {
        forward.push(b.product(last, logits, false));
        Output { name: LOGITS, buffer: logits }
    } else {
        forward.push(Op::Activate { x: last, activation: Activation::Tanh });
        Output { name: HIDDEN, buffer: last }
    };
    let group = KvGroup { layers: 1, kv_heads: heads.into(), head_dim, window: None };
    let spec = RopeSpec::new(Pairing::Split, head_dim, 10_000.0);
    Plan {
        precision,
        vocab: VOCAB,
        buffers: b.buffers,
        weights: b.weights,
        ropes: vec![Rope::new(spec).unwrap()],
        kv: vec![group; 3],
        delta: Vec::new(),
        encode,
        layers: Vec::new(),
        forward,
        outputs: vec![Output { name: ENCODED, buffer: encoded }, result],
    }
}

/// Values of a weight by its name.
fn values(spec: &WeightSpec) -> Vec<u8> {
    let seed = spec.name.bytes().fold(7, |sum: u64, byte| sum * 31 + u64::from(byte));
    let mut rng = Rng::new(seed);
    let scale = if spec.shape.rank() == 1 { 0.5 } else { (1.0 / spec.shape.row() as f64).sqrt() };
    let values: Vec<f32> = (0..spec.shape.elems()).map(|_| (scale * rng.gaussian()) as f32).collect();
    quantize(spec.dtype, &values).unwrap()
}

fn sizes() -> KvSize {
    KvSize { positions: BLOCKS * KV_BLOCK, blocks: vec![BLOCKS; 3], records: 0 }
}

fn gpu(kind: Kind, rungs: Rungs) -> Option<GpuBackend> {
    let gpu: Gpu = device(rungs)?.into_gpu();
    Some(GpuBackend::new(gpu, plan(kind), sizes(), |spec| Some(values(spec)), |_| {}).unwrap())
}

fn twin(kind: Kind) -> Reference {
    Reference::new(plan(kind), &sizes(), values).unwrap()
}

/// A sequence: rows of the encoder, tokens, and where its blocks are.
#[derive(Clone)]
struct Sequence {
    features: Vec<f32>,
    encoded_rows: usize,
    tokens: Vec<u32>,
    types: Vec<u32>,
    tables: [Vec<u32>; 3],
}

/// Sequences with these numbers of rows of the encoder and of tokens. Their block tables differ in length.
fn sequences(lengths: &[(usize, usize)]) -> Vec<Sequence> {
    let mut free: Vec<u32> = (0..BLOCKS as u32).rev().collect();
    let mut rng = Rng::new(3);
    let mut one = |&(encoded_rows, rows): &(usize, usize)| {
        let table: Vec<u32> = free.split_off(free.len() - encoded_rows.max(rows).div_ceil(KV_BLOCK));
        let of = |rows: usize| table[..rows.div_ceil(KV_BLOCK)].to_vec();
        Sequence {
            features: (0..2 * encoded_rows * FEATURES).map(|_| rng.gaussian() as f32).collect(),
            encoded_rows,
            tokens: (0..rows).map(|_| rng.below(VOCAB) as u32).collect(),
            types: (0..rows).map(|row| u32::from(row > rows / 2)).collect(),
            tables: [table.clone(), of(encoded_rows), of(rows)],
        }
    };
    lengths.iter().map(&mut one).collect()
}

/// Runs the encoder on these sequences in one batch and returns its rows.
fn encode(backend: &mut dyn Backend, all: &[&Sequence]) -> Result<Vec<f32>, BackendError> {
    let tables: Vec<&[u32]> = all.iter().flat_map(|s| s.tables.iter().map(Vec::as_slice)).collect();
    let rows = all.iter().zip(0..).flat_map(|(s, i)| (0..s.encoded_rows as u32).map(move |p| (p, i)));
    let (positions, numbers): (Vec<u32>, Vec<u32>) = rows.unzip();
    let extents: Vec<u32> = all.iter().flat_map(|s| [s.encoded_rows as u32, 0, 0]).collect();
    let features: Vec<f32> = all.iter().flat_map(|s| s.features.iter().copied()).collect();
    let batch = Batch {
        tokens: &vec![0; positions.len()],
        positions: &positions,
        sequences: &numbers,
        kind: RowKind::Prompt,
        logits: &(0..positions.len() as u32).collect::<Vec<_>>(),
        tables: &tables,
        lengths: &vec![POSITIONS as u32; all.len()],
        records: &[],
        inputs: Inputs { extents: &extents, types: &[], features: &features },
    };
    Ok(backend.encode(&batch)?.to_vec())
}

/// Runs the forward pass on some positions of these sequences in one batch and returns the results of all rows.
fn forward(
    backend: &mut dyn Backend,
    all: &[&Sequence],
    kind: RowKind,
    range: impl Fn(&Sequence) -> std::ops::Range<usize>,
    has_types: bool,
) -> Result<Vec<f32>, BackendError> {
    let tables: Vec<&[u32]> = all.iter().flat_map(|s| s.tables.iter().map(Vec::as_slice)).collect();
    let each = all.iter().zip(0..).flat_map(|(s, i)| range(s).map(move |p| (s, p, i)));
    let positions: Vec<u32> = each.clone().map(|(_, p, _)| p as u32).collect();
    let numbers: Vec<u32> = each.clone().map(|(.., i)| i).collect();
    let tokens: Vec<u32> = each.clone().map(|(s, p, _)| s.tokens[p]).collect();
    let types: Vec<u32> = each.map(|(s, p, _)| s.types[p]).collect();
    let extents: Vec<u32> =
        all.iter().flat_map(|s| [s.tokens.len() as u32, s.encoded_rows as u32, 0]).collect();
    let types = if has_types { &types[..] } else { &[] };
    let batch = Batch {
        tokens: &tokens,
        positions: &positions,
        sequences: &numbers,
        kind,
        logits: &(0..positions.len() as u32).collect::<Vec<_>>(),
        tables: &tables,
        lengths: &vec![POSITIONS as u32; all.len()],
        records: &[],
        inputs: Inputs { extents: &extents, types, features: &[] },
    };
    Ok(backend.forward(&batch)?.to_vec())
}

fn whole(s: &Sequence) -> std::ops::Range<usize> {
    0..s.tokens.len()
}

/// The least cosine of two lists of rows.
fn least_cosine(a: &[f32], b: &[f32], width: usize) -> f64 {
    assert_eq!(a.len(), b.len());
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
    let cosines = a.chunks_exact(width).zip(b.chunks_exact(width));
    cosines.map(|(a, b)| dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()).fold(1.0, f64::min)
}

const LENGTHS: [(usize, usize); 6] = [(40, 33), (1, 1), (64, 100), (280, 31), (7, 64), (33, 32)];
const TYPES: [(DType, usize); 4] = [(DType::F16, 32), (DType::Q8_0, 32), (DType::F32, 16), (DType::F16, 64)];

fn least(precision: Precision) -> f64 {
    if precision == Precision::Exact { 0.999_99 } else { 0.9995 }
}

#[test]
fn text_encoders_match_their_scalar_twins() {
    let all = sequences(&LENGTHS);
    let all: Vec<&Sequence> = all.iter().collect();
    for (dtype, head_dim) in TYPES {
        let exact = Kind { precision: Precision::Exact, dtype, head_dim, decodes: false };
        let mut twin = twin(exact);
        let want = encode(&mut twin, &all).unwrap();
        let want_hidden = forward(&mut twin, &all, RowKind::Prompt, whole, true).unwrap();
        for precision in [Precision::Exact, Precision::Fast] {
            let Some(mut gpu) = gpu(Kind { precision, ..exact }, Rungs::ALL) else { return };
            let got = encode(&mut gpu, &all).unwrap();
            let hidden = forward(&mut gpu, &all, RowKind::Prompt, whole, true).unwrap();
            let cosines = [least_cosine(&got, &want, DIM), least_cosine(&hidden, &want_hidden, DIM)];
            assert!(cosines.iter().all(|c| *c > least(precision)), "{dtype} {precision:?}: {cosines:?}");
        }
    }
}

/// A decoder of up to 16 generated rows, and of prompts, attends to an encoder's rows.
#[test]
fn decoders_match_their_scalar_twins() {
    let all = sequences(&LENGTHS);
    let all: Vec<&Sequence> = all.iter().collect();
    for (dtype, head_dim) in TYPES {
        let exact = Kind { precision: Precision::Exact, dtype, head_dim, decodes: true };
        let mut twin = twin(exact);
        encode(&mut twin, &all).unwrap();
        for precision in [Precision::Exact, Precision::Fast] {
            let Some(mut gpu) = gpu(Kind { precision, ..exact }, Rungs::ALL) else { return };
            encode(&mut gpu, &all).unwrap();
            let before = |s: &Sequence| 0..s.tokens.len() - 1;
            let last = |s: &Sequence| s.tokens.len() - 1..s.tokens.len();
            let one = &all[3..4];
            let mut check = |of: &[&Sequence], kind, range: &dyn Fn(&Sequence) -> std::ops::Range<usize>| {
                let got = forward(&mut gpu, of, kind, range, false).unwrap();
                let want = forward(&mut twin, of, kind, range, false).unwrap();
                let cosine = least_cosine(&got, &want, VOCAB);
                // int8 activations of generated rows are coarser.
                let int8 = dtype == DType::Q8_0 && kind == RowKind::Generated;
                let least = if int8 && precision == Precision::Fast { 0.999 } else { least(precision) };
                assert!(cosine > least, "{dtype} {precision:?} {kind:?}: {cosine}");
            };
            check(&all, RowKind::Prompt, &before);
            check(&all, RowKind::Generated, &last);
            check(one, RowKind::Generated, &last);
            check(one, RowKind::Generated, &|_| 20..31);
        }
    }
}

/// A sequence has the same bits alone and in a batch, whatever features a device has.
#[test]
fn results_do_not_depend_on_the_batch() {
    let all = sequences(&LENGTHS);
    let each: Vec<&Sequence> = all.iter().collect();
    for (dtype, head_dim) in [(DType::F16, 32), (DType::Q8_0, 16)] {
        for precision in [Precision::Exact, Precision::Fast] {
            for decodes in [false, true] {
                let kind = Kind { precision, dtype, head_dim, decodes };
                let Some(mut gpu) = gpu(kind, Rungs::ALL) else { return };
                let encoded = encode(&mut gpu, &each).unwrap();
                let results = forward(&mut gpu, &each, RowKind::Prompt, whole, !decodes).unwrap();
                let last = |s: &Sequence| s.tokens.len() - 1..s.tokens.len();
                let generated = forward(&mut gpu, &each, RowKind::Generated, last, !decodes).unwrap();
                let mut alone = (Vec::new(), Vec::new(), Vec::new());
                for one in &each {
                    alone.0.extend(encode(&mut gpu, &[one]).unwrap());
                    alone.1.extend(forward(&mut gpu, &[one], RowKind::Prompt, whole, !decodes).unwrap());
                    let next = forward(&mut gpu, &[one], RowKind::Generated, last, !decodes);
                    alone.2.extend(next.unwrap());
                }
                let same = alone.0 == encoded && alone.1 == results && alone.2 == generated;
                assert!(same, "{kind:?}");
            }
        }
    }
}

#[test]
fn encoders_need_no_optional_feature() {
    let all = sequences(&LENGTHS[..3]);
    let all: Vec<&Sequence> = all.iter().collect();
    for decodes in [false, true] {
        let kind = Kind { precision: Precision::Fast, dtype: DType::F16, head_dim: 32, decodes };
        let Some(mut gpu) = gpu(kind, Rungs::NONE) else { return };
        let mut twin = twin(kind);
        let [got, want] = [&mut gpu as &mut dyn Backend, &mut twin].map(|backend| {
            let encoded = encode(backend, &all).unwrap();
            (encoded, forward(backend, &all, RowKind::Prompt, whole, !decodes).unwrap())
        });
        let width = if decodes { VOCAB } else { DIM };
        assert!(least_cosine(&got.0, &want.0, DIM) > 0.9995 && least_cosine(&got.1, &want.1, width) > 0.9995);
    }
}

/// What a pass demands of a batch is checked before kernels run.
#[test]
fn batches_without_what_the_pass_demands_are_unsound() {
    let kind = Kind { precision: Precision::Fast, dtype: DType::F16, head_dim: 32, decodes: false };
    let Some(mut gpu) = gpu(kind, Rungs::ALL) else { return };
    let all = sequences(&[(40, 33)]);
    type Change = fn(&mut Sequence);
    let changes: [(&str, Change); 6] = [
        ("features", |s| s.features.truncate(10)),
        ("types", |s| s.types[3] = 2),
        ("table of the encoder's rows", |s| s.tables[1].truncate(1)),
        ("own table", |s| s.tables[0].truncate(1)),
        ("position", |s| {
            s.tokens = vec![0; POSITIONS + 1];
            s.types = vec![0; POSITIONS + 1];
            s.tables[0] = (0..12).collect();
        }),
        ("no extent", |s| s.encoded_rows = 0),
    ];
    for (what, change) in changes {
        let mut one = all[0].clone();
        change(&mut one);
        let error = encode(&mut gpu, &[&one])
            .and_then(|_| forward(&mut gpu, &[&one], RowKind::Prompt, whole, true))
            .unwrap_err();
        assert!(matches!(error, BackendError::UnsoundBatch), "{what}: {error}");
    }
    // Steps in flight have no extents.
    let error = gpu.slots().open(0, 10).unwrap_err().to_string();
    assert!(error.contains("slots of a plan with an encoder"), "{error}");
    let long: Vec<Sequence> = sequences(&[(280, 1); 6]);
    assert!(encode(&mut gpu, &long.iter().collect::<Vec<_>>()).is_ok());
    // A plan of a decoder alone has no encoder.
    let mut alone = plan(Kind { decodes: true, ..kind });
    alone.encode.clear();
    alone.outputs.remove(0);
    let runner = device(Rungs::ALL).unwrap();
    let bytes = |spec: &WeightSpec| Some(values(spec));
    let mut decoder = GpuBackend::new(runner.into_gpu(), alone, sizes(), bytes, |_| {}).unwrap();
    let error = encode(&mut decoder, &[&all[0]]).unwrap_err();
    assert!(matches!(error, BackendError::NoEncoder), "{error}");
}
