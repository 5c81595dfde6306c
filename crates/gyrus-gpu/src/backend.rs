//! Runs a plan: kernels are bound once and replayed for every batch.

use gyrus_kernels::call::{Tile, engine, push_tiles};
use gyrus_kernels::observe::Observer;
use gyrus_kernels::{Backend, BackendError, Batch, Chain, Instruments, KvSize, Plan, WeightSpec};
use wgpu::{BufferUsages, MapMode};

use crate::buffer::Buffer;
use crate::buffers::{Buffers, MATVEC_ROWS, MAX_ROWS, logits_readback_bytes};
use crate::chain::Steps;
use crate::device::Gpu;
use crate::error::GpuError;
use crate::lower::{BatchKind, Lowering, Operand, Segments};
use crate::memory::{MemoryBudget, MemoryNeed};
use crate::step::{BatchShape, Step};
use crate::tuning::Tuning;
use crate::weight::Weights;

/// A backend that runs a plan on a GPU.
#[derive(Debug)]
pub struct GpuBackend {
    pub(crate) gpu: Gpu,
    pub(crate) plan: Plan,
    pub(crate) kv: KvSize,
    pub(crate) buffers: Buffers,
    pub(crate) tables: Tables,
    pub(crate) weights: Weights,
    pub(crate) tuning: Tuning,
    pub(crate) steps: Steps,
    /// Logits on their way back to the host.
    readback: Buffer,
    results: Vec<f32>,
    /// Where each sequence's block table begins among all of them.
    starts: Vec<u32>,
    /// Words that are about to be sent.
    words: Vec<u32>,
    tiles: Vec<Tile>,
}

/// The kernels of a plan, for every kind of batch. Layers compute all rows; logits are computed of rows that want them, at
/// most [`MATVEC_ROWS`] at a time, since a vocabulary times a batch is large.
#[derive(Debug)]
pub(crate) struct Tables {
    /// One row from its token to its logits.
    pub(crate) decode: Vec<Step>,
    /// Layers for rows of different sequences.
    pub(crate) sequences: Vec<Step>,
    /// Layers for up to [`MATVEC_ROWS`] rows.
    pub(crate) short_chunk: Vec<Step>,
    /// Layers for any number of rows.
    pub(crate) prefill: Vec<Step>,
    /// Logits of all rows of a batch of up to [`MATVEC_ROWS`].
    pub(crate) logits_of_all: Vec<Step>,
    /// Logits of one row of a batch.
    pub(crate) logits_of_one: Vec<Step>,
    /// Logits of up to [`MATVEC_ROWS`] rows of a batch.
    logits_of_some: Vec<Step>,
    /// The most rows of a tile of flash attention.
    tile_rows: u32,
}

impl Tables {
    pub(crate) fn new(lowering: &Lowering<'_>) -> Result<Tables, GpuError> {
        let Segments { all, layers, logits } = Segments::of(lowering.plan);
        Ok(Tables {
            decode: lowering.steps(all, BatchKind::Decode, true)?,
            sequences: lowering.steps(layers, BatchKind::Sequences, false)?,
            short_chunk: lowering.steps(layers, BatchKind::ShortChunk, false)?,
            prefill: lowering.steps(layers, BatchKind::Prefill, false)?,
            logits_of_all: lowering.steps(logits, BatchKind::ShortChunk, true)?,
            logits_of_one: lowering.steps(logits, BatchKind::Decode, false)?,
            logits_of_some: lowering.steps(logits, BatchKind::ShortChunk, false)?,
            tile_rows: lowering.context().tile_rows(),
        })
    }

    /// The kernels of a batch's layers, and those of the logits of `wanted` of its rows.
    pub(crate) fn of_batch(&mut self, batch: &Batch<'_>, wanted: usize) -> (&mut [Step], &mut [Step]) {
        let rows = batch.rows();
        // A single row's layers and logits are one table. Its kernels take the first block table for its own.
        let single = rows == 1 && batch.logits.len() == 1 && batch.sequences[0] == 0;
        let layers = match rows {
            1 if single => &mut self.decode,
            1..=MATVEC_ROWS => &mut self.short_chunk,
            _ => &mut self.prefill,
        };
        let logits: &mut [Step] = match wanted {
            0 => &mut [],
            _ if single => &mut [],
            1 => &mut self.logits_of_one,
            _ => &mut self.logits_of_some,
        };
        (layers, logits)
    }

