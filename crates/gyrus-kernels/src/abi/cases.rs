use super::tolerance::allowed;
use crate::Direction;
use crate::call::{Cache, Freqs, RopeCall, RopeKernel, Storage};
use crate::grid::{Case, CaseBuffer, Noise, Point, Rule};
use crate::params::{NormEpsParams, RoPEBase, RoPEDims, RoPEOpParams, RoPEParams, RoPEQKVWriteParams};
use crate::rope::Pairing;
use crate::scalar;
use crate::shader::Rungs;

const HEAD_DIMS: [u32; 12] = [2, 6, 16, 32, 64, 70, 80, 96, 128, 192, 256, 576];
const HEADS: [(u32, u32); 6] = [(1, 1), (8, 8), (32, 8), (12, 4), (7, 1), (3, 3)];
const TOKENS: [u32; 6] = [1, 2, 3, 33, 65, 129];
const POSITIONS: [u32; 7] = [0, 1, 4095, 32_767, 131_071, 1_048_000, u32::MAX - 200];
const BASES: [f32; 3] = [1e4, 5e5, 1e6];

/// The case of a point of the grid of kernels, shapes, positions and ways to give frequencies. The grid has invalid
/// combinations, such as bf16 for kernels without it.
pub(crate) fn case(point: &mut Point, rungs: Rungs) -> Option<Case> {
    rope_case(draw(point), rungs, point.seed)
}

/// A case of a call on random buffers; `None` if the call is refused.
pub fn rope_case(call: RopeCall, rungs: Rungs, seed: u64) -> Option<Case> {
    let launch = call.launch(rungs, Default::default()).ok()?;
    let twin = move || {
        let (Some(before), Ok(launch)) = (rope_buffers(call, seed), call.launch(rungs, Default::default()))
        else {
            return Vec::new();
        };
        let mut after = before.clone();
        let written = scalar::rope(&call, &mut after).unwrap_or_default();
        let buffers = launch.slots.iter().zip(before).zip(after).zip(written);
        let rule = |after: &[u32], written: &[Option<f64>]| {
            let value = |at| scalar::element(after, call.storage, at);
            let tolerances = written.iter().enumerate();
            let tolerances =
                tolerances.map(|(at, of)| of.map(|magnitude| allowed(&call, value(at), magnitude)));
            Rule::Near(call.storage, tolerances.collect())
        };
        buffers
            .map(|(((slot, before), after), written)| {
                let rule = rule(&after, &written);
                CaseBuffer { name: slot.name, before, after, rule }
            })
            .collect()
    };
    Some(Case::new(format!("{call:?}"), launch, twin))
}

fn draw(point: &mut Point) -> RopeCall {
    let kinds = [0, 1, 2, 3, 4, 5].map(|kind| [(kind, Pairing::Adjacent), (kind, Pairing::Split)]);
    let (kind, pairing) = point.of(kinds.as_flattened());
    let storage = point.of(&[Storage::F16, Storage::F32, Storage::F16, Storage::Bf16]);
    let head_dim = point.of(&HEAD_DIMS);
    let (n_heads, n_kv_heads) = point.of(&HEADS);
    // Large heads have few tokens, as the twin is slow.
    let tokens = point.of(&TOKENS).min((400_000 / (head_dim * (n_heads + 2 * n_kv_heads))).max(1));
    let pos = point.of(&POSITIONS);
    let theta = point.of(&BASES);
    // Mostly the whole head; sometimes a part at its start, end or middle.
    let part = 2 * (1 + point.noise().below(head_dim / 2));
    let rope_dim = point.of(&[head_dim, part, head_dim]);
    let rest = head_dim - rope_dim;
    let rope_offset = point.of(&[0, rest, rest / 2]);
    let paged = point.of(&[true, false]);
    // A contiguous cache must hold all tokens of a batch.
    let max_seq_len = if paged || tokens < 3 { 32 } else { 160 }.max(point.of(&[32, 160]));
    let slot = point.noise().below(if paged { 200 } else { 30 });
    let cache = if paged { Cache::Paged { entries: 12, blocks: 15 } } else { Cache::Contiguous };
    let q = n_heads * head_dim;
    let gap = point.of(&[0, 0, 2, 8]);
    let qkv = RoPEQKVWriteParams {
        n_kv_heads,
        head_dim,
        max_seq_len,
        pos,
        theta,
        n_heads,
        k_elem_offset: q + gap,
        v_elem_offset: q + n_kv_heads * head_dim + 2 * gap,
        freq_scale: point.of(&[1.0, 1.0, 0.25, 0.3, 3.0]),
        rope_dim: if rope_dim == head_dim { 0 } else { rope_dim },
        rope_offset,
        slot_offset: slot.wrapping_sub(pos),
    };
    let op = RoPEOpParams {
        batch: point.of(&[1, 3]),
        n_heads,
        seq_len: tokens,
        head_dim,
        rope_dim,
        freqs_dim: point.of(&[rope_dim, rope_dim / 2]),
        output_scale: point.of(&[1.0, 0.088_388_35, 1.5]),
        _pad0: 0,
    };
    let (norm_eps, plus_one) = (point.of(&[1e-6, 1e-5]), point.of(&[false, true]));
    let of = point.of(&['q', 'k']);
    let kernel = match kind {
        0 => RopeKernel::InPlace {
            pairing,
            params: RoPEParams {
                seq_len: tokens,
                head_dim,
                n_heads,
                pos_offset: pos,
                theta,
                row_stride: if gap == 0 { 0 } else { q + gap },
                rope_dim: qkv.rope_dim,
                rope_offset,
            },
        },
        1 => RopeKernel::QkvWrite { pairing, params: qkv, cache },
        2 => RopeKernel::BatchKvWrite {
            pairing,
            params: RoPEQKVWriteParams { k_elem_offset: tokens, ..qkv },
            cache,
        },
        3 => RopeKernel::HeadNorm {
            params: qkv,
            eps: NormEpsParams { norm_eps, ..Default::default() },
            plus_one,
            cache,
        },
        4 => RopeKernel::Op { params: op },
        _ => RopeKernel::X {
            of,
            dims: RoPEDims { seq_len: tokens, n_heads, head_dim, pos_offset: pos },
            base: RoPEBase { rope_base: theta, ..Default::default() },
        },
    };
    let mut call = RopeCall {
        kernel,
        storage,
        direction: point.of(&[Direction::Forward, Direction::Inverse]),
        freqs: point.of(&[Freqs::Turns, Freqs::Turns, Freqs::Turns, Freqs::Divisors, Freqs::Inline]),
        positions: point.of(&[0, 0, 1, 3]),
    };
    // The training kernels have no position ids, and two of them f32 only; the others have no bf16.
    match kernel {
        RopeKernel::X { .. } => (call.storage, call.positions) = (Storage::F32, 0),
        RopeKernel::Op { .. } => call.positions = 0,
        _ if storage == Storage::Bf16 => call.storage = Storage::F16,
        _ => {}
    }
    call
}

