//! Mixtures of experts with quantised weights on a GPU: prompts and generated rows against the CPU, and rows of a batch
//! against the same rows alone.
#![cfg(feature = "gpu")]

mod adapter;
mod together;
mod written;

use adapter::adapter;
use gyrus::{DType, Device, Error, Model, Options, Precision, Request, Sampler, Session};
use gyrus_formats::Checkpoint;
use gyrus_gpu::{Gpu, GpuBackend};
use gyrus_kernels::{Backend, Batch, KV_BLOCK, KvSize, Plan, RowKind};
use gyrus_tensor::quantize;
use gyrus_testkit::{Rng, cases};
use together::decode_together;

const VOCAB: usize = 256;
const DIM: usize = 256;
const WIDTH: usize = 256;
const EXPERTS: usize = 8;
const USED: usize = 3;
const LAYERS: usize = 2;
const LENGTH: usize = 70;

/// A random qwen3moe whose gate and up projections have one type and whose down projections have another.
fn checkpoint(gate_up: DType, down: DType) -> Checkpoint {
    changed(gate_up, down, |_| {})
}

/// The same after a change of its tensors.
fn changed(gate_up: DType, down: DType, change: impl FnOnce(&mut [written::Tensor])) -> Checkpoint {
    let mut rng = Rng::new(9);
    let mut tensors: Vec<written::Tensor> = Vec::new();
    let mut add = |name: String, dtype: DType, shape: &[usize]| {
        let elems = shape.iter().product();
        let values: Vec<f32> = (0..elems).map(|_| 0.08 * rng.gaussian() as f32).collect();
        tensors.push((name, dtype, shape.to_vec(), quantize(dtype, &values).unwrap()));
    };
    add("token_embd.weight".to_owned(), DType::F32, &[VOCAB, DIM]);
    add("output.weight".to_owned(), DType::Q8_0, &[VOCAB, DIM]);
    add("output_norm.weight".to_owned(), DType::F32, &[DIM]);
    for layer in 0..LAYERS {
        let mut part =
            |name: &str, dtype, shape: &[usize]| add(format!("blk.{layer}.{name}.weight"), dtype, shape);
        for norm in ["attn_norm", "ffn_norm"] {
            part(norm, DType::F32, &[DIM]);
        }
        for norm in ["attn_q_norm", "attn_k_norm"] {
            part(norm, DType::F32, &[32]);
        }
        part("attn_q", DType::Q8_0, &[128, DIM]);
        part("attn_k", DType::Q8_0, &[64, DIM]);
        part("attn_v", DType::Q8_0, &[64, DIM]);
        part("attn_output", DType::Q8_0, &[DIM, 128]);
        part("ffn_gate_inp", DType::F32, &[EXPERTS, DIM]);
        part("ffn_gate_exps", gate_up, &[EXPERTS, WIDTH, DIM]);
        part("ffn_up_exps", gate_up, &[EXPERTS, WIDTH, DIM]);
        part("ffn_down_exps", down, &[EXPERTS, DIM, WIDTH]);
    }
    change(&mut tensors);
    let numbers = [
        ("embedding_length", DIM as u32),
        ("block_count", LAYERS as u32),
        ("context_length", 128),
        ("attention.head_count", 4),
        ("attention.head_count_kv", 2),
        ("attention.key_length", 32),
        ("attention.value_length", 32),
        ("feed_forward_length", WIDTH as u32),
        ("expert_feed_forward_length", WIDTH as u32),
        ("expert_count", EXPERTS as u32),
        ("expert_used_count", USED as u32),
    ];
    written::checkpoint("qwen3moe", 1e-6, &numbers, &tensors)
}

fn ids(sequence: usize, count: usize) -> Vec<u32> {
    (0..count).map(|i| ((i * 37 + 11 + 5 * sequence) % VOCAB) as u32).collect()
}

/// A plan on the GPU, with the cache of one sequence.
struct OnGpu {
    backend: GpuBackend,
    table: Vec<u32>,
}

impl OnGpu {
    fn new(adapter: &str, model: &Checkpoint, plan: &Plan) -> OnGpu {
        let options = gyrus_gpu::Options { adapter: Some(adapter.to_owned()), ..Default::default() };
        let bytes = |spec: &gyrus::WeightSpec| spec.data(|name| model.tensor(name).map(|tensor| tensor.data));
        let blocks = LENGTH.div_ceil(KV_BLOCK);
        let gpu = Gpu::open(&options).unwrap();
        let size = KvSize::full(&plan.kv, blocks * KV_BLOCK);
        let backend = GpuBackend::new(gpu, plan.clone(), size, bytes, |_| {}).unwrap();
        OnGpu { backend, table: (0..blocks as u32).collect() }
    }

    /// The logits of rows behind `first` positions.
    fn rows(&mut self, first: usize, count: usize, kind: RowKind) -> Vec<Vec<f32>> {
        let ids = ids(0, LENGTH);
        let batch = Batch {
            tokens: &ids[first..first + count],
            positions: &(first..first + count).map(|p| p as u32).collect::<Vec<_>>(),
            sequences: &vec![0; count],
            kind,
            logits: &(0..count as u32).collect::<Vec<_>>(),
            tables: &[self.table.as_slice()],
            lengths: &[LENGTH as u32],
            records: &[],
            inputs: Default::default(),
        };
        self.backend.forward(&batch).unwrap().chunks_exact(VOCAB).map(<[f32]>::to_vec).collect()
    }
}

