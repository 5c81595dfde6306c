//! Records of states: whose they are, and copies of them in the order of submissions.

use gyrus_kernels::DeltaLayer;
use gyrus_kernels::call::{DeltaCall, record_pair};

use super::SlotPool;
use super::submit::unbound;
use crate::backend::GpuBackend;
use crate::error::GpuError;
use crate::lower::Operand;
use crate::recorder::Recorder;
use crate::step::buffers_of;

impl GpuBackend {
    /// Records that the caller may name, if the plan has a state.
    pub(super) fn record_pool(&self) -> Option<usize> {
        (!self.plan.delta.is_empty()).then_some(self.kv.records)
    }

    /// Whether records are of the pool, and of no other slot that decodes.
    pub(super) fn has_own_records(&self, slot: usize, records: [u32; 2]) -> bool {
        let Some(pool) = self.record_pool() else { return true };
        let others = self.slots.slots.iter().enumerate().filter(|(other, _)| *other != slot);
        let mut taken = others.filter_map(|(_, slot)| slot.records.filter(|_| slot.decoding.is_some()));
        records.iter().all(|record| (*record as usize) < pool)
            && records[0] != records[1]
            && taken.all(|taken| records.iter().all(|record| !taken.contains(record)))
    }

    /// Submits a copy of a record, or of zeros, after what was submitted before.
    pub(super) fn copy_record(&mut self, from: Option<u32>, to: u32) -> Result<(), GpuError> {
        self.bind_copies()?;
        let pair = self.buffers.get(&Operand::CopiedRecords)?;
        self.slots.begin(&self.gpu)?;
        let SlotPool { recorder: Some(recorder), flights, copies, .. } = &mut self.slots else {
            return Err(unbound());
        };
        recorder.write(&self.gpu, pair, 0, &record_pair(from, to), false)?;
        for copy in copies.iter() {
            recorder.dispatch(&self.gpu, copy)?;
        }
        let submission = recorder.submit(&self.gpu, &[])?;
        flights.push(submission, None, Vec::new());
        Ok(())
    }

    fn bind_copies(&mut self) -> Result<(), GpuError> {
        if !self.slots.copies.is_empty() {
            return Ok(());
        }
        let pair = self.buffers.get(&Operand::CopiedRecords)?.clone();
        let mut copies = Vec::with_capacity(self.plan.delta.len());
        for (shape, layer) in self.plan.delta.iter().zip(0..) {
            let call = DeltaCall { shape: *shape, rows: 1, records: self.buffers.records(), a_is_log: false };
            let launch = call.copy(self.gpu.rungs())?;
            let state = self.buffers.get(&Operand::State(DeltaLayer(layer)))?.clone();
            let named = [("state", state), ("pair", pair.clone())];
            copies.push(self.gpu.bind(&launch, &buffers_of(&launch, &named)?)?);
        }
        let pool = &mut self.slots;
        if pool.recorder.get_or_insert_with(|| Recorder::new(&self.gpu)).is_vulkan() {
            let pipelines: Vec<_> = copies.iter().map(|copy| copy.pipeline.clone()).collect();
            self.gpu.compile_for_vulkan(&pipelines)?;
        }
        pool.after_wgpu = true;
        pool.copies = copies;
        Ok(())
    }
}