    /// The kernels that decode one token of this many sequences, from tokens to logits.
    pub(crate) fn of_sequences(&mut self, rows: u32) -> (&mut [Step], &mut [Step]) {
        if rows == 1 { (&mut self.decode, &mut []) } else { (&mut self.sequences, &mut self.logits_of_all) }
    }
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
        let lowering =
            Lowering { gpu: &gpu, plan: &plan, weights: &weights, buffers: &buffers, tuning: &tuning };
        let tables = Tables::new(&lowering)?;
        // Decoding one sequence and prefill are compiled now rather than at the first token.
        let rungs = gpu.rungs();
        let launches = (tables.decode.iter().filter_map(|step| step.launch(rungs, 1)))
            .chain(tables.prefill.iter().filter_map(|step| step.launch(rungs, MAX_ROWS as u32)))
            .chain(tables.logits_of_one.iter().filter_map(|step| step.launch(rungs, 1)));
        gpu.compile(&launches.collect::<Result<Vec<_>, _>>()?)?;
        let usage = BufferUsages::MAP_READ | BufferUsages::COPY_DST;
        let readback = gpu.create(logits_readback_bytes(&plan), usage)?;
        Ok(GpuBackend {
            gpu,
            plan,
            kv,
            buffers,
            tables,
            weights,
            tuning,
            steps: Steps::default(),
            readback,
            results: Vec::new(),
            starts: Vec::new(),
            words: Vec::new(),
            tiles: Vec::new(),
        })
    }

    pub(crate) fn lowering(&self) -> Lowering<'_> {
        let GpuBackend { gpu, plan, weights, buffers, tuning, .. } = self;
        Lowering { gpu, plan, weights, buffers, tuning }
    }

    /// The device.
    pub fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    /// Sends a batch's tokens, positions and block tables. Each sequence's table begins `stride` entries after the one
    /// before, or directly after it. Returns the number of tiles of flash attention.
    pub(crate) fn send(&mut self, batch: &Batch<'_>, stride: Option<usize>) -> Result<u32, GpuError> {
        let GpuBackend { gpu, plan, buffers, tables, starts, words, tiles, .. } = self;
        gpu.write(buffers.get(&Operand::Tokens)?, bytemuck::cast_slice(batch.tokens))?;
        gpu.write(buffers.get(&Operand::LogitRows)?, bytemuck::cast_slice(batch.logits))?;
        // A sequence's tables have the same length in all groups, so that they begin at the same entry.
        for group in 0..batch.groups() {
            starts.clear();
            words.clear();
            for (number, table) in batch.tables_of(group).enumerate() {
                if let Some(stride) = stride {
                    words.resize(number * stride, 0);
                }
                starts.push(words.len() as u32);
                words.extend_from_slice(table);
            }
            gpu.write(buffers.get(&Operand::BlockTables(group as u8))?, bytemuck::cast_slice(words))?;
        }
        words.clear();
        for (position, sequence) in batch.positions.iter().zip(batch.sequences) {
            words.extend([*position, starts[*sequence as usize]]);
        }
        gpu.write(buffers.get(&Operand::Rows)?, bytemuck::cast_slice(words))?;
        tiles.clear();
        if batch.rows() > MATVEC_ROWS {
            push_tiles(batch, tables.tile_rows, true, tiles);
            gpu.write(buffers.get(&Operand::Tiles)?, bytemuck::cast_slice(tiles))?;
        }
        buffers.send_ropes(gpu, plan, batch)?;
        Ok(tiles.len() as u32)
    }

    /// Runs a batch, and reads back the logits of its rows, [`MATVEC_ROWS`] at a time.
    fn replay(&mut self, batch: &Batch<'_>, tiles: u32) -> Result<(), GpuError> {
        let GpuBackend { gpu, plan, tables, buffers, readback, results, .. } = self;
        results.clear();
        let rows = batch.rows();
        let shape = BatchShape { rows: rows as u32, positions: batch.positions, tiles };
        let chunks = batch.logits.len().div_ceil(MATVEC_ROWS).max(1);
        for chunk in 0..chunks {
            let first = chunk * MATVEC_ROWS;
            let wanted = (batch.logits.len() - first).min(MATVEC_ROWS);
            let (layers, logits) = tables.of_batch(batch, wanted);
            let layers = if chunk == 0 { layers } else { &mut [] };
            for step in layers.iter_mut() {
                step.prepare(gpu, shape)?;
            }
            for (i, step) in logits.iter_mut().enumerate() {
                let dispatch = step.prepare(gpu, BatchShape { rows: wanted as u32, ..shape })?;
                // The first step gathers rows, this chunk's from its first index on.
                if let (0, Some(dispatch)) = (i, dispatch) {
                    gpu.patch(dispatch, engine::GATHER_FIRST, first as u32);
                }
            }
            let mut encoder = gpu.device.create_command_encoder(&Default::default());
            let (mut pass, queries) = gpu.begin_pass(&mut encoder);
            let dispatches = layers.iter().chain(&*logits).filter_map(Step::dispatch);
            dispatches.for_each(|dispatch| dispatch.record(&mut pass));
            drop(pass);
            gpu.end_pass(&mut encoder, queries)?;
            let bytes = (wanted * plan.vocab * 4) as u64;
            if wanted > 0 {
                let logits = buffers.get(&Operand::Scratch(plan.logits()))?;
                encoder.copy_buffer_to_buffer(&logits.inner, 0, &readback.inner, 0, bytes);
            }
            gpu.queue.submit([encoder.finish()]);
            if wanted == 0 {
                gpu.wait()?;
                continue;
            }
            let slice = readback.inner.slice(..bytes);
            slice.map_async(MapMode::Read, |_| {});
            gpu.wait()?;
            let mapped = slice.get_mapped_range().map_err(|error| GpuError::internal(error.to_string()))?;
            results.extend(
                mapped.chunks_exact(4).map(|word| f32::from_le_bytes([word[0], word[1], word[2], word[3]])),
            );
            drop(mapped);
            readback.inner.unmap();
        }
        Ok(())
    }

    /// Whether kernels can be given this batch: they check nothing.
    pub(crate) fn check(&self, batch: &Batch<'_>) -> Result<(), BackendError> {
        if batch.rows() > MAX_ROWS {
            return Err(BackendError::TooManyRows { rows: batch.rows(), most: MAX_ROWS });
        }
        // Tables may share blocks, so that together they can have more entries than their buffer.
        if batch.rows() == 0
            || !batch.is_sound(self.plan.vocab, &self.kv.blocks)
            || batch.tables_of(0).map(<[u32]>::len).sum::<usize>() > self.buffers.table_entries()
        {
            return Err(BackendError::UnsoundBatch);
        }
        Ok(())
    }
}

impl Drop for GpuBackend {
    fn drop(&mut self) {
        // Steps in flight use the buffers that are dropped now.
        self.steps.end(&self.gpu);
    }
}

impl Backend for GpuBackend {
    fn plan(&self) -> &Plan {
        &self.plan
    }

    fn kv_blocks(&self) -> &[usize] {
        &self.kv.blocks
    }

    fn forward(&mut self, batch: &Batch<'_>) -> Result<&[f32], BackendError> {
        self.check(batch)?;
        self.steps.end(&self.gpu);
        let tiles = self.send(batch, None)?;
        self.replay(batch, tiles)?;
        batch.check_logits(&self.results, self.plan.vocab)?;
        Ok(&self.results)
    }

    fn observe(&mut self, batch: &Batch<'_>, observer: &mut Observer<'_>) -> Result<(), BackendError> {
        self.check(batch)?;
        self.steps.end(&self.gpu);
        let tiles = self.send(batch, None)?;
        self.replay_observed(batch, tiles, observer)
    }

    fn chain(&mut self) -> Option<&mut dyn Chain> {
        Some(self)
    }

    fn instruments(&mut self) -> Option<&mut dyn Instruments> {
        Some(self)
    }
}
