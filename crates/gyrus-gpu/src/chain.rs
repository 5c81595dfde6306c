//! Steps in flight: tokens, positions and samplers are on the device, so that steps are recorded and submitted while
//! earlier ones run, and their tokens are read later.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use gyrus_kernels::call::{SELECT_EMITTED, SELECT_HISTORY, SELECT_NOT_FINITE, SELECT_ROWS, SelectCall};
use gyrus_kernels::params::SelectRow;
use gyrus_kernels::{BackendError, Batch, Chain, KV_BLOCK, Sampler};

use crate::backend::GpuBackend;
use crate::buffer::Buffer;
use crate::buffers::MATVEC_ROWS;
use crate::device::Gpu;
use crate::dispatch::Dispatch;
use crate::error::GpuError;
use crate::lower::Operand;
use crate::recorder::{Recorder, Submission};
use crate::step::{BatchShape, buffers_of};

/// The most steps in flight: their tokens fit the ring that a submission copies to the host.
const MAX_IN_FLIGHT: usize = SELECT_EMITTED as usize;

/// The state of steps in flight.
#[derive(Debug, Default)]
pub(crate) struct Steps {
    pub(crate) call: Option<SelectCall>,
    /// The kernels that sample, by the kind of samplers.
    pub(crate) selects: HashMap<SelectCall, Vec<Dispatch>>,
    /// Buffers of those kernels by the names of their slots, of the largest size that a call needed so far.
    buffers: Vec<(&'static str, Buffer)>,
    /// For each row, the position of the next step to submit.
    positions: Vec<u32>,
    /// For each row, the position of the next token to read.
    unread: Vec<u32>,
    /// For each row, entries of its block table that were sent; and entries from one row's table to the next.
    sent: Vec<usize>,
    stride: usize,
    /// Submissions that are not read yet, and how many steps each completes: 0 for the first parts of a step.
    submissions: VecDeque<(usize, Submission)>,
    recorder: Option<Recorder>,
    /// Whether wgpu has work that must run before the next steps.
    after_wgpu: bool,
    /// The ring of tokens as of the last completed submission, and how many of its steps are unread.
    completed: Vec<u32>,
    completed_steps: usize,
    tokens: Vec<u32>,
    words: Vec<u32>,
}

impl Steps {
    /// Ends steps in flight and discards their tokens. It waits for those of the Vulkan recorder.
    pub(crate) fn end(&mut self, gpu: &Gpu) {
        for (_, submission) in self.submissions.drain(..) {
            // Their buffers may be dropped next. If the device is lost, the next call returns that.
            let _ = self.recorder.as_mut().map(|recorder| recorder.wait(gpu, submission, None));
        }
        self.completed_steps = 0;
        self.call = None;
    }

    /// Allocates a buffer of select, again if a call needs a larger one.
    fn grow(&mut self, gpu: &Gpu, name: &'static str, bytes: u64) -> Result<(), GpuError> {
        match self.buffers.iter_mut().find(|(of, _)| *of == name) {
            Some((_, buffer)) if buffer.bytes() >= bytes => return Ok(()),
            Some((_, buffer)) => *buffer = gpu.buffer(bytes)?,
            None => self.buffers.push((name, gpu.buffer(bytes)?)),
        }
        // Kernels that were bound to the smaller one must be bound again.
        self.selects.clear();
        Ok(())
    }
}

impl GpuBackend {
    pub(crate) fn begin_steps(
        &mut self,
        batch: &Batch<'_>,
        samplers: &[&Sampler],
        histories: &[&[u32]],
    ) -> Result<bool, GpuError> {
        let Ok(call) = SelectCall::of(samplers.iter().copied(), self.plan.vocab as u32) else {
            return Ok(false);
        };
        let launches = call.launches(self.gpu.rungs())?;
        // Slots of select that are buffers of the plan.
        let given = [
            ("logits", self.buffers.get(&Operand::Scratch(self.plan.logits()))?.clone()),
            ("tokens", self.buffers.get(&Operand::Tokens)?.clone()),
            ("rows", self.buffers.get(&Operand::Rows)?.clone()),
        ];
        for slot in launches.iter().flat_map(|launch| launch.slots()) {
            if !given.iter().any(|(name, _)| *name == slot.name) {
                self.steps.grow(&self.gpu, slot.name, slot.bytes)?;
            }
        }
        if !self.steps.selects.contains_key(&call) {
            let buffers: Vec<_> = given.into_iter().chain(self.steps.buffers.iter().cloned()).collect();
            let bound = launches.iter().map(|launch| self.gpu.bind(launch, &buffers_of(launch, &buffers)?));
            self.steps.selects.insert(call, bound.collect::<Result<_, _>>()?);
        }
        self.steps.after_wgpu = true;
        let stride = self.buffers.table_entries() / batch.rows();
        self.send(batch, Some(stride))?;
        self.send_samplers(call, samplers, histories)?;
        let steps = &mut self.steps;
        steps.call = Some(call);
        steps.stride = stride;
        steps.sent.clear();
        steps.sent.extend((0..batch.rows()).map(|row| batch.table(row, 0).len()));
        for positions in [&mut steps.positions, &mut steps.unread] {
            positions.clear();
            positions.extend_from_slice(batch.positions);
        }
        Ok(true)
    }

