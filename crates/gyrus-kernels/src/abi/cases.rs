use crate::Direction;
use crate::call::{Cache, Freqs, RopeCall, RopeKernel, Storage};
use crate::grid::{Case, Noise};
use crate::params::{NormEpsParams, RoPEBase, RoPEDims, RoPEOpParams, RoPEParams, RoPEQKVWriteParams};
use crate::rope::Pairing;
use crate::shader::Rungs;

const HEAD_DIMS: [u32; 12] = [2, 6, 16, 32, 64, 70, 80, 96, 128, 192, 256, 576];
const HEADS: [(u32, u32); 6] = [(1, 1), (8, 8), (32, 8), (12, 4), (7, 1), (3, 3)];
const TOKENS: [u32; 6] = [1, 2, 3, 33, 65, 129];
const POSITIONS: [u32; 7] = [0, 1, 4095, 32_767, 131_071, 1_048_000, u32::MAX - 200];
const BASES: [f32; 3] = [1e4, 5e5, 1e6];

/// `count` cases drawn from the grid of kernels, shapes, positions and ways to give frequencies.
pub fn rope_cases(seed: u64, count: usize) -> impl Iterator<Item = Case> {
    let mut noise = Noise::new(seed);
    (0..count).map(move |_| {
        loop {
            let call = draw(&mut noise);
            // The grid has invalid combinations, such as bf16 for kernels without it.
            if let Some(case) = rope_case(call, noise.bits().into()) {
                return case;
            }
        }
    })
}

fn draw(noise: &mut Noise) -> RopeCall {
    let head_dim = noise.pick(&HEAD_DIMS);
    let (n_heads, n_kv_heads) = noise.pick(&HEADS);
    let tokens = noise.pick(&TOKENS);
    let pos = noise.pick(&POSITIONS);
    let theta = noise.pick(&BASES);
    let pairing = noise.pick(&[Pairing::Adjacent, Pairing::Split]);
    // Mostly the whole head; sometimes a part at its start, end or middle.
    let rope_dim = if noise.below(3) == 0 { 2 * (1 + noise.below(head_dim / 2)) } else { head_dim };
    let rest = head_dim - rope_dim;
    let rope_offset = noise.pick(&[0, rest, rest / 2]);
    let max_seq_len = noise.pick(&[32, 160]);
    let paged = noise.below(2) == 0;
    let slot = noise.below(if paged { 200 } else { 30 });
    let cache = if paged { Cache::Paged { entries: 12, blocks: 15 } } else { Cache::Contiguous };
    let q = n_heads * head_dim;
    let gap = noise.pick(&[0, 0, 2, 8]);
    let qkv = RoPEQKVWriteParams {
        n_kv_heads,
        head_dim,
        max_seq_len,
        pos,
        theta,
        n_heads,
        k_elem_offset: q + gap,
        v_elem_offset: q + n_kv_heads * head_dim + 2 * gap,
        freq_scale: noise.pick(&[1.0, 1.0, 0.25, 0.3, 3.0]),
        rope_dim: if rope_dim == head_dim { 0 } else { rope_dim },
        rope_offset,
        slot_offset: slot.wrapping_sub(pos),
    };
    let op = RoPEOpParams {
        batch: noise.pick(&[1, 3]),
        n_heads,
        seq_len: tokens,
        head_dim,
        rope_dim,
        freqs_dim: noise.pick(&[rope_dim, rope_dim / 2]),
        output_scale: noise.pick(&[1.0, 0.088_388_35, 1.5]),
        _pad0: 0,
    };
    let kernel = match noise.below(12) {
        0..3 => RopeKernel::InPlace {
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
        3..5 => RopeKernel::QkvWrite { pairing, params: qkv, cache },
        5..7 => RopeKernel::BatchKvWrite {
            pairing,
            params: RoPEQKVWriteParams { k_elem_offset: tokens, ..qkv },
            cache,
        },
        7..9 => RopeKernel::HeadNorm {
            params: qkv,
            eps: NormEpsParams { norm_eps: noise.pick(&[1e-6, 1e-5]), ..Default::default() },
            plus_one: noise.below(2) == 0,
            cache,
        },
        9..11 => RopeKernel::Op { params: op },
        _ => RopeKernel::X {
            of: noise.pick(&['q', 'k']),
            dims: RoPEDims { seq_len: tokens, n_heads, head_dim, pos_offset: pos },
            base: RoPEBase { rope_base: theta, ..Default::default() },
        },
    };
    RopeCall {
        kernel,
        storage: noise.pick(&[Storage::F16, Storage::F16, Storage::F32, Storage::Bf16]),
        direction: noise.pick(&[Direction::Forward, Direction::Inverse]),
        freqs: noise.pick(&[Freqs::Turns, Freqs::Turns, Freqs::Turns, Freqs::Divisors, Freqs::Inline]),
        positions: noise.pick(&[0, 0, 1, 3]),
    }
}

/// A call with random buffers, each a little longer than needed; `None` if the call is refused.
pub fn rope_case(call: RopeCall, seed: u64) -> Option<Case> {
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
    Some(Case { call, buffers })
}
