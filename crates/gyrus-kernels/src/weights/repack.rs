use gyrus_tensor::block::*;
use gyrus_tensor::{DType, TensorError};

use super::{Plane, WeightError, WeightLayout};

/// A weight matrix in planes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Planes {
    /// Its shape and type.
    pub layout: WeightLayout,
    /// The words of each plane the type has, in the order of [`WeightLayout::planes`].
    pub words: Vec<Vec<u32>>,
}

/// Repacks `rows` rows of a matrix. Rows are independent: the concatenated planes of ranges of rows are the planes of
/// the whole matrix.
///
/// The four words of 256 elements of Q4_K and Q5_K are: two f16 (scale of scales, scale of minimums); the low four bits
/// of the eight scales; of the eight minimums; and the high two bits of the scales, then of the minimums.
pub fn repack(dtype: DType, rows: usize, cols: usize, bytes: &[u8]) -> Result<Planes, WeightError> {
    let layout = WeightLayout::new(dtype, rows, cols)?;
    let overflow = || TensorError::Overflow { dims: vec![rows, cols] };
    let row_bytes = dtype.bytes_of_elems(cols)?;
    let expected = row_bytes.checked_mul(rows).ok_or_else(overflow)?;
    if bytes.len() != expected {
        let elems = rows.checked_mul(cols).ok_or_else(overflow)?;
        return Err(TensorError::ByteCount { dtype, elems, expected, found: bytes.len() }.into());
    }
    let row_words = Plane::ALL.map(|plane| layout.row_words(plane) as usize);
    let mut words = row_words.map(|words| vec![0; words * rows]);
    if expected > 0 {
        let [quants, high, scales] = &mut words;
        for (row, bytes) in bytes.chunks_exact(row_bytes).enumerate() {
            let part = |plane: usize| row * row_words[plane]..(row + 1) * row_words[plane];
            let row =
                Row { quants: &mut quants[part(0)], high: &mut high[part(1)], scales: &mut scales[part(2)] };
            row.fill(dtype, bytes);
        }
    }
    let words = words.into_iter().zip(row_words).filter(|(_, width)| *width > 0).map(|(words, _)| words);
    Ok(Planes { layout, words: words.collect() })
}

/// One row of each plane, all zero at first.
struct Row<'a> {
    quants: &'a mut [u32],
    high: &'a mut [u32],
    scales: &'a mut [u32],
}

