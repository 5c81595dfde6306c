//! Slots: chunks and decode steps in flight.
//!
//! Tokens, positions and samplers of decoding slots are on the device, so that steps are recorded and submitted while
//! earlier ones run. Slots are divided into groups of sixteen rows ([`group`]), which run one after the other in each
//! step. A group computes 1, 2, 4, 8 or 16 rows; rows without a decoding slot compute a token at position 0 of a padding
//! block. A slot that is changed is written by the next submission before anything else ([`writes`]).

mod ahead;
mod chunks;
mod compile;
mod copies;
mod drafts;
mod flight;
mod group;
mod host;
mod pending;
mod record;
mod select;
mod slot;
mod submit;
mod writes;

use std::time::Duration;

use gyrus_kernels::params::SlotState;
use gyrus_kernels::{
    BackendError, Chunk, Decode, Draft, KV_BLOCK, KvSize, LOGITS, Landed, Limits, MAX_TOP, Precision, Slots,
    TopTokens, Work,
};

use self::compile::Compiler;
pub(crate) use self::compile::compile_first;
use self::drafts::Drafts;
use self::flight::{Flights, HostState, Part};
use self::group::SlotGroup;
use self::host::HostSlots;
use self::pending::Pending;
use self::record::Splits;
pub(crate) use self::select::{Named, Selects};
use self::slot::{Decoding, Needs, Slot};
use self::writes::Writes;
use crate::backend::GpuBackend;
use crate::buffers::{MATVEC_ROWS, MAX_ROWS, SLOTS, is_encoder, slot_stride};
use crate::device::Gpu;
use crate::dispatch::Dispatch;
use crate::error::GpuError;
use crate::lower::Operand;
use crate::recorder::Recorder;
use crate::tables::ChunkTables;

/// Groups of slots.
const GROUPS: usize = SLOTS / MATVEC_ROWS;

/// Numbers of rows that a group computes, apart from one.
const ROW_CLASSES: [u32; 4] = [2, 4, 8, 16];

/// The most steps in flight: their tokens fit the ring that a submission copies to the host.
const MAX_IN_FLIGHT: usize = gyrus_kernels::call::SELECT_EMITTED as usize;

/// The slots of a backend.
#[derive(Debug)]
pub(crate) struct SlotPool {
    /// Entries from one slot's block table to the next.
    stride: usize,
    slots: Vec<Slot>,
    /// Those that the host samples.
    hosts: HostSlots,
    /// Groups that were needed so far.
    groups: Vec<Option<SlotGroup>>,
    /// Buffers that the groups' kernels of sampling share.
    pub(crate) scratch: Named,
    /// Kernels of chunks.
    chunks: Option<ChunkTables>,
    splits: Splits,
    drafts: Drafts,
    writes: Writes,
    /// Writes to slots that were started since the last submission. They come after its chunks.
    late: Writes,
    flights: Flights,
    /// The last submission, if it is not recorded to its end, and why it could not be.
    pending: Option<Pending>,
    failed: Option<GpuError>,
    recorder: Option<Recorder>,
    /// Whether wgpu has work that must run before the next submission.
    after_wgpu: bool,
    /// The number of the last submission.
    submissions: u64,
    /// Whether the rows of the next step were asked for after it. Then they probably are after the next one, too.
    ahead: bool,
    compiler: Option<Compiler>,
    /// Kernels that copy a record, one for each layer with a state.
    copies: Vec<Dispatch>,
}

impl SlotPool {
    pub(crate) fn new(kv: &KvSize, recorder: Recorder) -> SlotPool {
        SlotPool {
            stride: slot_stride(kv),
            slots: vec![Slot::default(); SLOTS],
            hosts: HostSlots::new(SLOTS),
            groups: (0..GROUPS).map(|_| None).collect(),
            scratch: Named::new(),
            chunks: None,
            splits: Splits::default(),
            drafts: Drafts::default(),
            writes: Writes::default(),
            late: Writes::default(),
            flights: Flights::default(),
            pending: None,
            failed: None,
            recorder: Some(recorder),
            after_wgpu: false,
            submissions: 0,
            ahead: false,
            compiler: None,
            copies: Vec::new(),
        }
    }

    /// Waits for what is in flight, so that wgpu can use the same buffers. Results stay to be returned.
    fn settle(&mut self, gpu: &Gpu) -> Result<(), BackendError> {
        self.after_wgpu = true;
        self.forget_computed();
        self.flights.settle(gpu, &mut self.recorder)
    }

