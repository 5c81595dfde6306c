//! Records chunks and steps, and submits them.

use std::sync::Arc;

use gyrus_kernels::call::{SelectCall, engine};
use gyrus_kernels::{BackendError, Batch, Work};

use super::chunks::{ChunkBatch, batches, logit_rows};
use super::drafts::DraftPass;
use super::flight::Landing;
use super::pending::Pending;
use super::slot::Needs;
use super::{GROUPS, SlotPool, row_class};
use crate::backend::GpuBackend;
use crate::buffer::Buffer;
use crate::buffers::{MATVEC_ROWS, SLOTS};
use crate::device::Gpu;
use crate::error::GpuError;
use crate::forward::Lists;
use crate::lower::{Lowering, Operand};
use crate::recorder::{Copied, Recorder};
use crate::step::{BatchShape, Step};
use crate::tables::ChunkTables;

/// A group that decodes in a submission.
#[derive(Debug, Clone, Copy)]
pub(super) struct Lane {
    pub(super) group: usize,
    /// A bit for each slot that decodes.
    pub(super) decoding: u16,
    /// A bit for each slot that wants log-probabilities.
    pub(super) wants_logprobs: u16,
    /// A bit for each slot that the host samples.
    pub(super) hosted: u16,
    /// Rows that are computed.
    pub(super) rows: u32,
    /// Whether they are the first slot alone, whose kernels take its position from the host.
    pub(super) is_single: bool,
    /// Whether its rows were computed ahead, so that they are sampled before anything else.
    pub(super) is_computed: bool,
    /// The submission up to which slots were started that take part.
    pub(super) submission: u64,
    pub(super) call: SelectCall,
}

impl GpuBackend {
    /// Records and submits work that was checked.
    pub(super) fn submit_work(&mut self, work: &Work<'_>) -> Result<u64, BackendError> {
        let number = self.slots.submissions + 1;
        if work.chunks.is_empty() && work.between + work.steps == 0 && self.slots.drafts.is_empty() {
            self.slots.flush_late(&self.gpu)?;
            self.slots.submissions = number;
            return Ok(number);
        }
        let of_chunks = batches(work.chunks);
        // Slots that decoded before.
        let early = self.lanes(work.between, number - 1);
        let drafts = self.take_drafts()?;
        let (chunk_batches, copied_rows) = match &drafts {
            Some(pass) => (std::slice::from_ref(&pass.batch), pass.batch.tokens.len()),
            None => (&of_chunks[..], copied_rows(work, &of_chunks)),
        };
        let logits = if copied_rows == 0 && work.chunks.iter().any(|chunk| logit_rows(chunk) > 0) {
            self.compute_chunks(chunk_batches)?
        } else {
            Vec::new()
        };
        let recorded = if logits.is_empty() { chunk_batches } else { &[] };
        let lanes = self.lanes_of_steps(work, number);
        self.bind_all(&early, &[])?;
        self.bind_all(&lanes, recorded)?;
        self.bind_logits(recorded, copied_rows)?;
        let idle = self.slots.flights.is_empty();
        let follow = self.lanes_that_follow(work, number)?;
        if let Some(follow) = &follow {
            self.bind_all(follow, &[])?;
        }
        self.slots.begin(&self.gpu)?;
        if work.between > 0 {
            let chunks = if logits.is_empty() { of_chunks } else { Vec::new() };
            let has_chunks = !work.chunks.is_empty();
            let mut pending = Pending::new(number, chunks, (work.between, early), (work.steps, lanes));
            (pending.has_chunks, pending.logits, pending.idle) = (has_chunks, logits, idle);
            self.slots.pending = Some(pending);
            self.slots.submissions = number;
            self.record_next()?;
            return Ok(number);
        }
        let mut landing = Landing::new(number, !work.chunks.is_empty(), work.steps);
        self.place_results(&lanes, &mut landing);
        self.sample_computed(&lanes, number)?;
        self.slots.record_late(&self.gpu, number)?;
        self.record_chunks(recorded, idle)?;
        self.record_logits(recorded, copied_rows, &mut landing)?;
        if let Some(pass) = &drafts {
            self.record_drafts(pass, &mut landing)?;
        }
        self.record_steps(&lanes, work.steps, idle && recorded.is_empty(), number)?;
        self.submit_recorded(&lanes, (drafts.as_ref(), follow.as_ref()), landing, logits)?;
        self.slots.submissions = number;
        Ok(number)
    }

