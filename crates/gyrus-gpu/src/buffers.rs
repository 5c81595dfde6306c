//! A plan's memory on a device, apart from its weights.

use std::cell::RefCell;
use std::collections::HashMap;

use gyrus_kernels::call::engine::{self, MOST_SPLITS, Paged};
use gyrus_kernels::call::{Storage, Tile};
use gyrus_kernels::{Batch, BufferId, KV_BLOCK, Plan, Precision, Rope, Rows};

use crate::buffer::Buffer;
use crate::device::Gpu;
use crate::error::GpuError;

/// The most rows of one batch.
pub const MAX_ROWS: usize = 512;

/// The most rows that share one reading of the weights, and whose sums have the order that a single row's have.
pub(crate) const FEW: usize = 16;

/// What a plan's kernels read and write.
#[derive(Debug)]
pub(crate) struct Buffers {
    scratch: Vec<Buffer>,
    pub(crate) tokens: Buffer,
    /// Position and first entry of the block table, for each row.
    pub(crate) rows: Buffer,
    pub(crate) tables: Buffer,
    /// Which rows want logits.
    pub(crate) indices: Buffer,
    /// Tiles of rows that attend together.
    pub(crate) tiles: Buffer,
    /// Each rope's turns.
    turns: Vec<Turns>,
    /// K and V of each layer.
    pub(crate) cache: Vec<(Buffer, Buffer)>,
    /// Splits of attention of few rows.
    pub(crate) partials: Buffer,
    /// Rows as bytes, by their width and whether they are normalised, since those may be made while others are read;
    /// one place for all of them, since each is used at once.
    bytes: RefCell<HashMap<(u32, bool), Int8Rows>>,
    /// Rows as halves, likewise.
    halves: RefCell<HashMap<u32, F16RowsBuffers>>,
    blocks: usize,
    kv: Storage,
}

/// A rope's turns, for all rows or for each.
#[derive(Debug)]
struct Turns {
    buffer: Buffer,
    /// Entries from one row to the next; 0 if sequences of all lengths turn alike.
    stride: u32,
    /// The classes of length whose turns the device has, row by row.
    sent: RefCell<Vec<usize>>,
}

/// Rows as bytes.
#[derive(Debug, Clone)]
pub(crate) struct Int8Rows {
    pub(crate) q: Buffer,
    pub(crate) scales: Buffer,
    /// Of those that are normalised 1 / rms, or sums of squares of blocks.
    pub(crate) factors: Buffer,
    pub(crate) squares: Buffer,
}

/// Rows as halves.
#[derive(Debug, Clone)]
pub(crate) struct F16RowsBuffers {
    pub(crate) h: Buffer,
    pub(crate) scales: Buffer,
}

/// Rows of a rope's table of turns: some ropes turn long sequences at other speeds, so that each row has its own.
pub(crate) fn turns_rows(rope: &Rope) -> usize {
    if rope.length_class(usize::MAX) == rope.length_class(0) { 1 } else { MAX_ROWS }
}

impl Buffers {
    pub(crate) fn new(gpu: &Gpu, plan: &Plan, blocks: usize) -> Result<Buffers, GpuError> {
        let rows = |rows: Rows| if rows == Rows::Batch { MAX_ROWS } else { FEW };
        let words = |count: usize| gpu.buffer(4 * count as u64);
        let turns = |rope: &Rope| -> Result<Turns, GpuError> {
            let entries = rope.pairs() + 1;
            if turns_rows(rope) == 1 {
                let buffer = gpu.upload(bytemuck::cast_slice(&engine::turns(rope, 0)))?;
                return Ok(Turns { buffer, stride: 0, sent: RefCell::default() });
            }
            let buffer = words(2 * MAX_ROWS * entries)?;
            Ok(Turns { buffer, stride: entries as u32, sent: RefCell::default() })
        };
        let bytes = (blocks * KV_BLOCK * plan.kv.row() * plan.kv_dtype().block_bytes()) as u64;
        let layer = |_| Ok((gpu.buffer(bytes)?, gpu.buffer(bytes)?));
        let partials = FEW * plan.kv.heads * MOST_SPLITS as usize * (plan.kv.head_dim + 4);
        Ok(Buffers {
            scratch: plan.buffers.iter().map(|b| words(rows(b.rows) * b.width)).collect::<Result<_, _>>()?,
            tokens: words(MAX_ROWS)?,
            rows: words(2 * MAX_ROWS)?,
            // Sequences may share blocks, so that together their tables can be longer than the cache.
            tables: words(blocks.max(FEW) * 4)?,
            indices: words(MAX_ROWS)?,
            tiles: gpu.buffer((MAX_ROWS * size_of::<Tile>()) as u64)?,
            turns: plan.ropes.iter().map(turns).collect::<Result<_, _>>()?,
            cache: (0..plan.kv.layers).map(layer).collect::<Result<_, GpuError>>()?,
            partials: words(partials)?,
            bytes: RefCell::default(),
            halves: RefCell::default(),
            blocks,
            kv: if plan.precision == Precision::Exact { Storage::F32 } else { Storage::F16 },
        })
    }

