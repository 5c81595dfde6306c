//! Rotary embeddings in configuration files of all versions and formats, and the errors for invalid ones.

use gyrus::ModelRopes;
use gyrus_formats::gguf::Writer;
use gyrus_formats::{Bytes, Checkpoint};
use gyrus_tensor::{DType, Shape};
use serde_json::{Value, json};

/// One line for each kind of layer, or the error.
fn lines(ropes: Result<ModelRopes, gyrus::Error>) -> String {
    let ropes = match ropes {
        Ok(ropes) => ropes,
        Err(error) => return format!("error: {error}"),
    };
    let kinds = ropes.kinds.iter().map(|kind| {
        let score = if kind.score_factor == 1.0 {
            String::new()
        } else {
            format!(", scores × {:.4}", kind.score_factor)
        };
        format!("{} {:?}: {}{score}", kind.name, kind.layers, kind.rope)
    });
    kinds.collect::<Vec<_>>().join("\n  ")
}

#[test]
fn configurations() {
    let with = |more: Value| {
        let mut config = json!({"model_type": "llama", "hidden_size": 64, "num_attention_heads": 4,
            "max_position_embeddings": 256});
        for (key, value) in more.as_object().unwrap() {
            config[key] = value.clone();
        }
        config
    };
    let scaled = |scaling: Value| with(json!({"rope_theta": 500.0, "rope_scaling": scaling}));
    let eight = [1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5];
    let long = |more: Value| {
        let mut scaling = json!({"type": "longrope", "short_factor": eight, "long_factor": eight});
        for (key, value) in more.as_object().unwrap() {
            scaling[key] = value.clone();
        }
        scaling
    };
    let cases = [
        ("defaults", with(json!({}))),
        ("base at the top level", with(json!({"rope_theta": 1e6}))),
        (
            "base in rope_parameters",
            with(json!({"rope_parameters": {"rope_theta": 1e6, "rope_type": "default"}})),
        ),
        (
            "base in rope_parameters overrides the top level",
            with(json!({"rope_theta": 5.0, "rope_parameters": {"rope_theta": 1e6}})),
        ),
        ("scaling is null", with(json!({"rope_scaling": null}))),
        ("linear, old", scaled(json!({"type": "linear", "factor": 2}))),
        ("linear, new", scaled(json!({"rope_type": "linear", "factor": 2.0}))),
        ("both spellings", scaled(json!({"type": "linear", "rope_type": "linear", "factor": 2.0}))),
        ("dynamic", scaled(json!({"type": "dynamic", "factor": 2.0}))),
        ("dynamic with alpha", scaled(json!({"type": "dynamic", "alpha": 1000.0, "factor": 1.0}))),
        ("ntk", scaled(json!({"type": "ntk", "factor": 2.0}))),
        ("yarn without a factor", scaled(json!({"type": "yarn", "original_max_position_embeddings": 64}))),
        (
            "yarn, numbers null",
            scaled(json!({"type": "yarn", "factor": 4, "attention_factor": null, "beta_fast": null})),
        ),
        ("yarn, not truncated", scaled(json!({"type": "yarn", "factor": 4, "truncate": false}))),
        ("yarn, one mscale", scaled(json!({"type": "yarn", "factor": 4, "mscale": 0.5}))),
        (
            "llama3",
            scaled(json!({"rope_type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4,
            "original_max_position_embeddings": 64})),
        ),
        ("longrope", scaled(long(json!({"original_max_position_embeddings": 64})))),
        ("longrope, factor stated", scaled(long(json!({"factor": 4.0})))),
        (
            "longrope, su and two mscales",
            scaled(long(json!({"type": "su", "short_mscale": 1.1, "long_mscale": 1.2}))),
        ),
        (
            "longrope, original context at the top level",
            with(json!({"original_max_position_embeddings": 64,
            "rope_scaling": long(json!({}))})),
        ),
        ("partial rotation", with(json!({"partial_rotary_factor": 0.5}))),
        (
            "partial rotation, old",
            with(json!({"model_type": "gpt_neox", "rotary_pct": 0.25, "rotary_emb_base": 5000})),
        ),
        ("partial rotation in elements", with(json!({"model_type": "gptj", "rotary_dim": 8}))),
        ("adjacent pairs", with(json!({"model_type": "cohere2"}))),
        ("rope_interleave", with(json!({"rope_interleave": true}))),
        (
            "in a multimodal model",
            json!({"model_type": "llava", "text_config": with(json!({"head_dim": 32}))}),
        ),
        (
            "a layer type without rope",
            with(json!({"num_hidden_layers": 2, "layer_types": ["full_attention", "other"],
            "rope_parameters": {"full_attention": {"rope_theta": 7.0}, "other": null}})),
        ),
        ("unknown type", scaled(json!({"type": "bent", "factor": 2}))),
        ("factor missing", scaled(json!({"type": "llama3"}))),
        ("factor not a number", scaled(json!({"type": "linear", "factor": "two"}))),
        ("factor negative", scaled(json!({"type": "linear", "factor": -2.0}))),
        ("flag not a flag", scaled(json!({"type": "yarn", "factor": 4, "truncate": "no"}))),
        ("list not a list", scaled(json!({"type": "longrope", "short_factor": 1, "long_factor": [1]}))),
        ("list too short", scaled(json!({"type": "longrope", "short_factor": [1], "long_factor": [1]}))),
        ("nothing rotated", with(json!({"rotary_dim": 0}))),
        ("more rotated than a head has", with(json!({"rotary_dim": 32}))),
    ];
    let text = cases.map(|(name, config)| {
        format!("{name}:\n  {}", lines(ModelRopes::from_config(&config.to_string(), None)))
    });
    insta::assert_snapshot!(text.join("\n"));
}