    /// Waits for what is in flight, and discards its results.
    pub(crate) fn discard(&mut self, gpu: &Gpu) {
        (self.pending, self.failed) = (None, None);
        self.flights.discard(gpu, &mut self.recorder);
        self.forget_computed();
        self.compiler = None;
    }

    /// Forgets kernels, which must be bound again. Nothing is in flight.
    pub(crate) fn forget_kernels(&mut self) {
        self.chunks = None;
        self.forget_computed();
        let groups = self.groups.iter_mut().flatten().chain(&mut self.drafts.group);
        groups.for_each(|group| group.kernels = None);
    }

    /// The kernels of chunks, which were bound.
    pub(crate) fn chunk_tables(&mut self) -> Result<&mut ChunkTables, GpuError> {
        self.chunks.as_mut().ok_or_else(|| GpuError::internal("the kernels of chunks were not bound"))
    }

    /// Begins to record, with the writes of changed slots.
    fn begin(&mut self, gpu: &Gpu) -> Result<(), GpuError> {
        let recorder = self.recorder.get_or_insert_with(|| Recorder::new(gpu));
        recorder.begin(gpu, std::mem::take(&mut self.after_wgpu))?;
        self.writes.record(gpu, recorder)
    }

    /// Submits the writes of changed slots, if there are any.
    fn flush(&mut self, gpu: &Gpu) -> Result<(), GpuError> {
        if self.writes.is_empty() {
            return Ok(());
        }
        self.begin(gpu)?;
        self.submit_writes(gpu)
    }

    /// Submits the writes to slots that were started, if there are any: a submission without work. What changes or closes
    /// these slots later must come after them.
    fn flush_late(&mut self, gpu: &Gpu) -> Result<(), GpuError> {
        if self.late.is_empty() {
            return Ok(());
        }
        self.begin(gpu)?;
        self.record_late(gpu, self.submissions + 1)?;
        self.submit_writes(gpu)
    }

    fn submit_writes(&mut self, gpu: &Gpu) -> Result<(), GpuError> {
        if let Some(recorder) = &mut self.recorder {
            let submission = recorder.submit(gpu, &[])?;
            self.flights.push(submission, None, Vec::new());
        }
        Ok(())
    }

    /// Records the writes to slots that were started before this submission, which take part in the steps that follow.
    fn record_late(&mut self, gpu: &Gpu, number: u64) -> Result<(), GpuError> {
        for (index, slot) in self.slots.iter().enumerate() {
            if let (Some(Decoding { since, .. }), Some(group)) =
                (slot.decoding, &self.groups[index / MATVEC_ROWS])
                && since == number
            {
                // Steps may have run since it was started.
                let row = index % MATVEC_ROWS;
                group.selects.set_state_word(&mut self.late, row, SlotState::STEP, group.steps);
            }
        }
        match &mut self.recorder {
            Some(recorder) => self.late.record(gpu, recorder),
            None => Ok(()),
        }
    }

    /// The length that the sequence of each slot may reach.
    fn lengths(&self) -> [u32; SLOTS] {
        std::array::from_fn(|slot| self.slots[slot].length)
    }

    fn open_slot(&mut self, slot: usize) -> Result<&mut Slot, BackendError> {
        self.slots.get_mut(slot).filter(|slot| slot.open).ok_or(BackendError::UnsoundBatch)
    }
}

/// The rows that a group computes for these slots: the smallest class that has the last of them.
fn row_class(decoding: u16) -> u32 {
    (u16::BITS - decoding.leading_zeros()).max(1).next_power_of_two()
}

/// The words of a mask over a vocabulary.
fn mask_words(vocab: usize) -> usize {
    vocab.div_ceil(32)
}

impl GpuBackend {
    /// Records what is left of a submission, and waits for everything in flight, so that wgpu can use the same buffers.
    /// Results stay to be returned.
    pub(crate) fn settle(&mut self) -> Result<(), BackendError> {
        self.record_rest()?;
        self.slots.settle(&self.gpu)
    }

    /// The group of a slot, which is created if it is the first of its group.
    fn group(&mut self, slot: usize) -> Result<usize, GpuError> {
        let index = slot / MATVEC_ROWS;
        if self.slots.groups[index].is_none() {
            self.slots.groups[index] = Some(SlotGroup::new(&self.lowering(), &self.kv, index == 0)?);
            self.slots.splits = Splits::new(&self.plan);
            self.slots.after_wgpu = true;
        }
        Ok(index)
    }

