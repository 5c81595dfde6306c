//! Weights repacked into panels for SIMD.
//!
//! A panel interleaves eight output rows of a quantised weight. Within a block of 32 along `k` the quants are
//! stored as `[k / 4][row][k % 4]`. One 32-byte load brings four consecutive values of each of the eight
//! rows, which the kernel multiplies with four int8 activations broadcast to all lanes. So each SIMD lane
//! computes one output row and sums its blocks in ascending order, for any number of activation rows: the
//! result is batch-invariant.
//!
//! A format combines a [`quant_layout`] and a [`scale_layout`]. A group holds one source block of each of the
//! eight rows: the header of the scale layout and, for each 32 elements, a body of quants and then scales.
//!
//! The integer sums of a block are exact in every implementation, and the few `f32` operations per block
//! are the same fused operations in the same order, so portable Rust and SIMD give the same bits.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
pub(crate) mod float_panels;
mod loads;
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

/// Output rows of two panels.
pub(crate) const PAIR_LANES: usize = 2 * LANES;

/// The most activation rows of a tile.
pub(crate) const TILE: usize = 8;

/// Bodies of a group, one for each 32 elements.
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

/// Multiplies a panel with up to [`TILE`] rows of int8 activations. `x` is `[rows, blocks]`, where `blocks`
/// is the panel's length along `k` in blocks of 32; `out[r]` receives the eight sums of row `r`.
///
/// # Safety
/// The CPU has the instructions of the function's level. `panel` holds whole groups of the function's
/// format, `x` holds `rows · blocks` blocks, and `rows` is in `1..=TILE`.
pub(crate) type Tile = unsafe fn(panel: &[u8], x: &[QBlock], rows: usize, out: &mut [[f32; LANES]; TILE]);

/// [`Tile`] of two consecutive panels, whose sums are one after the other in a row of `out`.
///
/// # Safety
/// That of [`Tile`]; `panels` holds two panels of the same length.
pub(crate) type PairTile =
    unsafe fn(panels: &[u8], x: &[QBlock], rows: usize, out: &mut [[f32; PAIR_LANES]; TILE]);

/// A quantised weight matrix in panels of [`LANES`] rows.
pub(crate) struct QuantPanels {
    data: SlabBytes,
    panel_bytes: usize,
    rows: usize,
    vtable: &'static VTable,
}

/// The functions of a format, so callers need not be generic.
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
    #[cfg(target_arch = "x86_64")]
    vnni_pair: PairTile,
    #[cfg(target_arch = "aarch64")]
    neon: Tile,
    #[cfg(target_arch = "aarch64")]
    dot: Tile,
    #[cfg(target_arch = "aarch64")]
    i8mm: Tile,
}

/// Every format with an int8 kernel.
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
    vtable::<BlockMxfp4>(),
    vtable::<BlockAffine<8, true>>(),
    vtable::<BlockAffine<12, true>>(),
    vtable::<BlockAffine<16, true>>(),
    vtable::<BlockAffine<20, true>>(),
    vtable::<BlockAffine<24, true>>(),
    vtable::<BlockAffine<32, true>>(),
    vtable::<BlockAffine<8, false>>(),
    vtable::<BlockAffine<12, false>>(),
    vtable::<BlockAffine<24, false>>(),
    vtable::<BlockAffine<32, false>>(),
];

const fn vtable<F: Source>() -> VTable {
    VTable {
        dtype: F::DTYPE,
        bytes: group_bytes::<F>(),
        pack: pack::<F>,
        dequantize: tile::dequantize_row::<F>,
        portable: tile::portable::<F>,
        #[cfg(target_arch = "x86_64")]
        avx2: avx2::tile::<F>,
        #[cfg(target_arch = "x86_64")]
        vnni: vnni::tile::<F>,
        #[cfg(target_arch = "x86_64")]
        vnni_pair: vnni::pair_tile::<F>,
        #[cfg(target_arch = "aarch64")]
        neon: neon::widening_tile::<F>,
        #[cfg(target_arch = "aarch64")]
        dot: neon::dot_tile::<F>,
        #[cfg(target_arch = "aarch64")]
        i8mm: neon::i8mm_tile::<F>,
    }
}

/// Repacks a source block of row `row` into its group.
fn pack<F: Source>(source: &[u8], row: usize, group: &mut [u8]) {
    let block: &F = bytemuck::from_bytes(source);
    let (header, bodies) = group.split_at_mut(F::ScaleLayout::HEADER);
    F::ScaleLayout::pack_header(header, row, &block.scales(0));
    for (sub, body) in bodies.chunks_exact_mut(body_bytes::<F>()).enumerate() {
        let (quants, scales) = body.split_at_mut(F::QuantLayout::BYTES);
        F::QuantLayout::pack(quants, row, &block.quants(sub));
        F::ScaleLayout::pack(scales, row, &block.scales(sub));
    }
}

impl QuantPanels {
    /// Repacks a `rows × cols` matrix whose length has been checked; `None` if the type has no int8 kernel.
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
            // SAFETY: each task writes its own panel only; `data` outlives the loop.
            let out = unsafe { parts.part(panel * panel_bytes..(panel + 1) * panel_bytes) };
            // Rows past the end stay zero: with zero scales their sums are zero.
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

    /// Two consecutive panels.
    pub(crate) fn pair(&self, first: usize) -> &[u8] {
        &self.data.as_slice()[first * self.panel_bytes..(first + 2) * self.panel_bytes]
    }

    /// The kernel of two panels, where an instruction set has one.
    pub(crate) fn pair_tile(&self, isa: Isa) -> Option<PairTile> {
        match isa.level() {
            #[cfg(target_arch = "x86_64")]
            Level::Avx512Vnni => Some(self.vtable.vnni_pair),
            _ => None,
        }
    }

    /// The tile kernel of an instruction set.
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

    /// The values of one row, bit-equal to the source blocks.
    pub(crate) fn dequantize_row(&self, row: usize, out: &mut [f32]) {
        assert!(row < self.rows, "row {row} of {}", self.rows);
        (self.vtable.dequantize)(self.panel(row / LANES), row % LANES, out);
    }
}