/// Random buffers of a call in the order of its slots, each a little longer than needed; `None` if the call is refused.
pub fn rope_buffers(call: RopeCall, seed: u64) -> Option<Vec<Vec<u32>>> {
    let launch = call.launch(Rungs::NONE, Default::default()).ok()?;
    let mut noise = Noise::new(seed);
    let shape = call.shape();
    let theta: f64 = match call.kernel {
        RopeKernel::InPlace { params, .. } => params.theta.into(),
        RopeKernel::QkvWrite { params, .. }
        | RopeKernel::BatchKvWrite { params, .. }
        | RopeKernel::HeadNorm { params, .. } => params.theta.into(),
        RopeKernel::X { base, .. } => base.rope_base.into(),
        RopeKernel::Op { .. } => 1e4,
    };
    let buffers = launch
        .slots
        .iter()
        .map(|slot| {
            let words = (slot.bytes / 4) as usize + 5;
            match (slot.name, call.kernel) {
                ("freqs", RopeKernel::Op { params }) => {
                    let width = params.freqs_dim as usize;
                    let mut angles = noise.words(words);
                    for (at, angle) in angles[..params.seq_len as usize * width].iter_mut().enumerate() {
                        // Both halves of a row of angles agree, as in PyTorch code that concatenates them; sizes up to
                        // a million turns.
                        let pair = at % width % (params.rope_dim as usize / 2);
                        let position = [0.0, 1.0, 777.0, 1e6][pair % 4] + (at / width) as f64;
                        let sign = if pair % 5 == 4 { -1.0 } else { 1.0 };
                        *angle = ((sign * position * theta.powf(-(pair as f64) / 32.0)) as f32).to_bits();
                    }
                    angles
                }
                ("freqs", _) => {
                    let mut table = noise.words(words);
                    for pair in 0..shape.rope_dim as usize / 2 {
                        let frequency = theta.powf(-2.0 * pair as f64 / f64::from(shape.rope_dim));
                        if call.freqs == Freqs::Divisors {
                            table[pair] = ((1.0 / frequency) as f32).to_bits();
                        } else {
                            let turns = (frequency / std::f64::consts::TAU * 2f64.powi(64)) as u64 & !3;
                            // The row of positions: interleaved, as in M-RoPE.
                            let row =
                                if call.positions > 1 { pair as u64 % u64::from(call.positions) } else { 0 };
                            table[2 * pair] = (turns | row) as u32;
                            table[2 * pair + 1] = (turns >> 32) as u32;
                        }
                    }
                    table
                }
                ("position_ids", _) => (0..words).map(|_| noise.below(100_000)).collect(),
                ("block_table", _) => {
                    // All entries are different blocks, unordered.
                    let blocks = 15;
                    let first = noise.below(blocks);
                    (0..words as u32).map(|i| (first + 7 * i) % blocks).collect()
                }
                _ => noise.elements(call.storage, words),
            }
        })
        .collect();
    Some(buffers)
}
