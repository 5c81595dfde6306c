//! Malformed GGUF files are rejected with an error that names the problem and its offset.
//!
//! The snapshot is the list of messages. `GYRUS_WRITE_CORPUS=DIR` also writes the cases as files, the seeds
//! for fuzzing.

use gyrus_formats::Bytes;
use gyrus_formats::gguf::{Gguf, GgufError, Writer};
use gyrus_tensor::{DType, Shape};

/// A file written field by field, so that any field can be wrong.
#[derive(Clone)]
struct Raw(Vec<u8>);

impl Raw {
    fn header(tensors: u64, keys: u64) -> Raw {
        Raw(b"GGUF".to_vec()).u32(3).u64(tensors).u64(keys)
    }

    fn bytes(mut self, bytes: &[u8]) -> Raw {
        self.0.extend_from_slice(bytes);
        self
    }

    fn u32(self, value: u32) -> Raw {
        self.bytes(&value.to_le_bytes())
    }

    fn u64(self, value: u64) -> Raw {
        self.bytes(&value.to_le_bytes())
    }

    fn string(self, text: &[u8]) -> Raw {
        self.u64(text.len() as u64).bytes(text)
    }

    /// A key of type u32.
    fn key(self, name: &str, value: u32) -> Raw {
        self.string(name.as_bytes()).u32(4).u32(value)
    }

    fn tensor(self, name: &str, dims: &[u64], dtype: u32, offset: u64) -> Raw {
        let mut raw = self.string(name.as_bytes()).u32(dims.len() as u32);
        for &dim in dims {
            raw = raw.u64(dim);
        }
        raw.u32(dtype).u64(offset)
    }

    /// Padding to 32 and then `n` bytes of data.
    fn data(mut self, n: usize) -> Raw {
        self.0.resize(self.0.len().next_multiple_of(32) + n, 0);
        self
    }
}

