//! Quantised weights re-laid for integer SIMD.
//!
//! A panel is eight output rows side by side. Within a block of 32 along `k` the quants lie as
//! `[k / 4][row][k % 4]`: one 32-byte load brings four consecutive values of each of the eight rows, to be
//! multiplied with four activation bytes broadcast to all lanes. A SIMD lane so owns an output row and
//! sums its blocks in ascending order, whatever the number of activation rows: that is where batch
//! invariance comes from.
//!
//! The integers of a block are exact in every implementation, and the few `f32` operations per block are
//! the same fused ones in the same order, so plain Rust and SIMD give the same bits.

#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2;
mod q4;
mod q5;
mod q6k;
mod q8;
#[cfg(target_arch = "x86_64")]
mod vnni;

use gyrus_tensor::DType;

use crate::CpuError;
use crate::isa::{Isa, Level};
use crate::pool::Pool;
use crate::quantize_rows::{GROUP, QBlock};
use crate::slab::SlabBytes;
use crate::storage::Disjoint;

pub(crate) use q4::{Q4_0, Q4_1, Q4_K};
pub(crate) use q5::{Q5_0, Q5_1, Q5_K};
pub(crate) use q6k::Q6_K;
pub(crate) use q8::Q8_0;

/// Output rows of a panel.
pub(crate) const LANES: usize = 8;

/// Activation rows a tile takes at most.
pub(crate) const TILE: usize = 8;

/// A block of 32 along `k` as one row has it: `v = scale·(q − zero) + min`.
pub(crate) struct Lane {
    q: [u8; GROUP],
    zero: u8,
    scale: Scale,
    min: Option<f32>,
}

#[derive(Clone, Copy)]
pub(crate) enum Scale {
    /// One for all 32.
    One(f32),
    /// One for each 16.
    Two(f32, f32),
}

/// How a source format lies in a panel.
///
/// A group is what one source block of each of the eight rows becomes: a header of [`Format::HEADER`]
/// bytes and [`Format::SUB`] bodies of [`Format::BODY`] bytes, one for each 32 elements.
pub(crate) trait Format {
    const DTYPE: DType;
    const SUB: usize = Self::DTYPE.block_elems() / GROUP;
    const HEADER: usize;
    const BODY: usize;
    const BYTES: usize = Self::HEADER + Self::SUB * Self::BODY;

    /// Writes the source block of row `row`. `group` is zero where nothing was packed yet.
    fn pack(source: &[u8], row: usize, group: &mut [u8]);

    /// What row `row` holds in the body number `sub`.
    fn lane(group: &[u8], sub: usize, row: usize) -> Lane;
}

/// Multiplies a panel with up to [`TILE`] rows of activations, `[rows, blocks]` in `x` with `blocks` the
/// panel's length along `k` in units of 32; `out[r]` receives the eight sums of row `r`.
///
/// # Safety
/// The processor has the instructions of the level the function was chosen for; `panel` holds whole
/// groups of the format it was chosen for, `x` holds `rows · blocks` blocks, and `rows` is 1..=TILE.
pub(crate) type Tile = unsafe fn(panel: &[u8], x: &[QBlock], rows: usize, out: &mut [[f32; LANES]; TILE]);

/// The row-interleaved form of a weight matrix.
pub(crate) struct Panels {
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
}

/// Every format that has panels.
static FORMATS: &[VTable] = &[
    vtable::<Q4_0>(),
    vtable::<Q4_1>(),
    vtable::<Q4_K>(),
    vtable::<Q5_0>(),
    vtable::<Q5_1>(),
    vtable::<Q5_K>(),
    vtable::<Q6_K>(),
    vtable::<Q8_0>(),
];

#[cfg(target_arch = "x86_64")]
const fn vtable<F: vnni::Kernel>() -> VTable {
    VTable {
        dtype: F::DTYPE,
        bytes: F::BYTES,
        pack: F::pack,
        dequantize: dequantize_row::<F>,
        portable: portable_tile::<F>,
        avx2: avx2::tile::<F>,
        vnni: vnni::tile::<F>,
    }
}

#[cfg(not(target_arch = "x86_64"))]
const fn vtable<F: Format>() -> VTable {
    VTable {
        dtype: F::DTYPE,
        bytes: F::BYTES,
        pack: F::pack,
        dequantize: dequantize_row::<F>,
        portable: portable_tile::<F>,
    }
}

