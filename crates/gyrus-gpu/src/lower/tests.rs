use std::collections::HashSet;

use gyrus_kernels::shader::Rungs;
use gyrus_kernels::{
    Activation, BufferId, BufferSpec, HeadNorms, KvGroup, KvLayer, LOGITS, Output, Pairing, Rope, RopeId,
    RopeSpec, Rows, Scaling, Span, WeightId, WeightSpec,
};
use gyrus_tensor::{DType, Shape};

use super::*;
use crate::buffers::{MATVEC_ROWS, MAX_ROWS, sizes};

/// A plan of one layer of width 1024, which int8 cooperative matrices can multiply, with head norms and a rope whose
/// frequencies depend on a sequence's length.
fn plan(precision: Precision, head_dim: usize, v: DType) -> Plan {
    const DIM: usize = 1024;
    const FFN: usize = 4096;
    let group = KvGroup { layers: 1, kv_heads: 8, head_dim, window: Some(100) };
    let (q, k) = (16 * head_dim, group.row());
    let spec = |name: &str, dtype, shape: &[usize]| WeightSpec::new(name, dtype, Shape::new(shape).unwrap());
    let weights = vec![
        spec("token_embd", DType::Q4_0, &[512, DIM]),
        spec("attn_norm", DType::F32, &[DIM]),
        spec("attn_q", DType::Q4_0, &[q, DIM]),
        spec("attn_k", DType::Q4_0, &[k, DIM]),
        spec("attn_v", v, &[k, DIM]),
        spec("attn_q_norm", DType::F32, &[head_dim]),
        spec("attn_k_norm", DType::F32, &[head_dim]),
        spec("attn_output", DType::Q4_0, &[DIM, q]),
        spec("ffn_norm", DType::F32, &[DIM]),
        spec("ffn_gate", DType::Q4_0, &[FFN, DIM]),
        spec("ffn_up", DType::Q4_0, &[FFN, DIM]),
        spec("ffn_down", DType::Q4_0, &[DIM, FFN]),
    ];
    let buffer = |name, width, rows| BufferSpec { name, width, rows };
    let buffers = vec![
        buffer("stream", DIM, Rows::Batch),
        buffer("normed", DIM, Rows::Batch),
        buffer("qkv", q + 2 * k, Rows::Batch),
        buffer("attended", q, Rows::Batch),
        buffer("gate_up", 2 * FFN, Rows::Batch),
        buffer("gated", FFN, Rows::Batch),
        buffer("last", DIM, Rows::Logits),
        buffer("logits", 512, Rows::Logits),
    ];
    let [stream, normed, qkv, attended, gate_up, gated, last, logits] =
        [0, 1, 2, 3, 4, 5, 6, 7].map(BufferId);
    let [norm, ffn_norm] = [1, 8].map(WeightId);
    let product = |x, weights: &[u32], accumulate, out| {
        let weights = weights.iter().copied().map(WeightId).collect();
        Op::MatMul { x, weights, accumulate, out }
    };
    let (eps, scale) = (1e-5, 0.125);
    let (heads, kv) = (16, KvLayer { group: 0, index: 0 });
    let scaling = Scaling::DynamicNtk { factor: 2.0, original: 64.0 };
    let rope = RopeSpec { scaling, ..RopeSpec::new(Pairing::Split, head_dim, 1e4) };
    Plan {
        delta: Vec::new(),
        precision,
        vocab: 512,
        buffers,
        weights,
        ropes: vec![Rope::new(rope).unwrap()],
        kv: vec![group],
        encode: Vec::new(),
        forward: vec![
            Op::Embed { table: WeightId(0), scale: 1.0, out: stream },
            Op::RmsNorm { x: stream, weight: norm, eps, out: normed },
            product(normed, &[2, 3, 4], false, qkv),
            Op::RopeWrite {
                qkv,
                heads,
                kv,
                write: true,
                norms: Some(HeadNorms { q: WeightId(5), k: Some(WeightId(6)), v: None, eps }),
                rope: Some(RopeId(0)),
            },
            Op::Attention {
                qkv,
                heads,
                kv,
                span: Span::Causal,
                scale,
                soft_cap: None,
                sinks: None,
                out: attended,
            },
            product(attended, &[7], true, stream),
            Op::RmsNorm { x: stream, weight: ffn_norm, eps, out: normed },
            product(normed, &[9, 10], false, gate_up),
            Op::Gate { x: gate_up, activation: Activation::Silu, out: gated },
            product(gated, &[11], true, stream),
            Op::Gather { x: stream, out: last },
            Op::RmsNorm { x: last, weight: norm, eps, out: last },
            product(last, &[0], false, logits),
        ],
        layers: Vec::new(),
        outputs: vec![Output { name: LOGITS, buffer: logits }],
    }
}

/// A cache of four blocks.
fn size(plan: &Plan) -> KvSize {
    KvSize::full(&plan.kv, 128)
}

