//! Rotary embeddings compared with recorded results of `transformers`' rotary classes
//! (`scripts/oracle/rope_golden.py`) and with gradients of PyTorch's autograd.

use gyrus::ModelRopes;
use gyrus::rope::{Pairing, Rope, RopeSpec, Spectrum};
use gyrus_formats::Checkpoint;
use gyrus_tensor::{dequantize, quantize};
use gyrus_testkit::{distance, repository};
use serde_json::Value;

struct Golden {
    cases: Vec<Value>,
    tensors: Checkpoint,
}

impl Golden {
    fn open() -> Golden {
        let folder = repository().join("tests/data/rope");
        let text = std::fs::read_to_string(folder.join("golden.json")).unwrap();
        let index: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(index["failed"], serde_json::json!([]), "classes that could not be run");
        let cases = index["cases"].as_array().unwrap().clone();
        Golden { cases, tensors: Checkpoint::open(&folder.join("golden.safetensors")).unwrap() }
    }

    fn of_kind(&self, kind: &str) -> impl Iterator<Item = &Value> {
        self.cases.iter().filter(move |case| case["kind"] == kind)
    }

    /// A tensor by its name in a case; `None` if the case has none.
    fn tensor(&self, name: &Value) -> Option<Vec<f32>> {
        let tensor = self.tensors.tensor(name.as_str()?).unwrap();
        let mut values = vec![0.0; tensor.shape.elems()];
        dequantize(tensor.dtype, tensor.data, &mut values).unwrap();
        Some(values)
    }
}

fn numbers(value: &Value) -> Vec<u32> {
    serde_json::from_value(value.clone()).unwrap()
}

/// The rotary embedding of a case's configuration, and its frequencies for the case's positions.
fn rope_of(case: &Value) -> (Rope, Spectrum) {
    let ropes = ModelRopes::from_config(&case["config"].to_string(), None).unwrap();
    let wanted = case["layer_type"].as_str().unwrap_or("all");
    let kind = ropes.kinds.into_iter().find(|k| k.name == wanted).unwrap();
    let length = numbers(&case["positions"]).into_iter().max().unwrap() as usize + 1;
    let spectrum = kind.rope.spectrum(length).into_owned();
    (kind.rope, spectrum)
}

/// The positions of row `i`, one for each row of M-RoPE.
fn positions_of(case: &Value, i: usize) -> Vec<u32> {
    match case["rows"].as_array() {
        Some(rows) => rows.iter().map(|row| numbers(row)[i]).collect(),
        None => vec![numbers(&case["positions"])[i]],
    }
}

#[test]
fn frequencies_and_attention_factors_match_transformers() {
    let golden = Golden::open();
    let mut seen = 0;
    for case in golden.of_kind("class") {
        let name = case["name"].as_str().unwrap();
        let (rope, spectrum) = rope_of(case);
        let expected = golden.tensor(&case["inv_freq"]).unwrap();
        assert_eq!(rope.pairs(), expected.len(), "{name}");
        for (pair, (&ours, &theirs)) in spectrum.frequencies().iter().zip(&expected).enumerate() {
            let theirs = f64::from(theirs);
            let error = (ours - theirs).abs();
            assert!(error <= 1e-6 * theirs, "{name}: the frequency of pair {pair} is {ours}, not {theirs}");
        }
        let theirs = case["attention_factor"].as_f64().unwrap();
        let ours = spectrum.attention_factor();
        assert!((ours - theirs).abs() <= 1e-6 * theirs, "{name}: attention factor {ours}, not {theirs}");
        seen += 1;
    }
    assert!(seen >= 24, "{seen} classes");
}

#[test]
fn cosines_and_sines_match_transformers() {
    let golden = Golden::open();
    let mut seen = 0;
    for case in golden.of_kind("class") {
        let name = case["name"].as_str().unwrap();
        let (Some(cos), Some(sin)) = (golden.tensor(&case["cos"]), golden.tensor(&case["sin"])) else {
            continue;
        };
        let (rope, spectrum) = rope_of(case);
        let mut phases = vec![[0.0; 2]; rope.pairs()];
        for row in 0..numbers(&case["positions"]).len() {
            let positions = positions_of(case, row);
            rope.phases_in(&spectrum, &positions, &mut phases);
            let at = row * rope.pairs()..(row + 1) * rope.pairs();
            // transformers multiplies angles in f32, so they are off by a few ulps.
            let allowed = 1.2e-7 * f64::from(*positions.iter().max().unwrap()) + 3e-7;
            for (pair, (ours, theirs)) in phases.iter().zip(cos[at.clone()].iter().zip(&sin[at])).enumerate()
            {
                let error = f64::from(distance(ours, &[*theirs.0, *theirs.1]));
                assert!(error < allowed, "{name}: position {positions:?} pair {pair}: {ours:?} {theirs:?}");
            }
        }
        seen += 1;
    }
    assert!(seen >= 22, "{seen} classes");
}

