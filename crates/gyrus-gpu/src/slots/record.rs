//! Records the kernels of chunks and of decode steps.

use std::ops::Range;

use gyrus_kernels::Plan;
use gyrus_kernels::call::engine;

use super::chunks::ChunkBatch;
use super::flight::{Flights, GroupSteps, Landing};
use super::group::SlotGroup;
use super::slot::Slot;
use super::submit::{Lane, unbound};
use super::{GROUPS, SlotPool};
use crate::backend::GpuBackend;
use crate::buffer::Buffer;
use crate::buffers::{MATVEC_ROWS, SLOTS};
use crate::device::Gpu;
use crate::dispatch::Dispatch;
use crate::error::GpuError;
use crate::recorder::Recorder;
use crate::step::{BatchShape, Step};

/// The attention windows of a plan, and the most splits that rows of a step have in each.
#[derive(Debug, Default)]
pub(super) struct Splits(pub(super) Vec<(u32, u32)>);

impl Splits {
    pub(super) fn new(plan: &Plan) -> Splits {
        let mut windows: Vec<(u32, u32)> =
            plan.kv.iter().map(|group| (group.window.unwrap_or(0), 1)).collect();
        windows.sort_unstable();
        windows.dedup();
        Splits(windows)
    }

    /// Sets the most splits that any slot has, wherever it is between its last known and its predicted position.
    pub(super) fn set(&mut self, slots: &[Slot]) {
        for (window, most) in &mut self.0 {
            let ranges = slots.iter().filter_map(|slot| slot.decoding);
            let splits = ranges.map(|slot| engine::most_splits(slot.confirmed, slot.predicted, *window));
            *most = splits.max().unwrap_or(1);
        }
    }
}

/// Records kernels. On an idle device it submits the first of them early, so that it does not wait for the rest.
pub(super) struct Tape<'a> {
    pub(super) gpu: &'a Gpu,
    pub(super) recorder: &'a mut Recorder,
    pub(super) flights: &'a mut Flights,
    /// Kernels of the first submission, and how many more must be recorded until the next.
    pub(super) first: usize,
    pub(super) early: usize,
    pub(super) recorded: usize,
}

impl Tape<'_> {
    fn dispatch(&mut self, dispatch: &Dispatch) -> Result<(), GpuError> {
        self.recorder.dispatch(self.gpu, dispatch)?;
        self.recorded += 1;
        if self.recorded == self.early {
            self.cut()?;
            self.early = 2 * self.early + self.first;
        }
        Ok(())
    }

    /// Submits what was recorded; more follows.
    fn cut(&mut self) -> Result<(), GpuError> {
        let submission = self.recorder.submit(self.gpu, &[])?;
        self.flights.push(submission, None, Vec::new());
        self.recorder.begin(self.gpu, false)
    }

    fn steps(&mut self, steps: &mut [Step], shape: BatchShape<'_>) -> Result<(), GpuError> {
        for step in steps {
            if let Some(dispatch) = step.prepare(self.gpu, shape)? {
                self.dispatch(dispatch)?;
            }
        }
        Ok(())
    }

    /// Computes the rows of a group, from their tokens to their logits.
    pub(super) fn rows(
        &mut self,
        lane: &Lane,
        group: &mut SlotGroup,
        slots: &[Slot],
        splits: &mut Splits,
    ) -> Result<(), GpuError> {
        let Some(kernels) = &mut group.kernels else { return Err(unbound()) };
        if lane.is_single {
            let position = slots[0].decoding.map_or(0, |slot| slot.predicted);
            let shape =
                BatchShape { rows: 1, positions: &[position], tiles: 0, runs: 1, spans: &[], splits: &[] };
            return self.steps(&mut kernels.decode, shape);
        }
        splits.set(slots);
        let (runs, rows) = (lane.rows, lane.rows);
        let shape = BatchShape { runs, rows, positions: &[0], tiles: 0, spans: &[], splits: &splits.0 };
        self.steps(&mut kernels.sequences, shape)?;
        self.steps(&mut kernels.logits, shape)
    }

    /// Samples from the logits of the rows of a group.
    pub(super) fn select(
        &mut self,
        lane: &Lane,
        group: &mut SlotGroup,
        slots: &mut [Slot],
        submission: u64,
    ) -> Result<(), GpuError> {
        let bound = group.selects.get(&lane.call);
        // Slots that were started are counted when they take part.
        if let Some((_, last)) = group.uncounted.filter(|(first, _)| *first <= lane.submission) {
            group.uncounted = Some((last, last)).filter(|(last, _)| *last > lane.submission);
            if let Some(count) = bound.and_then(|bound| bound.count.as_ref()) {
                self.dispatch(count)?;
            }
        }
        for select in bound.map_or(&[][..], |bound| &bound.steps) {
            self.dispatch(select)?;
        }
        group.computed = 0;
        group.steps = group.steps.wrapping_add(1);
        let rows = slots.iter_mut().enumerate().filter(|(row, _)| lane.decoding >> row & 1 == 1);
        rows.filter_map(|(_, slot)| slot.decoding.as_mut()).for_each(|slot| slot.submit(submission));
        Ok(())
    }
}

impl GpuBackend {
    /// Records the layers of chunks.
    pub(super) fn record_chunks(&mut self, chunks: &[ChunkBatch], idle: bool) -> Result<(), GpuError> {
        for (index, batch) in chunks.iter().enumerate() {
            if index > 0 {
                self.cut_for_writes()?;
            }
            let tiles = self.send_chunk(batch)?;
            let kernels = self.slots.chunk_tables()?.of_batch(batch.kind, 0).0.len();
            self.record_chunk(batch, tiles, 0..kernels, idle && index == 0)?;
        }
        Ok(())
    }

