//! Runs a plan: kernels are bound once and replayed for every batch.

use std::sync::Arc;

use gyrus_kernels::observe::Observer;
use gyrus_kernels::{
    Backend, BackendError, Batch, CacheContents, ENCODED, Instruments, KvSize, LOGITS, Plan, RowKind, Slots,
    WeightSpec,
};
use wgpu::BufferUsages;

use crate::buffer::Buffer;
use crate::buffers::{Buffers, MATVEC_ROWS, logits_readback_bytes};
use crate::device::Gpu;
use crate::error::GpuError;
use crate::forward::{Lists, PassInputs, SentRows, longest_table};
use crate::lower::Lowering;
use crate::memory::{MemoryBudget, MemoryNeed};
use crate::recorder::Recorder;
use crate::slots::{SlotPool, compile_first};
use crate::tables::Tables;
use crate::tuning::Tuning;
use crate::weight::Weights;

/// A backend that runs a plan on a GPU.
#[derive(Debug)]
pub struct GpuBackend {
    pub(crate) gpu: Arc<Gpu>,
    pub(crate) plan: Plan,
    pub(crate) kv: KvSize,
    pub(crate) buffers: Buffers,
    pub(crate) tables: Tables,
    pub(crate) weights: Weights,
    pub(crate) tuning: Tuning,
    pub(crate) slots: SlotPool,
    /// Logits on their way back to the host.
    pub(crate) readback: Buffer,
    pub(crate) results: Vec<f32>,
    pub(crate) sent: SentRows,
    /// What the encoder reads, and what the forward pass does.
    pub(crate) passes: [PassInputs; 2],
}

impl GpuBackend {
    /// Uploads a plan's weights and allocates a cache of this size. `bytes` returns each weight's data; `uploaded` is
    /// called for every chunk with the number of those bytes it had.
    ///
    /// A plan that does not fit the device's memory is refused before anything is uploaded, where the driver tells its
    /// size.
    pub fn new<D: AsRef<[u8]>>(
        gpu: Gpu,
        plan: Plan,
        kv: KvSize,
        bytes: impl Fn(&WeightSpec) -> Option<D>,
        uploaded: impl Fn(u64),
    ) -> Result<GpuBackend, GpuError> {
        let need = MemoryNeed::new(&plan, &kv)?;
        let budget = MemoryBudget::of(&gpu, &plan);
        budget.check(&need)?;
        GpuBackend::build(gpu, plan, kv, bytes, uploaded).map_err(|error| budget.explain(&need, error))
    }

    fn build<D: AsRef<[u8]>>(
        gpu: Gpu,
        plan: Plan,
        kv: KvSize,
        bytes: impl Fn(&WeightSpec) -> Option<D>,
        uploaded: impl Fn(u64),
    ) -> Result<GpuBackend, GpuError> {
        let buffers = Buffers::new(&gpu, &plan, &kv)?;
        let weights = Weights::upload(&gpu, &plan, bytes, &uploaded)?;
        let tuning = gpu.tuning_path.as_deref().map(Tuning::read).unwrap_or_default();
        let lowering = Lowering {
            gpu: &gpu,
            plan: &plan,
            weights: &weights,
            buffers: &buffers,
            tuning: &tuning,
            replaced: &[],
        };
        let tables = Tables::new(&lowering)?;
        let recorder = Recorder::new(&gpu);
        compile_first(&gpu, &tables, &plan, &kv, recorder.is_vulkan())?;
        let usage = BufferUsages::MAP_READ | BufferUsages::COPY_DST;
        let readback = gpu.create(logits_readback_bytes(&plan), usage)?;
        let slots = SlotPool::new(&kv, recorder);
        let passes = [&plan.encode, &plan.forward].map(|ops| PassInputs::of(&plan, ops));
        Ok(GpuBackend {
            gpu: Arc::new(gpu),
            plan,
            kv,
            buffers,
            tables,
            weights,
            tuning,
            slots,
            readback,
            results: Vec::new(),
            sent: SentRows::default(),
            passes,
        })
    }

    /// What the pass of these kernels reads.
    fn pass(&self, lists: Lists) -> &PassInputs {
        if lists == Lists::Encode { &self.passes[0] } else { &self.passes[1] }
    }

