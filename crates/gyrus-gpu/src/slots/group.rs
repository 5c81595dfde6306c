//! Sixteen slots that are computed together: as many rows as a mat-vec takes.

use gyrus_kernels::call::{decoding_run, engine, idle_run};
use gyrus_kernels::params::SlotState;
use gyrus_kernels::{BufferId, KvSize, Plan, RopeId, Rows};

use super::select::Selects;
use super::writes::Writes;
use crate::buffer::Buffer;
use crate::buffers::{MATVEC_ROWS, padding_table, rope_stride, slot_stride};
use crate::error::GpuError;
use crate::lower::{BatchKind, Lowering, Operand, Segments};
use crate::step::Step;

/// A group of slots: their rows on the device, and the kernels that are bound to them. Activations, logits and the cache
/// are shared by all groups, which run one after the other. Chunks have activations of their own.
#[derive(Debug)]
pub(super) struct SlotGroup {
    /// Buffers that stand for those of a batch.
    buffers: Vec<(Operand, Buffer)>,
    /// `None`: they must be bound again.
    pub(super) kernels: Option<GroupKernels>,
    pub(super) selects: Selects,
    /// Steps that were submitted: the number of the next one.
    pub(super) steps: u32,
    /// A bit for each row whose logits were computed ahead of its next step.
    pub(super) computed: u16,
    /// The first and the last submission that a slot takes part in whose penalty window is not counted yet.
    pub(super) uncounted: Option<(u64, u64)>,
}

/// The kernels of a group's layers and logits.
#[derive(Debug)]
pub(super) struct GroupKernels {
    /// One row from its token to its logits: the first slot alone, whose block table is the first. Empty in other groups.
    pub(super) decode: Vec<Step>,
    /// Layers of several rows.
    pub(super) sequences: Vec<Step>,
    /// Their logits.
    pub(super) logits: Vec<Step>,
}

impl SlotGroup {
    /// A group whose rows have no sequence yet. `shares_logits`: its logits are those of chunks; otherwise it has its own, so
    /// that those of rows that are computed ahead stay until they are sampled.
    pub(super) fn new(
        lowering: &Lowering<'_>,
        kv: &KvSize,
        shares_logits: bool,
    ) -> Result<SlotGroup, GpuError> {
        let Lowering { gpu, plan, buffers: shared, .. } = *lowering;
        let words = |count: usize| gpu.buffer(4 * count as u64);
        let mut buffers =
            vec![(Operand::Tokens, words(MATVEC_ROWS)?), (Operand::Rows, words(2 * MATVEC_ROWS)?)];
        for (_, id) in plan.buffers.iter().zip(0..).filter(|(spec, _)| spec.rows != Rows::Logits) {
            let own = shared.get(&Operand::SlotScratch(BufferId(id)))?.clone();
            buffers.push((Operand::Scratch(BufferId(id)), own));
        }
        // [MATVEC_ROWS, vocab]
        let logits = match shares_logits {
            true => shared.get(&Operand::Scratch(plan.logits()))?.clone(),
            false => words(MATVEC_ROWS * plan.buffer(plan.logits()).width)?,
        };
        buffers.push((Operand::Scratch(plan.logits()), logits.clone()));
        for group in 0..plan.kv.len() as u8 {
            buffers.push((Operand::BlockTables(group), shared.get(&Operand::SlotTables(group))?.clone()));
        }
        for (rope, id) in plan.ropes.iter().zip(0..).filter(|(rope, _)| rope_stride(rope) > 0) {
            let table = words(MATVEC_ROWS * 2 * rope_stride(rope) as usize)?;
            // Rows without a sequence need valid frequencies, too.
            gpu.write(&table, bytemuck::cast_slice(&engine::turns(rope, 0).repeat(MATVEC_ROWS)))?;
            buffers.push((Operand::RopeTable(RopeId(id)), table));
        }
        if !plan.delta.is_empty() {
            let (runs, of_rows) = (words(4 * MATVEC_ROWS)?, words(MATVEC_ROWS)?);
            let rows: Vec<u32> = (0..MATVEC_ROWS as u32).collect();
            let idle: Vec<u32> = rows.iter().flat_map(|row| idle_run(*row)).collect();
            gpu.write(&runs, bytemuck::cast_slice(&idle))?;
            gpu.write(&of_rows, bytemuck::cast_slice(&rows))?;
            buffers.extend([(Operand::Runs, runs), (Operand::RowRuns, of_rows)]);
        }
        let given = [("logits", logits), ("tokens", buffers[0].1.clone()), ("rows", buffers[1].1.clone())];
        let group = SlotGroup {
            buffers,
            kernels: None,
            selects: Selects::new(gpu, given)?,
            steps: 0,
            computed: 0,
            uncounted: None,
        };
        let padding = [0, padding_table(kv) as u32].repeat(MATVEC_ROWS);
        gpu.write(group.rows(), bytemuck::cast_slice(&padding))?;
        Ok(group)
    }

