//! Sequences in the slots of a GPU backend, for tests.
#![allow(dead_code, reason = "tests use some of it")]

use std::time::Duration;

use gyrus::{Model, Options, Precision, Sampler};
use gyrus_formats::Checkpoint;
use gyrus_gpu::{Gpu, GpuBackend};
use gyrus_kernels::{
    Chunk, Decode, KV_BLOCK, KvSize, Landed, LogitRows, Outcome, Plan, RowKind, Slots, Work,
};

use crate::adapter::adapter;
use crate::short_tales;

pub(crate) const WAIT: Duration = Duration::from_secs(60);
pub(crate) const CONTEXT: u32 = 96;

pub(crate) fn backend_of(
    checkpoint: fn() -> Option<Checkpoint>,
    precision: Precision,
    vulkan_recorder: bool,
    blocks: usize,
) -> Option<GpuBackend> {
    let options =
        gyrus_gpu::Options { adapter: Some(adapter()?), vulkan_recorder, ..gyrus_gpu::Options::default() };
    backend_on(&options, checkpoint, precision, blocks)
}

pub(crate) fn backend_on(
    options: &gyrus_gpu::Options,
    checkpoint: fn() -> Option<Checkpoint>,
    precision: Precision,
    blocks: usize,
) -> Option<GpuBackend> {
    let gpu = Gpu::open(options).unwrap();
    let (plan, checkpoint) = (plan(checkpoint, precision)?, checkpoint()?);
    let bytes = |spec: &gyrus::WeightSpec| checkpoint.tensor(&spec.name).map(|tensor| tensor.data);
    // Block tables are as long as a sequence, and the pool is as large as all of them.
    let mut kv = KvSize::full(&plan.kv, blocks * KV_BLOCK);
    kv.positions = CONTEXT as usize;
    Some(GpuBackend::new(gpu, plan, kv, bytes, |_| {}).unwrap())
}

pub(crate) fn plan(checkpoint: fn() -> Option<Checkpoint>, precision: Precision) -> Option<Plan> {
    let options = Options { precision, context: Some(CONTEXT as usize), ..Options::default() };
    Some(Model::load(checkpoint()?, &options).unwrap().plan().clone())
}

pub(crate) fn short() -> Option<Checkpoint> {
    short_tales::checkpoint(2, 0)
}

pub(crate) fn fast(blocks: usize) -> Option<GpuBackend> {
    backend_of(short, Precision::Fast, true, blocks)
}

/// A sequence of tests: its prompt, how it samples, and where it ends.
#[derive(Clone)]
pub(crate) struct Job {
    pub(crate) prompt: Vec<u32>,
    pub(crate) sampler: Sampler,
    pub(crate) tokens: usize,
}

pub(crate) fn job(number: u32, tokens: usize) -> Job {
    let prompt = (0..3 + number * 7 % 40).map(|i| (i * 37 + 11 * number + 3) % short_tales::VOCAB).collect();
    let sampler = match number % 3 {
        0 => Sampler::default(),
        1 => Sampler { temperature: 2.0, top_k: 40, seed: number.into(), ..Sampler::default() },
        _ => Sampler {
            temperature: 1.5,
            repetition_penalty: 1.3,
            penalty_window: 20,
            seed: number.into(),
            ..Sampler::default()
        },
    };
    Job { prompt, sampler, tokens }
}

/// A job in a slot.
pub(crate) struct Running {
    pub(crate) job: Job,
    pub(crate) slot: usize,
    pub(crate) blocks: Vec<u32>,
    pub(crate) found: Vec<u32>,
    pub(crate) limit: u32,
}

impl Running {
    /// Opens a slot, sends the prompt and begins to decode.
    pub(crate) fn begin(
        backend: &mut GpuBackend,
        job: Job,
        slot: usize,
        blocks: Vec<u32>,
        chunk: usize,
    ) -> Running {
        let read = job.prompt.len() as u32 - 1;
        let limit = (blocks.len() * KV_BLOCK) as u32;
        backend.open(slot, CONTEXT).unwrap();
        backend.extend(slot, &[&blocks], limit).unwrap();
        for first in (0..read as usize).step_by(chunk) {
            let tokens = &job.prompt[first..(first + chunk).min(read as usize)];
            let (position, kind, logits) = (first as u32, RowKind::Prompt, LogitRows::None);
            let chunks = &[Chunk { slot, position, tokens, kind, logits, records: None }];
            Slots::submit(backend, &Work { chunks, between: 0, steps: 0 }).unwrap();
        }
        let decode = Decode {
            tokens: &job.prompt,
            limit,
            sampler: &job.sampler,
            ends: &[],
            logprobs: None,
            masked: false,
            records: [0; 2],
        };
        backend.start(slot, &decode).unwrap();
        Running { job, slot, blocks, found: Vec::new(), limit }
    }

    pub(crate) fn is_done(&self) -> bool {
        self.found.len() >= self.job.tokens
    }
}

/// Blocks for a whole sequence.
pub(crate) const EACH: usize = CONTEXT as usize / KV_BLOCK;

/// The next step's outcomes.
pub(crate) fn step(backend: &mut GpuBackend) -> Vec<Outcome> {
    loop {
        match backend.poll(WAIT).unwrap().expect("a step is in flight") {
            Landed::Step { outcomes, .. } => return outcomes.to_vec(),
            Landed::Chunks { logits, .. } => assert!(logits.is_empty()),
            Landed::Drafts { .. } => panic!("drafts were not asked for"),
        }
    }
}

/// The tokens of a job alone in slot 0.
pub(crate) fn alone(backend: &mut GpuBackend, job: &Job) -> Vec<u32> {
    let mut running = Running::begin(backend, job.clone(), 0, (0..EACH as u32).collect(), 512);
    let mut submitted = 0;
    while !running.is_done() {
        if submitted < running.found.len() + 4 {
            Slots::submit(backend, &Work { chunks: &[], between: 0, steps: 4 }).unwrap();
            submitted += 4;
        }
        match step(backend)[0] {
            Outcome::Token { id, .. } => running.found.push(id),
            other => panic!("{other:?}"),
        }
    }
    backend.reset();
    running.found.truncate(job.tokens);
    running.found
}
