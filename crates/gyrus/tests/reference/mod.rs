//! The ids of a test folder's prompt, the logits that another program has for it, and their distance.
#![allow(dead_code, reason = "tests use some of it")]

use std::path::Path;

use gyrus::Model;
pub(crate) use gyrus_testkit::distance;
use gyrus_testkit::npy;

/// The folder's `ref.json`, its ids, and the logits of every position.
pub(crate) fn read(folder: &Path) -> (serde_json::Value, Vec<u32>, Vec<f32>) {
    let text = std::fs::read_to_string(folder.join("ref.json")).unwrap();
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    let ids: Vec<u32> = serde_json::from_value(json["ids"].clone()).unwrap();
    let logits = npy::read_f32(&folder.join("ref_logits_f32.npy"));
    assert_eq!(logits.shape[0], ids.len());
    (json, ids, logits.values)
}

/// The logits of every position.
pub(crate) fn logits(model: &Model, ids: &[u32]) -> Vec<f32> {
    let mut all = Vec::new();
    model.session().score(ids, |_, row| all.extend_from_slice(row)).unwrap();
    all
}

/// The root of the mean square of differences.
pub(crate) fn mean_distance(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    let squares: f32 = a.iter().zip(b).map(|(a, b)| (a - b) * (a - b)).sum();
    (squares / a.len() as f32).sqrt()
}
