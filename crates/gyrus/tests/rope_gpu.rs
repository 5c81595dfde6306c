//! Rotary embeddings whose frequencies depend on the maximum length of a sequence, on a GPU. Each row of a batch has
//! its own frequencies, and the device keeps those of earlier batches.
#![cfg(feature = "gpu")]

mod adapter;
mod tiny_llama;

use std::sync::Arc;
use std::time::Duration;

use adapter::adapter;
use gyrus::{Device, Event, Model, Options, Precision, Prompt, Request, Sampler};
use gyrus_cpu::CpuBackend;
use gyrus_formats::gguf::Writer;
use gyrus_formats::{Bytes, Checkpoint};
use gyrus_gpu::{Gpu, GpuBackend};
use gyrus_kernels::{
    Backend, Batch, Decode, KV_BLOCK, KvSize, Landed, Outcome, Plan, Rope, RopeSpec, RowKind, Scaling, Work,
};
use tiny_llama::VOCAB;

/// Longer sequences have other frequencies.
const ORIGINAL: usize = 32;

/// A head dimension for which `fast` attention of few rows divides a head among workgroups, and one for which it does
/// not.
const HEAD_DIMS: [usize; 2] = [32, 16];

/// A model with LongRoPE.
fn checkpoint(head_dim: usize) -> Checkpoint {
    let keys = |writer: &mut Writer<'_>| {
        writer.u32("llama.rope.scaling.original_context_length", ORIGINAL as u32);
        writer.string("llama.rope.scaling.type", "longrope").f32("llama.rope.scaling.attn_factor", 1.1);
    };
    let pairs = head_dim / 2;
    let long = (0..pairs).map(|i| 1.0 + i as f32).collect();
    let factors = [("rope_factors_short.weight", vec![1.0; pairs]), ("rope_factors_long.weight", long)];
    Checkpoint::from_gguf("long.gguf", Bytes::Owned(tiny_llama::file(head_dim, keys, &factors))).unwrap()
}

fn load(head_dim: usize, device: Device, precision: Precision) -> Model {
    // Small chunks, so that a repeated prefill has no more rows in a batch than the first one.
    let options = Options { device, precision, chunk: 8, ..Options::default() };
    Model::load(checkpoint(head_dim), &options).unwrap()
}

fn ids(n: usize, seed: usize) -> Vec<u32> {
    (0..n).map(|i| ((i * 29 + seed * 11 + 7) % VOCAB) as u32).collect()
}

/// The KL divergence of `q` from `p` in nats, the mean over rows.
fn divergence(p: &[f32], q: &[f32]) -> f64 {
    let distribution = |row: &[f32]| -> Vec<f64> {
        let most = row.iter().copied().fold(f32::MIN, f32::max);
        let total: f64 = row.iter().map(|v| f64::from(v - most).exp()).sum();
        row.iter().map(|v| f64::from(v - most) - total.ln()).collect()
    };
    assert_eq!(p.len(), q.len());
    let one = |p: &[f32], q: &[f32]| -> f64 {
        distribution(p).iter().zip(distribution(q)).map(|(p, q)| p.exp() * (p - q)).sum()
    };
    let rows = p.chunks_exact(VOCAB).zip(q.chunks_exact(VOCAB));
    rows.map(|(p, q)| one(p, q)).sum::<f64>() / (p.len() / VOCAB) as f64
}

/// The rows of one sequence in a batch. The sequence's index determines its KV-cache blocks.
#[derive(Clone, Copy)]
struct Rows {
    sequence: usize,
    max_len: usize,
    positions: (usize, usize),
}

/// The logits of all rows of a batch.
fn forward(backend: &mut dyn Backend, parts: &[Rows]) -> Vec<f32> {
    let (mut tokens, mut positions, mut sequences) = (Vec::new(), Vec::new(), Vec::new());
    for (n, part) in parts.iter().enumerate() {
        let (first, end) = part.positions;
        tokens.extend_from_slice(&ids(end, part.sequence)[first..]);
        positions.extend(first as u32..end as u32);
        sequences.resize(tokens.len(), n as u32);
    }
    let tables: Vec<Vec<u32>> = parts.iter().map(table).collect();
    let batch = Batch {
        tokens: &tokens,
        positions: &positions,
        sequences: &sequences,
        kind: if tokens.len() > 16 { RowKind::Prompt } else { RowKind::Generated },
        logits: &(0..tokens.len() as u32).collect::<Vec<_>>(),
        tables: &tables.iter().map(Vec::as_slice).collect::<Vec<_>>(),
        lengths: &parts.iter().map(|part| part.max_len as u32).collect::<Vec<_>>(),
        records: &[],
        inputs: Default::default(),
    };
    backend.forward(&batch).unwrap().to_vec()
}

