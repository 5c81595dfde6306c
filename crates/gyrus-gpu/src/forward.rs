//! Runs a batch and waits for it: sends its rows, replays its kernels, reads back its logits.

use gyrus_kernels::call::{Tile, delta_run, engine, push_tiles};
use gyrus_kernels::{Batch, Plan, RowKind};
use wgpu::MapMode;

use crate::backend::GpuBackend;
use crate::buffer::Buffer;
use crate::buffers::{Buffers, MATVEC_ROWS, Write};
use crate::error::GpuError;
use crate::lower::Operand;
use crate::step::{BatchShape, Step};

/// The rows of a batch in the form that kernels read, in memory that is reused.
#[derive(Debug, Default)]
pub(crate) struct SentRows {
    /// The first entry of each sequence's block table.
    pub(crate) starts: Vec<u32>,
    words: Vec<u32>,
    tiles: Vec<Tile>,
}

/// Which kernels run a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lists {
    /// Those of batches with their own block tables.
    Batch,
    /// Those of chunks of slots.
    Slots,
}

impl SentRows {
    /// Writes a batch's tokens, positions and rope frequencies, and tiles of at most `tile_rows` rows. Block tables begin
    /// at `starts`. Returns the number of tiles of flash attention.
    pub(crate) fn send(
        &mut self,
        plan: &Plan,
        buffers: &Buffers,
        batch: &Batch<'_>,
        tile_rows: u32,
        write: &mut Write<'_>,
    ) -> Result<u32, GpuError> {
        let SentRows { starts, words, tiles } = self;
        write(buffers.get(&Operand::Tokens)?, batch.tokens)?;
        if !batch.logits.is_empty() {
            write(buffers.get(&Operand::LogitRows)?, batch.logits)?;
        }
        words.clear();
        for (position, sequence) in batch.positions.iter().zip(batch.sequences) {
            words.extend([*position, starts[*sequence as usize]]);
        }
        write(buffers.get(&Operand::Rows)?, words)?;
        tiles.clear();
        if batch.kind == RowKind::Prompt {
            push_tiles(batch, tile_rows, true, tiles);
            write(buffers.get(&Operand::Tiles)?, bytemuck::cast_slice(tiles))?;
        }
        if !plan.delta.is_empty() {
            words.clear();
            for (first, count, sequence) in batch.runs() {
                words.extend(delta_run(first as u32, count as u32, batch.records[sequence]));
            }
            write(buffers.get(&Operand::Runs)?, words)?;
            words.clear();
            let of_rows =
                batch.runs().zip(0..).flat_map(|((_, count, _), run)| std::iter::repeat_n(run, count));
            words.extend(of_rows);
            write(buffers.get(&Operand::RowRuns)?, words)?;
        }
        buffers.write_ropes(plan, batch, write)?;
        Ok(tiles.len() as u32)
    }
}

impl GpuBackend {
    /// Sends a batch's rows and block tables. Returns the number of tiles of flash attention.
    pub(crate) fn send(&mut self, batch: &Batch<'_>) -> Result<u32, GpuError> {
        let GpuBackend { gpu, plan, buffers, tables, sent, .. } = self;
        // A sequence's tables have the same length in all groups, so that they begin at the same entry.
        for group in 0..batch.groups() {
            sent.starts.clear();
            sent.words.clear();
            for table in batch.tables_of(group) {
                sent.starts.push(sent.words.len() as u32);
                sent.words.extend_from_slice(table);
            }
            gpu.write(buffers.get(&Operand::BlockTables(group as u8))?, bytemuck::cast_slice(&sent.words))?;
        }
        let tile_rows = tables.chunks.tile_rows;
        let mut write = |buffer: &Buffer, words: &[u32]| gpu.write(buffer, bytemuck::cast_slice(words));
        sent.send(plan, buffers, batch, tile_rows, &mut write)
    }

    /// Runs a batch that was sent, and reads back the logits of its rows, [`MATVEC_ROWS`] at a time.
    pub(crate) fn replay(&mut self, batch: &Batch<'_>, tiles: u32, lists: Lists) -> Result<(), GpuError> {
        let GpuBackend { gpu, plan, tables, slots, buffers, readback, results, .. } = self;
        results.clear();
        let rows = batch.rows();
        let runs = batch.runs().count() as u32;
        let shape = BatchShape { rows: rows as u32, positions: batch.positions, tiles, runs, splits: &[] };
        let chunks = batch.logits.len().div_ceil(MATVEC_ROWS).max(1);
        for chunk in 0..chunks {
            let first = chunk * MATVEC_ROWS;
            let wanted = (batch.logits.len() - first).min(MATVEC_ROWS);
            let (layers, logits) = match lists {
                Lists::Batch => tables.of_batch(batch, wanted),
                Lists::Slots => slots.chunk_tables()?.of_batch(batch.kind, wanted),
            };
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
            let dispatches = layers.iter().chain(&*logits).filter_map(Step::dispatch);
            gpu.compile_for_wgpu(dispatches.clone())?;
            let mut encoder = gpu.device.create_command_encoder(&Default::default());
            let (mut pass, queries) = gpu.begin_pass(&mut encoder);
            for dispatch in dispatches {
                dispatch.record(gpu, &mut pass)?;
            }
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
}
