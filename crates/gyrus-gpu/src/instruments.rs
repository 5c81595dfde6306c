//! Profiles a plan's kernels and tunes them: where the time goes, and which forms of mat-vecs are fastest.

use std::time::Duration;

use gyrus_kernels::call::{MatVecTuning, SelectCall};
use gyrus_kernels::{
    BackendError, Instruments, KV_BLOCK, Profile, ProfileEntry, Records, RowKind, Traffic, Trial, Workload,
};

use crate::adapter::AdapterKind;
use crate::backend::GpuBackend;
use crate::buffers::{MATVEC_ROWS, MAX_ROWS};
use crate::device::Gpu;
use crate::dispatch::Dispatch;
use crate::error::GpuError;
use crate::forward::Lists;
use crate::lower::Operand;
use crate::slots::Selects;
use crate::step::{BatchShape, Step};
use crate::tables::Tables;
use crate::tuning::{MatShape, forms};

/// Times each measurement is repeated.
const REPETITIONS: usize = 7;

impl GpuBackend {
    /// Profiles a prompt as the sum of its chunks of at most `MAX_ROWS` rows. Only the last chunk computes logits.
    fn profile_prompt(
        &mut self,
        tokens: usize,
        depth: usize,
        free: &[&[u32]],
    ) -> Result<Profile, BackendError> {
        let mut whole: Option<Profile> = None;
        for at in (0..tokens).step_by(MAX_ROWS) {
            let rows = (tokens - at).min(MAX_ROWS);
            let chunk = self.profile_batch(Workload::Prompt(rows), depth + at, free, at + rows == tokens)?;
            match &mut whole {
                Some(whole) => add(whole, chunk),
                None => whole = Some(chunk),
            }
        }
        let whole = whole.ok_or(BackendError::TooManyRows { rows: tokens, most: usize::MAX })?;
        Ok(Profile { workload: Workload::Prompt(tokens), depth, ..whole })
    }

