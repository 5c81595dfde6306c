//! Snapshots of a plan, and of the errors for unsupported models.

mod small_model;

use gyrus::{Model, Options};
use gyrus_formats::gguf::Writer;
use gyrus_formats::{Bytes, Checkpoint};
use gyrus_tensor::{DType, Shape};
use gyrus_testkit::data;

#[test]
fn the_table_of_a_small_model() {
    let Some(path) = data("tiny/qwen3") else { return };
    let model = Model::open(&path, &Options::default()).unwrap();
    insta::assert_snapshot!(model.plan().to_string());
}

/// Loads a model of one layer. `change` writes its keys, `skip` omits a tensor, `add` adds one.
fn tiny(change: impl Fn(&mut Writer<'_>), skip: &str, add: &str) -> String {
    let feed_forward: [(&str, &[usize]); 3] = [
        ("blk.0.ffn_gate.weight", &[12, 8]),
        ("blk.0.ffn_up.weight", &[12, 8]),
        ("blk.0.ffn_down.weight", &[8, 12]),
    ];
    let zeros = vec![0u8; 16 * 16 * 4];
    let mut writer = Writer::new();
    change(&mut writer);
    let tensors = small_model::TENSORS.into_iter().chain(feed_forward);
    for (name, dims) in tensors.filter(|(name, _)| *name != skip) {
        let shape = Shape::new(dims).unwrap();
        let bytes = DType::F32.bytes_of(&shape).unwrap();
        writer.tensor(name, DType::F32, shape, &zeros[..bytes]).unwrap();
    }
    if !skip.is_empty() && add == skip {
        // The same tensor, of a type without kernels.
        writer.tensor(add, DType::I8, Shape::new(&[8, 8]).unwrap(), &zeros[..64]).unwrap();
    } else if !add.is_empty() {
        writer.tensor(add, DType::F32, Shape::new(&[4]).unwrap(), &zeros[..16]).unwrap();
    }
    let mut file = Vec::new();
    writer.write_to(&mut file).unwrap();
    let checkpoint = Checkpoint::from_gguf("tiny.gguf", Bytes::Owned(file)).unwrap();
    match Model::load(checkpoint, &Options::default()) {
        Ok(_) => "loads".to_owned(),
        Err(error) => error.to_string(),
    }
}

/// The keys of that model; one of them has another value.
fn keys<'a>(replace: &'a str, value: u32) -> impl Fn(&mut Writer<'_>) + 'a {
    move |writer| {
        writer.string("general.architecture", "llama").f32("llama.attention.layer_norm_rms_epsilon", 1e-5);
        let numbers = [
            ("llama.embedding_length", 8),
            ("llama.block_count", 1),
            ("llama.attention.head_count", 2),
            ("llama.attention.head_count_kv", 1),
            ("llama.feed_forward_length", 12),
            ("llama.context_length", 64),
            ("llama.expert_count", 0),
            ("llama.rope.dimension_count", 4),
        ];
        for (key, number) in numbers {
            writer.u32(key, if key == replace { value } else { number });
        }
    }
}

#[test]
fn models_that_no_plan_fits_are_refused_by_name() {
    let good = || keys("", 0);
    let mut lines = vec![
        ("as it is", tiny(good(), "", "")),
        ("norm missing", tiny(good(), "output_norm.weight", "")),
        ("tensor too many", tiny(good(), "", "blk.0.attn_q.bias")),
        ("type unsupported", tiny(good(), "blk.0.attn_q.weight", "blk.0.attn_q.weight")),
        ("one head norm alone", tiny(good(), "", "blk.0.attn_q_norm.weight")),
        ("architecture unknown", tiny(|w| _ = w.string("general.architecture", "mamba"), "", "")),
        ("architecture missing", tiny(|_| {}, "", "")),
        ("key missing", tiny(|w| _ = w.string("general.architecture", "qwen3"), "", "")),
    ];
    for (key, value) in [
        ("llama.embedding_length", 16),
        ("llama.embedding_length", 0),
        ("llama.block_count", 2),
        ("llama.block_count", 4_000_000_000),
        ("llama.attention.head_count", 3),
        ("llama.attention.head_count", 0),
        ("llama.attention.head_count_kv", 2),
        ("llama.feed_forward_length", 13),
        ("llama.context_length", 0),
        ("llama.expert_count", 8),
        ("llama.rope.dimension_count", 3),
        ("llama.rope.dimension_count", 6),
    ] {
        let name: &str = Box::leak(format!("{key} = {value}").into_boxed_str());
        lines.push((name, tiny(keys(key, value), "", "")));
    }
    let text: Vec<String> = lines.into_iter().map(|(name, line)| format!("{name}: {line}")).collect();
    insta::assert_snapshot!(text.join("\n"));
}
