//! Ropes whose turns depend on how long a text may become, on a GPU: each row of a batch has its own, and the device
//! keeps those that it was sent before.
#![cfg(feature = "gpu")]

mod adapter;
mod tiny_llama;

use std::sync::Arc;

use adapter::adapter;
use gyrus::{Device, Event, Model, Options, Precision, Prompt, Request, Sampler};
use gyrus_cpu::CpuBackend;
use gyrus_formats::gguf::Writer;
use gyrus_formats::{Bytes, Checkpoint};
use gyrus_gpu::{Gpu, GpuBackend};
use gyrus_kernels::{Backend, Batch, Chain, Plan, Rope, RopeSpec, Scaling};
use tiny_llama::VOCAB;

/// Longer texts are turned differently.
const ORIGINAL: usize = 32;

/// Heads that attention of few rows divides among workgroups, in `fast`, and such that it does not.
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
    // In pieces, so that a text that is computed anew has no more rows at once than before.
    let options = Options { device, precision, chunk: 8, ..Options::default() };
    Model::load(checkpoint(head_dim), &options).unwrap()
}

fn ids(n: usize, seed: usize) -> Vec<u32> {
    (0..n).map(|i| ((i * 29 + seed * 11 + 7) % VOCAB) as u32).collect()
}

/// How far `q` is from `p`, the mean over rows in nats.
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

/// Rows of one text in a batch: its number, which blocks it has, how long it may become, and from where on.
#[derive(Clone, Copy)]
struct Rows {
    text: usize,
    reach: usize,
    positions: (usize, usize),
}

/// The logits of all rows of a batch.
fn forward(backend: &mut dyn Backend, parts: &[Rows]) -> Vec<f32> {
    let (mut tokens, mut positions, mut sequences) = (Vec::new(), Vec::new(), Vec::new());
    for (n, part) in parts.iter().enumerate() {
        let (first, end) = part.positions;
        tokens.extend_from_slice(&ids(end, part.text)[first..]);
        positions.extend(first as u32..end as u32);
        sequences.resize(tokens.len(), n as u32);
    }
    let tables: Vec<Vec<u32>> = parts.iter().map(table).collect();
    let batch = Batch {
        tokens: &tokens,
        positions: &positions,
        sequences: &sequences,
        logits: &(0..tokens.len() as u32).collect::<Vec<_>>(),
        tables: &tables.iter().map(Vec::as_slice).collect::<Vec<_>>(),
        lengths: &parts.iter().map(|part| part.reach as u32).collect::<Vec<_>>(),
    };
    backend.forward(&batch).unwrap().to_vec()
}

/// Three blocks for each text, the last first.
fn table(part: &Rows) -> Vec<u32> {
    (0..3).map(|block| (3 * part.text + 2 - block) as u32).collect()
}

fn backends(name: &str, plan: &Plan) -> (CpuBackend, GpuBackend) {
    let checkpoint = checkpoint(plan.kv.head_dim);
    let bytes = |spec: &gyrus::WeightSpec| checkpoint.tensor(&spec.name).map(|tensor| tensor.data.to_vec());
    let cpu = CpuBackend::new(plan.clone(), 9, 1, |spec| Arc::new(bytes(spec).unwrap())).unwrap();
    let options = gyrus_gpu::Options { adapter: Some(name.to_owned()), ..Default::default() };
    let gpu = GpuBackend::new(Gpu::open(&options).unwrap(), plan.clone(), 9, bytes, |_| {}).unwrap();
    (cpu, gpu)
}