    /// Submits what was recorded, and copies the logits of chunks or the rings of the groups that decode to the host. Rows of
    /// the next step may follow.
    pub(super) fn submit_recorded(
        &mut self,
        lanes: &[Option<Lane>; GROUPS],
        (pass, follow): (Option<&DraftPass>, Option<&[Option<Lane>; GROUPS]>),
        mut landing: Landing,
        logits: Vec<f32>,
    ) -> Result<(), GpuError> {
        let SlotPool { recorder, flights, groups, drafts, .. } = &mut self.slots;
        let Some(recorder) = recorder else { return Err(unbound()) };
        let lanes = lanes.iter().flatten();
        let of_lanes = lanes.filter_map(|lane| Some((lane, groups[lane.group].as_ref()?)));
        let steps = landing.groups.map(|group| group.copied);
        let of_lanes = of_lanes
            .flat_map(|(lane, group)| group.selects.copied(&lane.call, lane.hosted, steps[lane.group]));
        let of_chunks = self.buffers.get(&Operand::Scratch(self.plan.logits()))?;
        let bytes = 4 * landing.logits as u64;
        let mut copied = [Copied { buffer: of_chunks, offset: 0, bytes }; 2 * GROUPS + SLOTS + 3];
        let mut count = usize::from(landing.logits > 0);
        for of_lane in of_lanes {
            copied[count] = of_lane;
            count += 1;
        }
        // Those of drafts come last.
        let of_drafts = pass.and_then(|pass| Some((&pass.call, drafts.group.as_ref()?)));
        if let (Some((call, group)), Some(rows)) = (of_drafts, &mut landing.drafts) {
            let mut offset = copied[..count].iter().map(|copied| copied.bytes as usize / 4).sum();
            for (ring, place) in
                group.selects.copied(call, 0, rows.copied).zip([&mut rows.ring, &mut rows.logprobs])
            {
                *place = offset;
                offset += ring.bytes as usize / 4;
                copied[count] = ring;
                count += 1;
            }
        }
        let Some(follow) = follow else {
            flights.push(recorder.submit(&self.gpu, &copied[..count])?, Some(landing), logits);
            return Ok(());
        };
        recorder.mark(&self.gpu, &copied[..count])?;
        self.record_rows_ahead(follow, false)?;
        let SlotPool { recorder: Some(recorder), flights, .. } = &mut self.slots else {
            return Err(unbound());
        };
        flights.push(recorder.submit(&self.gpu, &[])?, Some(landing), logits);
        Ok(())
    }

    /// wgpu's writes take effect before the kernels that were recorded: those are submitted first.
    pub(super) fn cut_for_writes(&mut self) -> Result<(), GpuError> {
        match &mut self.slots.recorder {
            Some(recorder) if !recorder.is_vulkan() => {
                let submission = recorder.submit(&self.gpu, &[])?;
                self.slots.flights.push(submission, None, Vec::new());
                recorder.begin(&self.gpu, false)
            }
            _ => Ok(()),
        }
    }

    /// The groups that decode, and how: slots that take part in this submission.
    pub(super) fn lanes(&self, steps: usize, submission: u64) -> [Option<Lane>; GROUPS] {
        let mut lanes = [None; GROUPS];
        if steps == 0 {
            return lanes;
        }
        let mut last = 0;
        for (group, slots) in self.slots.slots.chunks_exact(MATVEC_ROWS).enumerate() {
            let (mut decoding, mut wants_logprobs, mut needs) = (0u16, 0u16, Needs::NONE);
            let mut hosted = 0u16;
            for (row, slot) in slots.iter().enumerate() {
                if let Some(slot) = slot.decoding.as_ref().filter(|slot| slot.since <= submission) {
                    decoding |= 1 << row;
                    wants_logprobs |= u16::from(slot.needs.logprobs) << row;
                    hosted |= u16::from(slot.needs.keeps) << row;
                    needs = needs.and(slot.needs);
                }
            }
            if decoding == 0 {
                continue;
            }
            let rows = row_class(decoding);
            let call = needs.call(rows, self.plan.vocab, self.kv.positions);
            // Groups run one after the other, so that the first slot is single whatever other groups do.
            let is_single = group == 0 && decoding == 1;
            lanes[last] = Some(Lane {
                group,
                decoding,
                wants_logprobs,
                hosted,
                rows,
                is_single,
                is_computed: false,
                submission,
                call,
            });
            last += 1;
        }
        lanes
    }

