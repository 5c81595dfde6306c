//! Steps in flight: what a step needs lies on the device, so that steps are recorded and submitted while earlier ones
//! run, and their tokens read behind them.

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
use crate::recorder::{Flight, Recorder};
use crate::step::{BatchShape, buffers_of};

/// Steps whose tokens fit the ring that a submission brings back.
const MOST: usize = SELECT_EMITTED as usize;

/// Kernels that are submitted before the others are recorded, when nothing runs yet; then twice as many, and so on, so
/// that each lot is recorded while the one before runs.
const EARLY: usize = 16;

/// What is known of the steps in flight.
#[derive(Debug, Default)]
pub(crate) struct Steps {
    pub(crate) call: Option<SelectCall>,
    /// What draws, by the kind of samplers there are.
    pub(crate) selects: HashMap<SelectCall, Vec<Dispatch>>,
    /// Buffers of select by the names of their slots, as large as one call needed them so far.
    buffers: Vec<(&'static str, Buffer)>,
    /// Of each row, the position of the next step to be submitted.
    positions: Vec<u32>,
    /// Of each row, the position of the next token to be read.
    unread: Vec<u32>,
    /// Entries of the block table that the device has of each row, and how far apart rows' tables are.
    sent: Vec<usize>,
    stride: usize,
    /// What was submitted and is not read yet, and how many steps end with it: none with the first parts of one.
    flights: VecDeque<(usize, Flight)>,
    recorder: Option<Recorder>,
    /// Whether wgpu was given work that must run before the next steps.
    after_wgpu: bool,
    /// The tokens of the flight that landed last, and how many of its steps are unread.
    landed: Vec<u32>,
    landed_steps: usize,
    tokens: Vec<u32>,
    words: Vec<u32>,
}

impl Steps {
    /// Forgets steps in flight. They run to their end, and nobody reads their tokens.
    pub(crate) fn end(&mut self, gpu: &Gpu) {
        for (_, flight) in self.flights.drain(..) {
            // What they use may be gone soon. A device that is lost is so for the next as well.
            let _ = self.recorder.as_mut().map(|recorder| recorder.land(gpu, flight, None));
        }
        self.landed_steps = 0;
        self.call = None;
    }