    /// Records the writes of a chunk's tokens, positions and tiles, and returns the number of tiles.
    pub(super) fn send_chunk(&mut self, batch: &ChunkBatch) -> Result<u32, GpuError> {
        let GpuBackend { gpu, plan, buffers, slots: pool, sent, passes, .. } = self;
        let lengths = pool.lengths();
        sent.starts.clear();
        sent.starts.extend((0..SLOTS).map(|slot| (slot * pool.stride) as u32));
        let SlotPool { recorder: Some(recorder), chunks: Some(tables), .. } = pool else {
            return Err(unbound());
        };
        let mut write = |buffer: &Buffer, words: &[u32]| recorder.write(gpu, buffer, 0, words, false);
        sent.send(plan, &passes[1], buffers, &batch.of(&lengths), tables.tile_rows, &mut write)
    }

    /// Records the kernels of the logits of this many rows of the last batch.
    pub(super) fn record_logits(
        &mut self,
        chunks: &[ChunkBatch],
        rows: usize,
        landing: &mut Landing,
    ) -> Result<(), GpuError> {
        let (Some(batch), 1..) = (chunks.last(), rows) else { return Ok(()) };
        let GpuBackend { gpu, plan, slots: pool, .. } = self;
        let SlotPool { recorder: Some(recorder), flights, chunks: Some(tables), groups, .. } = pool else {
            return Err(unbound());
        };
        let mut tape = Tape { gpu, recorder, flights, first: 0, early: usize::MAX, recorded: 0 };
        let shape = BatchShape {
            rows: rows as u32,
            positions: &batch.positions,
            tiles: 0,
            runs: 1,
            spans: &[],
            splits: &[],
        };
        landing.logits = rows * plan.vocab;
        // The first group has its logits in the same buffer.
        groups[0].iter_mut().for_each(|group| group.computed = 0);
        tape.steps(tables.of_batch(batch.kind, rows).1, shape)
    }

    /// Records some of the kernels of a chunk.
    pub(super) fn record_chunk(
        &mut self,
        batch: &ChunkBatch,
        tiles: u32,
        kernels: Range<usize>,
        idle: bool,
    ) -> Result<(), GpuError> {
        let GpuBackend { gpu, tuning, slots: pool, .. } = self;
        let SlotPool { recorder: Some(recorder), flights, chunks: Some(tables), .. } = pool else {
            return Err(unbound());
        };
        let first = tuning.profile(gpu.rungs()).first_submission as usize;
        let early = if idle { first } else { usize::MAX };
        let mut tape = Tape { gpu, recorder, flights, first, early, recorded: 0 };
        let rows = batch.tokens.len() as u32;
        let shape = BatchShape {
            rows,
            positions: &batch.positions,
            tiles,
            runs: batch.runs(),
            spans: &[],
            splits: &[],
        };
        tape.steps(&mut tables.of_batch(batch.kind, 0).0[kernels], shape)
    }

    /// Says where the results of lanes are among what the submission copies to the host.
    pub(super) fn place_results(&mut self, lanes: &[Option<Lane>; GROUPS], landing: &mut Landing) {
        let mut offset = 0;
        for lane in lanes.iter().flatten() {
            let Some(group) = &self.slots.groups[lane.group] else { continue };
            let steps = landing.copied(group.steps);
            let mut copied = group.selects.copied(&lane.call, lane.hosted, steps).map(|copied| {
                let at = offset;
                offset += copied.bytes as usize / 4;
                at
            });
            landing.groups[lane.group] = GroupSteps {
                decoding: lane.decoding,
                wants_logprobs: lane.wants_logprobs,
                hosted: lane.hosted,
                first: group.steps,
                copied: steps,
                ring: copied.next().unwrap_or(0),
                logprobs: if lane.call.logprobs { copied.next().unwrap_or(0) } else { 0 },
                kept: copied.next().unwrap_or(0),
            };
            copied.for_each(drop);
        }
    }

    /// Records decode steps of lanes that were not sampled before.
    pub(super) fn record_steps(
        &mut self,
        lanes: &[Option<Lane>; GROUPS],
        steps: usize,
        idle: bool,
        submission: u64,
    ) -> Result<(), GpuError> {
        let GpuBackend { gpu, tuning, slots: pool, .. } = self;
        let SlotPool { recorder: Some(recorder), flights, groups, slots, splits, .. } = pool else {
            return Err(unbound());
        };
        let first = tuning.profile(gpu.rungs()).first_submission as usize;
        let early = if idle { first } else { usize::MAX };
        let mut tape = Tape { gpu, recorder, flights, first, early, recorded: 0 };
        for _ in 0..steps {
            for lane in lanes.iter().flatten().filter(|lane| !lane.is_computed) {
                let Some(group) = &mut groups[lane.group] else { continue };
                let of_group = &mut slots[lane.group * MATVEC_ROWS..][..MATVEC_ROWS];
                // A step among the kernels of chunks may come after rows that were computed ahead.
                if group.computed == 0 || lane.decoding & !group.computed != 0 {
                    tape.rows(lane, group, of_group, splits)?;
                }
                tape.select(lane, group, of_group, submission)?;
            }
        }
        Ok(())
    }
}
