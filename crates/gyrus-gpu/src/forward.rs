//! Runs a batch and waits for it: sends its rows, replays its kernels, reads back its results.

use gyrus_kernels::call::{Tile, delta_run, engine, push_tiles};
use gyrus_kernels::{Batch, BufferId, Demands, ENCODED, LOGITS, Op, Plan, RowKind};
use wgpu::{BufferUsages, MapMode};

use crate::backend::GpuBackend;
use crate::buffer::Buffer;
use crate::buffers::{Buffers, Write, most_rows, result_rows, span_groups};
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
    /// For each KV group that rows see the extent of, the most splits of a row's attention.
    spans: Vec<(u8, u32)>,
}

/// What a pass of a plan reads beside tokens and positions.
#[derive(Debug, Default)]
pub(crate) struct PassInputs {
    /// What it demands of a batch.
    pub(crate) demands: Demands,
    /// KV groups of which it sees the extent.
    spans: Vec<u8>,
    has_types: bool,
    /// Where its features go.
    features: Option<BufferId>,
}

impl PassInputs {
    pub(crate) fn of(plan: &Plan, ops: &[Op]) -> PassInputs {
        let features = ops.iter().find_map(|op| match op {
            Op::Features { out } => Some(*out),
            _ => None,
        });
        PassInputs {
            demands: plan.demands(ops),
            spans: span_groups(ops).into_iter().collect(),
            has_types: ops.iter().any(|op| matches!(op, Op::AddTypes { .. })),
            features,
        }
    }

    /// Whether every row sees something: kernels take the last position of its extent for its own.
    pub(crate) fn have_extents(&self, batch: &Batch<'_>) -> bool {
        self.spans.iter().all(|group| (0..batch.rows()).all(|row| batch.extent(row, *group) > 0))
    }
}

/// Which kernels run a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lists {
    /// Those of the encoder.
    Encode,
    /// Those of batches with their own block tables.
    Batch,
    /// Those of chunks of slots.
    Slots,
}

impl SentRows {
    /// For each KV group that the rows see the extent of, the most splits of a row's attention.
    pub(crate) fn spans(&self) -> &[(u8, u32)] {
        &self.spans
    }

    /// Writes a batch's tokens, positions and rope frequencies, what else the pass reads, and tiles of at most `tile_rows`
    /// rows. Block tables begin at `starts`. Returns the number of tiles of flash attention.
    pub(crate) fn send(
        &mut self,
        plan: &Plan,
        pass: &PassInputs,
        buffers: &Buffers,
        batch: &Batch<'_>,
        tile_rows: u32,
        write: &mut Write<'_>,
    ) -> Result<u32, GpuError> {
        let SentRows { starts, words, tiles, spans } = self;
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
        // The rows of a plan without logits are all computed as those of prompts.
        if batch.kind == RowKind::Prompt || plan.output(LOGITS).is_none() {
            push_tiles(batch, tile_rows, None, tiles);
            write(buffers.get(&Operand::Tiles)?, bytemuck::cast_slice(tiles))?;
        }
        let tile_count = tiles.len() as u32;
        spans.clear();
        for &group in &pass.spans {
            words.clear();
            let mut splits = 1;
            for (row, sequence) in batch.sequences.iter().enumerate() {
                let last = batch.extent(row, group).saturating_sub(1);
                splits = splits.max(engine::splits(last, 0));
                words.extend([last, starts[*sequence as usize]]);
            }
            write(buffers.get(&Operand::SpanRows(group))?, words)?;
            spans.push((group, splits));
            if tile_count > 0 {
                tiles.clear();
                push_tiles(batch, tile_rows, Some(group), tiles);
                write(buffers.get(&Operand::SpanTiles(group))?, bytemuck::cast_slice(tiles))?;
            }
        }
        if pass.has_types {
            words.clear();
            words.extend_from_slice(batch.inputs.types);
            words.resize(batch.rows(), 0);
            write(buffers.get(&Operand::Types)?, words)?;
        }
        if let Some(out) = pass.features {
            write(buffers.get(&Operand::Scratch(out))?, bytemuck::cast_slice(batch.inputs.features))?;
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
        Ok(tile_count)
    }
}

impl GpuBackend {
    /// Sends a batch's rows and block tables for a pass. Returns the number of tiles of flash attention.
    pub(crate) fn send(&mut self, batch: &Batch<'_>, lists: Lists) -> Result<u32, GpuError> {
        let GpuBackend { gpu, plan, buffers, tables, sent, passes, .. } = self;
        // A sequence's tables begin at the same entry in all groups, so that those of encoders, which may differ in length,
        // are padded.
        for group in 0..batch.groups() {
            sent.starts.clear();
            sent.words.clear();
            for (sequence, table) in batch.tables_of(group).enumerate() {
                sent.starts.push(sent.words.len() as u32);
                sent.words.extend_from_slice(table);
                let padding = longest_table(batch, sequence) - table.len();
                sent.words.extend(std::iter::repeat_n(0, padding));
            }
            gpu.write(buffers.get(&Operand::BlockTables(group as u8))?, bytemuck::cast_slice(&sent.words))?;
        }
        let tile_rows = tables.chunks.tile_rows;
        let mut write = |buffer: &Buffer, words: &[u32]| gpu.write(buffer, bytemuck::cast_slice(words));
        let pass = if lists == Lists::Encode { &passes[0] } else { &passes[1] };
        sent.send(plan, pass, buffers, batch, tile_rows, &mut write)
    }