    /// Sends the samplers' parameters and, for penalties, the latest tokens.
    fn send_samplers(
        &mut self,
        call: SelectCall,
        samplers: &[&Sampler],
        histories: &[&[u32]],
    ) -> Result<(), GpuError> {
        let Steps { buffers, words, .. } = &mut self.steps;
        let buffer = |name: &str| buffers.iter().find(|(of, _)| *of == name).map(|(_, buffer)| buffer);
        // The buffer of an earlier call may be too small if this call does not use it.
        if let Some(target) = buffer("samplers").filter(|_| call.has_samplers()) {
            let rows: Vec<SelectRow> = samplers.iter().map(|sampler| SelectRow::from(*sampler)).collect();
            self.gpu.write(target, bytemuck::cast_slice(&rows))?;
        }
        if !call.penalties {
            return Ok(());
        }
        let (window, vocab) = (SELECT_HISTORY as usize, call.vocab as usize);
        if let Some(target) = buffer("history") {
            words.clear();
            words.resize(histories.len() * window, 0);
            for (row, history) in words.chunks_exact_mut(window).zip(histories) {
                let first = history.len().saturating_sub(window);
                (first..history.len()).for_each(|at| row[at % window] = history[at]);
            }
            self.gpu.write(target, bytemuck::cast_slice(words))?;
        }
        if let Some(target) = buffer("counts") {
            words.clear();
            words.resize(histories.len() * vocab, 0);
            for ((row, history), sampler) in words.chunks_exact_mut(vocab).zip(histories).zip(samplers) {
                let recent = history.iter().rev().take(sampler.penalty_window as usize);
                recent.for_each(|&token| row[token as usize] += 1);
            }
            self.gpu.write(target, bytemuck::cast_slice(words))?;
        }
        Ok(())
    }

    fn submit_steps(&mut self, count: usize, tables: &[&[u32]]) -> Result<(), GpuError> {
        let GpuBackend { gpu, buffers: plan_buffers, tables: kernels, steps, tuning, .. } = self;
        let Steps {
            call, selects, buffers, positions, sent, stride, submissions, recorder, after_wgpu, ..
        } = steps;
        let Some(selects) = call.and_then(|call| selects.get(&call)) else { return Ok(()) };
        let emitted = buffers.iter().find(|(name, _)| *name == "emitted").map(|(_, buffer)| buffer);
        let recorder = recorder.get_or_insert_with(|| Recorder::new(gpu));
        let rows = positions.len() as u32;
        let (layers, logits) = kernels.of_sequences(rows);
        if *after_wgpu && recorder.is_vulkan() {
            // New dispatches are compiled for the Vulkan recorder here, in parallel.
            let shape = BatchShape { rows, positions, tiles: 0 };
            let mut pipelines = Vec::new();
            for step in layers.iter_mut().chain(logits.iter_mut()) {
                pipelines.extend(step.prepare(gpu, shape)?.map(|dispatch| Arc::clone(&dispatch.pipeline)));
            }
            pipelines.extend(selects.iter().map(|select| Arc::clone(&select.pipeline)));
            gpu.compile_for_vulkan(&pipelines)?;
        }
        let mut recording = recorder.begin(gpu, std::mem::take(after_wgpu))?;
        // Blocks that sequences got since the last submission.
        let groups = tables.len() / positions.len().max(1);
        for (row, (of_row, sent)) in tables.chunks_exact(groups).zip(sent).enumerate() {
            for (group, table) in of_row.iter().enumerate().filter(|(_, table)| table.len() > *sent) {
                let buffer = plan_buffers.get(&Operand::BlockTables(group as u8))?;
                recording.write(gpu, buffer, 4 * (row * *stride + *sent) as u64, &table[*sent..])?;
            }
            *sent = of_row[0].len();
        }
        // Kernels after which to submit what was recorded, if the device is idle.
        let first_submission = tuning.profile(gpu.rungs()).first_submission as usize;
        let (mut early, mut recorded) =
            (if submissions.is_empty() { first_submission } else { usize::MAX }, 0);
        for _ in 0..count {
            let shape = BatchShape { rows, positions, tiles: 0 };
            for step in layers.iter_mut().chain(logits.iter_mut()) {
                let Some(dispatch) = step.prepare(gpu, shape)? else { continue };
                recording.dispatch(gpu, dispatch)?;
                recorded += 1;
                if recorded == early {
                    submissions.push_back((0, recording.submit(gpu, None)?));
                    recording = recorder.begin(gpu, false)?;
                    early = 2 * early + first_submission;
                }
            }
            selects.iter().try_for_each(|select| recording.dispatch(gpu, select))?;
            positions.iter_mut().for_each(|position| *position += 1);
        }
        submissions.push_back((count, recording.submit(gpu, emitted)?));
        Ok(())
    }