/// Plans with LongRoPE, which has two sets of turns, and with dynamic NTK, which has one for each length.
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
fn each_row_is_turned_as_its_text_is() {
    let Some(name) = adapter() else { return };
    let rows =
        |text: usize, reach: usize, first: usize, end: usize| Rows { text, reach, positions: (first, end) };
    let mut steps = vec![vec![rows(0, SHORT, 0, 20)], vec![rows(1, LONG, 0, 20)]];
    // Over the boundary token by token, with the turns it began with.
    steps.extend((20..40).map(|at| vec![rows(1, LONG, at, at + 1)]));
    steps.extend([
        vec![rows(0, SHORT, 20, 21)],
        vec![rows(0, SHORT, 21, 22), rows(1, LONG, 40, 41)],
        vec![rows(1, LONG, 41, 42), rows(0, SHORT, 22, 23)],
        vec![rows(0, SHORT, 23, 24)],
        // Of fewer rows than were sent before, the others may be what they were, or not.
        vec![rows(0, SHORT, 24, 25), rows(1, LONG, 42, 43)],
        // Two that are turned alike by LongRoPE, and not by dynamic NTK.
        vec![rows(2, 90, 0, 40)],
        vec![rows(2, 90, 40, 41), rows(1, LONG, 43, 45)],
        vec![rows(1, LONG, 45, 46)],
        // The first text again, now long.
        vec![rows(0, LONG, 0, 40)],
        vec![rows(0, LONG, 40, 41)],
        vec![rows(0, SHORT, 0, 25), rows(1, LONG, 46, 50)],
    ]);
    let all = |precision| HEAD_DIMS.into_iter().flat_map(move |head_dim| plans(head_dim, precision));
    for ((what, exact), (_, fast)) in all(Precision::Exact).zip(all(Precision::Fast)) {
        let what = format!("{what}, heads of {}", exact.kv.head_dim);
        let (mut cpu, mut gpu) = backends(&name, &exact);
        let (mut fast_cpu, mut fast_gpu) = backends(&name, &fast);
        for (n, step) in steps.iter().enumerate() {
            let truth = forward(&mut cpu, step);
            let of = |backend: &mut dyn Backend| divergence(&truth, &forward(backend, step));
            let (exact, on_cpu, on_gpu) = (of(&mut gpu), of(&mut fast_cpu), of(&mut fast_gpu));
            println!("{what}, step {n}: {exact:e}; fast {on_gpu:e}, on the CPU {on_cpu:e}");
            assert!(exact < 1e-6, "{what}, step {n}: {exact:e} nats apart");
            // Both have a cache of halves; that is all there is to `fast` with these weights.
            assert!(on_gpu <= 1.5 * on_cpu + 1e-6, "{what}, step {n}: {on_gpu:e}, {on_cpu:e} on the CPU");
        }
    }
}

/// Sequences of different lengths in flight, together and each alone.
#[test]
fn steps_in_flight_are_turned_as_their_texts_are() {
    let Some(name) = adapter() else { return };
    let (reaches, before) = ([SHORT, LONG], [10, 30]);
    let sampler = Sampler::default();
    // How much less likely than the likeliest a greedy choice may be, in nats.
    for (precision, least) in [(Precision::Exact, 1e-3), (Precision::Fast, 0.05)] {
        let all = |precision| HEAD_DIMS.into_iter().flat_map(move |head_dim| plans(head_dim, precision));
        for ((what, plan), (_, exact)) in all(precision).zip(all(Precision::Exact)) {
            let (_, mut gpu) = backends(&name, &plan);
            let (mut cpu, _) = backends(&name, &exact);
            for order in [&[0][..], &[1], &[0, 1], &[0], &[1, 0], &[1]] {
                let part = |&text: &usize| Rows { text, reach: reaches[text], positions: (0, before[text]) };
                for text in order {
                    forward(&mut gpu, &[part(text)]);
                    forward(&mut cpu, &[part(text)]);
                }
                let tables: Vec<Vec<u32>> = order.iter().map(|text| table(&part(text))).collect();
                let tables: Vec<&[u32]> = tables.iter().map(Vec::as_slice).collect();
                let mut texts: Vec<Vec<u32>> =
                    order.iter().map(|&text| ids(before[text] + 1, text)).collect();
                let sequences: Vec<u32> = (0..order.len() as u32).collect();
                let lengths: Vec<u32> = order.iter().map(|&text| reaches[text] as u32).collect();
                for step in 0..8 {
                    let batch = Batch {
                        tokens: &texts.iter().map(|text| text[text.len() - 1]).collect::<Vec<_>>(),
                        positions: &texts.iter().map(|text| text.len() as u32 - 1).collect::<Vec<_>>(),
                        sequences: &sequences,
                        logits: &sequences,
                        tables: &tables,
                        lengths: &lengths,
                    };
                    if step == 0 {
                        let samplers = vec![&sampler; order.len()];
                        let texts: Vec<&[u32]> = texts.iter().map(Vec::as_slice).collect();
                        assert!(gpu.begin(&batch, &samplers, &texts).unwrap());
                        gpu.submit(4, &tables).unwrap();
                        gpu.submit(4, &tables).unwrap();
                    }
                    let logits = cpu.forward(&batch).unwrap().chunks_exact(VOCAB);
                    let drawn = Chain::next(&mut gpu).unwrap();
                    for ((text, token), logits) in texts.iter_mut().zip(drawn).zip(logits) {
                        let off = logits.iter().copied().fold(f32::MIN, f32::max) - logits[*token as usize];
                        assert!(off < least, "{what}, {precision:?}, {order:?}, step {step}: {off} off");
                        text.push(*token);
                    }
                }
            }
        }
    }
}

/// A text that is asked to become longer than it was meant to be is computed anew, with other turns.
#[test]
fn a_text_that_grows_beyond_is_as_on_the_cpu() {
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
