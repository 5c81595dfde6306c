//! Traces of a GPU against the CPU, with the kernels of every kind of batch.
#![cfg(feature = "gpu")]

mod adapter;
mod short_tales;
mod traced;
mod written;

use std::collections::BTreeSet;

use adapter::adapter;
use gyrus::{Device, Model, Precision, Trace, TraceSide, TracedChunk, TracedResult};
use gyrus_kernels::Op;
use traced::{LONG, LONG_CHUNK, batches, divergence, ids, load, op, tiny};

/// Prefill, short chunks, decode.
const CHUNKS: [&[usize]; 3] = [&[512], &[9], &[20, 1]];

/// Why a norm is hidden that is added to the residual.
const NORM_ADD: &str = "fused into the kernel 'norm · add'";

/// Traces each against the other, over this many tokens. Returns the reasons why results of the GPU are hidden.
fn agree(on_gpu: &Model, on_cpu: &Model, tokens: u32, chunks: &[usize]) -> BTreeSet<String> {
    let precision = on_gpu.plan().precision;
    let trace = Trace { chunks, against: Some(on_cpu), ..Trace::default() };
    let found = batches(on_gpu, &ids(tokens), &trace);
    assert_eq!(divergence(&found), None, "{precision:?} {chunks:?}");
    let plan = on_gpu.plan();
    let mut reasons = BTreeSet::new();
    for batch in &found {
        let order: Vec<_> = batch.results.iter().map(|r| (r.op, r.result)).collect();
        assert_eq!(order, plan.results().collect::<Vec<_>>(), "{chunks:?}");
        for result in &batch.results {
            assert_eq!(result.difference.is_none(), is_hidden(result), "{result:?}");
            if let TraceSide::Hidden(why) = &result.ours {
                reasons.insert(why.clone());
                // In single precision only a norm and the sum after it are fused. The gather of a single row is another
                // name of its input.
                let expected = match plan.forward[result.op] {
                    Op::RmsNorm { .. } => why == NORM_ADD,
                    Op::Gather { .. } => batch.positions.len() == 1,
                    _ => false,
                };
                assert!(expected || precision == Precision::Fast, "{result:?}");
            }
        }
    }
    // The other way round: the CPU takes over the GPU's results here, too.
    let trace = Trace { chunks, against: Some(on_gpu), ..Trace::default() };
    assert!(trace.isolates(on_cpu));
    let other = batches(on_cpu, &ids(tokens), &trace);
    assert_eq!(divergence(&other), None, "{precision:?} {chunks:?}");
    let checksums = |batches: &[TracedChunk], ours: bool| -> Vec<TraceSide> {
        let results = batches.iter().flat_map(|batch| &batch.results);
        results.map(|r| if ours { r.ours.clone() } else { r.theirs.clone().unwrap() }).collect()
    };
    assert_eq!(checksums(&found, true), checksums(&other, false), "a run repeats its bits");
    reasons
}

fn is_hidden(result: &TracedResult) -> bool {
    matches!(result.ours, TraceSide::Hidden(_))
}

#[test]
fn a_gpu_agrees_with_the_cpu() {
    let Some(gpu) = adapter().map(|name| Device::Gpu(Some(name))) else { return };
    for precision in [Precision::Exact, Precision::Fast] {
        let Some(checkpoint) = short_tales::checkpoint(2, 24) else { return };
        let on_gpu = load(checkpoint, &gpu, precision);
        let on_cpu = load(short_tales::checkpoint(2, 24).unwrap(), &Device::Cpu, precision);
        for chunks in CHUNKS {
            agree(&on_gpu, &on_cpu, 40, chunks);
        }
    }
}

/// Norms that are added to the residual, soft caps, factors, two KV groups; Gemma 4 has gates by other buffers and layers
/// that write no keys, too.
#[test]
fn gemma_on_a_gpu_agrees_with_the_cpu() {
    let Some(gpu) = adapter().map(|name| Device::Gpu(Some(name))) else { return };
    for (name, precision) in
        ["gemma2", "gemma4"].into_iter().flat_map(|n| [(n, Precision::Exact), (n, Precision::Fast)])
    {
        println!("{name} {precision:?}");
        let Some(on_gpu) = tiny(name, &gpu, precision) else { return };
        let on_cpu = tiny(name, &Device::Cpu, precision).unwrap();
        for chunks in CHUNKS {
            let hidden = agree(&on_gpu, &on_cpu, 40, chunks);
            assert!(hidden.contains(NORM_ADD), "{name} {precision:?} {chunks:?}: {hidden:?}");
        }
        // Blocks that have left the window are used again.
        if precision == Precision::Fast {
            agree(&on_gpu, &on_cpu, LONG, &[LONG_CHUNK]);
        }
    }
}

/// Batches continue with the state that the batch before has left.
#[test]
fn hybrids_on_a_gpu_agree_with_the_cpu() {
    let Some(gpu) = adapter().map(|name| Device::Gpu(Some(name))) else { return };
    for name in ["qwen35", "qwen35moe"] {
        for precision in [Precision::Exact, Precision::Fast] {
            println!("{name} {precision:?}");
            let Some(on_gpu) = tiny(name, &gpu, precision) else { return };
            let on_cpu = tiny(name, &Device::Cpu, precision).unwrap();
            for chunks in CHUNKS {
                agree(&on_gpu, &on_cpu, 40, chunks);
            }
        }
    }
}

#[test]
fn a_wrong_window_on_a_gpu_is_found_at_attention() {
    let Some(gpu) = adapter().map(|name| Device::Gpu(Some(name))) else { return };
    for precision in [Precision::Exact, Precision::Fast] {
        let Some(checkpoint) = short_tales::checkpoint(2, 25) else { return };
        let wrong = load(checkpoint, &gpu, precision);
        let right = load(short_tales::checkpoint(2, 24).unwrap(), &Device::Cpu, precision);
        for chunks in CHUNKS {
            let trace = Trace { chunks, against: Some(&right), ..Trace::default() };
            let (found, _, position) = divergence(&batches(&wrong, &ids(40), &trace)).unwrap();
            assert_eq!(found, op(&right, "attention b2 4 heads kv0.0"), "{precision:?} {chunks:?}");
            assert!(position >= 24, "{precision:?} {chunks:?} {position}");
        }
    }
}