    /// Waits for the next submission, and reads its tokens.
    fn complete_next(&mut self) -> Result<(), GpuError> {
        let GpuBackend { gpu, steps, .. } = self;
        let (Some((count, submission)), Some(recorder)) =
            (steps.submissions.pop_front(), &mut steps.recorder)
        else {
            return Err(GpuError::internal("no step is in flight"));
        };
        recorder.wait(gpu, submission, (count > 0).then_some(&mut steps.completed))?;
        steps.completed_steps = count;
        Ok(())
    }
}

impl Chain for GpuBackend {
    fn most(&self) -> usize {
        MAX_IN_FLIGHT
    }

    fn begin(
        &mut self,
        batch: &Batch<'_>,
        samplers: &[&Sampler],
        histories: &[&[u32]],
    ) -> Result<bool, BackendError> {
        self.check(batch)?;
        self.steps.end(&self.gpu);
        let rows = batch.rows();
        // One row for each sequence, in their order, and all want logits.
        let each = |rows: &[u32]| rows.iter().copied().eq(0..rows.len() as u32);
        let sound = batch.lengths.len() == rows && each(batch.sequences) && each(batch.logits);
        if !sound || batch.logits.len() != rows || samplers.len() != rows || histories.len() != rows {
            return Err(BackendError::UnsoundBatch);
        }
        let vocab = self.plan.vocab as u32;
        if histories.iter().flat_map(|history| *history).any(|token| *token >= vocab) {
            return Err(BackendError::UnsoundBatch);
        }
        let longest = batch.tables.iter().map(|table| table.len()).max().unwrap_or(0);
        if rows > MATVEC_ROWS || longest > self.buffers.table_entries() / rows {
            return Ok(false);
        }
        Ok(self.begin_steps(batch, samplers, histories)?)
    }

    fn submit(&mut self, steps: usize, tables: &[&[u32]]) -> Result<(), BackendError> {
        let groups = self.kv.blocks.len();
        // Blocks that were sent before were checked before.
        let has_blocks = |((position, of_row), sent): ((&u32, &[&[u32]]), &usize)| {
            let last = *position as usize + steps.max(1) - 1;
            of_row.iter().zip(&self.kv.blocks).all(|(table, blocks)| {
                last / KV_BLOCK < table.len()
                    && table.len() == of_row[0].len()
                    && table.len() <= self.steps.stride
                    && table.iter().skip(*sent).all(|block| (*block as usize) < *blocks)
            })
        };
        let sound = self.steps.call.is_some() && tables.len() == self.steps.positions.len() * groups;
        if !sound
            || steps > MAX_IN_FLIGHT
            || !self
                .steps
                .positions
                .iter()
                .zip(tables.chunks_exact(groups.max(1)))
                .zip(&self.steps.sent)
                .all(has_blocks)
        {
            return Err(BackendError::UnsoundBatch);
        }
        if steps == 0 {
            return Ok(());
        }
        // A half submitted step cannot be continued.
        Ok(self.submit_steps(steps, tables).inspect_err(|_| self.steps.end(&self.gpu))?)
    }

    fn in_flight(&self) -> usize {
        self.steps.completed_steps + self.steps.submissions.iter().map(|(steps, _)| steps).sum::<usize>()
    }

    fn next(&mut self) -> Result<&[u32], BackendError> {
        while self.steps.completed_steps == 0 {
            self.complete_next()?;
        }
        let Steps { tokens, unread, completed, completed_steps, .. } = &mut self.steps;
        *completed_steps -= 1;
        tokens.clear();
        for (row, position) in unread.iter_mut().enumerate() {
            *position += 1;
            tokens.push(completed[(*position % SELECT_EMITTED * SELECT_ROWS) as usize + row]);
        }
        if let Some(row) = tokens.iter().position(|token| *token == SELECT_NOT_FINITE) {
            // Later steps have continued with an invalid token.
            self.steps.end(&self.gpu);
            return Err(BackendError::NotFinite { row });
        }
        Ok(&self.steps.tokens)
    }
}
