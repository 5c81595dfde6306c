//! The kernels of a plan, for every kind of batch.

use gyrus_kernels::{Batch, LOGITS, RowKind};

use crate::error::GpuError;
use crate::lower::{BatchKind, Lowering, Segments};
use crate::step::Step;

/// The kernels of batches that are given with their block tables. Layers compute all rows; logits are computed of rows
/// that want them, at most [`MATVEC_ROWS`](crate::buffers::MATVEC_ROWS) at a time, since a vocabulary times a batch is large.
#[derive(Debug)]
pub(crate) struct Tables {
    /// One row from its token to its logits.
    pub(crate) decode: Vec<Step>,
    /// Layers for rows of different sequences.
    pub(crate) sequences: Vec<Step>,
    /// Logits of all rows of a batch of up to [`MATVEC_ROWS`](crate::buffers::MATVEC_ROWS).
    pub(crate) logits_of_all: Vec<Step>,
    pub(crate) chunks: ChunkTables,
    /// The encoder of a plan that has one, and the results of rows that want them.
    pub(crate) encode: [Vec<Step>; 2],
}

/// The kernels of chunks: rows of any sequences, of which some may want logits.
#[derive(Debug)]
pub(crate) struct ChunkTables {
    /// Layers for up to [`MATVEC_ROWS`](crate::buffers::MATVEC_ROWS) rows.
    pub(crate) short_chunk: Vec<Step>,
    /// Layers for any number of rows.
    pub(crate) prefill: Vec<Step>,
    /// Logits of one row of a batch.
    pub(crate) logits_of_one: Vec<Step>,
    /// Logits of up to [`MATVEC_ROWS`](crate::buffers::MATVEC_ROWS) rows of a batch; an encoder's results of any number.
    logits_of_some: Vec<Step>,
    /// The most rows of a tile of flash attention.
    pub(crate) tile_rows: u32,
    /// There are no logits: what rows are does not matter.
    is_encoder: bool,
}

impl Tables {
    pub(crate) fn new(lowering: &Lowering<'_>) -> Result<Tables, GpuError> {
        let Segments { all, layers, logits } = Segments::of(lowering.plan);
        let encode = Segments::split(&lowering.plan.encode);
        let encode = [
            lowering.steps(encode.layers, BatchKind::Prefill, false)?,
            lowering.steps(encode.logits, BatchKind::Prefill, false)?,
        ];
        if lowering.plan.output(LOGITS).is_none() {
            // An encoder: all rows are computed as those of prompts are.
            let chunks = ChunkTables {
                short_chunk: Vec::new(),
                prefill: lowering.steps(layers, BatchKind::Prefill, false)?,
                logits_of_one: Vec::new(),
                logits_of_some: lowering.steps(logits, BatchKind::Prefill, false)?,
                tile_rows: lowering.context().tile_rows(),
                is_encoder: true,
            };
            let (decode, sequences, logits_of_all) = (Vec::new(), Vec::new(), Vec::new());
            return Ok(Tables { decode, sequences, logits_of_all, chunks, encode });
        }
        Ok(Tables {
            encode,
            decode: lowering.steps(all, BatchKind::Decode, true)?,
            sequences: lowering.steps(layers, BatchKind::Sequences, false)?,
            logits_of_all: lowering.steps(logits, BatchKind::ShortChunk, true)?,
            chunks: ChunkTables::new(lowering)?,
        })
    }

    /// The kernels of a batch's layers, and those of the logits of `wanted` of its rows.
    pub(crate) fn of_batch(&mut self, batch: &Batch<'_>, wanted: usize) -> (&mut [Step], &mut [Step]) {
        // A single row's layers and logits are one table. Its kernels take the first block table for its own.
        let single = !self.chunks.is_encoder
            && batch.rows() == 1
            && batch.kind == RowKind::Generated
            && batch.logits.len() == 1
            && batch.sequences[0] == 0;
        if single { (&mut self.decode, &mut []) } else { self.chunks.of_batch(batch.kind, wanted) }
    }
}

impl ChunkTables {
    pub(crate) fn new(lowering: &Lowering<'_>) -> Result<ChunkTables, GpuError> {
        let Segments { layers, logits, .. } = Segments::of(lowering.plan);
        Ok(ChunkTables {
            short_chunk: lowering.steps(layers, BatchKind::ShortChunk, false)?,
            prefill: lowering.steps(layers, BatchKind::Prefill, false)?,
            logits_of_one: lowering.steps(logits, BatchKind::Decode, false)?,
            logits_of_some: lowering.steps(logits, BatchKind::ShortChunk, false)?,
            tile_rows: lowering.context().tile_rows(),
            is_encoder: false,
        })
    }

    /// The kernels of layers for rows of this kind, and those of the logits of `wanted` of them.
    pub(crate) fn of_batch(&mut self, kind: RowKind, wanted: usize) -> (&mut [Step], &mut [Step]) {
        let logits: &mut [Step] = match wanted {
            0 => &mut [],
            1 if !self.is_encoder => &mut self.logits_of_one,
            _ => &mut self.logits_of_some,
        };
        let layers = match kind {
            RowKind::Generated if !self.is_encoder => &mut self.short_chunk,
            RowKind::Generated | RowKind::Prompt => &mut self.prefill,
        };
        (layers, logits)
    }
}
