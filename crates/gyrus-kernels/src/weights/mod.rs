//! Weight matrices in the layout that kernels read: planes of 32-bit words, repacked once when a model is loaded.
//!
//! Blocks of 18, 22, 34, 110 or 210 bytes do not fit word-addressed memory. A matrix `[rows, cols]` is split into at
//! most three [planes](Plane), each with a fixed number of words a row, so that rows can be repacked, uploaded,
//! concatenated and split independently. Nothing is rounded: the values that kernels read equal
//! [`gyrus_tensor::dequantize`] bit for bit.
//!
//! All quantised types are divided into blocks of 32 elements, whatever the file's blocks are; `g` is a group of four
//! elements of a block (0..8), `i` an element of a group (0..4).
//!
//! | type | quants, words a block | high, words a block | scales |
//! |---|---|---|---|
//! | F32 | 32 | | |
//! | F16, BF16 | 16 | | |
//! | Q8_0 | 8: all blocks' first 16 bytes, then all blocks' last | | one f16 a block |
//! | Q4_0, IQ4_NL | 4: byte `j` has elements `j` and `j + 16` | | one f16 a block |
//! | Q4_1 | as Q4_0 | | a word a block: scale, offset |
//! | Q5_0 | as Q4_0 | 1: bit `8·i + g` | one f16 a block |
//! | Q5_1 | as Q4_0 | 1 | a word a block: scale, offset |
//! | Q4_K | as Q4_0 | | four words for 256, see [`repack`] |
//! | Q5_K | as Q4_0 | 1 | as Q4_K |
//! | Q6_K | as Q4_0 | 2: bits `8·i + 2·(g % 4)` of word `g / 4` | two i8 a block; then one f16 for 256 |
//! | Q2_K | 2: as Q6_K's high bits | | two bytes a block; then a word for 256: scale, scale of minimums |
//! | Q3_K | as Q2_K | 1 | as Q6_K |
//! | AFFINE2 | as Q2_K | | a word a block: scale, offset, both f16 or both bf16 |
//! | AFFINE3 | as Q2_K | 1 | as AFFINE2 |
//! | AFFINE4 | as Q4_0 | | as AFFINE2 |
//! | AFFINE5 | as Q4_0 | 1 | as AFFINE2 |
//! | AFFINE6 | as Q4_0 | as Q6_K | as AFFINE2 |
//! | AFFINE8 | as Q8_0, quants minus 128 | | as AFFINE2 |
//! | MXFP4 | as Q4_0 | | one exponent byte a block |
//! | IQ4_XS | as Q4_0 | | one i8 a block; then one f16 for 256 |
//!
//! Rows of plain types are padded with zeros to eight elements, rows of scales to whole words.

mod repack;

use gyrus_tensor::{DType, TensorError, can_dequantize};

pub use repack::{Planes, repack};

/// A part of a weight matrix that is one buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Plane {
    /// The elements, or their lower bits. Rows begin at multiples of 16 bytes, or of 8 where blocks have 8 bytes.
    Quants,
    /// The upper bits of types of three, five and six bits.
    High,
    /// Scales and offsets of quantised types.
    Scales,
}

impl Plane {
    /// All of them, in the order of their bindings.
    pub const ALL: [Plane; 3] = [Plane::Quants, Plane::High, Plane::Scales];

    /// Its name in kernels.
    pub fn name(self) -> &'static str {
        match self {
            Plane::Quants => "quants",
            Plane::High => "high",
            Plane::Scales => "scales",
        }
    }
}

/// The shape and type of a weight matrix, and with them the size of its planes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct WeightLayout {
    dtype: DType,
    rows: u32,
    cols: u32,
}

impl WeightLayout {
    /// Checks that kernels support such a matrix.
    pub fn new(dtype: DType, rows: usize, cols: usize) -> Result<WeightLayout, WeightError> {
        if !can_dequantize(dtype) {
            return Err(TensorError::NoDequantizer { dtype }.into());
        }
        dtype.bytes_of_elems(cols)?;
        // Activations are read four at a time.
        if !cols.is_multiple_of(4) {
            return Err(WeightError::Columns { dtype, cols });
        }
        // Below this the words of a row fit in 32 bits in every plane.
        const WIDEST: usize = 1 << 28;
        match (u32::try_from(rows), u32::try_from(cols)) {
            (Ok(rows), Ok(narrow)) if cols <= WIDEST => Ok(WeightLayout { dtype, rows, cols: narrow }),
            _ => Err(WeightError::Large { rows, cols }),
        }
    }

