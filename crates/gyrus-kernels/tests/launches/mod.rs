//! Launches of every kernel, for every kind of argument that changes its source.

use gyrus_kernels::Direction;
use gyrus_kernels::call::engine::{self, AddCall, Heads, Paged};
use gyrus_kernels::call::{
    AttendCall, Cache, Columns, Conv1dCall, ConvActivation, EmbedCall, F16RowsCall, FlashCall, FlashTuning,
    Freqs, Input, KvCopyCall, KvShape, KvShiftCall, MatMulCall, MatMulTuning, MatVecCall, MatVecTuning, Norm,
    NormCall, QuantizeCall, Results, RopeCall, RopeKernel, SelectCall, Source as RowSource, SplitMode,
    Storage, SumTilesCall, Target, TileCall, TileShape, TileTuning, copy, read_sums,
};
use gyrus_kernels::params::{
    AttendParams, NormEpsParams, RoPEBase, RoPEDims, RoPEOpParams, RoPEParams, RoPEQKVWriteParams,
};
use gyrus_kernels::shader::Rungs;
use gyrus_kernels::{Activation, Launch, Pairing, WeightLayout};
use gyrus_tensor::{DType, can_dequantize};

/// Sets of device features that kernels have variants for.
pub(crate) const ALL_RUNGS: [Rungs; 6] = [
    Rungs::ALL,
    Rungs { int8_matrix: false, ..Rungs::ALL },
    Rungs { cooperative: false, int8_matrix: false, ..Rungs::ALL },
    Rungs { f16: false, ..Rungs::ALL },
    Rungs { subgroups: false, ..Rungs::ALL },
    Rungs::NONE,
];

/// Calls of the published rope kernels.
pub(crate) fn rope_calls() -> Vec<RopeCall> {
    let mut calls = Vec::new();
    for storage in [Storage::F16, Storage::F32, Storage::Bf16] {
        for head_dim in [64, 6] {
            for direction in [Direction::Forward, Direction::Inverse] {
                for (freqs, positions) in
                    [(Freqs::Turns, 0), (Freqs::Turns, 3), (Freqs::Divisors, 1), (Freqs::Inline, 0)]
                {
                    for kernel in kernels(head_dim) {
                        calls.push(RopeCall { kernel, storage, direction, freqs, positions });
                    }
                }
            }
        }
    }
    // Combinations that no kernel supports are dropped; all others must translate.
    calls.retain(|call| match call.kernel {
        RopeKernel::X { .. } => call.storage == Storage::F32 && call.positions == 0,
        RopeKernel::Op { .. } => call.freqs == Freqs::Inline && call.positions == 0,
        _ => call.storage != Storage::Bf16,
    });
    calls
}

fn kernels(head_dim: u32) -> Vec<RopeKernel> {
    let qkv = RoPEQKVWriteParams {
        n_kv_heads: 2,
        head_dim,
        max_seq_len: 32,
        theta: 1e4,
        n_heads: 4,
        k_elem_offset: 4 * head_dim,
        v_elem_offset: 6 * head_dim,
        freq_scale: 1.0,
        ..Default::default()
    };
    let batch = RoPEQKVWriteParams { k_elem_offset: 5, ..qkv };
    let eps = NormEpsParams { norm_eps: 1e-6, ..Default::default() };
    let x = RoPEParams { seq_len: 3, head_dim, n_heads: 2, theta: 1e4, ..Default::default() };
    let dims = RoPEDims { seq_len: 3, n_heads: 2, head_dim, pos_offset: 0 };
    let base = RoPEBase { rope_base: 1e4, ..Default::default() };
    let op = RoPEOpParams {
        batch: 1,
        n_heads: 2,
        seq_len: 3,
        head_dim,
        rope_dim: head_dim,
        freqs_dim: head_dim,
        output_scale: 1.0,
        _pad0: 0,
    };
    let mut kernels = vec![RopeKernel::Op { params: op }];
    for of in ['q', 'k'] {
        kernels.push(RopeKernel::X { of, dims, base });
    }
    for pairing in [Pairing::Adjacent, Pairing::Split] {
        kernels.push(RopeKernel::InPlace { pairing, params: x });
        for cache in [Cache::Contiguous, Cache::Paged { entries: 2, blocks: 3 }] {
            kernels.push(RopeKernel::QkvWrite { pairing, params: qkv, cache });
            kernels.push(RopeKernel::BatchKvWrite { pairing, params: batch, cache });
            for plus_one in [false, true] {
                kernels.push(RopeKernel::HeadNorm { params: qkv, eps, plus_one, cache });
            }
        }
    }
    kernels
}

