//! Known bugs of inference engines in parsing a model's rotary embedding and in applying it along a sequence, each with
//! its symptom. Bugs of the arithmetic are tested in `gyrus-kernels`.

mod tiny_llama;

use gyrus::rope::{Pairing, Scaling};
use gyrus::{Event, LayerRope, Model, ModelRopes, Options, Precision, Request};
use gyrus_formats::gguf::{ValueType, Writer};
use gyrus_formats::{Bytes, Checkpoint};
use gyrus_kernels::scalar::Reference;
use gyrus_kernels::{Backend, Batch, KV_BLOCK, KvSize};
use gyrus_tensor::{DType, Shape};
use serde_json::{Value, json};
use tiny_llama::VOCAB;

fn from_config(config: Value) -> ModelRopes {
    ModelRopes::from_config(&config.to_string(), None).unwrap()
}

/// A GGUF file with these keys and f32 vectors.
fn gguf(keys: impl Fn(&mut Writer<'_>), vectors: &[(&str, Vec<f32>)]) -> Checkpoint {
    let bytes: Vec<Vec<u8>> =
        vectors.iter().map(|(_, v)| v.iter().flat_map(|x| x.to_le_bytes()).collect()).collect();
    let mut writer = Writer::new();
    keys(&mut writer);
    for ((name, values), bytes) in vectors.iter().zip(&bytes) {
        writer.tensor(name, DType::F32, Shape::new(&[values.len()]).unwrap(), bytes).unwrap();
    }
    let mut file = Vec::new();
    writer.write_to(&mut file).unwrap();
    Checkpoint::from_gguf("test.gguf", Bytes::Owned(file)).unwrap()
}

fn from_gguf(keys: impl Fn(&mut Writer<'_>), vectors: &[(&str, Vec<f32>)]) -> ModelRopes {
    ModelRopes::read(&gguf(keys, vectors), None).unwrap()
}

fn only(ropes: &ModelRopes) -> &LayerRope {
    assert_eq!(ropes.kinds.len(), 1);
    &ropes.kinds[0]
}

fn kind<'a>(ropes: &'a ModelRopes, name: &str) -> &'a LayerRope {
    ropes.kinds.iter().find(|k| k.name == name).unwrap()
}

fn near(a: f64, b: f64) -> bool {
    (a - b).abs() <= 1e-6 * b.abs()
}

/// Llama's rows are permuted in GGUF files and not in Hugging Face's: one model, two pairings.
#[test]
fn adjacent_pairing_on_split_layout_weights() {
    let config = json!({"model_type": "llama", "hidden_size": 64, "num_attention_heads": 2});
    let file = from_gguf(
        |w| {
            w.string("general.architecture", "llama")
                .u32("llama.embedding_length", 64)
                .u32("llama.attention.head_count", 2);
        },
        &[],
    );
    assert_eq!(only(&from_config(config)).rope.pairing(), Pairing::Split);
    assert_eq!(only(&file).rope.pairing(), Pairing::Adjacent);
    // Others are not permuted.
    let qwen = |w: &mut Writer<'_>| {
        w.string("general.architecture", "qwen2").u32("qwen2.attention.key_length", 32);
    };
    assert_eq!(only(&from_gguf(qwen, &[])).rope.pairing(), Pairing::Split);
    // An unknown architecture is an error, not a guess.
    let unknown =
        gguf(|w| _ = w.string("general.architecture", "new").u32("new.attention.key_length", 32), &[]);
    let error = ModelRopes::read(&unknown, None).unwrap_err().to_string();
    assert!(error.contains("'new'"), "{error}");
    assert!(ModelRopes::read(&unknown, Some(Pairing::Split)).is_ok());
}

fn yarn_config(more: Value) -> Value {
    let mut rope = json!({"rope_type": "yarn", "factor": 64.0, "original_max_position_embeddings": 4096});
    for (key, value) in more.as_object().unwrap() {
        rope[key] = value.clone();
    }
    json!({"model_type": "qwen3", "head_dim": 128, "max_position_embeddings": 262_144, "rope_scaling": rope})
}