fn distance(a: &[Vec<f32>], b: &[Vec<f32>]) -> f32 {
    gyrus_testkit::distance(&a.concat(), &b.concat())
}

fn bits(rows: &[Vec<f32>]) -> Vec<u32> {
    rows.concat().into_iter().map(f32::to_bits).collect()
}

/// Routing is computed on the device: a router that is NaN must not become an id of an expert.
#[test]
fn a_router_that_is_nan_is_an_error() {
    let Some(adapter) = adapter() else { return };
    let nan = |tensors: &mut [written::Tensor]| {
        let router = tensors.iter_mut().find(|(name, ..)| name == "blk.1.ffn_gate_inp.weight").unwrap();
        router.3.chunks_exact_mut(4).for_each(|value| value.copy_from_slice(&f32::NAN.to_le_bytes()));
    };
    for precision in [Precision::Exact, Precision::Fast] {
        let device = Device::Gpu(Some(adapter.clone()));
        let options = Options { device, precision, ..Options::default() };
        let model = Model::load(changed(DType::Q4_0, DType::Q4_0, nan), &options).unwrap();
        for prompt in [1, 20] {
            let mut session = model.session();
            let request = Request::ids(ids(0, prompt)).max_tokens(4);
            let found = session.generate(request).and_then(|mut answer| {
                while answer.next()?.is_some() {}
                Ok(())
            });
            assert!(matches!(found, Err(Error::NotFinite { .. })), "{precision:?}, {prompt}: {found:?}");
        }
    }
}

const TYPES: [(DType, DType); 7] = [
    (DType::Q4_0, DType::Q4_0),
    (DType::MXFP4, DType::MXFP4),
    (DType::Q4_K, DType::Q6_K),
    (DType::F16, DType::Q8_0),
    (DType::Q5_1, DType::BF16),
    (DType::Q8_0, DType::Q5_0),
    (DType::F32, DType::Q4_1),
];

#[test]
fn experts_of_every_kind_of_weight_are_as_on_the_cpu() {
    let Some(adapter) = adapter() else { return };
    for (gate_up, down) in &TYPES[..if cases(1) > 1 { TYPES.len() } else { 4 }] {
        let name = format!("{gate_up} {down}");
        let file = checkpoint(*gate_up, *down);
        let on_cpu = |precision| {
            let options = Options { precision, device: Device::Cpu, ..Options::default() };
            let model = Model::load(checkpoint(*gate_up, *down), &options).unwrap();
            let mut rows = Vec::new();
            model.session().score(&ids(0, LENGTH), |_, logits| rows.push(logits.to_vec())).unwrap();
            (model.plan().clone(), rows)
        };
        let (exact_plan, exact) = on_cpu(Precision::Exact);
        let (fast_plan, fast) = on_cpu(Precision::Fast);
        let of_fast = (3.0 * distance(&exact, &fast)).max(4e-3);
        for (plan, bound) in [(&exact_plan, 1e-4), (&fast_plan, of_fast)] {
            let precision = plan.precision;
            let mut gpu = OnGpu::new(&adapter, &file, plan);
            // All rows at once, and the last ones after the others.
            let far = distance(&gpu.rows(0, LENGTH, RowKind::Prompt), &exact);
            assert!(far <= bound, "{name}, {precision:?}: a prompt is off by {far}, {bound} is allowed");
            let far = distance(&gpu.rows(29, LENGTH - 29, RowKind::Prompt), &exact[29..]);
            assert!(far <= bound, "{name}, {precision:?}: a chunk is off by {far}, {bound} is allowed");
            let alone: Vec<Vec<f32>> = (0..40).flat_map(|at| gpu.rows(at, 1, RowKind::Generated)).collect();
            let far = distance(&alone, &exact[..40]);
            println!("{name}, {precision:?}: single rows are off by {far:e}, {bound:e} is allowed");
            assert!(far <= bound, "{name}, {precision:?}: single rows are off by {far}, {bound} is allowed");
            for (at, count) in [(0, 16), (16, 5), (21, 2), (23, 16)] {
                let together = gpu.rows(at, count, RowKind::Generated);
                assert!(bits(&together) == bits(&alone[at..at + count]), "{name}, {count} rows from {at} on");
            }
        }
    }
}

/// Sequences that decode together have the tokens that each has alone.
#[test]
fn sequences_with_experts_of_their_own_are_as_if_alone() {
    const TOKENS: usize = 6;
    let Some(adapter) = adapter() else { return };
    let device = Device::Gpu(Some(adapter));
    let options = Options { device, context: Some(128), sessions: 8, ..Options::default() };
    let model = Model::load(checkpoint(DType::MXFP4, DType::Q4_0), &options).unwrap();
    // Hot, so that a wrong distribution shows in the tokens.
    let sampler = Sampler { temperature: 4.0, seed: 5, ..Sampler::default() };
    let begin = |sequence: usize| {
        let mut session = model.session();
        session.set_tokens(&ids(sequence, 7 + 9 * sequence)).unwrap();
        session
    };
    let mut together: Vec<Session> = (0..5).map(begin).collect();
    let samplers = vec![sampler; together.len()];
    decode_together(&mut together, &samplers, TOKENS, |_| true).unwrap();
    for (sequence, together) in together.iter().enumerate() {
        let mut alone = [begin(sequence)];
        decode_together(&mut alone, &samplers[..1], TOKENS, |_| true).unwrap();
        assert_eq!(alone[0].tokens(), together.tokens(), "sequence {sequence}");
    }
}