/// The malformed files, by name.
fn corpus() -> Vec<(String, Vec<u8>)> {
    const U32: u32 = 4;
    const STRING: u32 = 8;
    const ARRAY: u32 = 9;
    let one = |raw: Raw| raw.data(64);
    let tensor = |dims: &[u64], dtype| Raw::header(1, 0).tensor("t", dims, dtype, 0).data(4096);
    let cases: Vec<(&str, Raw)> = vec![
        // The header.
        ("empty", Raw(vec![])),
        ("text", Raw(b"Once upon a time".to_vec())),
        ("magic only", Raw(b"GGUF".to_vec())),
        ("version 0", Raw(b"GGUF".to_vec()).u32(0).u64(0).u64(0)),
        ("version 1", Raw(b"GGUF".to_vec()).u32(1).u64(0).u64(0)),
        ("version 4", Raw(b"GGUF".to_vec()).u32(4).u64(0).u64(0)),
        ("big-endian", Raw(b"GGUF".to_vec()).u32(3u32.swap_bytes()).u64(0).u64(0)),
        ("huge key count", Raw::header(0, u64::MAX)),
        ("huge tensor count", Raw::header(u64::MAX, 0)),
        ("key count times size overflows", Raw::header(0, u64::MAX / 8)),
        ("more keys than the file can hold", Raw::header(0, 2).key("a", 1)),
        ("more tensors than the file can hold", Raw::header(3, 0).tensor("t", &[1], 0, 0)),
        ("tensor count eats the data", one(Raw::header(2, 0).tensor("t", &[1], 0, 0))),
        // Keys.
        ("key length huge", Raw::header(0, 1).u64(u64::MAX).bytes(&[b'k'; 16])),
        ("key length just beyond the file", Raw::header(0, 1).u64(15).bytes(&[b'k'; 14])),
        ("key longer than allowed", Raw::header(0, 1).string(&[b'k'; 65536]).u32(U32).u32(1)),
        ("empty key", Raw::header(0, 1).string(b"").u32(U32).u32(1)),
        ("key not UTF-8", Raw::header(0, 1).string(b"ab\xFFcd").u32(U32).u32(1)),
        ("key with control characters", Raw::header(0, 1).string(b"a\x1b[31m\n").u32(99).u32(1)),
        ("duplicate key", Raw::header(0, 3).key("same", 1).key("other", 1).key("same", 2)),
        ("unknown value type", Raw::header(0, 1).string(b"k").u32(13).u64(0)),
        ("value type of all ones", Raw::header(0, 1).string(b"k").u32(u32::MAX).u64(0)),
        ("bool of 2", Raw::header(0, 1).string(b"k").u32(7).bytes(&[2])),
        ("bool array with 255", Raw::header(0, 1).string(b"k").u32(ARRAY).u32(7).u64(3).bytes(&[0, 1, 255])),
        ("string length huge", Raw::header(0, 1).string(b"k").u32(STRING).u64(u64::MAX - 7)),
        ("string length beyond the file", Raw::header(0, 1).string(b"k").u32(STRING).u64(100).bytes(b"abc")),
        ("string not UTF-8", Raw::header(0, 1).string(b"k").u32(STRING).string(b"\xC3\x28")),
        // Arrays.
        ("array of unknown type", Raw::header(0, 1).string(b"k").u32(ARRAY).u32(77).u64(0)),
        ("array count huge", Raw::header(0, 1).string(b"k").u32(ARRAY).u32(U32).u64(u64::MAX)),
        ("array bytes overflow", Raw::header(0, 1).string(b"k").u32(ARRAY).u32(12).u64(u64::MAX / 8 + 1)),
        ("array beyond the file", Raw::header(0, 1).string(b"k").u32(ARRAY).u32(U32).u64(3).u64(0)),
        ("string array count huge", Raw::header(0, 1).string(b"k").u32(ARRAY).u32(STRING).u64(1 << 40)),
        (
            "string in an array beyond the file",
            Raw::header(0, 1).string(b"k").u32(ARRAY).u32(STRING).u64(2).string(b"a").u64(50),
        ),
        ("nested array", Raw::header(0, 1).string(b"k").u32(ARRAY).u32(ARRAY).u64(1).u32(U32).u64(1).u32(5)),
        (
            "array nested a thousand deep",
            (0..1000).fold(Raw::header(0, 1).string(b"k").u32(ARRAY), |raw, _| raw.u32(ARRAY).u64(1)),
        ),
        // Alignment.
        ("alignment 0", Raw::header(0, 1).key("general.alignment", 0)),
        ("alignment 24", Raw::header(0, 1).key("general.alignment", 24)),
        ("alignment enormous", Raw::header(0, 1).key("general.alignment", 1 << 31)),
        ("alignment negative", Raw::header(0, 1).string(b"general.alignment").u32(5).u32(-32i32 as u32)),
        ("alignment a string", Raw::header(0, 1).string(b"general.alignment").u32(STRING).string(b"32")),
        ("alignment a bool", Raw::header(0, 1).string(b"general.alignment").u32(7).bytes(&[1])),
        (
            "alignment an array",
            Raw::header(0, 1).string(b"general.alignment").u32(ARRAY).u32(U32).u64(1).u32(32),
        ),
        // Tensors.
        ("tensor name empty", one(Raw::header(1, 0).tensor("", &[1], 0, 0))),
        ("tensor name too long", one(Raw::header(1, 0).tensor(&"n".repeat(257), &[1], 0, 0))),
        ("tensor name not UTF-8", one(Raw::header(1, 0).string(b"t\x80").u32(1).u64(1).u32(0).u64(0))),
        (
            "duplicate tensor",
            Raw::header(2, 0).tensor("same", &[8], 0, 0).tensor("same", &[8], 0, 32).data(64),
        ),
        ("no dimensions", one(Raw::header(1, 0).tensor("t", &[], 0, 0))),
        ("five dimensions", one(Raw::header(1, 0).tensor("t", &[1; 5], 0, 0))),
        ("four billion dimensions", one(Raw::header(1, 0).string(b"t").u32(u32::MAX).u64(1).u64(1).u64(1))),
        ("zero dimension", tensor(&[4, 0, 4], 0)),
        ("negative dimension", tensor(&[-1i64 as u64], 0)),
        ("product overflows", tensor(&[1 << 40, 1 << 40], 0)),
        ("product wraps to a small number", tensor(&[1 << 32, 1 << 32, 1, 4], 0)),
        ("bytes overflow", tensor(&[1 << 31, 1 << 31], 28)),
        ("row not whole blocks", tensor(&[33, 2], 2)),
        ("row not whole blocks though the total is", tensor(&[16, 2], 2)),
        ("unknown tensor type", tensor(&[4], 43)),
        ("tensor type of all ones", tensor(&[4], u32::MAX)),
        ("withdrawn tensor type", tensor(&[32], 4)),
        ("withdrawn repacked type", tensor(&[32], 31)),
        ("offset not aligned", Raw::header(1, 0).tensor("t", &[1], 0, 4).data(64)),
        ("offset beyond the file", Raw::header(1, 0).tensor("t", &[1], 0, 1 << 20).data(64)),
        ("offset of all ones, aligned", Raw::header(1, 0).tensor("t", &[1], 0, u64::MAX - 31).data(64)),
        ("data beyond the file by a byte", Raw::header(1, 0).tensor("t", &[16], 0, 0).data(63)),
        ("no data at all", Raw::header(1, 0).tensor("t", &[16], 0, 0)),
        (
            "overlap by one alignment",
            Raw::header(2, 0).tensor("a", &[16], 0, 0).tensor("b", &[16], 0, 32).data(96),
        ),
        ("same data twice", Raw::header(2, 0).tensor("a", &[16], 0, 0).tensor("b", &[16], 0, 0).data(64)),
        (
            "one inside another",
            Raw::header(2, 0).tensor("inner", &[8], 0, 32).tensor("outer", &[64], 0, 0).data(256),
        ),
    ];
    cases.into_iter().map(|(name, raw)| (name.to_owned(), raw.0)).collect()
}