    /// Whether all tokens are in the vocabulary.
    fn knows(&self, tokens: &[u32]) -> bool {
        tokens.iter().all(|token| (*token as usize) < self.plan.vocab)
    }

    /// Whether a chunk can be computed.
    fn is_sound(&self, chunk: &Chunk<'_>) -> bool {
        let end = chunk.position as usize + chunk.tokens.len();
        !chunk.tokens.is_empty()
            && self.knows(chunk.tokens)
            && self.slots.slots.get(chunk.slot).is_some_and(|slot| slot.open && end <= slot.blocks * KV_BLOCK)
    }

    /// Sets the block tables and the limit of a slot.
    pub(crate) fn set_tables(
        &mut self,
        slot: usize,
        tables: &[&[u32]],
        limit: u32,
    ) -> Result<(), BackendError> {
        self.gpu.take_error()?;
        let stride = self.slots.stride;
        let known = self.slots.open_slot(slot)?;
        let entries = tables.first().map_or(0, |table| table.len());
        let sound = |(table, blocks): (&&[u32], &usize)| {
            let new = &table[known.blocks.min(table.len())..];
            table.len() == entries && new.iter().all(|block| (*block as usize) < *blocks)
        };
        let positions = entries * KV_BLOCK;
        if tables.len() != self.kv.blocks.len()
            || !tables.iter().zip(&self.kv.blocks).all(sound)
            || entries > stride
            || known.decoding.is_some_and(|slot| slot.predicted as usize >= positions)
        {
            return Err(BackendError::UnsoundBatch);
        }
        let first = known.blocks.min(entries);
        known.blocks = entries;
        if let Some(decoding) = &mut known.decoding
            && decoding.limit != limit
        {
            decoding.limit = limit;
            let is_new = decoding.since > self.slots.submissions;
            let SlotPool { groups, writes, late, hosts, .. } = &mut self.slots;
            if let Some(host) = hosts.get(slot) {
                host.row.set_limit(limit);
            } else if let Some(group) = &groups[slot / MATVEC_ROWS] {
                let (row, writes) = (slot % MATVEC_ROWS, if is_new { late } else { writes });
                group.selects.set_state_word(writes, row, SlotState::LIMIT, limit);
            }
        }
        for (table, group) in tables.iter().zip(0..).filter(|(table, _)| table.len() > first) {
            let buffer = self.buffers.get(&Operand::SlotTables(group))?;
            self.slots.writes.push(buffer, slot * stride + first, &table[first..]);
        }
        Ok(())
    }

    /// Takes the row of a slot that decodes.
    fn clear_row(&mut self, slot: usize) {
        let SlotPool { slots, groups, writes, late, submissions, .. } = &mut self.slots;
        let decoding = slots.get(slot).and_then(|slot| slot.decoding);
        if let (Some(decoding), Some(group)) =
            (decoding, groups.get_mut(slot / MATVEC_ROWS).and_then(Option::as_mut))
        {
            group.computed &= !(1 << (slot % MATVEC_ROWS));
            let writes = if decoding.since > *submissions { late } else { writes };
            group.clear_row(writes, slot, &self.kv);
        }
    }

