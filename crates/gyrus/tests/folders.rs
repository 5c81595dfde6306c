//! SafeTensors folders as they are published: sharded, with configurations of different ages, and multimodal. Each is made
//! from a tiny model and must give its logits, bit for bit.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use gyrus::{DType, Model, Options, Precision};
use gyrus_formats::Checkpoint;
use gyrus_testkit::tempfile::{TempDir, tempdir};
use gyrus_testkit::{Rng, data};
use serde_json::{Value, json};

/// A tensor: data type, shape, bytes.
type Tensor = (String, Vec<usize>, Vec<u8>);

/// A model to be written to a folder.
struct Folder {
    tensors: BTreeMap<String, Tensor>,
    config: Value,
    /// The logits of the unchanged model.
    logits: Vec<f32>,
}

impl Folder {
    fn of(name: &str) -> Option<Folder> {
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
    fn rename(&mut self, name: impl Fn(&str) -> String) {
        let tensors = std::mem::take(&mut self.tensors);
        self.tensors = tensors.into_iter().map(|(old, tensor)| (name(&old), tensor)).collect();
    }

    /// Adds a tensor of another tower.
    fn add(&mut self, name: &str) {
        let bytes = Rng::new(3).bytes(64);
        self.tensors.insert(name.to_owned(), ("F32".to_owned(), vec![4, 4], bytes));
    }

    /// Removes a field of the configuration.
    fn take(&mut self, field: &str) -> Value {
        self.config.as_object_mut().unwrap().remove(field).unwrap_or_else(|| panic!("no {field}"))
    }

    /// Puts the configuration into `text_config`.
    fn nest(&mut self, model_type: &str) {
        let text = self.config.take();
        self.config = json!({
            "model_type": model_type, "text_config": text, "torch_dtype": "bfloat16",
            "vision_config": { "hidden_size": 4, "num_hidden_layers": 1, "num_attention_heads": 1 },
        });
    }

    /// Writes one file.
    fn write(&self) -> TempDir {
        let folder = tempdir().unwrap();
        write_config(folder.path(), &self.config);
        write_file(&folder.path().join("model.safetensors"), self.tensors.iter());
        folder
    }

    /// Writes this many shards and their index.
    fn write_shards(&self, count: usize) -> TempDir {
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

    fn assert_same(&self, folder: &Path) -> Model {
        assert!(logits(folder).unwrap() == self.logits, "{}", self.config);
        Model::open(folder, &exact()).unwrap()
    }
}

fn shard(n: usize, count: usize) -> String {
    format!("model-{:05}-of-{count:05}.safetensors", n + 1)
}

fn write_config(folder: &Path, config: &Value) {
    fs::write(folder.join("config.json"), config.to_string()).unwrap();
}

fn write_index(folder: &Path, map: &serde_json::Map<String, Value>) {
    let index = json!({ "metadata": { "total_size": 1 }, "weight_map": map });
    fs::write(folder.join("model.safetensors.index.json"), index.to_string()).unwrap();
}

fn write_file<'a>(path: &Path, tensors: impl Iterator<Item = (&'a String, &'a Tensor)>) {
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

fn exact() -> Options {
    Options { precision: Precision::Exact, threads: Some(1), context: Some(64), ..Options::default() }
}

/// The logits of a few tokens.
fn logits(path: &Path) -> Result<Vec<f32>, gyrus::Error> {
    scored(&Model::open(path, &exact())?)
}

fn scored(model: &Model) -> Result<Vec<f32>, gyrus::Error> {
    let mut logits = Vec::new();
    let ids: Vec<u32> = (0..40).map(|n| 3 + n * 7 % 90).collect();
    model.session().score(&ids, |_, row| logits.extend_from_slice(row))?;
    Ok(logits)
}

fn error(folder: &Path) -> String {
    Model::open(folder, &exact()).err().expect("it is refused").to_string()
}

#[test]
fn shards_are_one_model() {
    let Some(model) = Folder::of("llama") else { return };
    let folder = model.write_shards(3);
    for name in ["", "model.safetensors.index.json", &shard(1, 3)] {
        model.assert_same(&folder.path().join(name));
    }
}

#[test]
fn what_is_wrong_with_shards_is_named() {
    let Some(model) = Folder::of("llama") else { return };
    let folder = model.write_shards(3);
    fs::remove_file(folder.path().join(shard(2, 3))).unwrap();
    assert!(error(folder.path()).contains(&shard(2, 3)), "{}", error(folder.path()));

    let names: Vec<&String> = model.tensors.keys().collect();
    let map = |place: &dyn Fn(usize) -> usize| {
        let entry = |(n, name): (usize, &&String)| ((*name).clone(), json!(shard(place(n), 3)));
        names.iter().enumerate().map(entry).collect()
    };
    // The index places the first tensor in the second shard, where it is not.
    let folder = model.write_shards(3);
    write_index(folder.path(), &map(&|n| if n == 0 { 1 } else { n % 3 }));
    let said = error(folder.path());
    assert!(said.contains(names[0].as_str()) && said.contains(&shard(1, 3)), "{said}");
    // The second shard has the first tensor too.
    let folder = model.write_shards(3);
    let twice = model.tensors.iter().enumerate().filter(|(n, _)| *n == 0 || n % 3 == 1).map(|(_, t)| t);
    write_file(&folder.path().join(shard(1, 3)), twice);
    let said = error(folder.path());
    assert!(said.contains(names[0].as_str()) && said.contains(&shard(1, 3)), "{said}");
}

#[test]
fn configurations_of_older_versions_are_read() {
    // `rope_theta` and `rope_scaling` for `rope_parameters`, `torch_dtype` for `dtype`.
    for name in ["llama", "mistral", "qwen3", "qwen2", "phi3", "granite", "olmo2", "smollm3"] {
        let Some(mut model) = Folder::of(name) else { continue };
        let mut rope = model.take("rope_parameters");
        model.config["rope_theta"] = rope.as_object_mut().unwrap().remove("rope_theta").unwrap();
        if let Some(fraction) = rope.as_object_mut().unwrap().remove("partial_rotary_factor") {
            model.config["partial_rotary_factor"] = fraction;
        }
        model.config["rope_scaling"] = match rope["rope_type"].as_str() {
            Some("default") => Value::Null,
            // Phi's files call it `type`, and have the original context outside.
            Some("longrope") => {
                let fields = rope.as_object_mut().unwrap();
                let kind = fields.remove("rope_type").unwrap();
                fields.insert("type".to_owned(), kind);
                fields.remove("original_max_position_embeddings");
                rope
            }
            _ => rope,
        };
        model.config["torch_dtype"] = model.take("dtype");
        model.assert_same(model.write().path());
    }
}

/// Gemma 3 in the older spelling: a base for each kind of layer, and every how many layers one attends to all.
fn older_gemma3() -> Option<Folder> {
    let mut model = Folder::of("gemma3")?;
    let rope = model.take("rope_parameters");
    model.config["rope_theta"] = rope["full_attention"]["rope_theta"].clone();
    model.config["rope_local_base_freq"] = rope["sliding_attention"]["rope_theta"].clone();
    model.take("layer_types");
    model.config["sliding_window_pattern"] = model.take("_sliding_window_pattern");
    Some(model)
}

#[test]
fn a_multimodal_model_is_its_language_model() {
    let towers = ["vision_tower.vision_model.w", "multi_modal_projector.mm_soft_emb_norm.weight"];
    let inner = |name: &str| name.strip_prefix("model.").unwrap_or(name).to_owned();
    for (prefix, outer) in [("language_model.model.", ""), ("model.language_model.", "model.")] {
        for mut model in [older_gemma3(), Folder::of("gemma3"), Folder::of("mistral")].into_iter().flatten() {
            // An output matrix of its own lies outside the language model's layers.
            let output = if outer.is_empty() { "language_model." } else { "" };
            model.rename(|name| match name {
                "lm_head.weight" => format!("{output}{name}"),
                _ => format!("{prefix}{}", inner(name)),
            });
            towers.iter().for_each(|tower| model.add(&format!("{outer}{tower}")));
            let kind = if model.config["model_type"] == "mistral" { "mistral3" } else { "gemma3" };
            model.nest(kind);
            let loaded = model.assert_same(model.write().path());
            let skipped = ["vision_tower", "multi_modal_projector"].map(|tower| format!("{outer}{tower}"));
            assert_eq!(loaded.config().skipped, skipped);
        }
    }
}

#[test]
fn weights_are_quantised_at_load() {
    // Phi's fused matrices are rows of one tensor each; Gemma's norms are stored minus one.
    for name in ["llama", "qwen3", "phi3", "gemma3"] {
        let Some(mut model) = Folder::of(name) else { continue };
        let options = Options { quantize: Some(DType::Q8_0), ..exact() };
        let quantized = Model::open(model.write().path(), &options).unwrap();
        for spec in &quantized.plan().weights {
            assert_eq!(spec.dtype == DType::Q8_0, spec.shape.rank() == 2, "{}", spec.name);
        }
        // A file with the values that the quantised weights stand for.
        for (dtype, shape, bytes) in model.tensors.values_mut().filter(|(_, shape, _)| shape.len() == 2) {
            let mut values = vec![0.0; shape.iter().product()];
            gyrus_tensor::dequantize(dtype.parse().unwrap(), bytes, &mut values).unwrap();
            let blocks = gyrus_tensor::quantize(DType::Q8_0, &values).unwrap();
            gyrus_tensor::dequantize(DType::Q8_0, &blocks, &mut values).unwrap();
            (*dtype, *bytes) = ("F32".to_owned(), gyrus_tensor::quantize(DType::F32, &values).unwrap());
        }
        let expected = logits(model.write().path()).unwrap();
        let found = scored(&quantized).unwrap();
        let worst = expected.iter().zip(&found).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(worst < 2e-5, "{name}: {worst}");
        assert!(found != model.logits, "{name}");
    }
}

#[test]
fn a_tensor_of_no_known_tower_is_refused() {
    let Some(mut model) = Folder::of("llama") else { return };
    model.add("model.smell_tower.w");
    assert!(error(model.write().path()).contains("model.smell_tower.w"));
}

#[test]
fn gemma_3_has_the_fields_that_its_configuration_leaves_out() {
    let Some(mut model) = older_gemma3() else { return };
    for field in ["hidden_activation", "rms_norm_eps", "max_position_embeddings"] {
        model.take(field);
    }
    for (field, value) in [("rope_theta", 1e6), ("rope_local_base_freq", 1e4)] {
        assert_eq!(model.take(field).as_f64(), Some(value));
    }
    model.nest("gemma3");
    assert_eq!(model.assert_same(model.write().path()).config().context, 131_072);
    // Head counts of the class do not fit this model's tensors.
    model.config["text_config"].as_object_mut().unwrap().remove("num_attention_heads");
    assert!(error(model.write().path()).contains("q_proj"), "{}", error(model.write().path()));
    // Other types have no defaults.
    let Some(mut model) = Folder::of("llama") else { return };
    model.take("num_attention_heads");
    assert!(error(model.write().path()).contains("'num_attention_heads' is missing"));
}