/// An explicit attention factor replaces YaRN's formula, which would give 1.416 instead of 1.
#[test]
fn yarn_explicit_attention_factor() {
    let factor = |more| only(&from_config(yarn_config(more))).rope.attention_factor();
    let rule = 0.1 * 64f64.ln() + 1.0;
    assert!(near(factor(json!({})), rule) && near(rule, 1.415_888_3));
    assert_eq!(factor(json!({"attention_factor": 1.0})), 1.0);
    assert_eq!(factor(json!({"attention_factor": 1.25})), 1.25);
    // It also overrides the quotient of the mscales.
    assert_eq!(factor(json!({"attention_factor": 1.25, "mscale": 1.0, "mscale_all_dim": 0.5})), 1.25);
    // GGUF has a separate key for it.
    let file = from_gguf(
        |w| {
            w.string("general.architecture", "qwen3").u32("qwen3.attention.key_length", 128);
            w.string("qwen3.rope.scaling.type", "yarn").f32("qwen3.rope.scaling.factor", 64.0);
            w.u32("qwen3.rope.scaling.original_context_length", 4096);
            w.f32("qwen3.rope.scaling.yarn_attn_factor", 1.0);
        },
        &[],
    );
    assert_eq!(only(&file).rope.attention_factor(), 1.0);
}

fn deepseek(mscale: f64, all_dim: f64) -> Value {
    let rope = json!({"type": "yarn", "factor": 40, "original_max_position_embeddings": 4096,
        "beta_fast": 32, "beta_slow": 1, "mscale": mscale, "mscale_all_dim": all_dim});
    json!({"model_type": "deepseek_v3", "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "head_dim": 64,
        "kv_lora_rank": 512, "max_position_embeddings": 163_840, "rope_theta": 10000, "rope_scaling": rope})
}

/// Equal mscales do not scale cosine and sine, but they scale the attention scores by the square of the factor. An
/// engine that computes the quotient only loses the scaling.
#[test]
fn mscale_equal_to_mscale_all_dim() {
    let ropes = from_config(deepseek(1.0, 1.0));
    let LayerRope { rope, score_factor, .. } = only(&ropes);
    assert_eq!(rope.attention_factor(), 1.0);
    let rule = 0.1 * 40f64.ln() + 1.0;
    assert!(near(*score_factor, rule * rule), "1.0 is the bug: {score_factor}");
    // The total factor on the scores does not depend on where it is applied.
    let ropes = from_config(deepseek(0.707, 0.707));
    let LayerRope { rope, score_factor, .. } = only(&ropes);
    let all = rope.attention_factor().powi(2) * score_factor;
    assert!(near(all, (0.0707 * 40f64.ln() + 1.0).powi(2)), "{all}");
    // The rotated elements are the last ones of a head.
    assert_eq!((rope.head_dim(), rope.rope_dim(), rope.offset()), (192, 64, 128));
    assert_eq!(rope.pairing(), Pairing::Adjacent);
    // The value in GGUF is a tenth of the model's.
    let file = from_gguf(
        |w| {
            w.string("general.architecture", "deepseek2").u32("deepseek2.attention.key_length", 576);
            w.u32("deepseek2.attention.key_length_mla", 192).u32("deepseek2.attention.kv_lora_rank", 512);
            w.u32("deepseek2.rope.dimension_count", 64).string("deepseek2.rope.scaling.type", "yarn");
            w.f32("deepseek2.rope.scaling.factor", 40.0);
            w.u32("deepseek2.rope.scaling.original_context_length", 4096);
            w.f32("deepseek2.rope.scaling.yarn_log_multiplier", 0.0707);
        },
        &[],
    );
    assert!(near(only(&file).score_factor, *score_factor), "{}", only(&file).score_factor);
    assert!(near(only(&file).rope.attention_factor(), 1.0));
    assert_eq!(only(&file).rope.frequencies(), rope.frequencies());
    assert_eq!(only(&file).rope.offset(), 128);
}

