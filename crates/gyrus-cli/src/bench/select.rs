//! Times sampling: from logits to the state of the next step, in a chain of steps.

use std::collections::HashMap;
use std::time::Duration;

use anyhow::Result;
use gyrus_gpu::{Buffer, Dispatch, Gpu};
use gyrus_kernels::call::{SelectCall, SelectTuning};
use gyrus_kernels::{Launch, Sampler};

use gyrus_kernels::params::SlotState;
use gyrus_kernels::shader::Rungs;

const VOCAB: u32 = 128_256;

/// The launches of one sampler configuration.
pub(super) struct Timed {
    pub(super) name: String,
    pub(super) shape: String,
    /// Bytes of the logits, read once.
    pub(super) bytes: u64,
    sampler: Sampler,
    rows: u32,
    /// Standard deviation of the logits.
    spread: f32,
    tuning: SelectTuning,
    /// How many of the launches are timed, from the first on; `None` for all.
    launches: Option<usize>,
}

/// Every configuration, or with `by_launch` also the first launch of each, the first two and so on. `workgroup`: only
/// that one.
pub(super) fn timed(workgroup: Option<u32>, by_launch: bool) -> Result<Vec<Timed>> {
    let greedy = Sampler::default();
    let drawn = Sampler { temperature: 0.8, ..Sampler::default() };
    let top_k = Sampler { top_k: 40, top_p: 0.95, ..drawn.clone() };
    let top_p = Sampler { top_p: 0.95, ..drawn.clone() };
    let repelled = |sampler: &Sampler| Sampler { repetition_penalty: 1.1, ..sampler.clone() };
    let mut all = Vec::new();
    for rows in [1, 16] {
        // With a spread of 0.5 tens of thousands of tokens remain candidates.
        for (name, sampler, spread) in [
            ("greedy", &greedy, 3.0),
            ("greedy, penalties", &repelled(&greedy), 3.0),
            ("top-k 40, top-p 0.95", &top_k, 3.0),
            ("top-k 40, top-p 0.95, penalties", &repelled(&top_k), 3.0),
            ("top-p 0.95", &top_p, 3.0),
            ("temperature", &drawn, 3.0),
            ("top-p 0.95, peaked", &top_p, 8.0),
            ("top-p 0.95, flat", &top_p, 0.5),
            ("top-p 0.95, almost uniform", &top_p, 0.02),
            ("top-p 0.95, min-p 0.02, flat", &Sampler { min_p: 0.02, ..top_p.clone() }, 0.5),
            ("top-p 0.95, penalties, flat", &repelled(&top_p), 0.5),
            ("temperature, flat", &drawn, 0.5),
            ("top-k 1000", &Sampler { top_k: 1000, ..drawn.clone() }, 3.0),
        ] {
            let workgroups = if sampler.is_greedy() { vec![256] } else { vec![256, 512, 1024] };
            for workgroup in workgroups.into_iter().filter(|of| workgroup.is_none_or(|only| only == *of)) {
                let timed = Timed {
                    name: format!("select {name}"),
                    shape: format!("{rows} × {VOCAB}, workgroup {workgroup}, in a chain"),
                    bytes: u64::from(rows) * u64::from(VOCAB) * 4,
                    sampler: sampler.clone(),
                    rows,
                    spread,
                    tuning: SelectTuning { workgroup: Some(workgroup), ..SelectTuning::default() },
                    launches: None,
                };
                if by_launch {
                    all.extend(timed.prefixes()?);
                }
                all.push(timed);
            }
        }
    }
    Ok(all)
}

impl Timed {
    /// The same for fewer launches. The difference of two is what a launch costs in the chain.
    fn prefixes(&self) -> Result<Vec<Timed>> {
        let samplers = vec![self.sampler.clone(); self.rows as usize];
        let launches = SelectCall::of(&samplers, VOCAB, 1024)?.tuned(Rungs::NONE, self.tuning)?;
        let prefix = |(at, launch): (usize, &Launch)| Timed {
            name: format!("{}, up to {}", self.name, launch.variant().name),
            shape: self.shape.clone(),
            sampler: self.sampler.clone(),
            launches: Some(at + 1),
            ..*self
        };
        Ok(launches.iter().enumerate().take(launches.len() - 1).map(prefix).collect())
    }

    /// The time of sampling in one step. Random numbers differ between steps, since positions advance.
    pub(super) fn time(&self, gpu: &Gpu, repetitions: usize) -> Result<Duration> {
        let samplers: Vec<Sampler> =
            (0..self.rows).map(|row| Sampler { seed: row.into(), ..self.sampler.clone() }).collect();
        let launches = SelectCall::of(&samplers, VOCAB, 1024)?.tuned(gpu.rungs(), self.tuning)?;
        let mut buffers: HashMap<&str, Buffer> = HashMap::new();
        for slot in launches.iter().flat_map(|launch| launch.slots()) {
            if buffers.contains_key(slot.name) {
                continue;
            }
            let buffer = match slot.name {
                "logits" => {
                    let bytes: Vec<u8> = self.logits().iter().flat_map(|l| l.to_le_bytes()).collect();
                    gpu.upload(&bytes)?
                }
                "slots" => {
                    let state = |s: &Sampler| SlotState::new(s, 0, u32::MAX, &[], None, false);
                    let slots: Vec<SlotState> = samplers.iter().map(state).collect();
                    gpu.upload(bytemuck::cast_slice(&slots))?
                }
                _ => gpu.buffer(slot.bytes)?,
            };
            buffers.insert(slot.name, buffer);
        }
        let dispatches: Vec<Dispatch> = launches
            .iter()
            .take(self.launches.unwrap_or(launches.len()))
            .map(|launch| {
                let bound: Vec<&Buffer> = launch.slots().iter().map(|slot| &buffers[slot.name]).collect();
                gpu.bind(launch, &bound)
            })
            .collect::<Result<_, _>>()?;
        let chain = if gpu.adapter().kind == gyrus_gpu::AdapterKind::Software { 2 } else { 200 };
        Ok(gpu.median_time(&dispatches.iter().collect::<Vec<_>>(), chain, repetitions)?)
    }

    /// Approximately normal logits: sums of twelve uniform numbers.
    fn logits(&self) -> Vec<f32> {
        let mut state = 1u64;
        let mut uniform = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 40) as f32 / (1u32 << 24) as f32
        };
        (0..self.rows * VOCAB)
            .map(|_| self.spread * ((0..12).map(|_| uniform()).sum::<f32>() - 6.0))
            .collect()
    }
}
