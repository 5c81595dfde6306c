//! Malformed SafeTensors files and indices are rejected with an error that names the problem and its offset.

use std::path::Path;

use gyrus_formats::safetensors::SafeTensors;
use gyrus_formats::{Bytes, Checkpoint};
use gyrus_testkit::tempfile;

/// A file of this header and `n` bytes of data.
fn file(header: &str, n: usize) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(header.as_bytes());
    bytes.resize(bytes.len() + n, 0);
    bytes
}

/// A header with one tensor of the given fields.
fn one(dtype: &str, shape: &str, range: &str) -> String {
    format!(r#"{{"t":{{"dtype":"{dtype}","shape":{shape},"data_offsets":{range}}}}}"#)
}

fn corpus() -> Vec<(&'static str, Vec<u8>)> {
    let valid = one("F32", "[4]", "[0,16]");
    let deep = format!("{{\"t\":{}{}}}", "[".repeat(500), "]".repeat(500));
    vec![
        ("empty", vec![]),
        ("shorter than a length", vec![1, 0, 0]),
        ("length beyond the file", 1000u64.to_le_bytes().to_vec()),
        ("length of all ones", [&u64::MAX.to_le_bytes()[..], b"{}"].concat()),
        ("length beyond any header", {
            let mut bytes = file(&valid, 16);
            bytes[..8].copy_from_slice(&100_000_001u64.to_le_bytes());
            bytes
        }),
        ("header cut short", {
            let mut bytes = file(&valid, 16);
            bytes[..8].copy_from_slice(&10u64.to_le_bytes());
            bytes
        }),
        ("header not UTF-8", [&8u64.to_le_bytes()[..], b"{\"a\xFF\":1}"].concat()),
        ("header not JSON", file("hello", 0)),
        ("header a list", file("[1,2]", 0)),
        ("nested beyond any depth", file(&deep, 0)),
        ("trailing characters", file(r#"{}{}"#, 0)),
        ("tensor not an object", file(r#"{"t":5}"#, 0)),
        ("tensor name empty", file(r#"{"":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#, 4)),
        ("dtype missing", file(r#"{"t":{"shape":[1],"data_offsets":[0,4]}}"#, 4)),
        ("shape missing", file(r#"{"t":{"dtype":"F32","data_offsets":[0,4]}}"#, 4)),
        ("offsets missing", file(r#"{"t":{"dtype":"F32","shape":[1]}}"#, 4)),
        ("dtype twice", file(r#"{"t":{"dtype":"F32","dtype":"F16","shape":[1],"data_offsets":[0,4]}}"#, 4)),
        (
            "tensor twice",
            file(
                r#"{"t":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"t":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}"#,
                2,
            ),
        ),
        ("metadata not text", file(r#"{"__metadata__":{"format":1}}"#, 0)),
        ("metadata twice", file(r#"{"__metadata__":{},"__metadata__":{}}"#, 0)),
        ("metadata key twice", file(r#"{"__metadata__":{"a":"1","a":"2"}}"#, 0)),
        ("dtype unknown", file(&one("F7", "[4]", "[0,16]"), 16)),
        ("dtype of another format", file(&one("Q4_0", "[32]", "[0,18]"), 18)),
        ("shape negative", file(&one("F32", "[-4]", "[0,16]"), 16)),
        ("shape fractional", file(&one("F32", "[4.0]", "[0,16]"), 16)),
        ("shape beyond 64 bits", file(&one("F32", "[18446744073709551616]", "[0,16]"), 16)),
        ("product overflows", file(&one("F32", "[4294967296,4294967296]", "[0,0]"), 0)),
        ("product overflows behind a zero", file(&one("F32", "[0,4294967296,4294967296]", "[0,0]"), 0)),
        ("bytes overflow", file(&one("F64", "[4611686018427387903]", "[0,16]"), 16)),
        ("nine dimensions", file(&one("F32", "[1,1,1,1,1,1,1,1,1]", "[0,4]"), 4)),
        ("range backwards", file(&one("F32", "[4]", "[16,0]"), 16)),
        ("range beyond the file", file(&one("F32", "[4]", "[0,16]"), 15)),
        ("range of all ones", file(&one("F32", "[4]", "[18446744073709551600,18446744073709551615]"), 16)),
        ("range shorter than the shape", file(&one("F32", "[4]", "[0,12]"), 12)),
        ("range longer than the shape", file(&one("F32", "[4]", "[0,20]"), 20)),
        ("three offsets", file(&one("F32", "[4]", "[0,8,16]"), 16)),
        ("hole at the start", file(&one("F32", "[4]", "[4,20]"), 20)),
        ("bytes left over", file(&valid, 17)),
        (
            "overlap",
            file(
                r#"{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[4],"data_offsets":[2,6]}}"#,
                6,
            ),
        ),
        (
            "same data twice",
            file(
                r#"{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}}"#,
                4,
            ),
        ),
        (
            "hole between",
            file(
                r#"{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[4],"data_offsets":[5,9]}}"#,
                9,
            ),
        ),
    ]
}

#[test]
fn malformed_files_are_rejected_with_problem_and_offset() {
    let messages: Vec<String> = corpus()
        .into_iter()
        .map(|(name, bytes)| format!("{name}: {}", SafeTensors::parse(Bytes::Owned(bytes)).unwrap_err()))
        .collect();
    insta::assert_snapshot!(messages.join("\n"));
}

#[test]
fn a_file_truncated_at_any_byte_is_rejected() {
    let whole = file(&one("F32", "[4]", "[0,16]"), 16);
    let read = SafeTensors::parse(Bytes::Owned(whole.clone())).unwrap();
    assert_eq!(read.tensor("t").unwrap().shape.dims(), [4]);
    for cut in 0..whole.len() {
        SafeTensors::parse(Bytes::Owned(whole[..cut].to_vec())).unwrap_err();
    }
}

#[test]
fn empty_tensors_scalars_and_padding_are_allowed() {
    let header = r#"{"__metadata__":{"format":"pt"},"e":{"dtype":"F32","shape":[0,3],"data_offsets":[4,4]},"s":{"dtype":"F32","shape":[],"data_offsets":[0,4]}}      "#;
    let read = SafeTensors::parse(Bytes::Owned(file(header, 4))).unwrap();
    assert_eq!(read.metadata()["format"], "pt");
    assert_eq!(read.tensor("e").unwrap().data, [0u8; 0]);
    assert_eq!(read.tensor("s").unwrap().data, [0; 4]);
}

/// Writes two shards `a.safetensors` (tensor x) and `b.safetensors` (tensor y) and this index.
fn sharded(folder: &Path, index: &str) {
    for (name, tensor) in [("a", "x"), ("b", "y")] {
        let header = one("F32", "[1]", "[0,4]").replace("\"t\"", &format!("\"{tensor}\""));
        std::fs::write(folder.join(format!("{name}.safetensors")), file(&header, 4)).unwrap();
    }
    std::fs::write(folder.join("model.safetensors.index.json"), index).unwrap();
}

#[test]
fn sharded_models_open() {
    let folder = tempfile::tempdir().unwrap();
    let index = r#"{"metadata":{"total_size":8},"weight_map":{"x":"a.safetensors","y":"b.safetensors"}}"#;
    sharded(folder.path(), index);
    std::fs::write(folder.path().join("config.json"), r#"{"model_type":"llama"}"#).unwrap();
    for start in ["", "model.safetensors.index.json"] {
        let model = Checkpoint::open(&folder.path().join(start)).unwrap();
        assert_eq!(model.files().len(), 2);
        assert_eq!(model.config().unwrap()["model_type"], "llama");
        assert_eq!(model.tensor("y").unwrap().shard, 1);
        assert_eq!(model.tensors().count(), 2);
    }
}

#[test]
fn malformed_indices_are_rejected() {
    let map = |map: &str| format!(r#"{{"weight_map":{map}}}"#);
    let indices = [
        ("not JSON", "weight_map".to_owned()),
        ("no map", "{}".to_owned()),
        ("empty map", map("{}")),
        ("map of numbers", map(r#"{"x":1}"#)),
        ("tensor listed twice", map(r#"{"x":"a.safetensors","x":"b.safetensors"}"#)),
        ("file missing", map(r#"{"x":"a.safetensors","y":"c.safetensors"}"#)),
        ("file above the folder", map(r#"{"x":"../a.safetensors"}"#)),
        ("file anywhere", map(r#"{"x":"/etc/passwd"}"#)),
        ("file a folder", map(r#"{"x":".."}"#)),
        ("tensors swapped", map(r#"{"y":"a.safetensors","x":"b.safetensors"}"#)),
        ("tensor not listed", map(r#"{"y":"b.safetensors","z":"a.safetensors"}"#)),
        ("tensor nowhere", map(r#"{"x":"a.safetensors","y":"b.safetensors","z":"b.safetensors"}"#)),
        ("shard not SafeTensors", map(r#"{"x":"model.safetensors.index.json"}"#)),
    ];
    let messages: Vec<String> = indices
        .iter()
        .map(|(name, index)| {
            let folder = tempfile::tempdir().unwrap();
            sharded(folder.path(), index);
            let error = Checkpoint::open(folder.path()).unwrap_err().to_string();
            format!("{name}: {}", error.replace(&format!("{}/", folder.path().display()), ""))
        })
        .collect();
    insta::assert_snapshot!(messages.join("\n"));
}

#[test]
fn corpus_can_be_written_for_fuzzing() {
    let Some(folder) = std::env::var_os("GYRUS_WRITE_CORPUS") else { return };
    std::fs::create_dir_all(&folder).unwrap();
    let valid = file(&one("F32", "[4]", "[0,16]"), 16);
    let index = br#"{"metadata":{"total_size":8},"weight_map":{"x":"a.safetensors"}}"#.to_vec();
    for (name, bytes) in corpus().into_iter().chain([("whole", valid), ("index", index)]) {
        std::fs::write(Path::new(&folder).join(name.replace(' ', "-")), bytes).unwrap();
    }
}
