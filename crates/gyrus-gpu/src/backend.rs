//! Runs a plan: tables of kernels that are bound once and replayed.

use gyrus_kernels::call::{Tile, engine, push_tiles};
use gyrus_kernels::{Backend, BackendError, Batch, Chain, Instruments, Op, Plan, Precision, WeightSpec};
use wgpu::{BufferUsages, ComputePassDescriptor, MapMode};

use crate::buffer::Buffer;
use crate::buffers::{Buffers, FEW, MAX_ROWS};
use crate::chain::Steps;
use crate::device::Gpu;
use crate::error::GpuError;
use crate::lower::{Class, Lowering};
use crate::memory::{MemoryNeed, Room};
use crate::step::{Extent, Step};
use crate::tuning::Tuning;
use crate::weight::Weights;

/// A plan on a GPU.
#[derive(Debug)]
pub struct GpuBackend {
    pub(crate) gpu: Gpu,
    pub(crate) plan: Plan,
    pub(crate) blocks: usize,
    pub(crate) buffers: Buffers,
    pub(crate) tables: Tables,
    pub(crate) weights: Weights,
    pub(crate) tuning: Tuning,
    pub(crate) steps: Steps,
    staging: Buffer,
    results: Vec<f32>,
    /// Where each sequence's block table begins among all of them.
    starts: Vec<u32>,
    /// Room to put words together before they are sent.
    words: Vec<u32>,
    tiles: Vec<Tile>,
}

/// The kernels of a plan, for batches of different sizes. The first part of a plan works on all rows, the second on
/// those that want logits, at most [`FEW`] at a time since a vocabulary times a batch is large.
#[derive(Debug)]
pub(crate) struct Tables {
    /// A single row from its token to its logits.
    pub(crate) one: Vec<Step>,
    /// The first part for few rows of different sequences.
    pub(crate) each: Vec<Step>,
    /// The first part for few rows.
    pub(crate) few: Vec<Step>,
    /// The first part for any number of rows.
    pub(crate) many: Vec<Step>,
    /// The second part for few rows that are all the batch has.
    pub(crate) tail_of_all: Vec<Step>,
    /// The second part for one row of many.
    pub(crate) tail_of_one: Vec<Step>,
    /// The second part for few rows of many.
    tail_of_few: Vec<Step>,
    /// Rows of a tile of attention.
    tile_rows: u32,
}

impl Tables {
    pub(crate) fn new(lowering: &Lowering<'_>) -> Result<Tables, GpuError> {
        let ops = &lowering.plan.forward;
        let gather = ops.iter().position(|op| matches!(op, Op::Gather { .. })).unwrap_or(ops.len());
        let (body, tail) = ops.split_at(gather);
        // In single precision, nothing is fused: it is what the fused kernels are held to.
        let fast = lowering.plan.precision == Precision::Fast;
        let class = |class| if fast { class } else { Class::Many };
        Ok(Tables {
            one: lowering.table(ops, class(Class::One), true)?,
            each: lowering.table(body, class(Class::Each), false)?,
            few: lowering.table(body, class(Class::Few), false)?,
            many: lowering.table(body, Class::Many, false)?,
            tail_of_all: lowering.table(tail, class(Class::Few), true)?,
            tail_of_one: lowering.table(tail, class(Class::One), false)?,
            tail_of_few: lowering.table(tail, class(Class::Few), false)?,
            tile_rows: lowering.flash(1.0, 0).map_or(1, |(_, _, rows)| rows),
        })
    }
}