    /// Begins to decode as was checked.
    pub(crate) fn begin_decoding(&mut self, slot: usize, decode: &Decode<'_>) -> Result<(), BackendError> {
        let needs = Needs::of(decode.sampler, decode.masked, decode.logprobs.is_some());
        let index = self.group(slot)?;
        let GpuBackend { gpu, plan, kv, slots: pool, .. } = self;
        let SlotPool { groups, scratch, slots, hosts, late: writes, submissions, after_wgpu, .. } = pool;
        let Some(group) = &mut groups[index] else { return Err(BackendError::UnsoundBatch) };
        let call = needs.call(1, plan.vocab, kv.positions);
        if group.selects.allocate(gpu, scratch, call)? {
            *after_wgpu = true;
        }
        let [.., last] = decode.tokens else { return Err(BackendError::UnsoundBatch) };
        let position = decode.tokens.len() as u32 - 1;
        let state = if needs.keeps {
            hosts.start(slot, decode, slots[slot].length, *submissions + 1)?;
            SlotState::on_host(group.steps)
        } else {
            SlotState::new(
                decode.sampler,
                group.steps,
                decode.limit,
                decode.ends,
                decode.logprobs,
                decode.masked,
            )
        };
        group.computed &= !(1 << (slot % MATVEC_ROWS));
        group.set_row(writes, (slot, kv), (*last, position), &state);
        group.set_ropes(writes, plan, slot, slots[slot].length);
        group.set_records(writes, slot, decode.records);
        if needs.penalties {
            let row = slot % MATVEC_ROWS;
            let window = decode.sampler.penalty_window;
            let known = (decode.tokens, decode.tokens.len());
            group.selects.set_history(writes, row, known, window, kv.positions);
            let since = *submissions + 1;
            group.uncounted = Some((group.uncounted.map_or(since, |(first, _)| first), since));
        }
        slots[slot].decoding = Some(Decoding::new(position, decode.limit, *submissions + 1, needs));
        slots[slot].records = Some(decode.records);
        Ok(())
    }
}

impl Slots for GpuBackend {
    fn limits(&self) -> Limits {
        Limits {
            slots: SLOTS,
            rows: MAX_ROWS,
            logit_rows: MAX_ROWS,
            steps: MAX_IN_FLIGHT,
            draft_rows: MATVEC_ROWS,
            asynchronous: true,
            kinds_differ: self.plan.precision == Precision::Fast,
        }
    }

    fn open(&mut self, slot: usize, length: u32) -> Result<(), BackendError> {
        self.gpu.take_error()?;
        // Steps in flight know positions, and no extents.
        if is_encoder(&self.plan) || self.plan.output(LOGITS).is_none() {
            return Err(GpuError::UnsupportedOp { op: "slots of a plan with an encoder" }.into());
        }
        match self.slots.slots.get_mut(slot) {
            Some(slot) if !slot.open => *slot = Slot { open: true, length, ..Slot::default() },
            _ => return Err(BackendError::UnsoundBatch),
        }
        Ok(())
    }

    fn extend(&mut self, slot: usize, tables: &[&[u32]], limit: u32) -> Result<(), BackendError> {
        if limit as usize > tables.first().map_or(0, |table| table.len()) * KV_BLOCK {
            return Err(BackendError::UnsoundBatch);
        }
        self.set_tables(slot, tables, limit)
    }

    fn start(&mut self, slot: usize, decode: &Decode<'_>) -> Result<(), BackendError> {
        self.gpu.take_error()?;
        self.record_rest()?;
        let positions = self.slots.open_slot(slot)?.blocks * KV_BLOCK;
        let sound = !decode.tokens.is_empty()
            && self.knows(decode.tokens)
            && decode.tokens.len() <= positions
            && decode.limit as usize <= positions
            && decode.logprobs.is_none_or(|top| top <= MAX_TOP)
            && self.has_own_records(slot, decode.records);
        if !sound {
            return Err(BackendError::UnsoundBatch);
        }
        self.begin_decoding(slot, decode)
    }

    fn mask(&mut self, slot: usize, position: u32, allowed: &[u32]) -> Result<(), BackendError> {
        self.gpu.take_error()?;
        self.slots.open_slot(slot)?;
        let words = mask_words(self.plan.vocab);
        let SlotPool { groups, writes, late, hosts, slots, submissions, .. } = &mut self.slots;
        if let Some(host) = hosts.get(slot).filter(|_| allowed.len() == words) {
            return host.row.set_mask(position, allowed);
        }
        let decoding = slots[slot].decoding.as_mut().filter(|slot| slot.needs.masked);
        let (Some(group), Some(decoding)) = (&mut groups[slot / MATVEC_ROWS], decoding) else {
            return Err(BackendError::UnsoundBatch);
        };
        if allowed.len() != words {
            return Err(BackendError::UnsoundBatch);
        }
        decoding.mask = Some((position, *submissions + 1));
        let writes = if decoding.since > *submissions { late } else { writes };
        let row = slot % MATVEC_ROWS;
        group.selects.set_mask(writes, row, allowed);
        group.selects.set_state_word(writes, row, SlotState::MASK_POSITION, position);
        Ok(())
    }

    fn stop(&mut self, slot: usize) -> Result<(), BackendError> {
        self.gpu.take_error()?;
        self.record_rest()?;
        self.slots.open_slot(slot)?;
        self.clear_row(slot);
        (self.slots.slots[slot].decoding, self.slots.slots[slot].records) = (None, None);
        Ok(())
    }