impl Row<'_> {
    fn fill(self, dtype: DType, bytes: &[u8]) {
        match dtype {
            DType::F32 | DType::F16 | DType::BF16 => self.plain(bytes),
            DType::Q4_0 => self.each(bytes, |row, b, block: &BlockQ4_0| {
                row.nibble_bytes(b, &block.qs);
                row.half(b, block.d);
            }),
            DType::IQ4_NL => self.each(bytes, |row, b, block: &BlockIq4Nl| {
                row.nibble_bytes(b, &block.qs);
                row.half(b, block.d);
            }),
            DType::Q4_1 => self.each(bytes, |row, b, block: &BlockQ4_1| {
                row.nibble_bytes(b, &block.qs);
                row.scales[b] = f16_pair(block.d, block.m);
            }),
            DType::Q5_0 => self.each(bytes, |row, b, block: &BlockQ5_0| {
                row.nibble_bytes(b, &block.qs);
                row.high[b] = spread(block.qh);
                row.half(b, block.d);
            }),
            DType::Q5_1 => self.each(bytes, |row, b, block: &BlockQ5_1| {
                row.nibble_bytes(b, &block.qs);
                row.high[b] = spread(block.qh);
                row.scales[b] = f16_pair(block.d, block.m);
            }),
            DType::Q8_0 => self.each(bytes, |row, b, block: &BlockQ8_0| {
                row.bytes(b, &block.qs.map(|q| q as u8));
                row.half(b, block.d);
            }),
            DType::Q2_K => self.each(bytes, |row, at, block: &BlockQ2K| {
                let supers = row.quants.len() / 16;
                for b in 0..8 {
                    row.two_bits(8 * at + b, &run_of_two_bits(&block.qs, b));
                    let pair = [block.scales[2 * b], block.scales[2 * b + 1]];
                    put_half(row.scales, 8 * at + b, u16::from_le_bytes(pair));
                }
                row.scales[4 * supers + at] = f16_pair(block.d, block.dmin);
            }),
            DType::Q3_K => self.each(bytes, |row, at, block: &BlockQ3K| {
                let supers = row.quants.len() / 16;
                for b in 0..8 {
                    row.two_bits(8 * at + b, &run_of_two_bits(&block.qs, b));
                    row.high[8 * at + b] = one_bit(|j| block.hmask[j] >> b & 1);
                    let pair = [block.scale(2 * b) as i8, block.scale(2 * b + 1) as i8];
                    put_half(row.scales, 8 * at + b, u16::from_le_bytes(pair.map(|s| s as u8)));
                }
                put_half(row.scales, 8 * supers + at, bits(block.d));
            }),
            DType::Q4_K => self.each(bytes, |row, at, block: &BlockQ4K| {
                for b in 0..8 {
                    row.nibbles(8 * at + b, &run_of_nibbles(&block.qs, b));
                }
                row.scales[4 * at..4 * at + 4].copy_from_slice(&super_scales(
                    block.d,
                    block.dmin,
                    &block.scales,
                ));
            }),
            DType::Q5_K => self.each(bytes, |row, at, block: &BlockQ5K| {
                for b in 0..8 {
                    row.nibbles(8 * at + b, &run_of_nibbles(&block.qs, b));
                    row.high[8 * at + b] = one_bit(|j| block.qh[j] >> b & 1);
                }
                row.scales[4 * at..4 * at + 4].copy_from_slice(&super_scales(
                    block.d,
                    block.dmin,
                    &block.scales,
                ));
            }),
            DType::Q6_K => self.each(bytes, |row, at, block: &BlockQ6K| {
                let supers = row.quants.len() / 32;
                for b in 0..8 {
                    let (half, run) = (b / 4, b % 4);
                    let low = &block.ql[64 * half + 32 * (run % 2)..][..32];
                    row.nibbles(8 * at + b, &std::array::from_fn(|j| low[j] >> (4 * (run / 2)) & 15));
                    let high = &block.qh[32 * half..][..32];
                    let high = two_bit_words(&std::array::from_fn(|j| high[j] >> (2 * run) & 3));
                    row.high[16 * at + 2 * b..][..2].copy_from_slice(&high);
                    let pair = [block.scales[2 * b] as u8, block.scales[2 * b + 1] as u8];
                    put_half(row.scales, 8 * at + b, u16::from_le_bytes(pair));
                }
                put_half(row.scales, 8 * supers + at, bits(block.d));
            }),
            DType::IQ4_XS => self.each(bytes, |row, at, block: &BlockIq4Xs| {
                let supers = row.quants.len() / 32;
                for b in 0..8 {
                    row.nibble_bytes(8 * at + b, &block.qs[16 * b..16 * b + 16]);
                    let scale = block.scale(b) as i8 as u8;
                    row.scales[2 * at + b / 4] |= u32::from(scale) << (8 * (b % 4));
                }
                put_half(row.scales, 4 * supers + at, bits(block.d));
            }),
            DType::MXFP4 => self.each(bytes, |row, b, block: &BlockMxfp4| {
                row.nibble_bytes(b, &block.qs);
                row.scales[b / 4] |= u32::from(block.e) << (8 * (b % 4));
            }),
            DType::AFFINE2_BF16 => self.affine::<8, true>(bytes),
            DType::AFFINE3_BF16 => self.affine::<12, true>(bytes),
            DType::AFFINE4_BF16 => self.affine::<16, true>(bytes),
            DType::AFFINE5_BF16 => self.affine::<20, true>(bytes),
            DType::AFFINE6_BF16 => self.affine::<24, true>(bytes),
            DType::AFFINE8_BF16 => self.affine::<32, true>(bytes),
            DType::AFFINE2_F16 => self.affine::<8, false>(bytes),
            DType::AFFINE3_F16 => self.affine::<12, false>(bytes),
            DType::AFFINE6_F16 => self.affine::<24, false>(bytes),
            DType::AFFINE8_F16 => self.affine::<32, false>(bytes),
            _ => unreachable!("a layout exists for these types alone"),
        }
    }

    fn each<B: Block>(mut self, bytes: &[u8], put: impl Fn(&mut Self, usize, &B)) {
        for (at, block) in bytemuck::cast_slice::<u8, B>(bytes).iter().enumerate() {
            put(&mut self, at, block);
        }
    }

    /// Affine groups. 8-bit quants become int8 by subtracting 128.
    fn affine<const BYTES: usize, const BF16: bool>(self, bytes: &[u8]) {
        self.each(bytes, |row, b, block: &BlockAffine<BYTES, BF16>| {
            let q = block.quants();
            match BYTES / 4 {
                8 => row.bytes(b, &q.map(|q| q ^ 0x80)),
                2 | 3 => row.two_bits(b, &q.map(|q| q & 3)),
                _ => row.nibbles(b, &q.map(|q| q & 15)),
            }
            match BYTES / 4 {
                3 => row.high[b] = one_bit(|j| q[j] >> 2),
                5 => row.high[b] = one_bit(|j| q[j] >> 4),
                6 => row.high[2 * b..][..2].copy_from_slice(&two_bit_words(&q.map(|q| q >> 4))),
                _ => {}
            }
            let [d, m] = [block.d, block.m].map(|half| u32::from(u16::from_le_bytes(half)));
            row.scales[b] = d | m << 16;
        });
    }

    /// Columns are a multiple of four, so rows are whole words.
    fn plain(self, bytes: &[u8]) {
        for (word, bytes) in self.quants.iter_mut().zip(bytes.as_chunks::<4>().0) {
            *word = u32::from_le_bytes(*bytes);
        }
    }

    /// Nibbles that the file already stores as elements `j` and `j + 16` of a byte.
    fn nibble_bytes(&mut self, b: usize, qs: &[u8]) {
        for (word, bytes) in self.quants[4 * b..4 * b + 4].iter_mut().zip(qs.as_chunks::<4>().0) {
            *word = u32::from_le_bytes(*bytes);
        }
    }

    /// The first 16 bytes of all blocks precede the last 16.
    fn bytes(&mut self, b: usize, q: &[u8; 32]) {
        let (first, last) = self.quants.split_at_mut(self.quants.len() / 2);
        let words = q.as_chunks::<4>().0;
        for i in 0..4 {
            first[4 * b + i] = u32::from_le_bytes(words[i]);
            last[4 * b + i] = u32::from_le_bytes(words[4 + i]);
        }
    }

    fn nibbles(&mut self, b: usize, q: &[u8; 32]) {
        let bytes: [u8; 16] = std::array::from_fn(|j| q[j] | q[j + 16] << 4);
        self.nibble_bytes(b, &bytes);
    }

    fn two_bits(&mut self, b: usize, q: &[u8; 32]) {
        self.quants[2 * b..2 * b + 2].copy_from_slice(&two_bit_words(q));
    }

    fn half(&mut self, b: usize, half: HalfLe) {
        put_half(self.scales, b, bits(half));
    }
}