    pub(crate) fn scratch(&self, id: BufferId) -> &Buffer {
        &self.scratch[id.0 as usize]
    }

    /// A rope's turns, and how far apart those of two rows are.
    pub(crate) fn turns(&self, rope: usize) -> (&Buffer, u32) {
        (&self.turns[rope].buffer, self.turns[rope].stride)
    }

    /// How many entries all block tables together may have.
    pub(crate) fn entries(&self) -> usize {
        (self.tables.bytes() / 4) as usize
    }

    pub(crate) fn paged(&self, rows: u32) -> Paged {
        Paged { kv: self.kv, blocks: self.blocks as u32, rows, entries: self.entries() as u32 }
    }

    /// Where rows of this width go as bytes.
    pub(crate) fn bytes(
        &self,
        gpu: &Gpu,
        width: u32,
        normed: bool,
        rows: usize,
    ) -> Result<Int8Rows, GpuError> {
        let elements = rows as u64 * u64::from(width);
        let mut all = self.bytes.borrow_mut();
        if let Some(bytes) = all.get(&(width, normed))
            && bytes.q.bytes() >= elements
        {
            return Ok(bytes.clone());
        }
        let bytes = Int8Rows {
            q: gpu.buffer(elements)?,
            scales: gpu.buffer(elements / 4)?,
            factors: gpu.buffer(4 * rows as u64)?,
            squares: gpu.buffer(elements / 8)?,
        };
        all.insert((width, normed), bytes.clone());
        Ok(bytes)
    }

    /// Where as many rows of this width as there may be go as halves.
    pub(crate) fn halves(&self, gpu: &Gpu, width: u32, bytes: u64) -> Result<F16RowsBuffers, GpuError> {
        let mut all = self.halves.borrow_mut();
        if let Some(halves) = all.get(&width) {
            return Ok(halves.clone());
        }
        let halves = F16RowsBuffers { h: gpu.buffer(bytes)?, scales: gpu.buffer(4 * MAX_ROWS as u64)? };
        all.insert(width, halves.clone());
        Ok(halves)
    }

    /// Sends each row's turns, where sequences of different lengths turn differently and the device has others.
    pub(crate) fn send_turns(&self, gpu: &Gpu, plan: &Plan, batch: &Batch<'_>) -> Result<(), GpuError> {
        for (rope, turns) in plan.ropes.iter().zip(&self.turns).filter(|(_, turns)| turns.stride > 0) {
            let class = |sequence: &u32| rope.length_class(batch.lengths[*sequence as usize] as usize);
            let classes = batch.sequences.iter().map(class);
            let mut sent = turns.sent.borrow_mut();
            // A text that is written token by token brings nothing new.
            if sent.len() >= batch.rows() && classes.clone().zip(&*sent).all(|(class, sent)| class == *sent) {
                continue;
            }
            sent.clear();
            let mut words = Vec::with_capacity(2 * batch.rows() * turns.stride as usize);
            for rows in batch.sequences.chunk_by(|a, b| a == b) {
                let of_row = engine::turns(rope, batch.lengths[rows[0] as usize] as usize);
                rows.iter().for_each(|_| words.extend_from_slice(&of_row));
            }
            gpu.write(&turns.buffer, bytemuck::cast_slice(&words))?;
            sent.extend(classes);
        }
        Ok(())
    }
}