/// YaRN's attention factor has one formula for all architectures and formats.
#[test]
fn yarn_magnitude_by_one_rule() {
    let file = |architecture: &str, log: Option<f32>, attn: Option<f32>| {
        let key = |rest: &str| format!("{architecture}.{rest}");
        let ropes = from_gguf(
            |w| {
                w.string("general.architecture", architecture).u32(&key("attention.key_length"), 128);
                w.string(&key("rope.scaling.type"), "yarn").f32(&key("rope.scaling.factor"), 16.0);
                w.u32(&key("rope.scaling.original_context_length"), 8192);
                if let Some(log) = log {
                    w.f32(&key("rope.scaling.yarn_log_multiplier"), log);
                }
                if let Some(attn) = attn {
                    w.f32(&key("rope.scaling.attn_factor"), attn);
                }
            },
            &[],
        );
        only(&ropes).rope.attention_factor()
    };
    let rule = |mscale: f64| 0.1 * mscale * 16f64.ln() + 1.0;
    for architecture in ["llama", "qwen2", "qwen3", "mistral3", "gpt-oss"] {
        assert!(near(file(architecture, None, None), rule(1.0)), "{architecture}");
        assert!(near(file(architecture, Some(1.0), None), 1.0), "{architecture}");
        assert!(near(file(architecture, Some(0.5), None), rule(1.0) / rule(0.5)), "{architecture}");
        assert!(near(file(architecture, None, Some(0.5)), 0.5 * rule(1.0)), "{architecture}");
    }
}