fn bits(half: HalfLe) -> u16 {
    u16::from_le_bytes(half.to_le_bytes())
}

fn f16_pair(low: HalfLe, high: HalfLe) -> u32 {
    u32::from(bits(low)) | u32::from(bits(high)) << 16
}

/// Sets one 16-bit half of a zeroed word.
fn put_half(words: &mut [u32], at: usize, bits: u16) {
    words[at / 2] |= u32::from(bits) << (16 * (at % 2));
}

/// Elements `32·b..` of the two-bit layout shared by Q2_K and Q3_K.
fn run_of_two_bits(qs: &[u8; 64], b: usize) -> [u8; 32] {
    let qs = &qs[32 * (b / 4)..][..32];
    std::array::from_fn(|j| qs[j] >> (2 * (b % 4)) & 3)
}

/// Elements `32·b..` of the nibble layout shared by Q4_K and Q5_K.
fn run_of_nibbles(qs: &[u8; 128], b: usize) -> [u8; 32] {
    let qs = &qs[32 * (b / 2)..][..32];
    std::array::from_fn(|j| qs[j] >> (4 * (b % 2)) & 15)
}

/// Two bits an element: `8·i + 2·(g % 4)` of word `g / 4`.
fn two_bit_words(q: &[u8; 32]) -> [u32; 2] {
    let word = |q: &[u8]| {
        let bytes: [u8; 4] = std::array::from_fn(|i| q[i] | q[4 + i] << 2 | q[8 + i] << 4 | q[12 + i] << 6);
        u32::from_le_bytes(bytes)
    };
    [word(&q[..16]), word(&q[16..])]
}