    pub(crate) fn lowering(&self) -> Lowering<'_> {
        let GpuBackend { gpu, plan, weights, buffers, tuning, .. } = self;
        Lowering { gpu, plan, weights, buffers, tuning, replaced: &[] }
    }

    /// The device.
    pub fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    /// Whether kernels can be given this batch: they check nothing.
    pub(crate) fn check(&self, batch: &Batch<'_>, lists: Lists) -> Result<(), BackendError> {
        self.check_bounds(batch, lists)?;
        let has_state = !self.plan.delta.is_empty();
        let sound = batch.writes_each_place_once(&self.pass(lists).demands)
            && batch.has_sound_records(has_state, self.kv.records)
            && (!has_state || batch.has_adjacent_rows());
        if sound { Ok(()) } else { Err(BackendError::UnsoundBatch) }
    }

    /// As [`GpuBackend::check`], but rows may write one place of the cache: measurements share blocks.
    pub(crate) fn check_bounds(&self, batch: &Batch<'_>, lists: Lists) -> Result<(), BackendError> {
        let generated = batch.kind == RowKind::Generated && lists != Lists::Encode;
        let most = if generated { self.batch_sequences() } else { self.batch_rows() };
        if batch.rows() > most {
            return Err(BackendError::TooManyRows { rows: batch.rows(), most });
        }
        // Tables may share blocks, so that together they can have more entries than their buffer.
        let pass = self.pass(lists);
        let entries = |sequences: usize| (0..sequences).map(|s| longest_table(batch, s)).sum::<usize>();
        if batch.rows() == 0
            || !batch.is_in_bounds(self.plan.vocab, &self.kv.blocks, &pass.demands)
            || !pass.have_extents(batch)
            || batch.logits.len() > self.buffers.most_rows()
            || entries(batch.lengths.len()) > self.buffers.table_entries()
        {
            return Err(BackendError::UnsoundBatch);
        }
        Ok(())
    }
}

impl Drop for GpuBackend {
    fn drop(&mut self) {
        // Steps in flight use the buffers that are dropped now.
        self.slots.discard(&self.gpu);
    }
}

impl Backend for GpuBackend {
    fn plan(&self) -> &Plan {
        &self.plan
    }

    fn batch_rows(&self) -> usize {
        self.buffers.most_rows()
    }

    fn batch_sequences(&self) -> usize {
        if self.plan.output(LOGITS).is_some() { MATVEC_ROWS } else { self.buffers.most_rows() }
    }

    fn kv_blocks(&self) -> &[usize] {
        &self.kv.blocks
    }

    fn records(&self) -> usize {
        self.kv.records
    }

    fn forward(&mut self, batch: &Batch<'_>) -> Result<&[f32], BackendError> {
        self.check(batch, Lists::Batch)?;
        self.settle()?;
        let tiles = self.send(batch, Lists::Batch)?;
        self.replay(batch, tiles, Lists::Batch)?;
        batch.check_logits(&self.results, self.plan.buffer(self.plan.result()).width)?;
        Ok(&self.results)
    }

    fn encode(&mut self, batch: &Batch<'_>) -> Result<&[f32], BackendError> {
        if self.plan.encode.is_empty() {
            return Err(BackendError::NoEncoder);
        }
        self.check(batch, Lists::Encode)?;
        self.settle()?;
        let tiles = self.send(batch, Lists::Encode)?;
        self.replay(batch, tiles, Lists::Encode)?;
        let width = self.plan.output(ENCODED).map_or(0, |id| self.plan.buffer(id).width);
        batch.check_logits(&self.results, width)?;
        Ok(&self.results)
    }

    fn observe(&mut self, batch: &Batch<'_>, observer: &mut Observer<'_>) -> Result<(), BackendError> {
        self.check(batch, Lists::Batch)?;
        self.settle()?;
        let tiles = self.send(batch, Lists::Batch)?;
        self.replay_observed(batch, tiles, observer)
    }

    fn slots(&mut self) -> &mut dyn Slots {
        self
    }

    fn contents(&mut self) -> Option<&mut dyn CacheContents> {
        Some(self)
    }

    fn instruments(&mut self) -> Option<&mut dyn Instruments> {
        Some(self)
    }
}