    /// Runs a batch that was sent, and reads back the results of its rows: logits a few rows at a time.
    pub(crate) fn replay(&mut self, batch: &Batch<'_>, tiles: u32, lists: Lists) -> Result<(), GpuError> {
        let GpuBackend { gpu, plan, kv, tables, slots, buffers, readback, results, sent, .. } = self;
        results.clear();
        let output = match lists {
            Lists::Encode => plan.output(ENCODED),
            Lists::Batch | Lists::Slots => Some(plan.result()),
        };
        let width = output.map_or(0, |id| plan.buffer(id).width);
        // Logits are computed for few rows at a time, the results of encoders for all.
        let at_once = if lists == Lists::Encode { most_rows(plan, kv) } else { result_rows(plan, kv) };
        let rows = batch.rows();
        let runs = batch.runs().count() as u32;
        let shape = BatchShape {
            rows: rows as u32,
            positions: batch.positions,
            tiles,
            runs,
            spans: &sent.spans,
            splits: &[],
        };
        let results_wanted = if output.is_some() { batch.logits.len() } else { 0 };
        let chunks = results_wanted.div_ceil(at_once).max(1);
        for chunk in 0..chunks {
            let first = chunk * at_once;
            let wanted = (results_wanted - first).min(at_once);
            let (layers, logits) = match lists {
                Lists::Encode => {
                    let [layers, logits] = &mut tables.encode;
                    (layers.as_mut_slice(), if wanted > 0 { logits.as_mut_slice() } else { &mut [] })
                }
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
            let bytes = (wanted * width * 4) as u64;
            // The results of an encoder have as many rows as are wanted.
            let larger = match bytes > readback.bytes() {
                true => Some(gpu.create(bytes, BufferUsages::MAP_READ | BufferUsages::COPY_DST)?),
                false => None,
            };
            let readback = larger.as_ref().unwrap_or(readback);
            if let Some(output) = output.filter(|_| wanted > 0) {
                let results = buffers.get(&Operand::Scratch(output))?;
                encoder.copy_buffer_to_buffer(&results.inner, 0, &readback.inner, 0, bytes);
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

/// The length of the longest block table of a sequence.
pub(crate) fn longest_table(batch: &Batch<'_>, sequence: usize) -> usize {
    let groups = batch.groups();
    let tables = batch.tables.iter().skip(sequence * groups).take(groups);
    tables.map(|table| table.len()).max().unwrap_or(0)
}