/// One bit an element: `8·i + g`.
fn one_bit(bit: impl Fn(usize) -> u8) -> u32 {
    (0..32).fold(0, |word, j| word | u32::from(bit(j)) << (8 * (j % 4) + j / 4))
}

/// The fifth bits of Q5_0 and Q5_1, which files hold in the order of elements.
fn spread(qh: [u8; 4]) -> u32 {
    let qh = u32::from_le_bytes(qh);
    one_bit(|j| (qh >> j & 1) as u8)
}

fn super_scales(d: HalfLe, dmin: HalfLe, packed: &[u8; 12]) -> [u32; 4] {
    let mut words = [f16_pair(d, dmin), 0, 0, 0];
    for b in 0..8 {
        let (scale, min) = scale_min(packed, b);
        let (scale, min) = (u32::from(scale), u32::from(min));
        words[1] |= (scale & 15) << (4 * b);
        words[2] |= (min & 15) << (4 * b);
        words[3] |= (scale >> 4) << (2 * b) | (min >> 4) << (16 + 2 * b);
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noise(n: usize) -> Vec<u8> {
        let mut noise = crate::grid::Noise::new(3);
        (0..n).map(|_| noise.bits() as u8).collect()
    }

    #[test]
    fn ranges_of_rows_are_ranges_of_planes() {
        for &dtype in DType::ALL.iter().filter(|d| gyrus_tensor::can_dequantize(**d)) {
            let cols = 768;
            let row = dtype.bytes_of_elems(cols).unwrap();
            let bytes = noise(5 * row);
            let whole = repack(dtype, 5, cols, &bytes).unwrap();
            let (a, b) = bytes.split_at(2 * row);
            let (a, b) = (repack(dtype, 2, cols, a).unwrap(), repack(dtype, 3, cols, b).unwrap());
            assert_eq!(whole.words.len(), whole.layout.planes().count());
            for (i, plane) in whole.layout.planes().enumerate() {
                assert_eq!(
                    whole.words[i],
                    [a.words[i].as_slice(), b.words[i].as_slice()].concat(),
                    "{dtype}"
                );
                assert_eq!(4 * whole.words[i].len() as u64, whole.layout.bytes(plane));
            }
            assert_eq!(whole.layout.row_words(Plane::Quants) % 4, 0, "{dtype}");
        }
    }

    /// The overhead of planes over the file, due to word alignment: at most one in 25.
    #[test]
    fn planes_are_hardly_larger_than_the_file() {
        for &dtype in DType::ALL.iter().filter(|d| gyrus_tensor::can_dequantize(**d)) {
            let layout = WeightLayout::new(dtype, 7, 2048).unwrap();
            let file = 7 * dtype.bytes_of_elems(2048).unwrap() as u64;
            let planes = layout.total_bytes();
            assert!(planes >= file && planes * 25 <= file * 26, "{dtype}: {planes} of {file}");
        }
    }

    #[test]
    fn what_cannot_be_repacked_is_named() {
        let error =
            |dtype, rows, cols, n: usize| repack(dtype, rows, cols, &vec![0; n]).unwrap_err().to_string();
        assert_eq!(error(DType::IQ1_S, 1, 256, 50), "IQ1_S cannot be dequantised");
        assert_eq!(
            error(DType::Q4_0, 1, 48, 18),
            "a row of 48 elements is not a multiple of Q4_0's block of 32"
        );
        assert_eq!(error(DType::F32, 1, 6, 24), "rows of 6 F32 elements: kernels need a multiple of 4");
        assert_eq!(error(DType::F16, 2, 8, 31), "16 elements of F16 take 32 bytes, found 31");
        assert!(error(DType::F32, 1, 1 << 30, 0).contains("more than kernels can address"));
        assert!(error(DType::F32, usize::MAX, 64, 0).contains("more than kernels can address"));
    }

    #[test]
    fn rows_are_divided_by_the_widest_plane() {
        let layout = WeightLayout::new(DType::Q4_0, 1000, 2048).unwrap();
        assert_eq!(layout.rows_within(1024 * 10 + 1023), 10);
        assert_eq!(layout.rows_within(1 << 40), 1000);
        assert_eq!(layout.rows_within(1023), 0);
        assert_eq!(WeightLayout::new(DType::F32, 4, 0).unwrap().rows_within(0), 0);
    }
}
