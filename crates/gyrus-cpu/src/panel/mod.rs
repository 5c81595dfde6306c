//! Quantised weights repacked for integer SIMD.
//!
//! A panel is eight output rows side by side. Within a block of 32 along `k` the quants lie as
//! `[k / 4][row][k % 4]`: one 32-byte load brings four consecutive values of each of the eight rows, to be
//! multiplied with four activation bytes broadcast to all lanes. A SIMD lane so owns an output row and
//! sums its blocks in ascending order, whatever the number of activation rows: that is where batch
//! invariance comes from.
//!
//! A format is a [`coding`] of quants and a [`scheme`] of scales; a group is what one source block of each of
//! the eight rows becomes: the scheme's header and, for each 32 elements, a body of quants and then scales.
//!
//! The integers of a block are exact in every implementation, and the few `f32` operations per block are
//! the same fused ones in the same order, so plain Rust and SIMD give the same bits.

#[cfg(target_arch = "x86_64")]
mod avx2;
pub(crate) mod float_panels;
#[cfg(target_arch = "aarch64")]
mod neon;
mod quant_layout;
mod scale_layout;
mod source;
mod tile;
#[cfg(target_arch = "x86_64")]
mod vnni;

use gyrus_tensor::DType;
use gyrus_tensor::block::*;

use crate::CpuError;
use crate::isa::{Isa, Level};
use crate::pool::Pool;
use crate::quantize_rows::{GROUP, QBlock};
use crate::slab::SlabBytes;
use crate::storage::Disjoint;

pub(crate) use float_panels::FloatPanels;

use quant_layout::QuantLayout;
use scale_layout::ScaleLayout;
use source::Source;

/// Output rows of a panel.
pub(crate) const LANES: usize = crate::simd::LANES;

/// Activation rows a tile takes at most.
pub(crate) const TILE: usize = 8;

/// Bodies of a group.
const fn subs<F: Source>() -> usize {
    F::DTYPE.block_elems() / GROUP
}

/// Bytes of a body.
const fn body_bytes<F: Source>() -> usize {
    F::QuantLayout::BYTES + F::ScaleLayout::BYTES
}

/// Bytes of a group.
const fn group_bytes<F: Source>() -> usize {
    F::ScaleLayout::HEADER + subs::<F>() * body_bytes::<F>()
}

/// Multiplies a panel with up to [`TILE`] rows of activations, `[rows, blocks]` in `x` with `blocks` the
/// panel's length along `k` in units of 32; `out[r]` receives the eight sums of row `r`.
///
/// # Safety
/// The CPU has the instructions of the level the function was chosen for; `panel` holds whole
/// groups of the format it was chosen for, `x` holds `rows · blocks` blocks, and `rows` is 1..=TILE.
pub(crate) type Tile = unsafe fn(panel: &[u8], x: &[QBlock], rows: usize, out: &mut [[f32; LANES]; TILE]);

/// The row-interleaved form of a weight matrix.
pub(crate) struct QuantPanels {
    data: SlabBytes,
    panel_bytes: usize,
    rows: usize,
    vtable: &'static VTable,
}

/// A format's functions, so that callers need not be generic.
struct VTable {
    dtype: DType,
    bytes: usize,
    pack: fn(&[u8], usize, &mut [u8]),
    dequantize: fn(&[u8], usize, &mut [f32]),
    portable: Tile,
    #[cfg(target_arch = "x86_64")]
    avx2: Tile,
    #[cfg(target_arch = "x86_64")]
    vnni: Tile,
    #[cfg(target_arch = "aarch64")]
    neon: Tile,
    #[cfg(target_arch = "aarch64")]
    dot: Tile,
    #[cfg(target_arch = "aarch64")]
    i8mm: Tile,
}

/// Every format that has panels.
static FORMATS: &[VTable] = &[
    vtable::<BlockQ4_0>(),
    vtable::<BlockQ4_1>(),
    vtable::<BlockQ5_0>(),
    vtable::<BlockQ5_1>(),
    vtable::<BlockQ8_0>(),
    vtable::<BlockQ2K>(),
    vtable::<BlockQ3K>(),
    vtable::<BlockQ4K>(),
    vtable::<BlockQ5K>(),
    vtable::<BlockQ6K>(),
    vtable::<BlockIq4Nl>(),
    vtable::<BlockIq4Xs>(),
];