    /// A buffer of select, made anew if a call needs a larger one.
    fn grow(&mut self, gpu: &Gpu, name: &'static str, bytes: u64) -> Result<(), GpuError> {
        match self.buffers.iter_mut().find(|(of, _)| *of == name) {
            Some((_, buffer)) if buffer.bytes() >= bytes => return Ok(()),
            Some((_, buffer)) => *buffer = gpu.buffer(bytes)?,
            None => self.buffers.push((name, gpu.buffer(bytes)?)),
        }
        // What was bound to the smaller one is bound again.
        self.selects.clear();
        Ok(())
    }
}

impl GpuBackend {
    pub(crate) fn begin_steps(
        &mut self,
        batch: &Batch<'_>,
        samplers: &[&Sampler],
        texts: &[&[u32]],
    ) -> Result<bool, GpuError> {
        let Ok(call) = SelectCall::of(samplers.iter().copied(), self.plan.vocab as u32) else {
            return Ok(false);
        };
        let launches = call.launches(self.gpu.rungs())?;
        // Slots of select that are buffers of the plan.
        let given = [
            ("logits", self.buffers.get(&Operand::Scratch(self.plan.logits))?.clone()),
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
        self.send_samplers(call, samplers, texts)?;
        let steps = &mut self.steps;
        steps.call = Some(call);
        steps.stride = stride;
        steps.sent.clear();
        steps.sent.extend(batch.sequences.iter().map(|s| batch.tables[*s as usize].len()));
        for positions in [&mut steps.positions, &mut steps.unread] {
            positions.clear();
            positions.extend_from_slice(batch.positions);
        }
        Ok(true)
    }

    /// Sends what the samplers are and what they look back at.
    fn send_samplers(
        &mut self,
        call: SelectCall,
        samplers: &[&Sampler],
        texts: &[&[u32]],
    ) -> Result<(), GpuError> {
        let Steps { buffers, words, .. } = &mut self.steps;
        let buffer = |name: &str| buffers.iter().find(|(of, _)| *of == name).map(|(_, buffer)| buffer);
        // A buffer of an earlier call may be too small for a call that does not read it.
        if let Some(target) = buffer("samplers").filter(|_| call.has_samplers()) {
            let rows: Vec<SelectRow> = samplers.iter().map(|sampler| SelectRow::from(*sampler)).collect();
            self.gpu.write(target, bytemuck::cast_slice(&rows))?;
        }
        if !call.penalties {
            return Ok(());
        }
        let (history, vocab) = (SELECT_HISTORY as usize, call.vocab as usize);
        if let Some(target) = buffer("history") {
            words.clear();
            words.resize(texts.len() * history, 0);
            for (row, text) in words.chunks_exact_mut(history).zip(texts) {
                let first = text.len().saturating_sub(history);
                (first..text.len()).for_each(|at| row[at % history] = text[at]);
            }
            self.gpu.write(target, bytemuck::cast_slice(words))?;
        }
        if let Some(target) = buffer("counts") {
            words.clear();
            words.resize(texts.len() * vocab, 0);
            for ((row, text), sampler) in words.chunks_exact_mut(vocab).zip(texts).zip(samplers) {
                let recent = text.iter().rev().take(sampler.penalty_window as usize);
                recent.for_each(|&token| row[token as usize] += 1);
            }
            self.gpu.write(target, bytemuck::cast_slice(words))?;
        }
        Ok(())
    }

    fn submit_steps(&mut self, count: usize, tables: &[&[u32]]) -> Result<(), GpuError> {
        let GpuBackend { gpu, buffers: plan_buffers, tables: kernels, steps, .. } = self;
        let Steps { call, selects, buffers, positions, sent, stride, flights, recorder, after_wgpu, .. } =
            steps;
        let Some(selects) = call.and_then(|call| selects.get(&call)) else { return Ok(()) };
        let emitted = buffers.iter().find(|(name, _)| *name == "emitted").map(|(_, buffer)| buffer);
        let recorder = recorder.get_or_insert_with(|| Recorder::new(gpu));
        let rows = positions.len() as u32;
        let (layers, logits) = kernels.of_sequences(rows);
        if *after_wgpu && recorder.is_vulkan() {
            // What is bound anew is after_wgpu to wgpu, and compiled anew.
            let shape = BatchShape { rows, positions, tiles: 0 };
            let mut pipelines = Vec::new();
            for step in layers.iter_mut().chain(logits.iter_mut()) {
                pipelines.extend(step.prepare(gpu, shape)?.map(|dispatch| Arc::clone(&dispatch.pipeline)));
            }
            pipelines.extend(selects.iter().map(|select| Arc::clone(&select.pipeline)));
            gpu.compile_for_vulkan(&pipelines)?;
        }
        let mut recording = recorder.begin(gpu, std::mem::take(after_wgpu))?;
        // What was added to block tables since the last time.
        for (row, (table, sent)) in tables.iter().zip(sent).enumerate() {
            if table.len() > *sent {
                recording.write(
                    gpu,
                    plan_buffers.get(&Operand::BlockTables)?,
                    4 * (row * *stride + *sent) as u64,
                    &table[*sent..],
                )?;
                *sent = table.len();
            }
        }
        let (mut early, mut recorded) = (if flights.is_empty() { EARLY } else { usize::MAX }, 0);
        for _ in 0..count {
            let shape = BatchShape { rows, positions, tiles: 0 };
            for step in layers.iter_mut().chain(logits.iter_mut()) {
                let Some(dispatch) = step.prepare(gpu, shape)? else { continue };
                recording.dispatch(gpu, dispatch)?;
                recorded += 1;
                if recorded == early {
                    flights.push_back((0, recording.submit(gpu, None)?));
                    recording = recorder.begin(gpu, false)?;
                    early = 2 * early + EARLY;
                }
            }
            selects.iter().try_for_each(|select| recording.dispatch(gpu, select))?;
            positions.iter_mut().for_each(|position| *position += 1);
        }
        flights.push_back((count, recording.submit(gpu, emitted)?));
        Ok(())
    }

    /// Waits for the next submission, and takes its tokens.
    fn land(&mut self) -> Result<(), GpuError> {
        let GpuBackend { gpu, steps, .. } = self;
        let (Some((count, flight)), Some(recorder)) = (steps.flights.pop_front(), &mut steps.recorder) else {
            return Err(GpuError::internal("no step is in flight"));
        };
        recorder.land(gpu, flight, (count > 0).then_some(&mut steps.landed))?;
        steps.landed_steps = count;
        Ok(())
    }
}

impl Chain for GpuBackend {
    fn most(&self) -> usize {
        MOST
    }

