//! SafeTensors folders that tests write, made from a tiny model.
#![allow(dead_code, reason = "each test uses some of it")]

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use gyrus::{Model, Options, Precision};
use gyrus_formats::Checkpoint;
use gyrus_testkit::tempfile::{TempDir, tempdir};
use gyrus_testkit::{Rng, data};
use serde_json::{Value, json};

/// A tensor: data type, shape, bytes.
pub(crate) type Tensor = (String, Vec<usize>, Vec<u8>);

/// A model to be written to a folder.
pub(crate) struct Folder {
    pub(crate) tensors: BTreeMap<String, Tensor>,
    pub(crate) config: Value,
    /// The logits of the unchanged model.
    pub(crate) logits: Vec<f32>,
}

impl Folder {
    pub(crate) fn of(name: &str) -> Option<Folder> {
        let path = data(&format!("tiny/{name}"))?;
        let checkpoint = Checkpoint::open(&path).unwrap();
        let tensor = |t: gyrus_formats::TensorView<'_>| {
            (t.name.to_owned(), (t.dtype.to_string(), t.shape.dims().to_vec(), t.data.to_vec()))
        };
        let tensors = checkpoint.tensors().map(tensor).collect();
        let config = checkpoint.config().unwrap().clone();
        Some(Folder { tensors, config, logits: logits(&path).unwrap() })
    }

    /// Renames the tensors.
    pub(crate) fn rename(&mut self, name: impl Fn(&str) -> String) {
        let tensors = std::mem::take(&mut self.tensors);
        self.tensors = tensors.into_iter().map(|(old, tensor)| (name(&old), tensor)).collect();
    }

    /// Adds a tensor of another tower.
    pub(crate) fn add(&mut self, name: &str) {
        let bytes = Rng::new(3).bytes(64);
        self.tensors.insert(name.to_owned(), ("F32".to_owned(), vec![4, 4], bytes));
    }

    /// Removes a field of the configuration.
    pub(crate) fn take(&mut self, field: &str) -> Value {
        self.config.as_object_mut().unwrap().remove(field).unwrap_or_else(|| panic!("no {field}"))
    }

    /// Puts the configuration into `text_config`.
    pub(crate) fn nest(&mut self, model_type: &str) {
        let text = self.config.take();
        self.config = json!({
            "model_type": model_type, "text_config": text, "torch_dtype": "bfloat16",
            "vision_config": { "hidden_size": 4, "num_hidden_layers": 1, "num_attention_heads": 1 },
        });
    }

    /// Writes one file.
    pub(crate) fn write(&self) -> TempDir {
        let folder = tempdir().unwrap();
        write_config(folder.path(), &self.config);
        write_file(&folder.path().join("model.safetensors"), self.tensors.iter());
        folder
    }

    /// Writes this many shards and their index.
    pub(crate) fn write_shards(&self, count: usize) -> TempDir {
        let folder = tempdir().unwrap();
        write_config(folder.path(), &self.config);
        let mut map = serde_json::Map::new();
        for n in 0..count {
            let name = shard(n, count);
            let own = || self.tensors.iter().skip(n).step_by(count);
            write_file(&folder.path().join(&name), own());
            map.extend(own().map(|(tensor, _)| (tensor.clone(), json!(name))));
        }
        write_index(folder.path(), &map);
        folder
    }

    pub(crate) fn assert_same(&self, folder: &Path) -> Model {
        assert!(logits(folder).unwrap() == self.logits, "{}", self.config);
        Model::open(folder, &exact()).unwrap()
    }
}

pub(crate) fn shard(n: usize, count: usize) -> String {
    format!("model-{:05}-of-{count:05}.safetensors", n + 1)
}

pub(crate) fn write_config(folder: &Path, config: &Value) {
    fs::write(folder.join("config.json"), config.to_string()).unwrap();
}

pub(crate) fn write_index(folder: &Path, map: &serde_json::Map<String, Value>) {
    let index = json!({ "metadata": { "total_size": 1 }, "weight_map": map });
    fs::write(folder.join("model.safetensors.index.json"), index.to_string()).unwrap();
}

pub(crate) fn write_file<'a>(path: &Path, tensors: impl Iterator<Item = (&'a String, &'a Tensor)>) {
    let (mut header, mut bytes) = (serde_json::Map::new(), Vec::new());
    for (name, (dtype, shape, content)) in tensors {
        let end = bytes.len() + content.len();
        let entry = json!({ "dtype": dtype, "shape": shape, "data_offsets": [bytes.len(), end] });
        header.insert(name.clone(), entry);
        bytes.extend(content);
    }
    let header = Value::Object(header).to_string();
    let file = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &bytes].concat();
    fs::write(path, file).unwrap();
}

pub(crate) fn exact() -> Options {
    Options { precision: Precision::Exact, threads: Some(1), context: Some(64), ..Options::default() }
}

/// The logits of a few tokens.
pub(crate) fn logits(path: &Path) -> Result<Vec<f32>, gyrus::Error> {
    scored(&Model::open(path, &exact())?)
}

pub(crate) fn scored(model: &Model) -> Result<Vec<f32>, gyrus::Error> {
    let mut logits = Vec::new();
    let ids: Vec<u32> = (0..40).map(|n| 3 + n * 7 % 90).collect();
    model.session().score(&ids, |_, row| logits.extend_from_slice(row))?;
    Ok(logits)
}

pub(crate) fn error(folder: &Path) -> String {
    Model::open(folder, &exact()).err().expect("it is refused").to_string()
}