impl Tables {
    /// The kernels of so many rows of different texts, from their tokens to their logits.
    pub(crate) fn of_sequences(&mut self, rows: u32) -> (&mut [Step], &mut [Step]) {
        if rows == 1 { (&mut self.one, &mut []) } else { (&mut self.each, &mut self.tail_of_all) }
    }
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
        GpuBackend::build(gpu, plan, blocks, bytes, uploaded).map_err(|error| room.explain(&need, error))
    }

    fn build<D: AsRef<[u8]>>(
        gpu: Gpu,
        plan: Plan,
        blocks: usize,
        bytes: impl Fn(&WeightSpec) -> Option<D>,
        uploaded: impl Fn(u64),
    ) -> Result<GpuBackend, GpuError> {
        let buffers = Buffers::new(&gpu, &plan, blocks)?;
        let weights = Weights::upload(&gpu, &plan, bytes, &uploaded)?;
        let tuning = gpu.tuned.as_deref().map(Tuning::read).unwrap_or_default();
        let lowering =
            Lowering { gpu: &gpu, plan: &plan, weights: &weights, buffers: &buffers, tuning: &tuning };
        let tables = Tables::new(&lowering)?;
        // Compiled now rather than at the first token: a single row, and as many as a prompt has.
        let launches = (tables.one.iter().filter_map(|step| step.launch(1)))
            .chain(tables.many.iter().filter_map(|step| step.launch(MAX_ROWS as u32)))
            .chain(tables.tail_of_one.iter().filter_map(|step| step.launch(1)));
        gpu.compile(&launches.collect::<Result<Vec<_>, _>>()?)?;
        let staging =
            gpu.create((FEW * plan.vocab * 4) as u64, BufferUsages::MAP_READ | BufferUsages::COPY_DST)?;
        Ok(GpuBackend {
            gpu,
            plan,
            blocks,
            buffers,
            tables,
            weights,
            tuning,
            steps: Steps::default(),
            staging,
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

    /// Sends what the batch brings along. Each sequence's table begins `stride` entries behind the one before, or
    /// directly behind it.
    /// Returns the number of tiles that many rows attend in.
    pub(crate) fn send(&mut self, batch: &Batch<'_>, stride: Option<usize>) -> Result<u32, GpuError> {
        let GpuBackend { gpu, plan, buffers, tables, starts, words, tiles, .. } = self;
        gpu.write(&buffers.tokens, bytemuck::cast_slice(batch.tokens))?;
        gpu.write(&buffers.indices, bytemuck::cast_slice(batch.logits))?;
        starts.clear();
        words.clear();
        for (number, table) in batch.tables.iter().enumerate() {
            if let Some(stride) = stride {
                words.resize(number * stride, 0);
            }
            starts.push(words.len() as u32);
            words.extend_from_slice(table);
        }
        gpu.write(&buffers.tables, bytemuck::cast_slice(words))?;
        words.clear();
        for (position, sequence) in batch.positions.iter().zip(batch.sequences) {
            words.extend([*position, starts[*sequence as usize]]);
        }
        gpu.write(&buffers.rows, bytemuck::cast_slice(words))?;
        tiles.clear();
        if batch.rows() > FEW {
            push_tiles(batch, tables.tile_rows, true, tiles);
            gpu.write(&buffers.tiles, bytemuck::cast_slice(tiles))?;
        }
        buffers.send_turns(gpu, plan, batch)?;
        Ok(tiles.len() as u32)
    }

    /// Runs the batch, and the logits of its rows in pieces.
    fn replay(&mut self, batch: &Batch<'_>, tiles: u32) -> Result<(), GpuError> {
        let GpuBackend { gpu, plan, tables, buffers, staging, results, .. } = self;
        results.clear();
        let rows = batch.rows();
        let extent = Extent { rows: rows as u32, positions: batch.positions, tiles };
        // A single row is taken through both parts at once. Its kernels take it to be of the first block table.
        let single = rows == 1 && batch.logits.len() == 1 && batch.sequences[0] == 0;
        let body: &mut [Step] = match rows {
            1 if single => &mut tables.one,
            1..=FEW => &mut tables.few,
            _ => &mut tables.many,
        };
        for step in body.iter_mut() {
            step.follow(gpu, extent)?;
        }
        let pieces = batch.logits.len().div_ceil(FEW).max(1);
        for piece in 0..pieces {
            let first = piece * FEW;
            let wanted = (batch.logits.len() - first).min(FEW);
            let tail: &mut [Step] = match wanted {
                0 => &mut [],
                _ if single => &mut [],
                1 => &mut tables.tail_of_one,
                _ => &mut tables.tail_of_few,
            };
            for (i, step) in tail.iter_mut().enumerate() {
                let dispatch = step.follow(gpu, Extent { rows: wanted as u32, ..extent })?;
                // The first of the tail gathers rows, this piece's from its first index on.
                if let (0, Some(dispatch)) = (i, dispatch) {
                    gpu.patch(dispatch, engine::GATHER_FIRST, first as u32);
                }
            }
            let mut encoder = gpu.device.create_command_encoder(&Default::default());
            let mut pass = encoder.begin_compute_pass(&ComputePassDescriptor::default());
            let body = if piece == 0 { &*body } else { &[] };
            let dispatches = body.iter().chain(&*tail).filter_map(Step::dispatch);
            dispatches.for_each(|dispatch| dispatch.record(&mut pass));
            drop(pass);
            let bytes = (wanted * plan.vocab * 4) as u64;
            if wanted > 0 {
                let logits = buffers.scratch(plan.logits);
                encoder.copy_buffer_to_buffer(&logits.inner, 0, &staging.inner, 0, bytes);
            }
            gpu.queue.submit([encoder.finish()]);
            if wanted == 0 {
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

    /// Whether a batch is one that kernels may be given.
    pub(crate) fn check(&self, batch: &Batch<'_>) -> Result<(), BackendError> {
        if batch.rows() > MAX_ROWS {
            return Err(BackendError::TooManyRows { rows: batch.rows(), most: MAX_ROWS });
        }
        let entries: usize = batch.tables.iter().map(|table| table.len()).sum();
        // Tables may share blocks, but not so many that together they outgrow what was set aside.
        if batch.rows() == 0
            || !batch.is_sound(self.plan.vocab, self.blocks)
            || entries > self.buffers.entries()
        {
            return Err(BackendError::UnsoundBatch);
        }
        Ok(())
    }
}

impl Drop for GpuBackend {
    fn drop(&mut self) {
        // Steps in flight use what is dropped now.
        self.steps.end(&self.gpu);
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
        self.check(batch)?;
        self.steps.end(&self.gpu);
        let device = |error: GpuError| BackendError::Device(error.to_string());
        let tiles = self.send(batch, None).map_err(device)?;
        self.replay(batch, tiles).map_err(device)?;
        batch.check_logits(&self.results, self.plan.vocab)?;
        Ok(&self.results)
    }

    fn chain(&mut self) -> Option<&mut dyn Chain> {
        Some(self)
    }

    fn instruments(&mut self) -> Option<&mut dyn Instruments> {
        Some(self)
    }
}
