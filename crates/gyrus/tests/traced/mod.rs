//! Models with one fault, and the results of traces.

use std::ops::ControlFlow;

use gyrus::{Device, Model, OpResult, Options, Precision, Trace, TracedChunk};
use gyrus_formats::Checkpoint;

/// Tokens to trace. All models have their ids.
pub(crate) fn ids(count: u32) -> Vec<u32> {
    (0..count).map(|i| (i * 37 + 3) % 96).collect()
}

pub(crate) fn load(checkpoint: Checkpoint, device: &Device, precision: Precision) -> Model {
    let options = Options {
        device: device.clone(),
        precision,
        context: Some(128),
        threads: Some(2),
        ..Options::default()
    };
    Model::load(checkpoint, &options).unwrap()
}

/// A model of about a megabyte. Its KV cache has too few blocks of windowed groups for [`LONG`] tokens, unless those that
/// have left the window are freed.
pub(crate) fn tiny(name: &str, device: &Device, precision: Precision) -> Option<Model> {
    let options = Options {
        device: device.clone(),
        precision,
        context: Some(LONG as usize),
        chunk: LONG_CHUNK,
        threads: Some(2),
        ..Options::default()
    };
    Some(Model::open(&gyrus_testkit::data(&format!("tiny/{name}"))?, &options).unwrap())
}

/// Tokens of a trace that outgrows a window of 16, and the most rows of its batches.
pub(crate) const LONG: u32 = 400;
pub(crate) const LONG_CHUNK: usize = 32;

/// All batches of a trace.
pub(crate) fn batches(model: &Model, ids: &[u32], trace: &Trace<'_>) -> Vec<TracedChunk> {
    let mut batches = Vec::new();
    let visit = |chunk: &TracedChunk| {
        batches.push(chunk.clone());
        ControlFlow::Continue(())
    };
    model.trace(ids, trace, visit).unwrap();
    batches
}

/// The op, the result and the position of the first divergence.
pub(crate) fn divergence(batches: &[TracedChunk]) -> Option<(usize, OpResult, usize)> {
    let found = batches.iter().find_map(TracedChunk::first_divergence)?;
    Some((found.op, found.result, found.difference.unwrap().position))
}

/// The only op whose printed line contains this.
pub(crate) fn op(model: &Model, part: &str) -> usize {
    let plan = model.plan();
    let lines = plan.forward.iter().map(|op| plan.line(op).to_string());
    let found: Vec<usize> = lines.enumerate().filter(|(_, l)| l.contains(part)).map(|(i, _)| i).collect();
    let [op] = found[..] else { panic!("'{part}' is in {} ops", found.len()) };
    op
}

/// Short Tales with other values in one tensor, all of them finite.
#[allow(dead_code, reason = "tests on a GPU change the window only")]
pub(crate) fn damaged(tensor: &str) -> Option<Checkpoint> {
    crate::short_tales::changed(2, 0, |name, bytes| match name == tensor {
        false => {}
        // f32: the upper bits of the mantissa.
        true if name.ends_with("norm.weight") => {
            bytes.iter_mut().skip(2).step_by(4).for_each(|byte| *byte ^= 0x60)
        }
        // Q8_0: blocks of an f16 scale, which stays, and 32 quants.
        true => bytes.chunks_exact_mut(34).flat_map(|block| &mut block[2..]).for_each(|byte| *byte ^= 0x28),
    })
}