/// Checks that every slot of a call's launch has an operand, and that its buffer is as large as the launch needs. Returns
/// the kernel's name.
fn check_launch(plan: &Plan, call: &Call, rungs: Rungs, rows: usize) -> String {
    let what = format!("{} of {rows} rows", call.name);
    let launch = call.launch(rungs, rows as u32).unwrap_or_else(|error| panic!("{what}: {error}"));
    let (slots, sizes) = (call.slots(), sizes(plan, &size(plan)));
    for slot in launch.slots() {
        let Some((_, operand)) = slots.iter().find(|(name, _)| *name == slot.name) else {
            panic!("{what}: no operand for '{}'", slot.name);
        };
        if matches!(operand, Operand::Matrix { .. } | Operand::Vectors(_)) {
            continue;
        }
        let bytes = sizes.iter().find(|(of, _)| of == operand).map(|(_, bytes)| *bytes);
        assert!(bytes >= Some(slot.bytes), "{what}: {operand:?} has {bytes:?} bytes, not {}", slot.bytes);
    }
    launch.variant().name.clone()
}

#[test]
fn every_launch_has_its_buffers() {
    let some = Rungs { cooperative: false, int8_matrix: false, ..Rungs::ALL };
    let devices = [
        Capabilities::PLAIN,
        Capabilities { rungs: some, ..Capabilities::H200 },
        Capabilities::H200,
        // Matrices in parts.
        Capabilities { largest_buffer: 1 << 20, ..Capabilities::H200 },
    ];
    let kinds = [
        (BatchKind::Decode, &[1][..]),
        (BatchKind::Sequences, &[1, 8, 9, MATVEC_ROWS]),
        (BatchKind::ShortChunk, &[1, 8, 9, MATVEC_ROWS]),
        (BatchKind::Prefill, &[17, MAX_ROWS]),
    ];
    let mut kernels = HashSet::new();
    for precision in [Precision::Fast, Precision::Exact] {
        for (head_dim, v) in [(64, DType::Q4_0), (64, DType::F32), (80, DType::Q6_K)] {
            let plan = plan(precision, head_dim, v);
            let Segments { layers, logits, .. } = Segments::of(&plan);
            for capabilities in devices {
                let weights = WeightLayouts::of(&plan, capabilities.largest_buffer).unwrap();
                let (tuning, caches) = (&Tuning::default(), &paged(&plan, &size(&plan)));
                let context = FuseContext {
                    plan: &plan,
                    capabilities,
                    weights: &weights,
                    tuning,
                    caches,
                    records: 1,
                    rows: MAX_ROWS as u32,
                };
                let mut check = |ops, kind, rows: &[usize]| {
                    let calls = context.fuse(ops, kind, false).unwrap();
                    for (call, rows) in
                        calls.iter().flat_map(|call| rows.iter().map(move |rows| (call, *rows)))
                    {
                        if call.runs_for(rows as u32) {
                            kernels.insert(check_launch(&plan, call, capabilities.rungs, rows));
                        }
                    }
                };
                for (kind, rows) in kinds {
                    check(layers, kind, rows);
                }
                check(logits, BatchKind::Decode, &[1]);
                check(logits, BatchKind::ShortChunk, &[2, MATVEC_ROWS]);
            }
        }
    }
    let rare = ["attend_gathered", "attention", "flash", "matvec_int8_matrix", "tiles", "tiles_cooperative"];
    for kernel in rare {
        assert!(kernels.contains(kernel), "{kernel} was never launched: {kernels:?}");
    }
}

/// Sizes of a tuning file reach the launches.
#[test]
fn launches_follow_the_sizes_of_a_tuning_file() {
    let plan = plan(Precision::Fast, 64, DType::Q4_0);
    let capabilities = Capabilities::H200;
    let weights = WeightLayouts::of(&plan, capabilities.largest_buffer).unwrap();
    // The kernel and the workgroups of the gated product.
    let launch = |lines: &str, rows| {
        let tuning = &Tuning::parse(&format!("gyrus tuning 2\n{lines}")).unwrap();
        let caches = &paged(&plan, &size(&plan));
        let context = FuseContext {
            plan: &plan,
            capabilities,
            weights: &weights,
            tuning,
            caches,
            records: 1,
            rows: MAX_ROWS as u32,
        };
        let calls = context.fuse(Segments::of(&plan).layers, BatchKind::Sequences, false).unwrap();
        let call = calls.iter().find(|call| call.name.starts_with("ffn_gate")).unwrap();
        let launch = call.launch(capabilities.rungs, rows).unwrap();
        (launch.variant().name.clone(), launch.groups().iter().product::<u32>())
    };
    let (vector, matrix) = ("matvec".to_owned(), "matvec_int8_matrix".to_owned());
    assert_eq!((launch("", 8).0, launch("", 9)), (vector.clone(), (matrix.clone(), 128)));
    let later = "device matvec_int8_matrix_from_rows = 12\n";
    assert_eq!((launch(later, 11).0, launch(later, 12).0), (vector, matrix.clone()));
    assert_eq!(launch("device matvec_int8_matrix_workgroups = 64\n", 9), (matrix, 64));
}

/// Attention that nothing was written for, and keys that are not attended to, are faults of the plan.
#[test]
fn plans_without_their_keys_are_faults() {
    let whole = plan(Precision::Fast, 64, DType::Q4_0);
    for missing in [3, 4] {
        let mut plan = whole.clone();
        plan.forward.remove(missing);
        let error = fused(&plan, &size(&plan), &Capabilities::PLAIN, BatchKind::Decode).unwrap_err();
        assert!(matches!(error, GpuError::Internal { .. }), "{error}");
    }
}
