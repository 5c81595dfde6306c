//! Whisper GGML files, sound and malformed.

use gyrus_formats::{Bytes, Checkpoint, Format};
use gyrus_tensor::DType;

fn number(out: &mut Vec<u8>, number: i32) {
    out.extend(number.to_le_bytes());
}

/// The part before the tensors: a header, one filter of two frequencies, two tokens.
fn beginning() -> Vec<u8> {
    let mut out = b"lmgg".to_vec();
    (1..=11).for_each(|n| number(&mut out, n));
    [1, 2].into_iter().for_each(|n| number(&mut out, n));
    out.extend([0.5f32, 0.25].map(f32::to_le_bytes).concat());
    number(&mut out, 2);
    for token in ["a", " \u{fffd}b"] {
        number(&mut out, token.len() as i32);
        out.extend(token.as_bytes());
    }
    out
}

fn tensor(out: &mut Vec<u8>, name: &str, kind: i32, dims: &[i32], data: &[u8]) {
    number(out, dims.len() as i32);
    number(out, name.len() as i32);
    number(out, kind);
    dims.iter().for_each(|dim| number(out, *dim));
    out.extend(name.as_bytes());
    out.extend(data);
}

fn sound() -> Vec<u8> {
    let mut out = beginning();
    tensor(&mut out, "conv.bias", 0, &[1, 2], &[1.0f32, 2.0].map(f32::to_le_bytes).concat());
    tensor(&mut out, "w", 8, &[32, 2], &[7; 68]);
    out
}

fn error(bytes: Vec<u8>) -> String {
    Checkpoint::from_ggml("m.bin", Bytes::Owned(bytes)).unwrap_err().to_string()
}

#[test]
fn tensors_filters_and_tokens_are_found() {
    let model = Checkpoint::from_ggml("m.bin", Bytes::Owned(sound())).unwrap();
    assert_eq!(model.format(), Format::WhisperGgml);
    let file = model.ggml().unwrap();
    assert_eq!((file.header().n_vocab, file.header().ftype), (1, 11));
    assert_eq!(file.filters(), (1, 2, vec![0.5, 0.25]));
    assert_eq!(file.tokens().collect::<Vec<_>>(), ["a".as_bytes(), " \u{fffd}b".as_bytes()]);
    let bias = model.tensor("conv.bias").unwrap();
    assert_eq!((bias.shape.dims(), bias.dtype), (&[2usize, 1][..], DType::F32));
    let weight = model.tensor("w").unwrap();
    assert_eq!(
        (weight.shape.dims(), weight.dtype, weight.data),
        (&[2usize, 32][..], DType::Q8_0, &[7; 68][..])
    );
    assert!(model.tensor("absent").is_none());
}

#[test]
fn malformed_files_are_refused_with_the_place() {
    let with = |name: &str, kind: i32, dims: &[i32], data: &[u8]| {
        let mut out = beginning();
        tensor(&mut out, name, kind, dims, data);
        error(out)
    };
    assert_eq!(
        error(b"lmgg".to_vec()),
        "m.bin: header at offset 4: the file ends within n_vocab: 4 bytes needed, 0 left"
    );
    assert!(error(b"GGUF".to_vec()).contains("not a Whisper GGML file"));
    let start = beginning().len();
    assert_eq!(
        with("w", 0, &[2, 0], &[]),
        format!("m.bin: description of a tensor at offset {}: dimension 1 is zero", start + 16)
    );
    assert!(with("w", 0, &[-1], &[]).contains("a dimension is -1, which must not be negative"));
    assert!(with("w", 99, &[1], &[0; 4]).contains("tensor 'w' at offset"));
    assert!(with("", 0, &[1], &[0; 4]).contains("the name of tensor 0 has 0 bytes"));
    assert!(with("w", 0, &[i32::MAX, i32::MAX, i32::MAX, i32::MAX], &[]).contains("tensor 'w' at offset"));
    assert!(
        with("w", 0, &[1 << 30], &[0; 4])
            .contains("the file ends within the data: 4294967296 bytes needed, 4 left")
    );
    assert!(with("w", 8, &[31], &[0; 34]).contains("tensor 'w'"));
    let mut twice = sound();
    tensor(&mut twice, "w", 0, &[1], &[0; 4]);
    assert!(error(twice).contains("the name occurs twice"));
    // The first token.
    let mut long = beginning();
    let at = 4 + 44 + 8 + 8 + 4;
    long[at..at + 4].copy_from_slice(&513i32.to_le_bytes());
    assert_eq!(
        error(long),
        format!("m.bin: vocabulary at offset {at}: token 0 has 513 bytes; at most 512 are possible")
    );
    // Two thousand million tokens are declared.
    let mut many = beginning();
    let at = 4 + 44 + 8 + 8;
    many[at..at + 4].copy_from_slice(&i32::MAX.to_le_bytes());
    assert!(error(many).starts_with("m.bin: vocabulary at offset"));
}

#[test]
fn truncated_and_changed_files_never_panic() {
    let whole = sound();
    for length in 0..whole.len() {
        let _ = Checkpoint::from_ggml("m.bin", Bytes::Owned(whole[..length].to_vec()));
    }
    for at in 0..whole.len() {
        for bit in 0..8 {
            let mut bytes = whole.clone();
            bytes[at] ^= 1 << bit;
            let _ = Checkpoint::from_ggml("m.bin", Bytes::Owned(bytes));
        }
    }
}
