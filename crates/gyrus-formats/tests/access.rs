//! Files that change while a model is open.

use gyrus_formats::gguf::Writer;
use gyrus_formats::{Access, Checkpoint};
use gyrus_tensor::{DType, Shape};
use gyrus_testkit::tempfile;

/// Parts of a split model with a tensor each.
fn split_model(folder: &std::path::Path) {
    for number in 0..2u32 {
        let data = vec![number as u8 + 1; 4096];
        let name = format!("t{number}");
        let mut writer = Writer::new();
        writer.u32("split.count", 2).u32("split.no", number);
        let shape = Shape::new(&[1024]).unwrap();
        writer.tensor(&name, DType::F32, shape, &data).unwrap();
        let path = folder.join(format!("m-{:05}-of-00002.gguf", number + 1));
        writer.write_to(&mut std::fs::File::create(path).unwrap()).unwrap();
    }
}

#[test]
fn what_was_read_outlives_its_files() {
    let folder = tempfile::tempdir().unwrap();
    split_model(folder.path());
    let first = folder.path().join("m-00001-of-00002.gguf");
    let model = Checkpoint::open_with(&first, Access::Read).unwrap();
    for entry in std::fs::read_dir(folder.path()).unwrap() {
        std::fs::File::create(entry.unwrap().path()).unwrap();
    }
    for (name, byte) in [("t0", 1), ("t1", 2)] {
        let tensor = model.tensor(name).unwrap();
        assert_eq!(tensor.data, [byte; 4096]);
        // Numbers are read in place.
        assert_eq!(tensor.data.as_ptr().align_offset(32), 0);
        // Memory that is no file's cannot be read again, and so is not given back.
        model.release(tensor.shard, tensor.at, tensor.data.len());
        assert_eq!(model.tensor(name).unwrap().data, [byte; 4096]);
    }
}

#[test]
fn mapped_and_read_files_are_the_same() {
    let folder = tempfile::tempdir().unwrap();
    split_model(folder.path());
    let path = folder.path().join("m-00002-of-00002.gguf");
    let [mapped, read] =
        [Access::Map, Access::Read].map(|access| Checkpoint::open_with(&path, access).unwrap());
    let tensors = |model: &Checkpoint| -> Vec<(String, Vec<u8>)> {
        model.tensors().map(|t| (t.name.to_owned(), t.data.to_vec())).collect()
    };
    assert_eq!(tensors(&mapped), tensors(&read));
    // What is no regular file, or empty, is refused either way.
    std::fs::write(folder.path().join("empty"), "").unwrap();
    for access in [Access::Map, Access::Read] {
        assert!(Checkpoint::open_with(&folder.path().join("empty"), access).is_err());
        assert!(Checkpoint::open_with(&folder.path().join("none"), access).is_err());
    }
}

/// Names in a model's files never lead to files of others.
#[test]
fn a_file_beside_a_model_is_in_its_folder() {
    let path = gyrus_testkit::repository().join("tests/data/encoders/bert");
    let model = Checkpoint::open(&path).unwrap();
    assert!(model.beside("1_Pooling/config.json").unwrap().is_some());
    assert!(model.beside("nothing.json").unwrap().is_none());
    let absolute = path.join("config.json");
    for name in
        ["../bert/config.json", "/config.json", "1_Pooling/../config.json", absolute.to_str().unwrap()]
    {
        let error = model.beside(name).unwrap_err().to_string();
        assert!(error.contains("is not a file of the model's folder") && error.contains(name), "{error}");
    }
}