#[test]
fn gguf_metadata() {
    type Keys<'a> = &'a dyn Fn(&mut Writer<'_>);
    let cases: [(&str, Keys<'_>, &[&str]); 20] = [
        ("defaults", &|_| {}, &[]),
        ("base", &|w| _ = w.f32("llama.rope.freq_base", 5e5), &[]),
        ("partial rotation", &|w| _ = w.u32("llama.rope.dimension_count", 8), &[]),
        (
            "linear",
            &|w| _ = w.string("llama.rope.scaling.type", "linear").f32("llama.rope.scaling.factor", 4.0),
            &[],
        ),
        ("linear, without a type", &|w| _ = w.f32("llama.rope.scaling.factor", 4.0), &[]),
        ("linear, old", &|w| _ = w.f32("llama.rope.scale_linear", 4.0), &[]),
        (
            "factor with type none",
            &|w| _ = w.string("llama.rope.scaling.type", "none").f32("llama.rope.scaling.factor", 4.0),
            &[],
        ),
        ("a factor of zero", &|w| _ = w.f32("llama.rope.scaling.factor", 0.0), &[]),
        ("ntk", &|w| _ = w.f32("llama.rope.scaling.alpha", 1000.0), &[]),
        (
            "yarn",
            &|w| {
                _ = w
                    .string("llama.rope.scaling.type", "yarn")
                    .f32("llama.rope.scaling.factor", 4.0)
                    .f32("llama.rope.scaling.yarn_beta_fast", 16.0)
                    .f32("llama.rope.scaling.yarn_ext_factor", 1.0)
            },
            &[],
        ),
        (
            "yarn, not extrapolated",
            &|w| {
                _ = w
                    .string("llama.rope.scaling.type", "yarn")
                    .f32("llama.rope.scaling.factor", 4.0)
                    .f32("llama.rope.scaling.yarn_ext_factor", 0.0)
            },
            &[],
        ),
        (
            "yarn, half extrapolated",
            &|w| {
                _ = w
                    .string("llama.rope.scaling.type", "yarn")
                    .f32("llama.rope.scaling.factor", 4.0)
                    .f32("llama.rope.scaling.yarn_ext_factor", 0.5)
            },
            &[],
        ),
        ("factors", &|_| {}, &["rope_freqs.weight"]),
        (
            "longrope",
            &|w| {
                _ = w
                    .string("llama.rope.scaling.type", "longrope")
                    .f32("llama.rope.scaling.attn_factor", 1.19)
                    .u32("llama.rope.scaling.original_context_length", 64)
            },
            &["rope_factors_short.weight", "rope_factors_long.weight"],
        ),
        ("longrope, without a type", &|_| {}, &["rope_factors_short.weight", "rope_factors_long.weight"]),
        ("longrope without factors", &|w| _ = w.string("llama.rope.scaling.type", "longrope"), &[]),
        ("sections of zeros", &|w| _ = w.i32s("llama.rope.dimension_sections", &[0, 0, 0, 0]), &[]),
        ("unknown type", &|w| _ = w.string("llama.rope.scaling.type", "bent"), &[]),
        ("type not a string", &|w| _ = w.u32("llama.rope.scaling.type", 1), &[]),
        ("nothing rotated", &|w| _ = w.u32("llama.rope.dimension_count", 0), &[]),
    ];
    let factors = [1f32, 1.0, 1.0, 2.0, 4.0, 8.0, 8.0, 8.0].map(f32::to_le_bytes).concat();
    let text = cases.map(|(name, keys, tensors)| {
        let mut writer = Writer::new();
        writer.string("general.architecture", "llama").u32("llama.attention.key_length", 16);
        writer.u32("llama.context_length", 256).u32("llama.block_count", 2);
        keys(&mut writer);
        for tensor in tensors {
            writer.tensor(tensor, DType::F32, Shape::new(&[8]).unwrap(), &factors).unwrap();
        }
        let mut file = Vec::new();
        writer.write_to(&mut file).unwrap();
        let checkpoint = Checkpoint::from_gguf("test.gguf", Bytes::Owned(file)).unwrap();
        format!("{name}:\n  {}", lines(ModelRopes::read(&checkpoint, None)))
    });
    insta::assert_snapshot!(text.join("\n"));
}