    /// The type in the file.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Rows: outputs of a mat-mul, entries of an embedding.
    pub fn rows(&self) -> u32 {
        self.rows
    }

    /// Columns: what a mat-mul sums over.
    pub fn cols(&self) -> u32 {
        self.cols
    }

    /// The same matrix with another number of rows: a part of it, or several stacked.
    #[must_use]
    pub fn with_rows(self, rows: u32) -> WeightLayout {
        WeightLayout { rows, ..self }
    }

    /// The planes that this type has, in the order of their bindings.
    pub fn planes(&self) -> impl Iterator<Item = Plane> + use<> {
        let layout = *self;
        Plane::ALL.into_iter().filter(move |plane| layout.row_words(*plane) > 0)
    }

    /// Words of one row in a plane; 0 if this type has no such plane.
    pub fn row_words(&self, plane: Plane) -> u32 {
        use DType::*;
        let cols = self.cols;
        let (blocks, supers) = (cols / 32, cols / 256);
        match (plane, self.dtype) {
            (Plane::Quants, F32) => cols.next_multiple_of(8),
            (Plane::Quants, F16 | BF16) => cols.next_multiple_of(8) / 2,
            (Plane::Quants, Q8_0 | AFFINE8_BF16 | AFFINE8_F16) => 8 * blocks,
            (Plane::Quants, Q2_K | Q3_K | AFFINE2_BF16 | AFFINE3_BF16 | AFFINE2_F16 | AFFINE3_F16) => {
                2 * blocks
            }
            (Plane::Quants, _) => 4 * blocks,
            (Plane::High, Q5_0 | Q5_1 | Q5_K | Q3_K | AFFINE3_BF16 | AFFINE3_F16 | AFFINE5_BF16) => blocks,
            (Plane::High, Q6_K | AFFINE6_BF16 | AFFINE6_F16) => 2 * blocks,
            (Plane::High, _) => 0,
            (Plane::Scales, Q4_0 | Q5_0 | Q8_0 | IQ4_NL) => blocks.div_ceil(2),
            (Plane::Scales, MXFP4) => blocks.div_ceil(4),
            (Plane::Scales, Q4_1 | Q5_1) => blocks,
            (Plane::Scales, dtype) if dtype.is_affine() => blocks,
            (Plane::Scales, Q4_K | Q5_K) => 4 * supers,
            (Plane::Scales, Q2_K) => blocks / 2 + supers,
            (Plane::Scales, Q3_K | Q6_K) => blocks / 2 + supers.div_ceil(2),
            (Plane::Scales, IQ4_XS) => blocks / 4 + supers.div_ceil(2),
            (Plane::Scales, _) => 0,
        }
    }

    /// Bytes of a plane.
    pub fn bytes(&self, plane: Plane) -> u64 {
        4 * u64::from(self.row_words(plane)) * u64::from(self.rows)
    }

    /// Bytes of all planes.
    pub fn total_bytes(&self) -> u64 {
        Plane::ALL.iter().map(|plane| self.bytes(*plane)).sum()
    }

    /// The most rows for which every plane has at most `limit` bytes: a matrix beyond a binding's limit is divided by
    /// it. 0 if one row does not fit.
    pub fn rows_within(&self, limit: u64) -> u32 {
        let widest = Plane::ALL.iter().map(|plane| self.row_words(*plane)).max().unwrap_or(0);
        let rows = limit / (4 * u64::from(widest)).max(1);
        u32::try_from(rows).unwrap_or(u32::MAX).min(self.rows)
    }

    /// Elements that one invocation reads at a time.
    pub(crate) fn unit(&self) -> u32 {
        if self.dtype.is_quantized() { 32 } else { 8 }
    }

    /// The name of the type that the preprocessor knows.
    pub(crate) fn constant(&self) -> String {
        self.dtype.name().to_lowercase()
    }
}

/// Why a matrix cannot be repacked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WeightError {
    /// Its type is not supported, its rows are not whole blocks, or its data has the wrong size.
    #[error(transparent)]
    Tensor(#[from] TensorError),
    /// Rows that are not a multiple of four elements.
    #[error("rows of {cols} {dtype} elements: kernels need a multiple of 4")]
    Columns {
        /// The element type.
        dtype: DType,
        /// Elements of a row.
        cols: usize,
    },
    /// More than kernels can address.
    #[error("a matrix of {rows} × {cols} elements is more than kernels can address")]
    Large {
        /// Rows.
        rows: usize,
        /// Columns.
        cols: usize,
    },
}
