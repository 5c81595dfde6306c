//! Every model file of the test data opens.

use std::path::{Path, PathBuf};

use gyrus_formats::{Checkpoint, Format};
use gyrus_tensor::DType;
use gyrus_testkit::{all_data, data};

fn files(root: &Path, extension: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(root).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path, extension));
        } else if path.extension().is_some_and(|e| e == extension) {
            found.push(path);
        }
    }
    found.sort();
    found
}

#[test]
fn every_gguf_file_opens() {
    let root = all_data();
    let paths = files(&root, "gguf");
    assert!(!paths.is_empty(), "no GGUF files under {}", root.display());
    for path in paths {
        let model = Checkpoint::open(&path).unwrap();
        assert_eq!(model.format(), Format::Gguf);
        let metadata = model.gguf().unwrap();
        metadata.require::<&str>("general.architecture").unwrap();
        for tensor in model.tensors() {
            assert_eq!(tensor.data.len(), tensor.dtype.bytes_of(&tensor.shape).unwrap());
            assert_eq!(model.tensor(tensor.name).unwrap().at, tensor.at);
        }
    }
}

#[test]
fn every_safetensors_folder_opens() {
    let root = all_data();
    // A model folder has a config.json; other SafeTensors files are golden values.
    let is_model = |path: &PathBuf| path.with_file_name("config.json").exists();
    let paths: Vec<PathBuf> = files(&root, "safetensors").into_iter().filter(is_model).collect();
    assert!(!paths.is_empty(), "no SafeTensors models under {}", root.display());
    for path in paths {
        let folder = Checkpoint::open(path.parent().unwrap());
        // If a folder also contains a GGUF file, model.safetensors takes precedence.
        let model = folder.unwrap();
        assert_eq!(model.format(), Format::SafeTensors);
        assert!(model.config().is_some(), "{}", path.display());
        assert!(model.tensors().count() > 1);
        for tensor in model.tensors() {
            assert_eq!(tensor.data.len(), tensor.dtype.bytes_of(&tensor.shape).unwrap());
            assert_eq!(model.tensor(tensor.name).unwrap().at, tensor.at);
        }
    }
}

#[test]
fn the_tales_model_has_the_metadata_of_its_card() {
    let Some(path) = data("tales/tales-7m-q8_0.gguf") else { return };
    let model = Checkpoint::open(&path).unwrap();
    let metadata = model.gguf().unwrap();
    assert_eq!(metadata.require::<&str>("general.architecture"), Ok("qwen3"));
    assert_eq!(metadata.require::<u32>("qwen3.block_count"), Ok(6));
    assert_eq!(metadata.require::<u32>("qwen3.attention.head_count_kv"), Ok(4));
    assert_eq!(metadata.require::<Vec<&str>>("tokenizer.ggml.tokens").unwrap().len(), 4096);
    let embedding = model.tensor("token_embd.weight").unwrap();
    assert_eq!(embedding.dtype, DType::Q8_0);
    assert_eq!(embedding.shape.dims(), [4096, 256]);
}
