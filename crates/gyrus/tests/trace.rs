//! Traces on the CPU: a fault in one of two models is found at its op.

mod short_tales;
mod traced;
mod written;

use std::collections::HashSet;
use std::mem::discriminant;
use std::ops::ControlFlow;

use gyrus::{Device, Error, KvLayer, Model, OpResult, Precision, Request, Trace, TraceSide};
use gyrus_kernels::{KV_BLOCK, Op};
use traced::{LONG, LONG_CHUNK, batches, damaged, divergence, ids, load, op, tiny};

const PRECISIONS: [Precision; 2] = [Precision::Exact, Precision::Fast];

fn short(window: u32, device: &Device, precision: Precision) -> Option<Model> {
    Some(load(short_tales::checkpoint(2, window)?, device, precision))
}

#[test]
fn the_cpu_agrees_with_the_reference() {
    for precision in PRECISIONS {
        let Some(cpu) = short(24, &Device::Cpu, precision) else { return };
        let reference = short(24, &Device::Reference, precision).unwrap();
        for (chunks, accumulate) in [(&[512][..], false), (&[40, 7, 1], false), (&[512], true)] {
            let trace = Trace { chunks, against: Some(&reference), accumulate, ..Trace::default() };
            let batches = batches(&cpu, &ids(60), &trace);
            assert_eq!(divergence(&batches), None, "{precision:?} {chunks:?}");
            // Every result of every op is compared.
            let all = batches.iter().flat_map(|batch| &batch.results);
            assert!(all.clone().all(|result| result.difference.is_some()), "{precision:?}");
            assert_eq!(all.count(), batches.len() * cpu.plan().results().count());
        }
    }
}

/// Compares every result of every op.
fn agree(ours: &Model, theirs: &Model, tokens: u32, chunks: &[usize]) {
    let trace = Trace { chunks, against: Some(theirs), ..Trace::default() };
    let batches = batches(ours, &ids(tokens), &trace);
    assert_eq!(divergence(&batches), None, "{chunks:?}");
    let expected: Vec<_> = ours.plan().results().collect();
    for batch in &batches {
        let found: Vec<_> = batch.results.iter().map(|result| (result.op, result.result)).collect();
        assert_eq!(found, expected, "{chunks:?}");
        assert!(batch.results.iter().all(|result| result.difference.is_some()), "{chunks:?}");
    }
}

#[test]
fn every_op_of_every_architecture_agrees_with_the_reference() {
    let mut kinds = HashSet::new();
    let mut without_keys = 0;
    for name in gyrus_testkit::TINY_MODELS {
        println!("{name}");
        let Some(cpu) = tiny(name, &Device::Cpu, Precision::Exact) else { return };
        let reference = tiny(name, &Device::Reference, Precision::Exact).unwrap();
        for chunks in [&[512][..], &[20, 9, 1]] {
            agree(&cpu, &reference, 60, chunks);
        }
        for op in &cpu.plan().forward {
            kinds.insert(discriminant(op));
            // Keys are a result only of the op that writes them.
            let results: Vec<OpResult> = op.results().collect();
            match *op {
                Op::RopeWrite { write: false, .. } => {
                    without_keys += 1;
                    assert_eq!(results, [OpResult::Queries]);
                }
                Op::RopeWrite { kv, .. } => {
                    assert_eq!(results, [OpResult::Queries, OpResult::Keys(kv), OpResult::Values(kv)]);
                }
                _ => assert_eq!(results, [OpResult::Buffer(op.writes())]),
            }
        }
    }
    assert_eq!(kinds.len(), 20, "these models have ops of every kind");
    assert!(without_keys > 0, "Gemma 4 attends to keys of earlier layers");
}

/// Blocks of a windowed group are freed and used again, so that its block tables differ from those of the other group.
#[test]
fn a_trace_continues_beyond_the_window() {
    for name in ["gemma2", "gemma4"] {
        println!("{name}");
        let Some(cpu) = tiny(name, &Device::Cpu, Precision::Exact) else { return };
        let windows: Vec<_> = cpu.plan().kv.iter().map(|group| group.window).collect();
        assert!(windows.contains(&Some(16)) && windows.contains(&None), "{windows:?}");
        // More than a sequence of a windowed group has: the window, a tile, a chunk, and tokens that may be taken back.
        assert!(LONG as usize > 16 + 128 + LONG_CHUNK + 128 + 2 * KV_BLOCK);
        let reference = tiny(name, &Device::Reference, Precision::Exact).unwrap();
        agree(&cpu, &reference, LONG, &[LONG_CHUNK]);
    }
}

/// One position too many in the window: rows from position 24 on differ, in the first op that uses the window.
#[test]
fn a_wrong_window_is_found_at_attention() {
    for precision in PRECISIONS {
        let Some(right) = short(24, &Device::Cpu, precision) else { return };
        let wrong = short(25, &Device::Cpu, precision).unwrap();
        for chunks in [&[512][..], &[7], &[20, 1]] {
            let trace = Trace { chunks, against: Some(&wrong), ..Trace::default() };
            let batches = batches(&right, &ids(60), &trace);
            let (found, _, position) = divergence(&batches).unwrap();
            assert_eq!(found, op(&right, "attention b2 4 heads kv0.0"), "{precision:?} {chunks:?}");
            assert!(position >= 24, "{position}");
            // Other ops do not diverge, since each has the same inputs in both runs.
            let diverging =
                batches.iter().flat_map(|batch| &batch.results).filter(|result| result.diverges());
            let layer_1 = op(&right, "attention b2 4 heads kv0.1");
            assert!(diverging.clone().all(|result| [found, layer_1].contains(&result.op)));
        }
    }
}