/// Whole query rows, rotated by the model's own function: pairing, partial rotation, offset, sections and factors.
#[test]
fn rotated_queries_match_transformers() {
    let golden = Golden::open();
    let queries = golden.tensor(&Value::from("queries")).unwrap();
    let width = queries.len() / 5;
    for case in golden.of_kind("class") {
        let name = case["name"].as_str().unwrap();
        let (rope, spectrum) = rope_of(case);
        let head_dim = case["head_dim"].as_u64().unwrap() as usize;
        let expected = golden.tensor(&case["turned"]).unwrap();
        let mut phases = vec![[0.0; 2]; rope.pairs()];
        for row in 0..numbers(&case["positions"]).len() {
            let positions = positions_of(case, row);
            rope.phases_in(&spectrum, &positions, &mut phases);
            // DeepSeek V3's function gets the rotated part only.
            let nope = rope.head_dim() - head_dim;
            let mut x = vec![0.0; nope];
            x.extend(&queries[row * width..row * width + head_dim]);
            rope.apply(&mut x, &phases);
            let mut ours = x[nope..].to_vec();
            if name.starts_with("deepseek_v3") {
                // It returns the first elements of all pairs, then the second ones, which gives the same scores.
                ours = ours.iter().step_by(2).chain(ours.iter().skip(1).step_by(2)).copied().collect();
            }
            let allowed = 5e-7 * positions.iter().max().unwrap().to_owned() as f32 + 1e-6;
            for (i, (a, b)) in ours.iter().zip(&expected[row * head_dim..]).enumerate() {
                assert!((a - b).abs() < allowed, "{name}: position {positions:?} element {i}: {a}, not {b}");
            }
        }
    }
}

#[test]
fn forward_and_backward_match_autograd() {
    let golden = Golden::open();
    let mut seen = 0;
    for case in golden.of_kind("autograd") {
        let name = case["name"].as_str().unwrap();
        let size = |field: &str| case[field].as_u64().unwrap() as usize;
        let (tolerance, dtype) = match case["dtype"].as_str().unwrap() {
            "float32" => (1e-5, gyrus_tensor::DType::F32),
            "float16" => (4e-3, gyrus_tensor::DType::F16),
            _ => (3e-2, gyrus_tensor::DType::BF16),
        };
        let pairing = if case["pairing"] == "split" { Pairing::Split } else { Pairing::Adjacent };
        let rope = Rope::new(RopeSpec {
            rope_dim: size("rope_dim"),
            offset: size("offset"),
            output_scale: case["output_scale"].as_f64().unwrap(),
            ..RopeSpec::new(pairing, size("head_dim"), case["base"].as_f64().unwrap())
        })
        .unwrap();
        // Inputs and outputs are in the case's type; the computation is in f32.
        let rounded = |values: &[f32]| {
            let bytes = quantize(dtype, values).unwrap();
            let mut values = vec![0.0; values.len()];
            dequantize(dtype, &bytes, &mut values).unwrap();
            values
        };
        for (rope, input, output) in [(rope.clone(), "x", "y"), (rope.inverse(), "dy", "dx")] {
            let mut x = rounded(&golden.tensor(&case[input]).unwrap());
            let expected = golden.tensor(&case[output]).unwrap();
            let positions = numbers(&case["positions"]);
            let per_position = x.len() / positions.len();
            let mut phases = vec![[0.0; 2]; rope.pairs()];
            for (heads, &position) in x.chunks_exact_mut(per_position).zip(&positions) {
                rope.phases(position, &mut phases);
                heads.chunks_exact_mut(rope.head_dim()).for_each(|head| rope.apply(head, &phases));
            }
            let ours = rounded(&x);
            let most = expected.iter().fold(0f32, |most, x| most.max(x.abs()));
            let worst = distance(&ours, &expected);
            assert!(worst / most <= tolerance, "{name} {output}: off by {}", worst / most);
        }
        seen += 1;
    }
    assert_eq!(seen, 24);
}

/// Cosines and sines compared with 60-digit arithmetic (`scripts/oracle/rope_phases.py`), up to the largest position.
#[test]
fn phases_are_accurate_to_1e_7_at_every_position() {
    let text = std::fs::read_to_string(repository().join("tests/data/rope/phases.json")).unwrap();
    let golden: Value = serde_json::from_str(&text).unwrap();
    let positions = numbers(&golden["positions"]);
    assert!(positions.contains(&1_048_576));
    let mut worst = 0f64;
    for case in golden["ropes"].as_array().unwrap() {
        let rope = Rope::new(RopeSpec {
            scaling: gyrus::rope::Scaling::Linear { factor: case["factor"].as_f64().unwrap() },
            ..RopeSpec::new(
                Pairing::Split,
                case["rope_dim"].as_u64().unwrap() as usize,
                case["base"].as_f64().unwrap(),
            )
        })
        .unwrap();
        let mut phases = vec![[0.0; 2]; rope.pairs()];
        for (&position, row) in positions.iter().zip(case["phases"].as_array().unwrap()) {
            rope.phases(position, &mut phases);
            for (pair, expected) in numbers(&case["pairs"]).into_iter().zip(row.as_array().unwrap()) {
                for (i, ours) in phases[pair as usize].into_iter().enumerate() {
                    let error = (f64::from(ours) - expected[i].as_f64().unwrap()).abs();
                    // Frequencies have 53 bits, which limits the accuracy at the largest positions.
                    let allowed = if position <= 1 << 20 { 1e-7 } else { 1e-6 };
                    assert!(error < allowed, "position {position} pair {pair}: off by {error:e}");
                    worst = if position <= 1 << 20 { worst.max(error) } else { worst };
                }
            }
        }
    }
    println!("up to position 1,048,576 the worst cosine or sine is off by {worst:e}");
}