/// A small file with every kind of field, and the end of its last tensor.
fn whole() -> (Vec<u8>, usize) {
    let data = [1u8; 64];
    let mut writer = Writer::new();
    writer
        .string("general.architecture", "llama")
        .u32("llama.block_count", 1)
        .bool("flag", true)
        .strings("tokenizer.ggml.tokens", &["<s>", "", "é"])
        .f32s("tokenizer.ggml.scores", &[0.0, 1.0]);
    writer.tensor("a", DType::F32, Shape::new(&[2, 8]).unwrap(), &data).unwrap();
    writer.tensor("b", DType::Q8_0, Shape::new(&[32]).unwrap(), &data[..34]).unwrap();
    let mut file = Vec::new();
    writer.write_to(&mut file).unwrap();
    // The padding after the last tensor belongs to no field.
    let end = file.len() - 30;
    (file, end)
}

fn reject(bytes: &[u8]) -> GgufError {
    Gguf::parse(Bytes::Owned(bytes.to_vec())).expect_err("a malformed file must be rejected")
}

#[test]
fn malformed_files_are_rejected_with_problem_and_offset() {
    let messages: Vec<String> =
        corpus().iter().map(|(name, bytes)| format!("{name}: {}", reject(bytes))).collect();
    insta::assert_snapshot!(messages.join("\n"));
}

#[test]
fn a_file_truncated_at_any_byte_is_rejected() {
    let (file, end) = whole();
    assert!(Gguf::parse(Bytes::Owned(file[..end].to_vec())).is_ok());
    for cut in 0..end {
        let error = reject(&file[..cut]);
        assert!(error.at <= cut as u64, "cut at {cut}: {error}");
    }
}

#[test]
fn a_flipped_bit_anywhere_never_panics() {
    let (file, _) = whole();
    for bit in 0..file.len() * 8 {
        let mut corrupted = file.clone();
        corrupted[bit / 8] ^= 1 << (bit % 8);
        if let Ok(read) = Gguf::parse(Bytes::Owned(corrupted)) {
            for tensor in read.tensors() {
                assert_eq!(tensor.data.len(), tensor.dtype.bytes_of(&tensor.shape).unwrap());
            }
        }
    }
}

#[test]
fn corpus_can_be_written_for_fuzzing() {
    let Some(folder) = std::env::var_os("GYRUS_WRITE_CORPUS") else { return };
    std::fs::create_dir_all(&folder).unwrap();
    for (name, bytes) in corpus().into_iter().chain([("whole".to_owned(), whole().0)]) {
        if bytes.len() <= 4096 {
            std::fs::write(std::path::Path::new(&folder).join(name.replace(' ', "-")), bytes).unwrap();
        }
    }
}
