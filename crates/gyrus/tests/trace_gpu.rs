//! Traces of a GPU against the CPU, with the kernels of every kind of batch.
#![cfg(feature = "gpu")]

mod adapter;
mod short_tales;
mod traced;
mod written;

use adapter::adapter;
use gyrus::{Device, Precision, Trace, TraceSide};
use traced::{batches, divergence, ids, load, op};

/// Prefill, short chunks, decode.
const CHUNKS: [&[usize]; 3] = [&[512], &[9], &[20, 1]];

#[test]
fn a_gpu_agrees_with_the_cpu() {
    let Some(gpu) = adapter().map(|name| Device::Gpu(Some(name))) else { return };
    for precision in [Precision::Exact, Precision::Fast] {
        let Some(checkpoint) = short_tales::checkpoint(2, 24) else { return };
        let on_gpu = load(checkpoint, &gpu, precision);
        let on_cpu = load(short_tales::checkpoint(2, 24).unwrap(), &Device::Cpu, precision);
        for chunks in CHUNKS {
            let trace = Trace { chunks, against: Some(&on_cpu), ..Trace::default() };
            let found = batches(&on_gpu, &ids(40), &trace);
            assert_eq!(divergence(&found), None, "{precision:?} {chunks:?}");
            let plan = on_gpu.plan();
            for batch in &found {
                let order: Vec<_> = batch.results.iter().map(|r| (r.op, r.result)).collect();
                assert_eq!(order, plan.results().collect::<Vec<_>>(), "{chunks:?}");
                for result in &batch.results {
                    // Nothing is fused in single precision. The gather of a single row is another name of its input.
                    let hidden = matches!(result.ours, TraceSide::Hidden(_));
                    let is_alias = batch.positions.len() == 1 && result.op == op(&on_gpu, "gather");
                    assert!(!hidden || is_alias || precision == Precision::Fast, "{result:?}");
                    assert_eq!(result.difference.is_none(), hidden, "{result:?}");
                }
            }
            // The other way round: the CPU takes over the GPU's results here, too.
            let trace = Trace { chunks, against: Some(&on_gpu), ..Trace::default() };
            assert!(trace.isolates(&on_cpu));
            let other = batches(&on_cpu, &ids(40), &trace);
            assert_eq!(divergence(&other), None, "{precision:?} {chunks:?}");
            let checksums = |batches: &[gyrus::TracedChunk], ours: bool| -> Vec<TraceSide> {
                let results = batches.iter().flat_map(|batch| &batch.results);
                results.map(|r| if ours { r.ours.clone() } else { r.theirs.clone().unwrap() }).collect()
            };
            assert_eq!(checksums(&found, true), checksums(&other, false), "a run repeats its bits");
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