/// The kernels of a plan's ops.
fn engine_launches(rungs: Rungs) -> Vec<Launch> {
    let mut launches = vec![
        copy(rungs, 4096).unwrap(),
        read_sums(rungs, 4096).unwrap(),
        engine::gate(rungs, 3, 70, Activation::Silu).unwrap(),
        engine::gate(rungs, 3, 70, Activation::GeluTanh).unwrap(),
        engine::gate(rungs, 3, 70, Activation::Gelu).unwrap(),
        engine::gate(rungs, 3, 70, Activation::SquaredRelu).unwrap(),
        engine::gate_by(rungs, 3, 70, Activation::GeluTanh, (200, 30)).unwrap(),
        AddCall { rows: 3, count: 70, bias: false, out_stride: 100, first: 30, scale: 0.5 }
            .launch(rungs)
            .unwrap(),
        engine::scale(rungs, 3, 70, 0.5, Some(30.0)).unwrap(),
        engine::gather(rungs, 3, 2, 70).unwrap(),
    ];
    for flag in [false, true] {
        launches.push(engine::rms_norm(rungs, 3, 70, 1e-5, flag).unwrap());
        for kv in [Storage::F16, Storage::F32] {
            let paged = Paged { kv, blocks: 4, rows: 3, entries: 8 };
            let params = AttendParams {
                n_heads: 6,
                n_kv_heads: 2,
                stride: 2000,
                scale: 0.1,
                rope_dim: 32,
                rope_offset: 8,
                pass_scale: 1.0,
                ..Default::default()
            };
            for pairing in [Pairing::Adjacent, Pairing::Split] {
                let heads = Heads { head_dim: 64, pairing, norm: flag, write: true };
                launches.push(engine::rope_write(rungs, params, heads, paged).unwrap());
                let queries = Heads { write: false, ..heads };
                launches.push(engine::rope_write(rungs, params, queries, paged).unwrap());
                for (head_dim, tiles) in [(64, 4), (96, 1), (128, 2)] {
                    let heads = Heads { head_dim, ..heads };
                    let mut push = |rotate, mode, position, rows| {
                        let paged = Paged { rows, ..paged };
                        match (AttendCall { params, heads, rotate, mode, position, paged }).launch(rungs) {
                            Ok(launch) => launches.push(launch),
                            Err(_) => assert_eq!(kv, Storage::F32),
                        }
                    };
                    for rotate in [false, true] {
                        push(rotate, SplitMode::Separate { splits: 2 }, None, 3);
                        push(rotate, SplitMode::Separate { splits: 2 }, Some(70), 1);
                        // Gathered rows are several; their pairing is covered by the others.
                        for kept in [false, true].into_iter().filter(|_| pairing == Pairing::Split) {
                            push(rotate, SplitMode::Gathered { tiles, kept }, None, 3);
                        }
                    }
                }
            }
            let head_dim = if flag { 64 } else { 192 };
            launches.push(engine::attention(rungs, params, head_dim, paged).unwrap());
            for (head_dim, kib, ahead) in
                [(32, 32, false), (64, 32, true), (80, 32, false), (128, 32, false), (256, 16, true)]
            {
                let call = FlashCall {
                    n_heads: 6,
                    n_kv_heads: 2,
                    head_dim,
                    q_stride: 10 * head_dim,
                    scale: 0.1,
                    window: 0,
                    soft_cap: 0.0,
                    causal: true,
                    tree: flag,
                    paged,
                    tiles: 2,
                };
                let (memory, ahead) = (Some(kib << 10), Some(ahead));
                let tuning = FlashTuning { memory, ahead, ..Default::default() };
                launches.push(call.launch(rungs, tuning).unwrap());
            }
        }
    }
    launches
}

