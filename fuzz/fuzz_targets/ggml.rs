#![no_main]
//! Whisper GGML files: an error, or tensors that lie in the file.

use gyrus_formats::{Bytes, Checkpoint};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok(model) = Checkpoint::from_ggml("fuzz", Bytes::Owned(bytes.to_vec())) else { return };
    for tensor in model.tensors() {
        assert_eq!(tensor.dtype.bytes_of(&tensor.shape), Ok(tensor.data.len()));
        assert_eq!(model.tensor(tensor.name).map(|found| found.at), Some(tensor.at));
    }
    let Some(file) = model.ggml() else { return };
    let (bands, bins, weights) = file.filters();
    assert_eq!(weights.len(), bands * bins);
    assert!(file.tokens().map(<[u8]>::len).sum::<usize>() <= bytes.len());
});
