use half::{bf16, f16};

use crate::call::Storage;

/// An element of a buffer of words.
pub fn element(words: &[u32], storage: Storage, at: usize) -> f64 {
    let half = || (words[at / 2] >> (16 * (at % 2))) as u16;
    match storage {
        Storage::F32 => f32::from_bits(words[at]).into(),
        Storage::F16 => f16::from_bits(half()).to_f64(),
        Storage::Bf16 => bf16::from_bits(half()).to_f64(),
    }
}

/// Rounds a value into a buffer of words.
pub fn set(words: &mut [u32], storage: Storage, at: usize, value: f64) {
    let half = match storage {
        Storage::F32 => {
            words[at] = (value as f32).to_bits();
            return;
        }
        Storage::F16 => f16::from_f64(value).to_bits(),
        Storage::Bf16 => bf16::from_f64(value).to_bits(),
    };
    let shift = 16 * (at % 2);
    let word = &mut words[at / 2];
    *word = *word & !(0xffff << shift) | u32::from(half) << shift;
}