impl Panels {
    /// Re-lays a `rows × cols` matrix whose size has been checked; `None` if the type has no panel form.
    pub(crate) fn pack(
        pool: &Pool,
        dtype: DType,
        rows: usize,
        cols: usize,
        source: &[u8],
    ) -> Result<Option<Panels>, CpuError> {
        let Some(vtable) = FORMATS.iter().find(|format| format.dtype == dtype) else {
            return Ok(None);
        };
        let groups = cols / dtype.block_elems();
        let (row_bytes, block_bytes) = (groups * dtype.block_bytes(), dtype.block_bytes());
        let panel_bytes = groups * vtable.bytes;
        let count = rows.div_ceil(LANES);
        let bytes = count * panel_bytes;
        let mut data = SlabBytes::zeroed(bytes).map_err(|_| CpuError::Memory { bytes })?;
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
        Ok(Some(Panels { data, panel_bytes, rows, vtable }))
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
        }
    }

    /// The values of one row, bit-equal to those of the source blocks.
    pub(crate) fn dequantize_row(&self, row: usize, out: &mut [f32]) {
        assert!(row < self.rows, "row {row} of {}", self.rows);
        (self.vtable.dequantize)(self.panel(row / LANES), row % LANES, out);
    }
}

fn dequantize_row<F: Format>(panel: &[u8], row: usize, out: &mut [f32]) {
    let groups = panel.chunks_exact(F::BYTES);
    for (index, out) in out.chunks_exact_mut(GROUP).enumerate() {
        let group = groups.clone().nth(index / F::SUB).expect("a panel is as long as its rows");
        let lane = F::lane(group, index % F::SUB, row);
        for (k, v) in out.iter_mut().enumerate() {
            let scale = match lane.scale {
                Scale::One(scale) => scale,
                Scale::Two(first, second) => [first, second][k / 16],
            };
            *v = scale * (f32::from(lane.q[k]) - f32::from(lane.zero));
            if let Some(min) = lane.min {
                *v += min;
            }
        }
    }
}

/// The plain meaning of [`Tile`]. Unsafe only to have its type; any arguments of the right sizes do.
unsafe fn portable_tile<F: Format>(panel: &[u8], x: &[QBlock], rows: usize, out: &mut [[f32; LANES]; TILE]) {
    let blocks = panel.len() / F::BYTES * F::SUB;
    let mut acc = [[0.0f32; LANES]; TILE];
    for (g, group) in panel.chunks_exact(F::BYTES).enumerate() {
        for sub in 0..F::SUB {
            for row in 0..LANES {
                let lane = F::lane(group, sub, row);
                for (r, acc) in acc[..rows].iter_mut().enumerate() {
                    acc[row] = lane.accumulate(&x[r * blocks + g * F::SUB + sub], acc[row]);
                }
            }
        }
    }
    out[..rows].copy_from_slice(&acc[..rows]);
}

impl Lane {
    /// Adds this block's product with `x` to a row's sum: the operations and the order every kernel keeps.
    fn accumulate(&self, x: &QBlock, acc: f32) -> f32 {
        let dot = |range: std::ops::Range<usize>| -> i32 {
            range.map(|k| (i32::from(self.q[k]) - i32::from(self.zero)) * i32::from(x.qs[k])).sum()
        };
        let acc = match self.scale {
            Scale::One(scale) => (dot(0..32) as f32).mul_add(scale * x.scale, acc),
            Scale::Two(first, second) => {
                let acc = (dot(0..16) as f32).mul_add(first * x.scale, acc);
                (dot(16..32) as f32).mul_add(second * x.scale, acc)
            }
        };
        match self.min {
            Some(min) => min.mul_add(x.scaled_sum, acc),
            None => acc,
        }
    }
}

/// Writes values of at most four bits: element `k` and `k + 16` share a byte.
fn put_nibbles(body: &mut [u8], row: usize, q: &[u8; GROUP]) {
    for k in 0..16 {
        body[k / 4 * 32 + row * 4 + k % 4] = q[k] & 15 | q[k + 16] << 4;
    }
}

fn nibbles(body: &[u8], row: usize) -> [u8; GROUP] {
    std::array::from_fn(|k| body[k % 16 / 4 * 32 + row * 4 + k % 4] >> (k / 16 * 4) & 15)
}

/// The `row`-th half-precision number of eight.
fn half_at(bytes: &[u8], row: usize) -> f32 {
    half::f16::from_le_bytes([bytes[2 * row], bytes[2 * row + 1]]).to_f32()
}
