//! Round trips of writer and reader: all value types, typed access, tensor views, split models.

use gyrus_formats::gguf::{Gguf, MetadataError, Value, ValueType, Writer};
use gyrus_formats::{Bytes, Checkpoint};
use gyrus_tensor::{DType, Shape};
use gyrus_testkit::tempfile;

fn parse(writer: &Writer<'_>) -> Gguf {
    let mut file = Vec::new();
    writer.write_to(&mut file).unwrap();
    Gguf::parse(Bytes::Owned(file)).unwrap()
}

#[test]
fn all_value_types_round_trip() {
    let mut writer = Writer::new();
    writer
        .raw("u8", ValueType::U8, &[200])
        .raw("i8", ValueType::I8, &(-5i8).to_le_bytes())
        .raw("u16", ValueType::U16, &60000u16.to_le_bytes())
        .raw("i16", ValueType::I16, &(-30000i16).to_le_bytes())
        .u32("u32", 4_000_000_000)
        .i32("i32", -2_000_000_000)
        .f32("f32", 0.1)
        .bool("yes", true)
        .string("text", "Grüße, 世界")
        .u64("u64", u64::MAX)
        .raw("i64", ValueType::I64, &i64::MIN.to_le_bytes())
        .raw("f64", ValueType::F64, &1e300f64.to_le_bytes())
        .strings("names", &["a", "", "ccc"])
        .f32s("scores", &[1.5, -2.0])
        .i32s("kinds", &[1, 3, 6])
        .strings::<&str>("none", &[])
        .raw("bytes", ValueType::Array, &[1, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0xff, 7])
        .i32s("wide", &[1, 300]);
    let file = parse(&writer);
    let m = file.metadata();
    assert_eq!(m.require("u8"), Ok(200u32));
    assert_eq!(m.require("i8"), Ok(-5i32));
    assert_eq!(m.require("u16"), Ok(60000u64));
    assert_eq!(m.require("i16"), Ok(-30000i64));
    assert_eq!(m.require("u32"), Ok(4_000_000_000u32));
    assert_eq!(m.require("i32"), Ok(-2_000_000_000i32));
    assert_eq!(m.require("f32"), Ok(0.1f32));
    assert_eq!(m.require("yes"), Ok(true));
    assert_eq!(m.require("text"), Ok("Grüße, 世界"));
    assert_eq!(m.require("u64"), Ok(u64::MAX));
    assert_eq!(m.require("i64"), Ok(i64::MIN));
    assert_eq!(m.require("f64"), Ok(f32::INFINITY));
    assert_eq!(m.require("names"), Ok(vec!["a", "", "ccc"]));
    assert_eq!(m.require("scores"), Ok(vec![1.5f32, -2.0]));
    assert_eq!(m.require("kinds"), Ok(vec![1u32, 3, 6]));
    assert_eq!(m.require("none"), Ok(Vec::<&str>::new()));
    assert_eq!(m.require("bytes"), Ok(vec![255u8, 7]));
    let wide = m.require::<Vec<u8>>("wide").unwrap_err().to_string();
    assert!(wide.ends_with("300 is not an array of bytes"), "{wide}");
    assert_eq!(m.get::<u32>("absent"), Ok(None));
    assert_eq!(m.len(), 18);
    assert_eq!(m.iter().next().map(|(key, _)| key), Some("u8"));
    assert!(matches!(m.value("names"), Some(Value::Array(a)) if a.len() == 3 && a.kind() == ValueType::Str));
}

#[test]
fn typed_access_errors_name_key_offset_and_types() {
    let mut writer = Writer::new();
    writer.string("name", "x").i32("count", -1).strings("list", &["a"]).u64("big", 1 << 40);
    let file = parse(&writer);
    let m = file.metadata();
    let text = |e: MetadataError| e.to_string();
    assert_eq!(
        m.require::<u32>("name").map_err(text),
        Err("key 'name' at offset 24: expected an unsigned 32-bit integer, found string".to_owned())
    );
    assert_eq!(
        m.get::<u64>("count").map_err(text),
        Err("key 'count' at offset 49: -1 is not an unsigned integer".to_owned())
    );
    assert_eq!(
        m.get::<Vec<f32>>("list").map_err(text),
        Err("key 'list' at offset 70: expected an array of floats, found array of string".to_owned())
    );
    assert_eq!(
        m.get::<u32>("big").map_err(text),
        Err("key 'big' at offset 107: 1099511627776 is not an unsigned 32-bit integer".to_owned())
    );
    assert_eq!(m.require::<bool>("flag").map_err(text), Err("key 'flag' is missing".to_owned()));
}