/// Norms of every kind, scalar and vectorised.
fn norm_launches(rungs: Rungs) -> Vec<Launch> {
    let mut launches = Vec::new();
    for norm in [Norm::Rms, Norm::RmsPlusOne, Norm::Layer { bias: false }, Norm::Layer { bias: true }] {
        for (dim, residual, in_place) in
            [(70, false, false), (72, true, false), (3000, false, true), (71, true, true)]
        {
            let call = NormCall { residual, in_place, ..NormCall::new(norm, 3, dim, 1e-5) };
            launches.push(call.launch(rungs).unwrap());
        }
    }
    for dim in [70, 72] {
        let norm = NormCall::new(Norm::Rms, 3, dim, 1e-5);
        launches.push(NormCall { add: Some(0.5), ..norm }.launch(rungs).unwrap());
        let columns = Some(Columns { stride: 300, first: 4, parts: 2 });
        launches.push(NormCall { in_place: true, columns, ..norm }.launch(rungs).unwrap());
    }
    launches
}

/// Kernels on the cache between steps.
fn cache_launches(rungs: Rungs) -> Vec<Launch> {
    let mut launches = Vec::new();
    for kv in [Storage::F16, Storage::F32] {
        for pairing in [Pairing::Adjacent, Pairing::Split] {
            for (head_dim, in_place) in [(64, true), (6, false), (512, true), (80, false)] {
                let cache = KvShape { kv, blocks: 5, n_kv_heads: 3, head_dim };
                launches.push(KvCopyCall { cache, pairs: 2 }.launch(rungs).unwrap());
                let call = KvShiftCall {
                    cache,
                    pairing,
                    rope_dim: 6,
                    rope_offset: 0,
                    by: -7,
                    moves: 9,
                    in_place,
                    each: 4,
                };
                launches.push(call.launch(rungs).unwrap());
            }
        }
    }
    launches
}

fn conv_launches(rungs: Rungs) -> Vec<Launch> {
    let mut launches = Vec::new();
    for weight in [Storage::F16, Storage::F32] {
        for activation in [ConvActivation::None, ConvActivation::Gelu, ConvActivation::GeluTanh] {
            for (stride, flag) in [(1, false), (2, true)] {
                let call = Conv1dCall {
                    activation,
                    bias: flag,
                    rows: flag,
                    part: [4, 4 * stride],
                    ..Conv1dCall::new(5, 7, 30, stride, weight)
                };
                launches.push(call.launch(rungs).unwrap());
            }
        }
    }
    launches
}

/// Kernels that choose tokens.
fn select_launches(rungs: Rungs) -> Vec<Launch> {
    let mut launches = Vec::new();
    for greedy in [false, true] {
        for penalties in [false, true] {
            let call = SelectCall { rows: 3, vocab: 1000, greedy, penalties };
            launches.extend(call.launches(rungs).unwrap());
        }
    }
    launches
}

