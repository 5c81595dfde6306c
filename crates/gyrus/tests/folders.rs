//! SafeTensors folders as they are published: sharded, with configurations of different ages, and multimodal. Each is made
//! from a tiny model and must give its logits, bit for bit.

mod folder;

use std::fs;

use folder::{Folder, error, exact, logits, scored, shard, write_file, write_index};
use gyrus::{DType, Model, Options, Skipped, SkippedPart};
use serde_json::{Value, json};

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
            let skipped = ["vision_tower", "multi_modal_projector"]
                .map(|tower| Skipped { name: format!("{outer}{tower}"), part: SkippedPart::Tower });
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
        let worst = gyrus_testkit::distance(&expected, &found);
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
