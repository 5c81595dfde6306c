//! Quantises weights while they are loaded.

use std::sync::{Mutex, PoisonError};

use gyrus_cpu::Pool;
use gyrus_tensor::{DType, TensorError, can_quantize, dequantize, quantize};

use crate::Error;

/// Elements that one task converts: a multiple of every block, and a buffer of 64 KiB in f32.
const TASK_ELEMS: usize = 1 << 14;

/// Checks that weights can be quantised to a type.
pub(crate) fn check(dtype: DType) -> Result<(), Error> {
    if dtype.is_quantized() && can_quantize(dtype) {
        return Ok(());
    }
    Err(Error::Unsupported(format!("quantising weights to {dtype}")))
}

/// Converts weights on several threads.
pub(crate) struct Quantizer(Pool);

impl Quantizer {
    pub(crate) fn new(threads: usize) -> Quantizer {
        Quantizer(Pool::new(threads))
    }

    /// The data of a tensor in another type. Its rows are whole blocks of that type, so the bits are those of quantising
    /// the tensor as a whole. Beside the result, each thread has one buffer.
    pub(crate) fn convert(&self, name: &str, data: &[u8], from: DType, to: DType) -> Result<Vec<u8>, Error> {
        let named = |source| Error::Tensor { name: name.to_owned(), source };
        let sizes = |dtype: DType| dtype.bytes_of_elems(TASK_ELEMS).map_err(named);
        let (from_bytes, to_bytes) = (sizes(from)?, sizes(to)?);
        let elems = data.len() / from.bytes_of_elems(from.block_elems()).map_err(named)? * from.block_elems();
        let mut out = vec![0; to.bytes_of_elems(elems).map_err(named)?];
        let tasks: Vec<_> = data.chunks(from_bytes).zip(out.chunks_mut(to_bytes).map(Mutex::new)).collect();
        let failed: Mutex<Option<(usize, TensorError)>> = Mutex::new(None);
        self.0.run(tasks.len(), &|n| {
            let (data, out) = &tasks[n];
            if let Err(error) = convert(data, from, to, &mut lock(out)) {
                let mut failed = lock(&failed);
                if failed.as_ref().is_none_or(|(first, _)| n < *first) {
                    *failed = Some((n, error));
                }
            }
        });
        drop(tasks);
        match failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
            None => Ok(out),
            Some((task, TensorError::Unrepresentable { dtype, index, value })) => {
                let index = task * TASK_ELEMS + index;
                Err(named(TensorError::Unrepresentable { dtype, index, value }))
            }
            Some((_, error)) => Err(named(error)),
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn convert(data: &[u8], from: DType, to: DType, out: &mut [u8]) -> Result<(), TensorError> {
    let mut values = vec![0.0; out.len() / to.block_bytes() * to.block_elems()];
    dequantize(from, data, &mut values)?;
    out.copy_from_slice(&quantize(to, &values)?);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use gyrus_testkit::Rng;

    #[test]
    fn the_bits_are_those_of_the_reference() {
        let mut rng = Rng::new(5);
        let quantizer = Quantizer::new(3);
        for from in [DType::F32, DType::F16, DType::BF16] {
            // One block, one task, and tasks with a rest.
            for elems in [256, TASK_ELEMS, 3 * TASK_ELEMS + 512] {
                let values: Vec<f32> = (0..elems).map(|_| rng.gaussian() as f32).collect();
                let data = quantize(from, &values).unwrap();
                let mut stored = vec![0.0; elems];
                dequantize(from, &data, &mut stored).unwrap();
                for to in DType::ALL.iter().copied().filter(|to| check(*to).is_ok()) {
                    let found = quantizer.convert("w", &data, from, to).unwrap();
                    assert!(found == quantize(to, &stored).unwrap(), "{from} to {to}, {elems}");
                }
            }
        }
    }

    #[test]
    fn a_value_that_cannot_be_quantised_is_named() {
        let mut values = vec![1f32; 2 * TASK_ELEMS];
        values[TASK_ELEMS + 7] = f32::NAN;
        values[TASK_ELEMS + 100] = f32::INFINITY;
        let data = quantize(DType::F32, &values).unwrap();
        let error = Quantizer::new(2).convert("blk.0.w", &data, DType::F32, DType::Q8_0).unwrap_err();
        let error = error.to_string();
        assert!(error.contains("'blk.0.w'") && error.contains(&(TASK_ELEMS + 7).to_string()), "{error}");
        for dtype in [DType::F16, DType::F32, DType::Q2_K, DType::IQ4_XS] {
            assert!(check(dtype).unwrap_err().to_string().contains(&dtype.to_string()));
        }
    }
}