    /// Binds all kernels of a submission that are not bound yet, before anything is recorded.
    pub(super) fn bind_all(
        &mut self,
        lanes: &[Option<Lane>; GROUPS],
        chunks: &[ChunkBatch],
    ) -> Result<(), GpuError> {
        let GpuBackend { gpu, plan, weights, buffers, tuning, slots: pool, .. } = self;
        let lowering = Lowering { gpu, plan, weights, buffers, tuning, replaced: &[] };
        let SlotPool { groups, slots, scratch, splits, chunks: tables, recorder, after_wgpu, .. } = pool;
        let is_vulkan = recorder.get_or_insert_with(|| Recorder::new(gpu)).is_vulkan();
        for lane in lanes.iter().flatten() {
            let Some(group) = &mut groups[lane.group] else { continue };
            if group.selects.bind(gpu, scratch, lane.call)? {
                *after_wgpu = true;
                let bound = group.selects.get(&lane.call).into_iter();
                let bound = bound.flat_map(|bound| bound.count.iter().chain(&bound.steps));
                let pipelines: Vec<_> = bound.map(|dispatch| Arc::clone(&dispatch.pipeline)).collect();
                if is_vulkan {
                    gpu.compile_for_vulkan(&pipelines)?;
                }
            }
            let of_group = &slots[lane.group * MATVEC_ROWS..][..MATVEC_ROWS];
            let kernels = group.bind(&lowering, lane.group == 0)?;
            let (layers, logits): (&mut [Step], &mut [Step]) = match lane.is_single {
                true => (&mut kernels.decode, &mut []),
                false => (&mut kernels.sequences, &mut kernels.logits),
            };
            splits.set(of_group);
            let shape = BatchShape {
                runs: lane.rows,
                rows: lane.rows,
                positions: &[0],
                tiles: 0,
                spans: &[],
                splits: &splits.0,
            };
            *after_wgpu |= bind_steps(gpu, layers, shape, is_vulkan)?;
            *after_wgpu |= bind_steps(gpu, logits, shape, is_vulkan)?;
        }
        if chunks.is_empty() {
            return Ok(());
        }
        let tables = bind_chunks(tables, &lowering)?;
        for batch in chunks {
            let rows = batch.tokens.len() as u32;
            let shape =
                BatchShape { rows, positions: &batch.positions, tiles: 1, runs: 1, spans: &[], splits: &[] };
            *after_wgpu |= bind_steps(gpu, tables.of_batch(batch.kind, 0).0, shape, is_vulkan)?;
        }
        Ok(())
    }

    /// Binds the kernels of the logits of this many rows of the last batch.
    fn bind_logits(&mut self, chunks: &[ChunkBatch], rows: usize) -> Result<(), GpuError> {
        let (Some(batch), 1..) = (chunks.last(), rows) else { return Ok(()) };
        let GpuBackend { gpu, slots: SlotPool { chunks: tables, recorder, after_wgpu, .. }, .. } = self;
        let (Some(tables), Some(recorder)) = (tables, recorder) else { return Err(unbound()) };
        let steps = tables.of_batch(batch.kind, rows).1;
        let shape = BatchShape {
            rows: rows as u32,
            positions: &batch.positions,
            tiles: 0,
            runs: 1,
            spans: &[],
            splits: &[],
        };
        *after_wgpu |= bind_steps(gpu, steps, shape, recorder.is_vulkan())?;
        // The first step gathers rows, from the first one on.
        if let Some(gather) = steps.first_mut()
            && let Some(dispatch) = gather.prepare(gpu, shape)?
        {
            gpu.patch(dispatch, engine::GATHER_FIRST, 0);
            *after_wgpu |= !gpu.rungs().immediates;
        }
        Ok(())
    }