/// Gemma 3: only global layers are scaled; local ones have base 10000 and no scaling. Five engines had this wrong,
/// which shows in contexts longer than the window.
#[test]
fn gemma3_local_layers_unscaled() {
    let older = json!({"model_type": "gemma3", "text_config": {"model_type": "gemma3_text",
        "hidden_size": 2560, "num_attention_heads": 8, "head_dim": 256, "num_hidden_layers": 34,
        "rope_theta": 1e6, "rope_local_base_freq": 10000.0, "sliding_window_pattern": 6,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"}}});
    let types: Vec<&str> =
        (1..=34).map(|n| if n % 6 == 0 { "full_attention" } else { "sliding_attention" }).collect();
    let newer = json!({"model_type": "gemma3_text", "head_dim": 256, "num_hidden_layers": 34,
        "layer_types": types, "rope_parameters": {
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0}}});
    let file = |more: &dyn Fn(&mut Writer<'_>)| {
        from_gguf(
            |w| {
                w.string("general.architecture", "gemma3").u32("gemma3.block_count", 34);
                w.u32("gemma3.attention.key_length", 256).u32("gemma3.attention.sliding_window", 1024);
                w.f32("gemma3.rope.freq_base", 1e6).f32("gemma3.rope.scaling.factor", 8.0);
                w.string("gemma3.rope.scaling.type", "linear");
                more(w);
            },
            &[],
        )
    };
    let is_local: Vec<u8> = (1..=34).map(|n| u8::from(n % 6 != 0)).collect();
    let all = [
        from_config(older),
        from_config(newer),
        file(&|_| {}),
        file(&|w| {
            _ = w.f32("gemma3.rope.freq_base_swa", 10000.0).u32("gemma3.attention.sliding_window_pattern", 6)
        }),
        file(&|w| {
            _ = w.raw("gemma3.attention.sliding_window_pattern", ValueType::Array, &{
                let mut bytes = 7u32.to_le_bytes().to_vec();
                bytes.extend(34u64.to_le_bytes());
                bytes.extend(&is_local);
                bytes
            })
        }),
    ];
    for ropes in &all {
        let (global, local) = (kind(ropes, "full_attention"), kind(ropes, "sliding_attention"));
        assert_eq!(global.layers, [5, 11, 17, 23, 29]);
        assert_eq!(local.layers.len(), 29);
        assert_eq!(global.rope.frequencies()[0], 0.125);
        let slowest = |rope: &LayerRope| rope.rope.frequencies()[127];
        assert!(near(slowest(global), 1e6f64.powf(-254.0 / 256.0) / 8.0));
        assert_eq!(local.rope.frequencies()[0], 1.0, "an eighth is the bug");
        assert!(near(slowest(local), 10000f64.powf(-254.0 / 256.0)), "base 1e6 is the bug");
    }
}

/// Gemma 4: a quarter of a head is rotated, with the frequencies of the whole head.
#[test]
fn proportional_from_full_head_dim() {
    let config = json!({"model_type": "gemma4_text", "head_dim": 256, "global_head_dim": 512,
        "num_hidden_layers": 6, "rope_parameters": {
            "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6},
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0}}});
    let mut factors = vec![1.0; 64];
    factors.resize(256, 1e30);
    let file = from_gguf(
        |w| {
            w.string("general.architecture", "gemma4").u32("gemma4.block_count", 6);
            w.u32("gemma4.attention.key_length", 512).u32("gemma4.attention.key_length_swa", 256);
            w.u32("gemma4.rope.dimension_count", 512).u32("gemma4.rope.dimension_count_swa", 256);
            w.f32("gemma4.rope.freq_base", 1e6).f32("gemma4.rope.freq_base_swa", 10000.0);
            w.u32("gemma4.attention.sliding_window_pattern", 6);
        },
        &[("rope_freqs.weight", factors)],
    );
    for ropes in [from_config(config), file] {
        let global = &kind(&ropes, "full_attention").rope;
        assert_eq!((global.head_dim(), global.pairs()), (512, 256));
        assert!(near(global.frequencies()[63], 1e6f64.powf(-126.0 / 512.0)), "of the whole head");
        assert!(
            !near(global.frequencies()[63], 1e6f64.powf(-126.0 / 128.0)),
            "of the rotated part is the bug"
        );
        assert!(global.turns()[64..].iter().all(|&turns| turns == 0), "the rest is not rotated");
        assert_eq!(global.elements(0), (0, 256));
        let local = &kind(&ropes, "sliding_attention").rope;
        assert_eq!((local.head_dim(), local.pairs()), (256, 128));
        assert!(local.turns().iter().all(|&turns| turns != 0));
    }
}

/// M-RoPE sections are parsed in both layouts and both formats.
#[test]
fn mrope_height_and_width_rows() {
    let older = json!({"model_type": "qwen2_vl", "hidden_size": 1536, "num_attention_heads": 12,
        "rope_theta": 1e6, "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]}});
    let newer = json!({"model_type": "qwen3_vl", "text_config": {"model_type": "qwen3_vl_text",
        "head_dim": 128, "rope_theta": 5e6, "rope_scaling": {"rope_type": "default",
        "mrope_section": [24, 20, 20], "mrope_interleaved": true}}});
    let file = |architecture: &str, sections: &[i32]| {
        let key = |rest: &str| format!("{architecture}.{rest}");
        from_gguf(
            |w| {
                w.string("general.architecture", architecture).u32(&key("attention.key_length"), 128);
                w.i32s(&key("rope.dimension_sections"), sections);
            },
            &[],
        )
    };
    let (older, newer) = (from_config(older), from_config(newer));
    let rows = |ropes: &ModelRopes| only(ropes).rope.rows().to_vec();
    assert_eq!(rows(&older), rows(&file("qwen2vl", &[16, 24, 24, 0])));
    assert_eq!(rows(&newer), rows(&file("qwen3vl", &[24, 20, 20, 0])));
    assert_eq!(rows(&older)[14..18], [0, 0, 1, 1]);
    assert_eq!(rows(&newer)[..4], [0, 1, 2, 0]);
    assert!(rows(&older).contains(&2), "all zeros is the bug");
}

/// A model that uses its long factors from position 33 on.
fn long_model() -> Checkpoint {
    let keys = |writer: &mut Writer<'_>| {
        writer.u32("llama.rope.scaling.original_context_length", 32);
        writer.string("llama.rope.scaling.type", "longrope").f32("llama.rope.scaling.attn_factor", 1.1);
    };
    let long = (0..8).map(|i| 1.0 + i as f32).collect();
    let file = tiny_llama::file(
        16,
        keys,
        &[("rope_factors_short.weight", vec![1.0; 8]), ("rope_factors_long.weight", long)],
    );
    Checkpoint::from_gguf("long.gguf", Bytes::Owned(file)).unwrap()
}

fn load(chunk: usize) -> Model {
    let options = Options { precision: Precision::Exact, chunk, sessions: 4, ..Options::default() };
    Model::load(long_model(), &options).unwrap()
}

fn prompt(n: usize) -> Vec<u32> {
    (0..n as u32).map(|i| (i * 29 + 7) % VOCAB as u32).collect()
}

/// The factors are chosen when a sequence begins, so a chunked prefill equals an unchunked one. If they were chosen for
/// each chunk, the keys of the first chunks would be rotated with the short factors.
#[test]
fn longrope_pinned_per_sequence_across_chunks() {
    let ids = prompt(60);
    let logits = |chunk: usize| {
        let mut all = Vec::new();
        load(chunk).session().score(&ids, |_, row| all.extend_from_slice(row)).unwrap();
        all
    };
    let whole = logits(512);
    for chunk in [1, 7, 32] {
        assert!(logits(chunk) == whole, "chunks of {chunk}");
    }
    // The scalar reference, with the same length for both chunks, and with the bug.
    let in_two_chunks = |lengths: [u32; 2]| {
        let (model, checkpoint) = (load(512), long_model());
        let plan = model.plan().clone();
        assert!(matches!(plan.ropes[0].spec().scaling, Scaling::LongRope(_)));
        let kv = KvSize::full(&plan.kv, 2 * KV_BLOCK);
        let mut reference =
            Reference::new(plan, &kv, |spec| spec.data(|name| Some(checkpoint.tensor(name)?.data)).unwrap())
                .unwrap();
        let table: Vec<u32> = (0..60u32.div_ceil(KV_BLOCK as u32)).collect();
        let mut last = Vec::new();
        for (chunk, length) in [0..30usize, 30..60].into_iter().zip(lengths) {
            let positions: Vec<u32> = chunk.clone().map(|p| p as u32).collect();
            let batch = Batch {
                tokens: &ids[chunk],
                positions: &positions,
                sequences: &[0; 30],
                kind: gyrus_kernels::RowKind::Prompt,
                logits: &[29],
                tables: &[&table],
                lengths: &[length],
                records: &[],
                inputs: Default::default(),
            };
            last = reference.forward(&batch).unwrap().to_vec();
        }
        last
    };
    let worst = gyrus_testkit::distance;
    let end = &whole[59 * VOCAB..];
    let (right, wrong) = (worst(end, &in_two_chunks([60, 60])), worst(end, &in_two_chunks([30, 60])));
    assert!(right < 1e-4, "{right}");
    assert!(wrong > 1e-2, "the test does not detect the bug: {wrong}");
}

/// Tokens and the bits of their log-probabilities.
fn generate(session: &mut gyrus::Session, request: Request) -> Vec<(u32, u32)> {
    let mut generation = session.generate(request.logprobs(true)).unwrap();
    let mut tokens = Vec::new();
    while let Some(event) = generation.next().unwrap() {
        if let Event::Token { id, logprob, .. } = event {
            tokens.push((id, logprob.unwrap().to_bits()));
        }
    }
    tokens
}

/// A conversation that outgrows the original context is prefilled again with the long factors. Keeping the keys with
/// the short factors is the bug.
#[test]
fn longrope_conversation_that_outgrows_the_context() {
    let model = load(512);
    let mut session = model.session();
    // At most 25 positions: short factors.
    let first = generate(&mut session, Request::ids(prompt(20)).max_tokens(5));
    assert_eq!(first.len(), 5);
    // Twenty more and ten: beyond 32.
    let after = generate(&mut session, Request::ids(prompt(20)).max_tokens(10));
    let mut whole = prompt(20);
    whole.extend(first.iter().map(|(id, _)| id));
    whole.extend(prompt(20));
    let fresh = generate(&mut model.session(), Request::ids(whole).max_tokens(10));
    assert_eq!(after, fresh);
    // The two sets of factors differ: the same prompt with a larger maximum length has other probabilities.
    let long = generate(&mut model.session(), Request::ids(prompt(20)).max_tokens(40));
    assert_ne!(long[..5], first[..], "the test does not detect the bug");
    // A truncated sequence uses the short factors again.
    session.truncate(20);
    assert_eq!(generate(&mut session, Request::new(gyrus::Prompt::Continue).max_tokens(5)), first);
}

/// Cached keys are not rotated again: a truncated and continued sequence equals one that was never longer.
#[test]
fn rotating_a_cached_key_again() {
    let model = load(512);
    let mut session = model.session();
    generate(&mut session, Request::ids(prompt(24)).max_tokens(40));
    session.truncate(15);
    let after = generate(&mut session, Request::ids(prompt(3)).max_tokens(40));
    let mut whole = prompt(15);
    whole.extend(prompt(3));
    assert_eq!(after, generate(&mut model.session(), Request::ids(whole).max_tokens(40)));
}