    /// Profiles one batch of at most `MAX_ROWS` rows, with or without the logits of its last row.
    fn profile_batch(
        &mut self,
        workload: Workload,
        depth: usize,
        free: &[&[u32]],
        with_logits: bool,
    ) -> Result<Profile, BackendError> {
        let rows = workload.rows();
        let (is_decode, separate) =
            (matches!(workload, Workload::Sequences(_)), has_separate_blocks(workload, depth, free));
        let tiles = self.send_workload(workload, depth, free)?;
        let selects = if is_decode { Some(self.bind_selects(rows)?) } else { None };
        let positions = positions(workload, depth);
        let runs = if separate { rows as u32 } else { 1 };
        let shape =
            BatchShape { rows: rows as u32, positions: &positions, tiles, runs, spans: &[], splits: &[] };
        // A software adapter is a thousand times slower, and its times mean little.
        let software = self.gpu.adapter().kind == AdapterKind::Software;
        let bandwidth = self.gpu.bandwidth()?.clone();
        let GpuBackend { gpu, tables, .. } = self;
        let (layers, logits): (&mut [Step], &mut [Step]) = match workload {
            Workload::Sequences(1) => (&mut tables.decode, &mut []),
            Workload::Sequences(_) => (&mut tables.sequences, &mut tables.logits_of_all),
            Workload::Prompt(_) => (&mut tables.chunks.prefill, &mut tables.chunks.logits_of_one),
        };
        let logits = if with_logits { logits } else { &mut [] };
        let last = if is_decode { shape } else { BatchShape { rows: 1, ..shape } };
        for (steps, shape) in [(&mut *layers, shape), (&mut *logits, last)] {
            for step in steps {
                step.prepare(gpu, shape)?;
            }
        }
        // Steps that compute anything for this many rows.
        let all: Vec<(&Step, BatchShape<'_>)> = (layers.iter().map(|step| (step, shape)))
            .chain(logits.iter().map(|step| (step, last)))
            .filter(|(step, _)| step.dispatch().is_some())
            .collect();
        let dispatches = |of: &dyn Fn(&Step) -> bool| -> Vec<&Dispatch> {
            all.iter().filter(|(step, _)| of(step)).filter_map(|(step, _)| step.dispatch()).collect()
        };
        let mut time = gpu.median_time(&dispatches(&|_| true), if software { 1 } else { 4 }, REPETITIONS)?;
        let mut entries: Vec<ProfileEntry> = Vec::new();
        for (step, shape) in &all {
            let (traffic, flops) = step.call.work().of(*shape, separate);
            match entries.iter_mut().find(|entry| entry.name == step.call.name) {
                Some(entry) => {
                    entry.count += 1;
                    entry.traffic = entry.traffic.with(traffic);
                    entry.flops += flops;
                }
                None => {
                    let name = step.call.name.clone();
                    entries.push(ProfileEntry { name, count: 1, time: Duration::ZERO, traffic, flops });
                }
            }
        }
        // Short lists are repeated, so that the overhead of a pass does not count.
        let own_time = |own: &[&Dispatch]| {
            let chain = if software { 1 } else { (64 / own.len() as u32).max(1) };
            gpu.median_time(own, chain, REPETITIONS)
        };
        for entry in &mut entries {
            entry.time = own_time(&dispatches(&|step| step.call.name == entry.name))?;
        }
        // Sampling advances the sequences by a token, so it is measured last and by itself.
        if let Some((selects, call)) = &selects
            && let Some(bound) = selects.get(call)
        {
            let own: Vec<&Dispatch> = bound.steps.iter().collect();
            let (name, count) = ("sample".to_owned(), own.len());
            let own = own_time(&own)?;
            time += own;
            let traffic = Traffic { bytes: 4 * (rows * self.plan.vocab) as u64, ..Traffic::default() };
            entries.push(ProfileEntry { name, count, time: own, traffic, flops: 0 });
        }
        let device = gpu.adapter().name.clone();
        Ok(Profile { device, workload, depth, time, entries, bandwidth })
    }

    /// The kernels that sample greedily, bound to the rows of a batch.
    fn bind_selects(&mut self, rows: usize) -> Result<(Selects, SelectCall), GpuError> {
        let GpuBackend { gpu, plan, buffers, slots, .. } = self;
        let given = [
            ("logits", buffers.get(&Operand::Scratch(plan.logits()))?.clone()),
            ("tokens", buffers.get(&Operand::Tokens)?.clone()),
            ("rows", buffers.get(&Operand::Rows)?.clone()),
        ];
        let mut selects = Selects::new(gpu, given)?;
        let (rows, vocab) = (rows as u32, plan.vocab as u32);
        let call = SelectCall { rows, vocab, greedy: true, ..SelectCall::default() };
        selects.bind(gpu, &mut slots.scratch, call)?;
        selects.start_all(gpu)?;
        Ok((selects, call))
    }

    /// Sends a batch at a depth without computing what comes before: the contents of the cache do not change the speed.
    /// Returns the number of tiles of flash attention.
    fn send_workload(
        &mut self,
        workload: Workload,
        depth: usize,
        free: &[&[u32]],
    ) -> Result<u32, BackendError> {
        let rows = workload.rows();
        let tokens = vec![0; rows];
        let all: Vec<u32> = (0..rows as u32).collect();
        // Sequences have blocks of their own if there are enough: shared blocks would be in the device's cache.
        let each = (depth / KV_BLOCK + 1) as u32;
        let separate = has_separate_blocks(workload, depth, free);
        let positions = positions(workload, depth);
        let last = positions.iter().copied().max().unwrap_or(0);
        if last as usize >= self.kv.positions || free.len() != self.kv.blocks.len() {
            return Err(BackendError::UnsoundBatch);
        }
        self.check_free(last as usize, free)?;
        let mut tables: Vec<Vec<u32>> = Vec::new();
        for number in 0..if separate { rows as u32 } else { 1 } {
            for blocks in free {
                // A sequence has fewer blocks of a group with a window than positions, which share them here.
                let entries = 0..last / KV_BLOCK as u32 + 1;
                let block = |entry| blocks[(number * each + entry) as usize % blocks.len()];
                tables.push(entries.map(block).collect());
            }
        }
        let sequences = if separate { all.clone() } else { vec![0; rows] };
        let (logits, length) = match workload {
            Workload::Sequences(_) => (&all[..], depth + 1),
            Workload::Prompt(_) => (&all[rows - 1..], depth + rows),
        };
        // All write to a record that no sequence has.
        let record = Records { from: None, to: self.kv.records as u32 };
        let records = match self.plan.delta.is_empty() {
            true => Vec::new(),
            false => vec![record; if separate { rows } else { 1 }],
        };
        let batch = gyrus_kernels::Batch {
            tokens: &tokens,
            positions: &positions,
            sequences: &sequences,
            kind: if matches!(workload, Workload::Sequences(_)) {
                RowKind::Generated
            } else {
                RowKind::Prompt
            },
            logits,
            tables: &tables.iter().map(Vec::as_slice).collect::<Vec<_>>(),
            lengths: &vec![length as u32; if separate { rows } else { 1 }],
            records: &records,
            inputs: Default::default(),
        };
        // Rows may share blocks here: what they write is not read.
        self.check_bounds(&batch, Lists::Batch)?;
        self.settle()?;
        Ok(self.send(&batch, Lists::Batch)?)
    }

    /// Whether there are free blocks for a sequence up to a position. A group with a window needs those of the window.
    fn check_free(&self, last: usize, free: &[&[u32]]) -> Result<(), GpuError> {
        for (group, blocks) in self.plan.kv.iter().zip(free) {
            let all = last / KV_BLOCK + 1;
            let needed = group.window.map_or(all, |window| all.min(window as usize / KV_BLOCK + 2));
            if blocks.len() < needed {
                return Err(GpuError::FreeBlocks { needed, free: blocks.len() });
            }
        }
        Ok(())
    }

    fn tune_kernels(&mut self, free: &[&[u32]], report: &mut dyn FnMut(&Trial)) -> Result<(), BackendError> {
        // At a depth at which attention takes a part of the time, if the cache is as long.
        let depth = 512.min(self.kv.positions - 1);
        self.send_workload(Workload::Sequences(1), depth, free)?;
        // Kernels of slots are bound again, as they are tuned.
        self.slots.forget_kernels();
        let positions = [depth as u32];
        let batch = BatchShape { rows: 1, positions: &positions, tiles: 0, runs: 1, spans: &[], splits: &[] };
        let profile = self.tuning.profile(self.gpu.rungs());
        // An earlier result is tried like any other form, so that trials report the gain over the rule.
        let shapes: Vec<(MatShape, Vec<MatVecTuning>)> = self
            .shapes()
            .into_iter()
            .map(|shape| {
                let forms = forms(&shape, self.gpu.most_invocations(), &profile);
                (shape, forms)
            })
            .collect();
        for (shape, forms) in &shapes {
            self.tuning.set(shape, forms[0]);
        }
        self.tables = Tables::new(&self.lowering())?;
        // A form is measured together with the best one, since a device's clock changes while kernels are compiled. The
        // reported time is the ratio of the two times the best one's reported time.
        let mut best_reported = None;
        for (shape, forms) in &shapes {
            for &form in forms {
                let before = self.tuning.clone();
                self.tuning.set(shape, form);
                let mut tables = Tables::new(&self.lowering())?;
                let (time, best) = compare(&self.gpu, &mut tables.decode, &mut self.tables.decode, batch)?;
                let better = time < best;
                let reported = *best_reported.get_or_insert(best);
                let time = reported.mul_f64(time.as_secs_f64() / best.as_secs_f64().max(1e-9));
                if better {
                    self.tables = tables;
                    best_reported = Some(time);
                } else {
                    self.tuning = before;
                }
                let kernel = format!("matvec {shape}");
                report(&Trial { kernel, form: form.to_string(), time, best: better });
            }
        }
        if let Some(path) = &self.gpu.tuning_path {
            let failed =
                |error: std::io::Error| GpuError::File { path: path.clone(), reason: error.to_string() };
            self.tuning.write(path).map_err(failed)?;
        }
        Ok(())
    }

    /// The matrices of a single row's mat-vecs, those of most bytes first.
    fn shapes(&self) -> Vec<MatShape> {
        let mut shapes: Vec<(u64, MatShape)> = Vec::new();
        for step in &self.tables.decode {
            if let Some(shape) = step.call.tunable() {
                let (traffic, _) = step.call.work().of(
                    BatchShape { rows: 1, positions: &[0], tiles: 0, runs: 1, spans: &[], splits: &[] },
                    true,
                );
                let bytes = traffic.bytes;
                match shapes.iter_mut().find(|(_, of)| *of == shape) {
                    Some((all, _)) => *all += bytes,
                    None => shapes.push((bytes, shape)),
                }
            }
        }
        shapes.sort_by(|(a, _), (b, _)| b.cmp(a));
        shapes.into_iter().map(|(_, shape)| shape).collect()
    }
}

/// Whether there are enough free blocks for each row of a workload to have its own.
fn has_separate_blocks(workload: Workload, depth: usize, free: &[&[u32]]) -> bool {
    let each = depth / KV_BLOCK + 1;
    let fits = |blocks: &&[u32]| each.saturating_mul(workload.rows()) <= blocks.len();
    matches!(workload, Workload::Sequences(_)) && free.iter().all(fits)
}

/// The positions of a workload's rows at a depth.
fn positions(workload: Workload, depth: usize) -> Vec<u32> {
    let first = depth as u32;
    match workload {
        Workload::Sequences(rows) => vec![first; rows],
        Workload::Prompt(rows) => (first..first + rows as u32).collect(),
    }
}

/// How long one row takes from its token to its logits, by one table and by another. They are measured alternately, since
/// a device's clock changes.
fn compare(
    gpu: &Gpu,
    one: &mut [Step],
    other: &mut [Step],
    shape: BatchShape<'_>,
) -> Result<(Duration, Duration), GpuError> {
    for step in one.iter_mut().chain(other.iter_mut()) {
        step.prepare(gpu, shape)?;
    }
    let one: Vec<&Dispatch> = one.iter().filter_map(|step| step.dispatch()).collect();
    let other: Vec<&Dispatch> = other.iter().filter_map(|step| step.dispatch()).collect();
    let software = gpu.adapter().kind == AdapterKind::Software;
    let (rounds, chain) = if software { (2, 1) } else { (6, 8) };
    let mut times = [Vec::new(), Vec::new()];
    for round in 0..rounds {
        for (dispatches, times) in [&one, &other].into_iter().zip(&mut times) {
            let time = gpu.time(dispatches, chain)? / chain;
            // The first run of each only raises the clock.
            if round > 0 {
                times.push(time);
            }
        }
    }
    for times in &mut times {
        times.sort_unstable();
    }
    Ok((times[0][times[0].len() / 2], times[1][times[1].len() / 2]))
}

/// Adds a batch's times, bytes and operations to those of the batches before it.
fn add(whole: &mut Profile, batch: Profile) {
    whole.time += batch.time;
    for entry in batch.entries {
        match whole.entries.iter_mut().find(|known| known.name == entry.name) {
            Some(known) => {
                known.count += entry.count;
                known.time += entry.time;
                known.traffic = known.traffic.then(entry.traffic);
                known.flops += entry.flops;
            }
            None => whole.entries.push(entry),
        }
    }
}

impl Instruments for GpuBackend {
    fn profile(
        &mut self,
        workload: Workload,
        depth: usize,
        free: &[&[u32]],
    ) -> Result<Profile, BackendError> {
        match workload {
            Workload::Sequences(rows) if rows == 0 || rows > MATVEC_ROWS => {
                Err(BackendError::TooManyRows { rows, most: MATVEC_ROWS })
            }
            Workload::Sequences(_) => self.profile_batch(workload, depth, free, true),
            Workload::Prompt(tokens) => self.profile_prompt(tokens, depth, free),
        }
    }

    fn tune(&mut self, free: &[&[u32]], trial: &mut dyn FnMut(&Trial)) -> Result<(), BackendError> {
        self.tune_kernels(free, trial)
    }

    fn close_device(&mut self) {
        self.gpu.close();
    }

    fn start_busy(&mut self) -> bool {
        // If the device is lost or hangs, the next call returns that.
        self.settle().is_ok() && self.gpu.start_busy()
    }

    fn end_busy(&mut self) -> Result<Option<Duration>, BackendError> {
        Ok(self.gpu.end_busy()?)
    }
}