    fn draft(&mut self, slot: usize, draft: &Draft<'_>) -> Result<(), BackendError> {
        self.gpu.take_error()?;
        let known = self.slots.open_slot(slot)?;
        let positions = known.blocks * KV_BLOCK;
        if known.decoding.is_some()
            || !self.plan.delta.is_empty()
            || !draft.is_sound(self.plan.vocab, positions)
        {
            return Err(BackendError::UnsoundBatch);
        }
        self.slots.drafts.push(slot, draft)
    }

    fn copy_state(&mut self, from: Option<u32>, to: u32) -> Result<(), BackendError> {
        self.gpu.take_error()?;
        self.record_rest()?;
        if self.record_pool().is_none_or(|pool| from.unwrap_or(to).max(to) as usize >= pool) {
            return Err(BackendError::UnsoundBatch);
        }
        Ok(self.copy_record(from, to)?)
    }

    fn close(&mut self, slot: usize) {
        self.record_rest_or_fail_later();
        self.slots.hosts.close(slot);
        self.clear_row(slot);
        self.slots.drafts.remove(slot);
        if let Some(known) = self.slots.slots.get_mut(slot) {
            *known = Slot::default();
        }
    }

    fn submit(&mut self, work: &Work<'_>) -> Result<u64, BackendError> {
        self.gpu.take_error()?;
        self.record_rest()?;
        let rows: usize = work.chunks.iter().map(|chunk| chunk.tokens.len()).sum();
        if rows > MAX_ROWS {
            return Err(BackendError::TooManyRows { rows, most: MAX_ROWS });
        }
        if self.slots.flights.steps() + work.between + work.steps > MAX_IN_FLIGHT
            || !work.chunks.iter().all(|chunk| self.is_sound(chunk))
            || !Chunk::have_sound_records(work.chunks, self.record_pool())
            || (!work.chunks.is_empty() && !self.slots.drafts.is_empty())
            || (work.between > 0 && work.chunks.is_empty())
        {
            return Err(BackendError::UnsoundBatch);
        }
        self.submit_work(work)
    }

    fn compute_ahead(&mut self) -> Result<bool, BackendError> {
        self.gpu.take_error()?;
        self.slots.ahead = true;
        // Parts of chunks that are not recorded yet come before these rows.
        if self.has_pending() {
            return Ok(false);
        }
        Ok(self.compute_rows_ahead()?)
    }

    fn is_idle(&mut self) -> Result<bool, BackendError> {
        Ok(self.slots.flights.are_done(&self.gpu, &mut self.slots.recorder)?)
    }

    fn poll(&mut self, wait: Duration) -> Result<Option<Landed<'_>>, BackendError> {
        self.gpu.take_error()?;
        self.compile_later();
        self.bind_ahead()?;
        self.record_ahead()?;
        let SlotPool { flights, recorder, slots, hosts, submissions, groups, writes, .. } = &mut self.slots;
        let mut state = HostState { slots, hosts, vocab: self.plan.vocab, next: *submissions + 1 };
        let part = flights.next(&self.gpu, recorder, &mut state, wait)?;
        if let Some(Part::Step(_)) = part {
            for (slot, token, position) in hosts.take_sampled() {
                if let Some(group) = &groups[slot / MATVEC_ROWS] {
                    group.advance_row(writes, slot, token, position);
                }
            }
        }
        Ok(part.map(|part| match part {
            Part::Chunks(submission) => Landed::Chunks { submission, logits: flights.logits() },
            Part::Drafts(submission) => Landed::Drafts {
                submission,
                outcomes: &flights.outcomes,
                top: TopTokens { entries: &flights.top },
            },
            Part::Step(submission) => Landed::Step {
                submission,
                outcomes: &flights.outcomes,
                top: TopTokens { entries: &flights.top },
            },
        }))
    }

    fn is_recording(&self) -> bool {
        self.has_pending()
    }

    fn reset(&mut self) {
        (self.slots.pending, self.slots.failed) = (None, None);
        self.slots.flights.discard(&self.gpu, &mut self.slots.recorder);
        self.slots.forget_computed();
        (0..SLOTS).for_each(|slot| self.close(slot));
        self.buffers.forget_ropes();
    }
}
