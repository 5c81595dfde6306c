//! Builds GGUF models without a tokenizer in memory.

use gyrus_formats::gguf::Writer;
use gyrus_formats::{Bytes, Checkpoint};
use gyrus_tensor::{DType, Shape};

/// A tensor: name, type, shape, bytes.
pub(crate) type Tensor = (String, DType, Vec<usize>, Vec<u8>);

/// A model of this architecture. `numbers` are its hyperparameters by their keys, without the architecture prefix.
pub(crate) fn checkpoint(
    architecture: &str,
    eps: f32,
    numbers: &[(&str, u32)],
    tensors: &[Tensor],
) -> Checkpoint {
    let mut writer = Writer::new();
    writer.string("general.architecture", architecture).string("tokenizer.ggml.model", "no_vocab");
    writer.f32(&format!("{architecture}.attention.layer_norm_rms_epsilon"), eps);
    writer.f32(&format!("{architecture}.rope.freq_base"), 1e4);
    for (key, value) in numbers {
        writer.u32(&format!("{architecture}.{key}"), *value);
        if *key == "block_count" {
            // All layers have the window, if there is one: without this key those of Qwen 3 have none.
            let local = vec![1; *value as usize];
            writer.i32s(&format!("{architecture}.attention.sliding_window_pattern"), &local);
        }
    }
    for (name, dtype, shape, bytes) in tensors {
        writer.tensor(name, *dtype, Shape::new(shape).unwrap(), bytes).unwrap();
    }
    let mut file = Vec::new();
    writer.write_to(&mut file).unwrap();
    Checkpoint::from_gguf("written.gguf", Bytes::Owned(file)).unwrap()
}