    /// Binds its kernels if they are not bound. `first`: it is the first group.
    pub(super) fn bind(
        &mut self,
        lowering: &Lowering<'_>,
        first: bool,
    ) -> Result<&mut GroupKernels, GpuError> {
        let kernels = match self.kernels.take() {
            Some(kernels) => kernels,
            None => {
                let on = lowering.with(&self.buffers);
                let Segments { all, layers, logits } = Segments::of(on.plan);
                GroupKernels {
                    decode: if first { on.steps(all, BatchKind::Decode, true)? } else { Vec::new() },
                    sequences: on.steps(layers, BatchKind::Sequences, false)?,
                    logits: on.steps(logits, BatchKind::ShortChunk, true)?,
                }
            }
        };
        Ok(self.kernels.insert(kernels))
    }

    fn tokens(&self) -> &Buffer {
        &self.buffers[0].1
    }

    fn rows(&self) -> &Buffer {
        &self.buffers[1].1
    }

    /// Gives a row to a slot that begins to decode: its last token at its position, and its state.
    pub(super) fn set_row(
        &self,
        writes: &mut Writes,
        (slot, kv): (usize, &KvSize),
        (token, position): (u32, u32),
        state: &SlotState,
    ) {
        let row = slot % MATVEC_ROWS;
        writes.push(self.tokens(), row, &[token]);
        writes.push(self.rows(), 2 * row, &[position, (slot * slot_stride(kv)) as u32]);
        self.selects.set_state(writes, row, state);
    }

    /// Advances the row of a slot that the host samples.
    pub(super) fn advance_row(&self, writes: &mut Writes, slot: usize, token: u32, position: u32) {
        let row = slot % MATVEC_ROWS;
        writes.push(self.tokens(), row, &[token]);
        writes.push(self.rows(), 2 * row, &[position]);
    }

    /// Gives a row to a token of a draft, of which one token is sampled.
    pub(super) fn set_draft_row(
        &self,
        writes: &mut Writes,
        row: usize,
        (token, position): (u32, u32),
        state: &SlotState,
    ) {
        writes.push(self.tokens(), row, &[token]);
        writes.push(self.rows(), 2 * row, &[position]);
        self.selects.set_state(writes, row, state);
    }

    /// Takes a row from its slot.
    pub(super) fn clear_row(&self, writes: &mut Writes, slot: usize, kv: &KvSize) {
        let row = slot % MATVEC_ROWS;
        writes.push(self.tokens(), row, &[0]);
        writes.push(self.rows(), 2 * row, &[0, padding_table(kv) as u32]);
        self.selects.set_state(writes, row, &SlotState::inactive(self.steps));
        self.set_run(writes, row, idle_run(row as u32));
    }

    /// Sets the records of a row, if the plan has a state.
    pub(super) fn set_records(&self, writes: &mut Writes, slot: usize, records: [u32; 2]) {
        let row = slot % MATVEC_ROWS;
        self.set_run(writes, row, decoding_run(row as u32, records));
    }

    fn set_run(&self, writes: &mut Writes, row: usize, run: [u32; 4]) {
        if let Some((_, runs)) = self.buffers.iter().find(|(operand, _)| *operand == Operand::Runs) {
            writes.push(runs, 4 * row, &run);
        }
    }

    /// Sets the frequencies of a row, for ropes whose frequencies depend on a sequence's length.
    pub(super) fn set_ropes(&self, writes: &mut Writes, plan: &Plan, slot: usize, length: u32) {
        for (operand, table) in &self.buffers {
            let Operand::RopeTable(id) = operand else { continue };
            let turns = engine::turns(&plan.ropes[usize::from(id.0)], length as usize);
            writes.push(table, slot % MATVEC_ROWS * turns.len(), &turns);
        }
    }
}