#[test]
fn a_wrong_weight_is_found_at_its_op() {
    for precision in PRECISIONS {
        for tensor in
            ["blk.0.attn_q.weight", "blk.1.ffn_down.weight", "blk.1.ffn_gate.weight", "output_norm.weight"]
        {
            let Some(right) = short(0, &Device::Cpu, precision) else { return };
            let wrong = load(damaged(tensor).unwrap(), &Device::Cpu, precision);
            let trace = Trace { chunks: &[16], against: Some(&wrong), ..Trace::default() };
            let found = divergence(&batches(&right, &ids(20), &trace));
            let (found, ..) = found.unwrap_or_else(|| panic!("{precision:?} {tensor}"));
            assert_eq!(found, op(&right, tensor), "{precision:?} {tensor}");
        }
    }
}

/// Queries, keys and values of an op are results of their own.
#[test]
fn a_wrong_key_is_found_in_the_cache() {
    let Some(right) = short(0, &Device::Cpu, Precision::Fast) else { return };
    let wrong = load(damaged("blk.1.attn_k_norm.weight").unwrap(), &Device::Cpu, Precision::Fast);
    let trace = Trace { against: Some(&wrong), ..Trace::default() };
    let (found, result, _) = divergence(&batches(&right, &ids(20), &trace)).unwrap();
    assert_eq!(
        (found, result),
        (op(&right, "blk.1.attn_k_norm.weight"), OpResult::Keys(KvLayer { group: 0, index: 1 }))
    );
}

#[test]
fn checksums_repeat_and_do_not_depend_on_chunks() {
    let Some(model) = short(24, &Device::Cpu, Precision::Fast) else { return };
    let run = |chunks| batches(&model, &ids(33), &Trace { chunks, ..Trace::default() });
    assert_eq!(run(&[512]), run(&[512]));
    let logits = |chunks| run(chunks).pop().unwrap().results.pop().unwrap();
    assert_eq!(logits(&[512]), logits(&[1]));
    assert_eq!(
        run(&[5, 20, 3]).iter().map(|b| b.positions.clone()).collect::<Vec<_>>(),
        [0..5, 5..25, 25..28, 28..31, 31..33]
    );
}

/// A trace shows where values stop being finite; it does not refuse them.
#[test]
fn nan_is_shown_where_it_begins() {
    let checkpoint = short_tales::changed(2, 0, |name, bytes| {
        if name == "blk.1.ffn_norm.weight" {
            bytes[..4].copy_from_slice(&f32::NAN.to_le_bytes());
        }
    });
    let Some(checkpoint) = checkpoint else { return };
    let model = load(checkpoint, &Device::Cpu, Precision::Exact);
    let batches = batches(&model, &ids(4), &Trace::default());
    let is_nan = |side: &TraceSide| matches!(side, TraceSide::Values(values) if values.largest.is_nan());
    let first = batches[0].results.iter().find(|result| is_nan(&result.ours)).unwrap();
    assert_eq!(first.op, op(&model, "blk.1.ffn_norm.weight"));
}

#[test]
fn a_trace_does_not_disturb_sessions() {
    let Some(checkpoint) = short_tales::checkpoint(2, 0) else { return };
    let options = gyrus::Options { context: Some(64), sessions: 2, ..Default::default() };
    let model = Model::load(checkpoint, &options).unwrap();
    let generate = |traced: bool| {
        let mut session = model.session();
        for prompt in [ids(20), ids(5)] {
            if traced {
                // More often than there are blocks, so that they must be freed.
                (0..5).for_each(|_| drop(batches(&model, &ids(60), &Trace::default())));
            }
            let mut generation = session.generate(Request::ids(prompt).max_tokens(8)).unwrap();
            while generation.next().unwrap().is_some() {}
        }
        session.tokens().to_vec()
    };
    assert_eq!(generate(true), generate(false));
    // Two full sessions leave no block to trace with.
    let mut full = [model.session(), model.session()];
    for (session, first) in full.iter_mut().zip([1, 2]) {
        // Equal prefixes would share blocks.
        let tokens: Vec<u32> = std::iter::once(first).chain(ids(63)).collect();
        session.prefill(&tokens).unwrap();
    }
    let error = model.trace(&ids(1), &Trace::default(), |_| ControlFlow::Continue(())).unwrap_err();
    assert!(matches!(error, Error::CacheFull { .. }), "{error}");
}

#[test]
fn bad_traces_are_errors() {
    let Some(model) = short(0, &Device::Cpu, Precision::Exact) else { return };
    let other = load(short_tales::checkpoint(4, 0).unwrap(), &Device::Cpu, Precision::Exact);
    let clone = model.clone();
    let refused = |ids: &[u32], trace: &Trace<'_>| {
        let visit = |_: &gyrus::TracedChunk| panic!("nothing is traced");
        model.trace(ids, trace, visit).unwrap_err().to_string()
    };
    let plain = Trace::default();
    assert_eq!(refused(&[], &plain), "the prompt is empty");
    assert_eq!(refused(&[1, 512], &plain), "token id 512 is beyond the vocabulary of 512");
    let long = refused(&ids(129), &plain);
    assert_eq!(long, "the prompt has 129 tokens, which does not fit into the context of 128");
    for chunks in [&[0][..], &[16, 513]] {
        let said = refused(&[1], &Trace { chunks, ..plain });
        assert!(said.ends_with("rows: 1 to 512 are possible"), "{said}");
    }
    let said = refused(&[1], &Trace { against: Some(&clone), ..plain });
    assert_eq!(said, "a model cannot be traced against itself: load it a second time");
    let said = refused(&[1], &Trace { against: Some(&other), ..plain });
    assert_eq!(said, "the two models are not of the same shape: op 2 differs");
}