/// The block table: three blocks for each sequence, in descending order.
fn table(part: &Rows) -> Vec<u32> {
    (0..3).map(|block| (3 * part.sequence + 2 - block) as u32).collect()
}

fn backends(name: &str, plan: &Plan) -> (CpuBackend, GpuBackend) {
    let checkpoint = checkpoint(plan.kv[0].head_dim);
    let bytes = |spec: &gyrus::WeightSpec| checkpoint.tensor(&spec.name).map(|tensor| tensor.data.to_vec());
    let kv = KvSize::full(&plan.kv, 9 * 32);
    let cpu = CpuBackend::new(plan.clone(), &kv, 1, |spec| Arc::new(bytes(spec).unwrap())).unwrap();
    let options = gyrus_gpu::Options { adapter: Some(name.to_owned()), ..Default::default() };
    let gpu = GpuBackend::new(Gpu::open(&options).unwrap(), plan.clone(), kv, bytes, |_| {}).unwrap();
    (cpu, gpu)
}

/// Plans with LongRoPE, which has two sets of frequencies, and with dynamic NTK, which has one for each length.
fn plans(head_dim: usize, precision: Precision) -> [(&'static str, Plan); 2] {
    let long = load(head_dim, Device::Cpu, precision).plan().clone();
    assert!(matches!(long.ropes[0].spec().scaling, Scaling::LongRope(_)));
    let mut dynamic = long.clone();
    let scaling = Scaling::DynamicNtk { factor: 8.0, original: ORIGINAL as f64 };
    dynamic.ropes[0] = Rope::new(RopeSpec { scaling, ..long.ropes[0].spec().clone() }).unwrap();
    [("longrope", long), ("dynamic", dynamic)]
}

const SHORT: usize = 30;
const LONG: usize = 60;

#[test]
fn each_row_has_the_frequencies_of_its_sequence() {
    let Some(name) = adapter() else { return };
    let rows = |sequence: usize, max_len: usize, first: usize, end: usize| Rows {
        sequence,
        max_len,
        positions: (first, end),
    };
    let mut steps = vec![vec![rows(0, SHORT, 0, 20)], vec![rows(1, LONG, 0, 20)]];
    // Decodes across the original context; the frequencies stay those of the first token.
    steps.extend((20..40).map(|at| vec![rows(1, LONG, at, at + 1)]));
    steps.extend([
        vec![rows(0, SHORT, 20, 21)],
        vec![rows(0, SHORT, 21, 22), rows(1, LONG, 40, 41)],
        vec![rows(1, LONG, 41, 42), rows(0, SHORT, 22, 23)],
        vec![rows(0, SHORT, 23, 24)],
        // Fewer rows than in an earlier batch.
        vec![rows(0, SHORT, 24, 25), rows(1, LONG, 42, 43)],
        // Two sequences with equal frequencies in LongRoPE, but not in dynamic NTK.
        vec![rows(2, 90, 0, 40)],
        vec![rows(2, 90, 40, 41), rows(1, LONG, 43, 45)],
        vec![rows(1, LONG, 45, 46)],
        // The first sequence again, now long.
        vec![rows(0, LONG, 0, 40)],
        vec![rows(0, LONG, 40, 41)],
        vec![rows(0, SHORT, 0, 25), rows(1, LONG, 46, 50)],
    ]);
    let all = |precision| HEAD_DIMS.into_iter().flat_map(move |head_dim| plans(head_dim, precision));
    for ((what, exact), (_, fast)) in all(Precision::Exact).zip(all(Precision::Fast)) {
        let what = format!("{what}, heads of {}", exact.kv[0].head_dim);
        let (mut cpu, mut gpu) = backends(&name, &exact);
        let (mut fast_cpu, mut fast_gpu) = backends(&name, &fast);
        for (n, step) in steps.iter().enumerate() {
            let truth = forward(&mut cpu, step);
            let of = |backend: &mut dyn Backend| divergence(&truth, &forward(backend, step));
            let (exact, on_cpu, on_gpu) = (of(&mut gpu), of(&mut fast_cpu), of(&mut fast_gpu));
            println!("{what}, step {n}: {exact:e}; fast {on_gpu:e}, on the CPU {on_cpu:e}");
            assert!(exact < 1e-6, "{what}, step {n}: {exact:e} nats apart");
            // Both have an f16 KV cache, which is the only rounding of `fast` with f32 weights.
            assert!(on_gpu <= 1.5 * on_cpu + 1e-6, "{what}, step {n}: {on_gpu:e}, {on_cpu:e} on the CPU");
        }
    }
}

/// Sequences of different lengths in flight, together and each alone.
#[test]
fn steps_in_flight_have_the_frequencies_of_their_sequences() {
    let Some(name) = adapter() else { return };
    let (max_lens, before) = ([SHORT, LONG], [10, 30]);
    let sampler = Sampler::default();
    // How much lower than the highest log-probability that of a greedy token may be, in nats.
    for (precision, least) in [(Precision::Exact, 1e-3), (Precision::Fast, 0.05)] {
        let all = |precision| HEAD_DIMS.into_iter().flat_map(move |head_dim| plans(head_dim, precision));
        for ((what, plan), (_, exact)) in all(precision).zip(all(Precision::Exact)) {
            let (_, mut gpu) = backends(&name, &plan);
            let (mut cpu, _) = backends(&name, &exact);
            for order in [&[0][..], &[1], &[0, 1], &[0], &[1, 0], &[1]] {
                let part = |&sequence: &usize| Rows {
                    sequence,
                    max_len: max_lens[sequence],
                    positions: (0, before[sequence]),
                };
                for sequence in order {
                    forward(&mut gpu, &[part(sequence)]);
                    forward(&mut cpu, &[part(sequence)]);
                }
                let tables: Vec<Vec<u32>> = order.iter().map(|sequence| table(&part(sequence))).collect();
                let tables: Vec<&[u32]> = tables.iter().map(Vec::as_slice).collect();
                let mut tokens: Vec<Vec<u32>> =
                    order.iter().map(|&sequence| ids(before[sequence] + 1, sequence)).collect();
                let sequences: Vec<u32> = (0..order.len() as u32).collect();
                let lengths: Vec<u32> = order.iter().map(|&sequence| max_lens[sequence] as u32).collect();
                for step in 0..8 {
                    let batch = Batch {
                        tokens: &tokens.iter().map(|tokens| tokens[tokens.len() - 1]).collect::<Vec<_>>(),
                        positions: &tokens.iter().map(|tokens| tokens.len() as u32 - 1).collect::<Vec<_>>(),
                        sequences: &sequences,
                        kind: if tokens.len() > 16 { RowKind::Prompt } else { RowKind::Generated },
                        logits: &sequences,
                        tables: &tables,
                        lengths: &lengths,
                        records: &[],
                        inputs: Default::default(),
                    };
                    if step == 0 {
                        let slots = gpu.slots();
                        slots.reset();
                        for (slot, tokens) in tokens.iter().enumerate() {
                            let (table, length) = (tables[slot], lengths[slot]);
                            let limit = (table.len() * KV_BLOCK) as u32;
                            slots.open(slot, length).unwrap();
                            slots.extend(slot, &[table], limit).unwrap();
                            let (ends, logprobs, masked) = (&[][..], None, false);
                            let sampler = &sampler;
                            let decode =
                                Decode { tokens, limit, sampler, ends, logprobs, masked, records: [0; 2] };
                            slots.start(slot, &decode).unwrap();
                        }
                        slots.submit(&Work { chunks: &[], between: 0, steps: 4 }).unwrap();
                        slots.submit(&Work { chunks: &[], between: 0, steps: 4 }).unwrap();
                    }
                    let logits = cpu.forward(&batch).unwrap().chunks_exact(VOCAB);
                    let landed = gpu.slots().poll(Duration::from_secs(60)).unwrap();
                    let Some(Landed::Step { outcomes, .. }) = landed else { panic!("a step is in flight") };
                    for ((tokens, outcome), logits) in tokens.iter_mut().zip(outcomes).zip(logits) {
                        let Outcome::Token { id: token, .. } = outcome else { panic!("{outcome:?}") };
                        let off = logits.iter().copied().fold(f32::MIN, f32::max) - logits[*token as usize];
                        assert!(off < least, "{what}, {precision:?}, {order:?}, step {step}: {off} off");
                        tokens.push(*token);
                    }
                }
            }
        }
    }
}

/// A sequence whose maximum length grows is prefilled again with the new frequencies.
#[test]
fn a_sequence_that_outgrows_its_frequencies_matches_the_cpu() {
    let Some(name) = adapter() else { return };
    let [cpu, gpu] = [Device::Cpu, Device::Gpu(Some(name))].map(|device| {
        let mut session = load(16, device, Precision::Exact).session();
        let mut all = Vec::new();
        let mut prompt = Request::ids(ids(10, 0));
        for tokens in [8, 12, 20, 10] {
            let request = prompt.max_tokens(tokens).ignore_end(true).logprobs(true);
            let mut generation = session.generate(request).unwrap();
            while let Some(event) = generation.next().unwrap() {
                if let Event::Token { id, logprob, .. } = event {
                    all.push((id, logprob.unwrap()));
                }
            }
            prompt = Request::new(Prompt::Continue);
        }
        all
    });
    assert_eq!(cpu.len(), 50);
    for (n, (cpu, gpu)) in cpu.iter().zip(&gpu).enumerate() {
        assert!(cpu.0 == gpu.0 && (cpu.1 - gpu.1).abs() < 1e-3, "token {n} is {gpu:?}, {cpu:?} on the CPU");
    }
}