/// Every kernel that reads weights, for every type of them.
fn weight_launches(rungs: Rungs) -> Vec<Launch> {
    let merge = RowSource::Merge { head_dim: 64, window: 0 };
    let sources = [RowSource::F32 { x_stride: 512 }, RowSource::Norm { x_stride: 512, eps: 1e-5 }, merge];
    let quantize = |source, target| QuantizeCall { rows: 3, cols: 512, source, target };
    let mut launches: Vec<Launch> =
        sources.map(|source| quantize(source, Target::Int8).launch(rungs).unwrap()).into();
    launches.push(quantize(merge, Target::F32).launch(rungs).unwrap());
    for &dtype in DType::ALL.iter().filter(|dtype| can_dequantize(**dtype)) {
        let weight = WeightLayout::new(dtype, 10, 512).unwrap();
        launches.push(EmbedCall::new(weight, 5, 1.0).launch(rungs).unwrap());
        for rows in [1, 4, 8] {
            for columns in [1, 2] {
                let tuning = MatMulTuning { columns: Some(columns), ..Default::default() };
                launches.push(MatMulCall::new(weight, rows).launch(rungs, tuning).unwrap());
            }
        }
        if !dtype.is_quantized() {
            assert!(MatVecCall::new(weight, 1).launch(rungs).is_err(), "{dtype}");
            continue;
        }
        for rows in [1, 4] {
            launches.push(MatVecCall::new(weight, rows).launch(rungs).unwrap());
        }
        let one = MatVecCall::new(weight, 1);
        let tuning = MatVecTuning { workgroup: 128, columns: 2, splits: 2, passes: 2 };
        let inputs =
            [Input::F32, Input::Norm { eps: 1e-5 }, Input::Merge { head_dim: 64, window: 0, position: None }];
        let told = Input::Merge { head_dim: 64, window: 0, position: Some(70) };
        let inputs = inputs.into_iter().chain([told]);
        for (input, gate) in inputs.zip([None, Some(Activation::Silu), None, None]) {
            launches.push(MatVecCall { input, gate, tuning, ..one }.launch(rungs).unwrap());
        }
        let (input, gate) = (Input::Int8 { norm: true }, Some(Activation::GeluTanh));
        launches.push(MatVecCall { rows: 3, input, gate, ..one }.launch(rungs).unwrap());
        // Int8 cooperative matrices: several tiles, splits, and both ends of a fused norm.
        let has_one_scale = matches!(dtype, DType::Q4_0 | DType::Q5_0 | DType::Q8_0 | DType::IQ4_NL);
        let can = has_one_scale && rungs.int8_matrix && rungs.f16 && rungs.subgroups;
        let squares = Input::Int8Squares { eps: 1e-5 };
        for (n, k, splits, input, gate, results) in [
            (16_384, 2048, 1, input, gate, Results::Int8),
            (2150, 1024, 1, input, gate, Results::F32),
            (40, 4096, 2, input, gate, Results::F32),
            (2048, 2048, 1, squares, None, Results::NormedInt8),
        ] {
            let weight = WeightLayout::new(dtype, n, k).unwrap();
            let y_stride = if gate.is_some() { n as u32 / 2 } else { n as u32 };
            let tuning = MatVecTuning { splits, ..tuning };
            let call = MatVecCall { input, gate, y_stride, tuning, ..MatVecCall::new(weight, 9) };
            match call.launch_int8_matrix(rungs, results) {
                Ok(launch) => launches.push(launch),
                Err(error) => assert!(!can, "{dtype}: {error}"),
            }
        }
    }
    launches
}

/// Tiles of every shape and epilogue for one type of weights, of one shape for all of them.
fn tile_launches(rungs: Rungs) -> Vec<Launch> {
    let mut launches = Vec::new();
    for norm in [None, Some(1e-5)] {
        launches.push(F16RowsCall { rows: 3, cols: 68, x_stride: 72, norm }.launch(rungs).unwrap());
    }
    for &dtype in DType::ALL.iter().filter(|dtype| can_dequantize(**dtype)) {
        let weight = WeightLayout::new(dtype, 10, 512).unwrap();
        launches.push(TileCall::new(weight, 20).launch(rungs).unwrap());
        if dtype != DType::Q4_1 {
            continue;
        }
        let large = TileShape::new(128, 128);
        let small = TileShape::new(64, 64);
        let square = TileShape { matrices: [4, 4], ..large };
        for shape in [
            large,
            small,
            square,
            TileShape { step: 64, ..small },
            TileShape { double: true, ..small },
            TileShape { side: 8, matrices: [4, 4], ..small },
        ] {
            let tuning = TileTuning { shape: Some(shape), ..Default::default() };
            for splits in [1, 4] {
                let call = TileCall { tuning, splits, ..TileCall::new(weight, 20) };
                launches.push(call.launch(rungs).unwrap());
                launches.push(SumTilesCall::after(&call).launch(rungs).unwrap());
            }
            for gate in [Activation::Silu, Activation::GeluTanh] {
                launches
                    .push(TileCall { tuning, ..TileCall::gated(weight, 20, gate) }.launch(rungs).unwrap());
            }
        }
    }
    launches
}

/// Launches of every kernel on a device with these features.
pub(crate) fn launches(rungs: Rungs) -> Vec<Launch> {
    let ropes = rope_calls().into_iter().map(|call| call.launch(rungs, Default::default()).unwrap());
    ropes
        .chain(engine_launches(rungs))
        .chain(weight_launches(rungs))
        .chain(select_launches(rungs))
        .chain(norm_launches(rungs))
        .chain(cache_launches(rungs))
        .chain(conv_launches(rungs))
        .chain(tile_launches(rungs))
        .collect()
}
