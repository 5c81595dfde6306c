use std::fmt;

use crate::{Shape, TensorError};

/// One row per type: variant, name, elements in a block, bytes in a block.
macro_rules! dtypes {
    ($($(#[$doc:meta])* $variant:ident $name:literal $elems:literal $bytes:literal;)*) => {
        /// The element type of a tensor, scalar or block-quantised.
        ///
        /// Names are those of ggml and SafeTensors. Every type that a GGUF or SafeTensors file may declare
        /// is listed, so every file can be inspected; [`crate::can_dequantize`] tells which types the
        /// kernels support.
        #[allow(non_camel_case_types)]
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[non_exhaustive]
        pub enum DType {
            $($(#[$doc])* $variant,)*
        }

        impl DType {
            /// All types, in declaration order.
            pub const ALL: &[DType] = &[$(DType::$variant,)*];

            /// The name in the specifications.
            pub const fn name(self) -> &'static str {
                match self { $(DType::$variant => $name,)* }
            }

            /// Elements in one block; 1 for scalar types.
            pub const fn block_elems(self) -> usize {
                match self { $(DType::$variant => $elems,)* }
            }

            /// Bytes of one block.
            pub const fn block_bytes(self) -> usize {
                match self { $(DType::$variant => $bytes,)* }
            }
        }
    };
}

dtypes! {
    /// IEEE single precision (binary32).
    F32 "F32" 1 4;
    /// IEEE half precision (binary16).
    F16 "F16" 1 2;
    /// bfloat16: the upper 16 bits of an `f32`.
    BF16 "BF16" 1 2;
    /// IEEE double precision (binary64).
    F64 "F64" 1 8;
    /// Signed 8-bit integer.
    I8 "I8" 1 1;
    /// Signed 16-bit integer.
    I16 "I16" 1 2;
    /// Signed 32-bit integer.
    I32 "I32" 1 4;
    /// Signed 64-bit integer.
    I64 "I64" 1 8;
    /// Unsigned 8-bit integer.
    U8 "U8" 1 1;
    /// Unsigned 16-bit integer.
    U16 "U16" 1 2;
    /// Unsigned 32-bit integer; MLX packs quantised weights into these.
    U32 "U32" 1 4;
    /// Unsigned 64-bit integer.
    U64 "U64" 1 8;
    /// One byte, zero or one.
    Bool "BOOL" 1 1;
    /// 8-bit float, 4 exponent bits, finite only.
    F8_E4M3 "F8_E4M3" 1 1;
    /// 8-bit float, 5 exponent bits.
    F8_E5M2 "F8_E5M2" 1 1;
    /// 8-bit power of two, the scale of microscaling formats.
    F8_E8M0 "F8_E8M0" 1 1;
    /// Complex number of two `f32`.
    C64 "C64" 1 8;
    /// 4 bits, scale; `v = d·(q − 8)`.
    Q4_0 "Q4_0" 32 18;
    /// 4 bits, scale and offset; `v = d·q + m`.
    Q4_1 "Q4_1" 32 20;
    /// 5 bits, scale; `v = d·(q − 16)`.
    Q5_0 "Q5_0" 32 22;
    /// 5 bits, scale and offset; `v = d·q + m`.
    Q5_1 "Q5_1" 32 24;
    /// 8 bits, scale; `v = d·q`.
    Q8_0 "Q8_0" 32 34;
    /// 8 bits, scale and the sum of the block: an activation format.
    Q8_1 "Q8_1" 32 36;
    /// 2 bits in super-blocks of 16 × 16, 4-bit scales and minimums.
    Q2_K "Q2_K" 256 84;
    /// 3 bits in super-blocks of 16 × 16, 6-bit scales.
    Q3_K "Q3_K" 256 110;
    /// 4 bits in super-blocks of 8 × 32, 6-bit scales and minimums.
    Q4_K "Q4_K" 256 144;
    /// 5 bits in super-blocks of 8 × 32, 6-bit scales and minimums.
    Q5_K "Q5_K" 256 176;
    /// 6 bits in super-blocks of 16 × 16, 8-bit scales.
    Q6_K "Q6_K" 256 210;
    /// 8 bits in super-blocks of 256 with sums: an activation format.
    Q8_K "Q8_K" 256 292;
    /// About 1.56 bits a weight from a codebook.
    IQ1_S "IQ1_S" 256 50;
    /// About 1.75 bits a weight from a codebook.
    IQ1_M "IQ1_M" 256 56;
    /// About 2.06 bits a weight from a codebook.
    IQ2_XXS "IQ2_XXS" 256 66;
    /// About 2.31 bits a weight from a codebook.
    IQ2_XS "IQ2_XS" 256 74;
    /// About 2.56 bits a weight from a codebook.
    IQ2_S "IQ2_S" 256 82;
    /// About 3.06 bits a weight from a codebook.
    IQ3_XXS "IQ3_XXS" 256 98;
    /// About 3.44 bits a weight from a codebook.
    IQ3_S "IQ3_S" 256 110;
    /// 4 bits into a table of 16 uneven levels, one scale for 32.
    IQ4_NL "IQ4_NL" 32 18;
    /// 4 bits into the same table, super-blocks of 8 × 32 with 6-bit scales.
    IQ4_XS "IQ4_XS" 256 136;
    /// Ternary, about 1.69 bits a weight.
    TQ1_0 "TQ1_0" 256 54;
    /// Ternary, about 2.06 bits a weight.
    TQ2_0 "TQ2_0" 256 66;
    /// Microscaling 4-bit float: 32 values share a power of two.
    MXFP4 "MXFP4" 32 17;
    /// 4-bit float with an 8-bit float scale for each 16 values.
    NVFP4 "NVFP4" 64 36;
    /// 1 bit, one scale for 128.
    Q1_0 "Q1_0" 128 18;
    /// 2 bits, one scale for 64.
    Q2_0 "Q2_0" 64 18;
    /// 2 bits of an affine group of MLX, scale and bias in bf16; `v = d·q + m`.
    AFFINE2_BF16 "AFFINE2_BF16" 32 12;
    /// 3 bits of an affine group of MLX, scale and bias in bf16; `v = d·q + m`.
    AFFINE3_BF16 "AFFINE3_BF16" 32 16;
    /// 4 bits of an affine group of MLX, scale and bias in bf16; `v = d·q + m`.
    AFFINE4_BF16 "AFFINE4_BF16" 32 20;
    /// 5 bits of an affine group of MLX, scale and bias in bf16; `v = d·q + m`.
    AFFINE5_BF16 "AFFINE5_BF16" 32 24;
    /// 6 bits of an affine group of MLX, scale and bias in bf16; `v = d·q + m`.
    AFFINE6_BF16 "AFFINE6_BF16" 32 28;
    /// 8 bits of an affine group of MLX, scale and bias in bf16; `v = d·q + m`.
    AFFINE8_BF16 "AFFINE8_BF16" 32 36;
    /// 2 bits of an affine group of MLX, scale and bias in f16; `v = d·q + m`.
    AFFINE2_F16 "AFFINE2_F16" 32 12;
    /// 3 bits of an affine group of MLX, scale and bias in f16; `v = d·q + m`.
    AFFINE3_F16 "AFFINE3_F16" 32 16;
    /// 6 bits of an affine group of MLX, scale and bias in f16; `v = d·q + m`.
    AFFINE6_F16 "AFFINE6_F16" 32 28;
    /// 8 bits of an affine group of MLX, scale and bias in f16; `v = d·q + m`.
    AFFINE8_F16 "AFFINE8_F16" 32 36;
}

impl DType {
    /// Whether the type is a block format with shared scales.
    pub const fn is_quantized(self) -> bool {
        self.block_elems() > 1
    }

    /// Bytes of `elems` contiguous elements, which must be whole blocks.
    pub fn bytes_of_elems(self, elems: usize) -> Result<usize, TensorError> {
        if !elems.is_multiple_of(self.block_elems()) {
            return Err(TensorError::PartialBlock { dtype: self, row: elems, block: self.block_elems() });
        }
        (elems / self.block_elems())
            .checked_mul(self.block_bytes())
            .filter(|&bytes| isize::try_from(bytes).is_ok())
            .ok_or_else(|| TensorError::Overflow { dims: vec![elems] })
    }

    /// Bytes of a dense tensor. Rows (the last axis) must be whole blocks.
    pub fn bytes_of(self, shape: &Shape) -> Result<usize, TensorError> {
        let row = shape.row();
        if !row.is_multiple_of(self.block_elems()) {
            return Err(TensorError::PartialBlock { dtype: self, row, block: self.block_elems() });
        }
        self.bytes_of_elems(shape.elems()).map_err(|_| TensorError::Overflow { dims: shape.dims().to_vec() })
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl std::str::FromStr for DType {
    type Err = ();

    /// Reads a name in any case: `q4_k`, `Q4_K`.
    fn from_str(name: &str) -> Result<Self, ()> {
        DType::ALL.iter().copied().find(|d| d.name().eq_ignore_ascii_case(name)).ok_or(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_parse() {
        for &dtype in DType::ALL {
            assert_eq!(dtype.name().to_lowercase().parse(), Ok(dtype));
        }
        assert_eq!("Q4_4".parse::<DType>(), Err(()));
    }

    #[test]
    fn bytes_of_counts_whole_blocks() {
        let shape = Shape::new(&[3, 512]).unwrap();
        assert_eq!(DType::Q4_K.bytes_of(&shape), Ok(3 * 2 * 144));
        assert_eq!(DType::F16.bytes_of(&shape), Ok(3 * 512 * 2));
    }

    #[test]
    fn rows_of_partial_blocks_are_rejected_even_if_the_total_is_whole() {
        let shape = Shape::new(&[2, 16]).unwrap();
        assert_eq!(
            DType::Q4_0.bytes_of(&shape),
            Err(TensorError::PartialBlock { dtype: DType::Q4_0, row: 16, block: 32 })
        );
    }

    #[test]
    fn byte_sizes_beyond_the_address_space_are_rejected() {
        let shape = Shape::new(&[1 << 31, 1 << 31]).unwrap();
        assert!(matches!(DType::F32.bytes_of(&shape), Err(TensorError::Overflow { .. })));
        assert!(matches!(DType::F64.bytes_of_elems(usize::MAX / 4), Err(TensorError::Overflow { .. })));
    }
}