#[test]
fn tensors_are_views_in_outermost_first_order() {
    let first: Vec<u8> = (0..24).collect();
    let second = [7u8; 36];
    for alignment in [1, 8, 32, 4096] {
        let mut writer = Writer::new();
        writer.alignment(alignment);
        writer.tensor("b", DType::F32, Shape::new(&[2, 3]).unwrap(), &first).unwrap();
        writer.tensor("a", DType::Q4_0, Shape::new(&[2, 32]).unwrap(), &second).unwrap();
        let file = parse(&writer);
        assert_eq!(file.alignment(), u64::from(alignment));
        let b = file.tensor("b").unwrap();
        assert_eq!((b.shape.dims(), b.data), (&[2, 3][..], &first[..]));
        let a = file.tensor("a").unwrap();
        assert_eq!((a.shape.dims(), a.data), (&[2, 32][..], &second[..]));
        assert_eq!(a.at % u64::from(alignment), 0);
        assert!(file.tensor("c").is_none());
        let names: Vec<_> = file.tensors().map(|t| t.name.to_owned()).collect();
        assert_eq!(names, ["b", "a"], "file order");
    }
}

#[test]
fn version_2_reads_like_version_3() {
    let mut writer = Writer::new();
    writer.u32("k", 7);
    let mut file = Vec::new();
    writer.write_to(&mut file).unwrap();
    file[4] = 2;
    let file = Gguf::parse(Bytes::Owned(file)).unwrap();
    assert_eq!((file.version(), file.metadata().require("k")), (2, Ok(7u32)));
}

#[test]
fn data_begins_at_the_next_multiple_of_the_alignment() {
    let mut writer = Writer::new();
    writer.u32("k", 7);
    writer.tensor("t", DType::I8, Shape::new(&[1]).unwrap(), &[9]).unwrap();
    let file = parse(&writer);
    // 24 of header, 17 of key, 33 of tensor: 74.
    assert_eq!(file.data_at(), 96);
    assert_eq!(file.tensor("t").unwrap().data, [9]);
}

/// Writes the parts of a model of `count` tensors, one tensor each; `change` may corrupt a part.
fn write_split(
    folder: &std::path::Path,
    count: u32,
    mut change: impl FnMut(u32, &mut u32, &mut u32, &mut u64, &mut String),
) {
    for n in 0..count {
        let (mut no, mut of, mut total) = (n, count, u64::from(count));
        let mut tensor = format!("blk.{n}.weight");
        change(n, &mut no, &mut of, &mut total, &mut tensor);
        let mut writer = Writer::new();
        writer.u32("split.no", no).u32("split.count", of).u64("split.tensors.count", total);
        if n == 0 {
            writer.string("general.architecture", "llama");
        }
        let data = [n as u8; 4];
        writer.tensor(&tensor, DType::F32, Shape::new(&[1]).unwrap(), &data).unwrap();
        let name = format!("m-{:05}-of-{count:05}.gguf", n + 1);
        writer.write_to(&mut std::fs::File::create(folder.join(name)).unwrap()).unwrap();
    }
}

#[test]
fn split_models_open_from_any_part_or_their_folder() {
    let folder = tempfile::tempdir().unwrap();
    write_split(folder.path(), 3, |_, _, _, _, _| {});
    for start in ["m-00001-of-00003.gguf", "m-00003-of-00003.gguf", ""] {
        let model = Checkpoint::open(&folder.path().join(start)).unwrap();
        assert_eq!(model.files().len(), 3);
        assert_eq!(model.gguf().unwrap().require("general.architecture"), Ok("llama"));
        let names: Vec<_> = model.tensors().map(|t| (t.shard, t.name.to_owned())).collect();
        let expected = [(0, "blk.0.weight"), (1, "blk.1.weight"), (2, "blk.2.weight")];
        assert_eq!(names, expected.map(|(n, name)| (n, name.to_owned())));
        assert_eq!(model.tensor("blk.2.weight").unwrap().data, [2; 4]);
    }
}

/// The error of opening a corrupted model, without the path of its folder.
fn rejected(folder: &std::path::Path, start: &str) -> String {
    let error = Checkpoint::open(&folder.join(start)).unwrap_err().to_string();
    error.replace(&format!("{}/", folder.display()), "")
}

#[test]
fn inconsistent_parts_are_rejected() {
    let corrupt = |change: &dyn Fn(u32, &mut u32, &mut u32, &mut u64, &mut String)| {
        let folder = tempfile::tempdir().unwrap();
        write_split(folder.path(), 2, change);
        rejected(folder.path(), "m-00001-of-00002.gguf")
    };
    let messages = [
        corrupt(&|n, no, _, _, _| *no = n + 1),
        corrupt(&|n, _, of, _, _| *of = 2 + n),
        corrupt(&|_, _, of, _, _| *of = 3),
        corrupt(&|_, _, of, _, _| *of = 4_000_000_000),
        corrupt(&|_, _, _, total, _| *total = 9),
        corrupt(&|_, _, _, _, name| *name = "same".to_owned()),
    ];
    insta::assert_snapshot!(messages.join("\n"));

    let folder = tempfile::tempdir().unwrap();
    write_split(folder.path(), 2, |_, _, _, _, _| {});
    std::fs::remove_file(folder.path().join("m-00002-of-00002.gguf")).unwrap();
    assert_eq!(
        rejected(folder.path(), "m-00001-of-00002.gguf"),
        "m-00002-of-00002.gguf: no such file or directory"
    );
}