    fn begin(
        &mut self,
        batch: &Batch<'_>,
        samplers: &[&Sampler],
        texts: &[&[u32]],
    ) -> Result<bool, BackendError> {
        self.check(batch)?;
        self.steps.end(&self.gpu);
        let rows = batch.rows();
        // A row for each sequence, in their order, and each wants logits.
        let each = |rows: &[u32]| rows.iter().copied().eq(0..rows.len() as u32);
        let sound = batch.tables.len() == rows && each(batch.sequences) && each(batch.logits);
        if !sound || batch.logits.len() != rows || samplers.len() != rows || texts.len() != rows {
            return Err(BackendError::UnsoundBatch);
        }
        let vocab = self.plan.vocab as u32;
        if texts.iter().flat_map(|text| *text).any(|token| *token >= vocab) {
            return Err(BackendError::UnsoundBatch);
        }
        let longest = batch.tables.iter().map(|table| table.len()).max().unwrap_or(0);
        if rows > MATVEC_ROWS || longest > self.buffers.table_entries() / rows {
            return Ok(false);
        }
        Ok(self.begin_steps(batch, samplers, texts)?)
    }

    fn submit(&mut self, steps: usize, tables: &[&[u32]]) -> Result<(), BackendError> {
        let blocks = self.blocks;
        // What was sent before was checked before.
        let room = |((position, table), sent): ((&u32, &&[u32]), &usize)| {
            let last = *position as usize + steps.max(1) - 1;
            last / KV_BLOCK < table.len()
                && table.len() <= self.steps.stride
                && table.iter().skip(*sent).all(|block| (*block as usize) < blocks)
        };
        let sound = self.steps.call.is_some() && tables.len() == self.steps.positions.len();
        if !sound || steps > MOST || !self.steps.positions.iter().zip(tables).zip(&self.steps.sent).all(room)
        {
            return Err(BackendError::UnsoundBatch);
        }
        if steps == 0 {
            return Ok(());
        }
        // What was half submitted cannot be gone on with.
        Ok(self.submit_steps(steps, tables).inspect_err(|_| self.steps.end(&self.gpu))?)
    }

    fn in_flight(&self) -> usize {
        self.steps.landed_steps + self.steps.flights.iter().map(|(steps, _)| steps).sum::<usize>()
    }

    fn next(&mut self) -> Result<&[u32], BackendError> {
        while self.steps.landed_steps == 0 {
            self.land()?;
        }
        let Steps { tokens, unread, landed, landed_steps, .. } = &mut self.steps;
        *landed_steps -= 1;
        tokens.clear();
        for (row, position) in unread.iter_mut().enumerate() {
            *position += 1;
            tokens.push(landed[(*position % SELECT_EMITTED * SELECT_ROWS) as usize + row]);
        }
        if let Some(row) = tokens.iter().position(|token| *token == SELECT_NOT_FINITE) {
            // Later steps have computed on with a token that nobody chose.
            self.steps.end(&self.gpu);
            return Err(BackendError::NotFinite { row });
        }
        Ok(&self.steps.tokens)
    }
}
