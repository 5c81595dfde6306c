//! The storage of a panel's scales and offsets, which convert quants to values.

use super::LANES;
use super::loads::Loads;
use super::source::Scales;

/// A storage layout of scales and optional offsets.
///
/// A group starts with a header of [`ScaleLayout::HEADER`] bytes; each of its bodies ends with
/// [`ScaleLayout::BYTES`] bytes.
pub(crate) trait ScaleLayout {
    const HEADER: usize;
    const BYTES: usize;

    /// Whether there is a scale for each 16 elements instead of each 32.
    const PER_16: bool;

    /// Whether values are `scale·q + offset`; otherwise they are `scale·(q − zero_point)`.
    const OFFSET: bool;

    /// Packs a row's part of the header.
    fn pack_header(header: &mut [u8], row: usize, scales: &Scales);

    /// Packs the scales of 32 elements of a row.
    fn pack(body: &mut [u8], row: usize, scales: &Scales);

    /// Unpacks the scales and offsets of the first and the last 16 elements of a row.
    fn unpack(header: &[u8], body: &[u8], row: usize) -> ([f32; 2], [f32; 2]);

    /// Loads a header.
    ///
    /// # Safety
    /// `header` points to `Self::HEADER` readable bytes; otherwise the contract of [`Loads`].
    unsafe fn header<S: Loads>(header: S::Place) -> [S::F; 2];

    /// [`ScaleLayout::unpack`] of all rows. The kernel ignores values that the layout does not have.
    ///
    /// # Safety
    /// `body` points to `Self::BYTES` readable bytes; otherwise the contract of [`Loads`].
    unsafe fn scales<S: Loads>(header: [S::F; 2], body: S::Place) -> ([S::F; 2], [S::F; 2]);
}

/// For each 32 elements eight f16 scales and, with `OFFSET`, eight f16 offsets; with `BF16` they are bf16.
pub(crate) struct BlockScales<const OFFSET: bool, const BF16: bool = false>;

/// K-quant super-blocks. The header has eight f16 scales and, with `OFFSET`, eight f16 minimums. Each 32
/// elements (with `PER_16`, each 16) have eight int8 factors of the scales and eight of the minimums.
pub(crate) struct SuperBlockScales<const PER_16: bool, const OFFSET: bool>;

/// Bytes of eight f16 or bf16.
const RUN_16: usize = 2 * LANES;

impl<const OFFSET: bool, const BF16: bool> ScaleLayout for BlockScales<OFFSET, BF16> {
    const HEADER: usize = 0;
    const BYTES: usize = if OFFSET { 2 * RUN_16 } else { RUN_16 };
    const PER_16: bool = false;
    const OFFSET: bool = OFFSET;

    fn pack_header(_: &mut [u8], _: usize, _: &Scales) {}

    fn pack(body: &mut [u8], row: usize, scales: &Scales) {
        put_16(body, row, scales.scale);
        if OFFSET {
            put_16(&mut body[RUN_16..], row, scales.offset);
        }
    }

    fn unpack(_: &[u8], body: &[u8], row: usize) -> ([f32; 2], [f32; 2]) {
        let at = if BF16 { bf16_at } else { f16_at };
        let offset = if OFFSET { at(&body[RUN_16..], row) } else { 0.0 };
        ([at(body, row); 2], [offset; 2])
    }

    #[inline(always)]
    unsafe fn header<S: Loads>(_: S::Place) -> [S::F; 2] {
        // SAFETY: the caller upholds the contract.
        unsafe { [S::splat(0.0); 2] }
    }

    #[inline(always)]
    unsafe fn scales<S: Loads>(none: [S::F; 2], body: S::Place) -> ([S::F; 2], [S::F; 2]) {
        // SAFETY: one or two runs of eight f16 or bf16.
        unsafe {
            let load = |p| if BF16 { S::bf16s(p) } else { S::f16s(p) };
            let offset = if OFFSET { load(S::skip(body, RUN_16)) } else { none[1] };
            ([load(body); 2], [offset; 2])
        }
    }
}

impl<const PER_16: bool, const OFFSET: bool> SuperBlockScales<PER_16, OFFSET> {
    /// Runs of eight scale factors, which precede the runs of offset factors.
    const RUNS: usize = if PER_16 { 2 } else { 1 };
}

impl<const PER_16: bool, const OFFSET: bool> ScaleLayout for SuperBlockScales<PER_16, OFFSET> {
    const HEADER: usize = if OFFSET { 2 * RUN_16 } else { RUN_16 };
    const BYTES: usize = Self::RUNS * if OFFSET { 2 * LANES } else { LANES };
    const PER_16: bool = PER_16;
    const OFFSET: bool = OFFSET;

    fn pack_header(header: &mut [u8], row: usize, scales: &Scales) {
        put_16(header, row, scales.scale);
        if OFFSET {
            put_16(&mut header[RUN_16..], row, scales.offset);
        }
    }

    fn pack(body: &mut [u8], row: usize, scales: &Scales) {
        for run in 0..Self::RUNS {
            body[run * LANES + row] = scales.factors[run] as u8;
            if OFFSET {
                body[(Self::RUNS + run) * LANES + row] = scales.offset_factors[run] as u8;
            }
        }
    }

    fn unpack(header: &[u8], body: &[u8], row: usize) -> ([f32; 2], [f32; 2]) {
        let times = |half: f32, run: usize| half * f32::from(body[run * LANES + row] as i8);
        let d = f16_at(header, row);
        let scale = [times(d, 0), times(d, Self::RUNS - 1)];
        if !OFFSET {
            return (scale, [0.0; 2]);
        }
        // K-quants subtract the minimums.
        let m = -f16_at(&header[RUN_16..], row);
        (scale, [times(m, Self::RUNS), times(m, 2 * Self::RUNS - 1)])
    }

    #[inline(always)]
    unsafe fn header<S: Loads>(header: S::Place) -> [S::F; 2] {
        // SAFETY: one or two runs of eight f16.
        unsafe {
            let offset = if OFFSET { S::neg(S::f16s(S::skip(header, RUN_16))) } else { S::splat(0.0) };
            [S::f16s(header), offset]
        }
    }

    #[inline(always)]
    unsafe fn scales<S: Loads>(header: [S::F; 2], body: S::Place) -> ([S::F; 2], [S::F; 2]) {
        // SAFETY: there are `RUNS` runs of eight bytes, twice as many with offsets.
        unsafe {
            let (mut scale, mut offset) = (header, header);
            for run in 0..2 {
                // With a scale per 32 elements both halves use the same run.
                let at = run * (Self::RUNS - 1);
                scale[run] = S::mul(header[0], S::i8s(S::skip(body, at * LANES)));
                if OFFSET {
                    offset[run] = S::mul(header[1], S::i8s(S::skip(body, (Self::RUNS + at) * LANES)));
                }
            }
            (scale, offset)
        }
    }
}

fn put_16(bytes: &mut [u8], row: usize, half: [u8; 2]) {
    bytes[2 * row..][..2].copy_from_slice(&half);
}

/// The `row`-th of eight f16.
fn f16_at(bytes: &[u8], row: usize) -> f32 {
    half::f16::from_le_bytes([bytes[2 * row], bytes[2 * row + 1]]).to_f32()
}

/// The `row`-th of eight bf16.
fn bf16_at(bytes: &[u8], row: usize) -> f32 {
    half::bf16::from_le_bytes([bytes[2 * row], bytes[2 * row + 1]]).to_f32()
}