    /// Computes chunks of which some rows want logits, waits for them and returns the logits in the order of the chunks.
    fn compute_chunks(&mut self, chunks: &[ChunkBatch]) -> Result<Vec<f32>, BackendError> {
        bind_chunks_of(self)?;
        self.slots.flush(&self.gpu)?;
        self.slots.settle(&self.gpu)?;
        let vocab = self.plan.vocab;
        let mut logits = vec![0.0; chunks.iter().map(|batch| batch.wanted.len()).sum::<usize>() * vocab];
        let lengths = self.slots.lengths();
        for chunk in chunks {
            let batch = chunk.of(&lengths);
            let GpuBackend { gpu, plan, buffers, slots, sent, passes, .. } = self;
            sent.starts.clear();
            sent.starts.extend((0..SLOTS).map(|slot| (slot * slots.stride) as u32));
            let tile_rows = slots.chunk_tables()?.tile_rows;
            let mut write = |buffer: &Buffer, words: &[u32]| gpu.write(buffer, bytemuck::cast_slice(words));
            let tiles = sent.send(plan, &passes[1], buffers, &batch, tile_rows, &mut write)?;
            self.slots.after_wgpu = true;
            self.replay(&batch, tiles, Lists::Slots)?;
            for (row, at) in self.results.chunks_exact(vocab).zip(&chunk.wanted) {
                logits[at * vocab..(at + 1) * vocab].copy_from_slice(row);
            }
        }
        Ok(logits)
    }
}

/// The rows of the last batch whose logits are copied to the host with the submission: all that are wanted, if they are few
/// and no step follows, which would overwrite them. Otherwise 0.
fn copied_rows(work: &Work<'_>, chunks: &[ChunkBatch]) -> usize {
    let Some((last, others)) = chunks.split_last() else { return 0 };
    let alone = work.between + work.steps == 0 && others.iter().all(|batch| batch.wanted.is_empty());
    if alone && last.wanted.len() <= MATVEC_ROWS { last.wanted.len() } else { 0 }
}

impl ChunkBatch {
    /// As a batch whose sequences are the slots.
    pub(super) fn of<'a>(&'a self, lengths: &'a [u32; SLOTS]) -> Batch<'a> {
        Batch {
            tokens: &self.tokens,
            positions: &self.positions,
            sequences: &self.slots,
            kind: self.kind,
            logits: &self.logits,
            tables: &[],
            lengths,
            records: &self.records,
            inputs: Default::default(),
        }
    }
}

/// Binds steps for a shape if some are not bound, and compiles them in parallel. Returns whether anything was new.
fn bind_steps(
    gpu: &Gpu,
    steps: &mut [Step],
    shape: BatchShape<'_>,
    is_vulkan: bool,
) -> Result<bool, GpuError> {
    if steps.iter().all(|step| step.is_bound(shape.rows)) {
        return Ok(false);
    }
    let mut pipelines = Vec::new();
    for step in steps {
        pipelines.extend(step.prepare(gpu, shape)?.map(|dispatch| Arc::clone(&dispatch.pipeline)));
    }
    if is_vulkan {
        gpu.compile_for_vulkan(&pipelines)?;
    }
    Ok(true)
}

fn bind_chunks<'t>(
    tables: &'t mut Option<ChunkTables>,
    lowering: &Lowering<'_>,
) -> Result<&'t mut ChunkTables, GpuError> {
    if tables.is_none() {
        let mut replaced = Vec::new();
        for group in 0..lowering.plan.kv.len() as u8 {
            let table = lowering.buffers.get(&Operand::SlotTables(group))?.clone();
            replaced.push((Operand::BlockTables(group), table));
        }
        *tables = Some(ChunkTables::new(&lowering.with(&replaced))?);
    }
    tables.as_mut().ok_or_else(unbound)
}

fn bind_chunks_of(backend: &mut GpuBackend) -> Result<(), GpuError> {
    let GpuBackend { gpu, plan, weights, buffers, tuning, slots, .. } = backend;
    let lowering = Lowering { gpu, plan, weights, buffers, tuning, replaced: &[] };
    bind_chunks(&mut slots.chunks, &lowering).map(drop)
}

pub(super) fn unbound() -> GpuError {
    GpuError::internal("a submission was recorded before its kernels were bound")
}
