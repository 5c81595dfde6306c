//! MXFP4 as gpt-oss stores it: two tensors of bytes, which become the blocks of GGUF.

use crate::block::BlockMxfp4;
use crate::{DType, TensorError};

/// Elements of a block.
const ELEMS: usize = 32;

/// Checks that no scale is NaN. A kernel that clamps its inputs would turn a NaN into a number, so such weights are
/// refused before they are used. Types whose scales propagate NaN to the logits are not searched.
pub fn check_scales(dtype: DType, bytes: &[u8]) -> Result<(), TensorError> {
    if dtype != DType::MXFP4 {
        return Ok(());
    }
    let (blocks, _) = bytes.as_chunks::<{ size_of::<BlockMxfp4>() }>();
    match blocks.iter().position(|block| block[0] == BlockMxfp4::NAN) {
        Some(block) => Err(TensorError::NanScale { dtype, block }),
        None => Ok(()),
    }
}

/// Writes blocks from their quants and scales in separate tensors.
///
/// `quants` has 16 bytes a block, with elements `2·j` and `2·j + 1` in byte `j`; `scales` has one exponent byte a block.
/// `out` has the blocks one after the other.
pub fn assemble_mxfp4(quants: &[u8], scales: &[u8], out: &mut [u8]) -> Result<(), TensorError> {
    let elems = scales.len().saturating_mul(ELEMS);
    let check = |expected: Option<usize>, found: usize| match expected {
        Some(expected) if expected == found => Ok(()),
        Some(expected) => Err(TensorError::ByteCount { dtype: DType::MXFP4, elems, expected, found }),
        None => Err(TensorError::Overflow { dims: vec![scales.len(), ELEMS] }),
    };
    check(scales.len().checked_mul(16), quants.len())?;
    check(scales.len().checked_mul(size_of::<BlockMxfp4>()), out.len())?;
    let blocks: &mut [BlockMxfp4] = bytemuck::cast_slice_mut(out);
    for ((block, quants), e) in blocks.iter_mut().zip(quants.as_chunks::<16>().0).zip(scales) {
        let code = |j: usize| quants[j / 2] >> (4 * (j % 2)) & 15;
        *block = BlockMxfp4 { e: *e, qs: std::array::from_fn(|j| code(j) | code(j + 16) << 4) };
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dequantize;

    #[test]
    fn pairs_of_neighbours_become_halves_of_blocks() {
        // Element j has code j % 16.
        let quants: Vec<u8> = (0..32).map(|j| (2 * j % 16) | ((2 * j + 1) % 16) << 4).collect();
        let mut out = [0; 34];
        assemble_mxfp4(&quants, &[127, 128], &mut out).unwrap();
        let mut values = [0.0; 64];
        dequantize(DType::MXFP4, &out, &mut values).unwrap();
        let levels = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0];
        for (j, value) in values.iter().enumerate() {
            let scale = if j < 32 { 1.0 } else { 2.0 };
            assert_eq!(*value, scale * levels[j % 16], "element {j}");
        }
        assert!(assemble_mxfp4(&quants, &[127], &mut out).is_err());
        assert!(assemble_mxfp4(&quants, &[127, 128], &mut out[..33]).is_err());
    }

    #[test]
    fn a_nan_scale_is_found() {
        let mut blocks = vec![0x7F; 17 * 5];
        assert_eq!(check_scales(DType::MXFP4, &blocks), Ok(()));
        blocks[17 * 3 + 1] = 0xFF;
        assert_eq!(check_scales(DType::MXFP4, &blocks), Ok(()));
        blocks[17 * 3] = 0xFF;
        let found = check_scales(DType::MXFP4, &blocks);
        assert_eq!(found, Err(TensorError::NanScale { dtype: DType::MXFP4, block: 3 }));
        assert_eq!(check_scales(DType::Q8_0, &[0xFF; 34]), Ok(()));
    }
}
