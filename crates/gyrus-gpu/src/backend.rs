//! Runs a plan: each op a dispatch that is bound once and replayed with other numbers of rows.

use gyrus_kernels::call::engine;
use gyrus_kernels::{Backend, BackendError, Batch, Phases, Plan, WeightSpec};
use wgpu::{ComputePassDescriptor, MapMode};

use crate::buffer::Buffer;
use crate::build::Build;
use crate::device::Gpu;
use crate::error::GpuError;
use crate::memory::{MemoryNeed, Room};
use crate::step::Step;

/// The most rows of one batch.
pub const MAX_ROWS: usize = 512;

/// Rows of logits computed at once: more are computed in pieces, since a vocabulary times a batch is large.
pub(crate) const LOGITS_ROWS: usize = 16;

/// A plan on a GPU.
#[derive(Debug)]
pub struct GpuBackend {
    pub(crate) gpu: Gpu,
    pub(crate) plan: Plan,
    pub(crate) blocks: usize,
    pub(crate) inputs: Inputs,
    pub(crate) phases: Vec<Phases>,
    /// What runs once over all rows.
    pub(crate) batch: Vec<Step>,
    /// What runs over the rows that want logits, piece by piece.
    pub(crate) tail: Vec<Step>,
    pub(crate) logits: Buffer,
    pub(crate) staging: Buffer,
    pub(crate) results: Vec<f32>,
}

/// What a batch brings along, on the device.
#[derive(Debug)]
pub(crate) struct Inputs {
    pub(crate) tokens: Buffer,
    /// Position and first entry of the block table, for each row.
    pub(crate) rows: Buffer,
    pub(crate) tables: Buffer,
    /// Which rows want logits.
    pub(crate) indices: Buffer,
    /// For each rope, cosines and sines of each row.
    pub(crate) phases: Vec<Buffer>,
    /// Where each sequence's block table begins among all of them.
    pub(crate) starts: Vec<u32>,
    /// Room to put words together before they are sent.
    pub(crate) words: Vec<u32>,
}

impl GpuBackend {
    /// Uploads a plan's weights and makes a cache of `blocks` blocks. `bytes` gives each weight's data, and
    /// `uploaded` hears of every piece how many of those bytes it was.
    ///
    /// A plan that there is no room for is refused before anything is uploaded, as far as that can be known.
    pub fn new<D: AsRef<[u8]>>(
        gpu: Gpu,
        plan: Plan,
        blocks: usize,
        bytes: impl Fn(&WeightSpec) -> Option<D>,
        uploaded: impl Fn(u64),
    ) -> Result<GpuBackend, GpuError> {
        let need = MemoryNeed::new(&plan, blocks)?;
        let room = Room::of(&gpu, &plan);
        room.holds(&need)?;
        let built = Build::new(gpu, plan, blocks).and_then(|build| build.weights(bytes, uploaded)?.finish());
        built.map_err(|error| room.explain(&need, error))
    }

    /// The device.
    pub fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    /// Sends what the batch brings along.
    fn send(&mut self, batch: &Batch<'_>) -> Result<(), GpuError> {
        let GpuBackend { gpu, plan, inputs, phases, .. } = self;
        gpu.write(&inputs.tokens, bytemuck::cast_slice(batch.tokens))?;
        gpu.write(&inputs.indices, bytemuck::cast_slice(batch.logits))?;
        inputs.starts.clear();
        inputs.starts.extend(batch.tables.iter().scan(0, |next, table| {
            let first = *next;
            *next += table.len() as u32;
            Some(first)
        }));
        inputs.words.clear();
        for (position, sequence) in batch.positions.iter().zip(batch.sequences) {
            inputs.words.extend([*position, inputs.starts[*sequence as usize]]);
        }
        gpu.write(&inputs.rows, bytemuck::cast_slice(&inputs.words))?;
        inputs.words.clear();
        batch.tables.iter().for_each(|table| inputs.words.extend_from_slice(table));
        gpu.write(&inputs.tables, bytemuck::cast_slice(&inputs.words))?;
        for ((rope, phases), buffer) in plan.ropes.iter().zip(phases).zip(&inputs.phases) {
            phases.compute(rope, batch);
            gpu.write(buffer, bytemuck::cast_slice(phases.all()))?;
        }
        Ok(())
    }

    /// Runs the batch, and the logits of its rows in pieces.
    fn replay(&mut self, batch: &Batch<'_>) -> Result<(), GpuError> {
        let GpuBackend { gpu, plan, batch: steps, tail, logits, staging, results, .. } = self;
        results.clear();
        let pieces = batch.logits.len().div_ceil(LOGITS_ROWS).max(1);
        for piece in 0..pieces {
            let first = piece * LOGITS_ROWS;
            let rows = (batch.logits.len() - first).min(LOGITS_ROWS);
            if piece == 0 {
                for step in steps.iter_mut() {
                    step.follow(gpu, batch.rows() as u32)?;
                }
            }
            if rows > 0 {
                for (i, step) in tail.iter_mut().enumerate() {
                    let dispatch = step.follow(gpu, rows as u32)?;
                    // The first of the tail gathers rows, this piece's from its first index on.
                    if i == 0 {
                        gpu.patch(dispatch, engine::GATHER_FIRST, first as u32);
                    }
                }
            }
            let mut encoder = gpu.device.create_command_encoder(&Default::default());
            let mut pass = encoder.begin_compute_pass(&ComputePassDescriptor::default());
            if piece == 0 {
                steps.iter().filter_map(Step::dispatch).for_each(|dispatch| dispatch.record(&mut pass));
            }
            if rows > 0 {
                tail.iter().filter_map(Step::dispatch).for_each(|dispatch| dispatch.record(&mut pass));
            }
            drop(pass);
            let bytes = (rows * plan.vocab * 4) as u64;
            if rows > 0 {
                encoder.copy_buffer_to_buffer(&logits.inner, 0, &staging.inner, 0, bytes);
            }
            gpu.queue.submit([encoder.finish()]);
            if rows == 0 {
                gpu.wait()?;
                continue;
            }
            let slice = staging.inner.slice(..bytes);
            slice.map_async(MapMode::Read, |_| {});
            gpu.wait()?;
            let mapped =
                slice.get_mapped_range().map_err(|error| GpuError::Refused { reason: error.to_string() })?;
            results.extend(
                mapped.chunks_exact(4).map(|word| f32::from_le_bytes([word[0], word[1], word[2], word[3]])),
            );
            drop(mapped);
            staging.inner.unmap();
        }
        Ok(())
    }
}

impl Backend for GpuBackend {
    fn plan(&self) -> &Plan {
        &self.plan
    }

    fn kv_blocks(&self) -> usize {
        self.blocks
    }

    fn forward(&mut self, batch: &Batch<'_>) -> Result<&[f32], BackendError> {
        if batch.rows() > MAX_ROWS {
            return Err(BackendError::TooManyRows { rows: batch.rows(), most: MAX_ROWS });
        }
        let entries: usize = batch.tables.iter().map(|table| table.len()).sum();
        // Tables may share blocks, but not so many that together they outgrow what was set aside.
        if !batch.is_sound(self.plan.vocab, self.blocks) || 4 * entries as u64 > self.inputs.tables.bytes() {
            return Err(BackendError::UnsoundBatch);
        }
        let device = |error: GpuError| BackendError::Device(error.to_string());
        self.send(batch).map_err(device)?;
        self.replay(batch).map_err(device)?;
        Ok(&self.results)
    }
}
