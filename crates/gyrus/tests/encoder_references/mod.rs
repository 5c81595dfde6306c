//! What transformers and sentence-transformers compute with the small random models of the test data.

use gyrus::{Options, Precision};
use serde_json::Value;

use super::encoder_fixtures::fixture;

pub(crate) fn options(precision: Precision) -> Options {
    Options { precision, threads: Some(2), ..Options::default() }
}

pub(crate) fn reference(name: &str) -> Value {
    serde_json::from_slice(&std::fs::read(fixture(name).join("ref.json")).unwrap()).unwrap()
}

pub(crate) fn floats(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect()
}

pub(crate) fn strings(value: &Value) -> Vec<String> {
    value.as_array().unwrap().iter().map(|x| x.as_str().unwrap().to_owned()).collect()
}

pub(crate) fn cosine(a: &[f32], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    let dot: f64 = a.iter().zip(b).map(|(a, b)| f64::from(*a) * b).sum();
    let (mut of_a, mut of_b) = (0.0, 0.0);
    a.iter().for_each(|a| of_a += f64::from(*a) * f64::from(*a));
    b.iter().for_each(|b| of_b += b * b);
    dot / (of_a * of_b).sqrt()
}