const fn vtable<F: Source>() -> VTable {
    VTable {
        dtype: F::DTYPE,
        bytes: group_bytes::<F>(),
        pack: pack::<F>,
        dequantize: tile::dequantize_row::<F>,
        portable: tile::plain::<F>,
        #[cfg(target_arch = "x86_64")]
        avx2: avx2::tile::<F>,
        #[cfg(target_arch = "x86_64")]
        vnni: vnni::tile::<F>,
        #[cfg(target_arch = "aarch64")]
        neon: neon::widening_tile::<F>,
        #[cfg(target_arch = "aarch64")]
        dot: neon::dot_tile::<F>,
        #[cfg(target_arch = "aarch64")]
        i8mm: neon::i8mm_tile::<F>,
    }
}

/// Writes the source block of row `row` to its group.
fn pack<F: Source>(source: &[u8], row: usize, group: &mut [u8]) {
    let block: &F = bytemuck::from_bytes(source);
    let (header, bodies) = group.split_at_mut(F::ScaleLayout::HEADER);
    F::ScaleLayout::put_header(header, row, &block.scales(0));
    for (sub, body) in bodies.chunks_exact_mut(body_bytes::<F>()).enumerate() {
        let (quants, scales) = body.split_at_mut(F::QuantLayout::BYTES);
        F::QuantLayout::put(quants, row, &block.quants(sub));
        F::ScaleLayout::put(scales, row, &block.scales(sub));
    }
}

impl QuantPanels {
    /// Repacks a `rows × cols` matrix whose size has been checked; `None` if the type has no panel form.
    pub(crate) fn pack(
        pool: &Pool,
        dtype: DType,
        rows: usize,
        cols: usize,
        source: &[u8],
    ) -> Result<Option<QuantPanels>, CpuError> {
        let Some(vtable) = FORMATS.iter().find(|format| format.dtype == dtype) else {
            return Ok(None);
        };
        let groups = cols / dtype.block_elems();
        let (row_bytes, block_bytes) = (groups * dtype.block_bytes(), dtype.block_bytes());
        let panel_bytes = groups * vtable.bytes;
        let count = rows.div_ceil(LANES);
        let bytes = count * panel_bytes;
        let mut data = SlabBytes::zeroed(bytes)?;
        let parts = Disjoint::new(data.as_mut_slice());
        pool.run(count, &|panel| {
            // SAFETY: each task writes the panel of its own number; `data` outlives the loop.
            let out = unsafe { parts.part(panel * panel_bytes..(panel + 1) * panel_bytes) };
            // Rows beyond the last stay zero: their scales make their sums zero.
            for row in 0..LANES.min(rows - panel * LANES) {
                let source = &source[(panel * LANES + row) * row_bytes..][..row_bytes];
                for (block, group) in source.chunks_exact(block_bytes).zip(out.chunks_exact_mut(vtable.bytes))
                {
                    (vtable.pack)(block, row, group);
                }
            }
        });
        Ok(Some(QuantPanels { data, panel_bytes, rows, vtable }))
    }

    pub(crate) fn bytes(&self) -> usize {
        self.data.as_slice().len()
    }

    pub(crate) fn panel(&self, index: usize) -> &[u8] {
        &self.data.as_slice()[index * self.panel_bytes..(index + 1) * self.panel_bytes]
    }

    /// The kernel for an instruction set.
    pub(crate) fn tile(&self, isa: Isa) -> Tile {
        match isa.level() {
            Level::Portable => self.vtable.portable,
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => self.vtable.avx2,
            #[cfg(target_arch = "x86_64")]
            Level::Avx512Vnni => self.vtable.vnni,
            #[cfg(target_arch = "aarch64")]
            Level::Neon => self.vtable.neon,
            #[cfg(target_arch = "aarch64")]
            Level::NeonDot => self.vtable.dot,
            #[cfg(target_arch = "aarch64")]
            Level::NeonI8mm => self.vtable.i8mm,
        }
    }

    /// The values of one row, bit-equal to those of the source blocks.
    pub(crate) fn dequantize_row(&self, row: usize, out: &mut [f32]) {
        assert!(row < self.rows, "row {row} of {}", self.rows);
        (self.vtable.dequantize)(self.panel(row / LANES), row % LANES, out);
    }
}
