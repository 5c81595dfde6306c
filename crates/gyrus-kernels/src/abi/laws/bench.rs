//! What the laws share: shapes drawn at random, tensors as numbers, runs between canaries, comparisons.

use std::f64::consts::TAU;

use crate::Direction;
use crate::call::{Freqs, RopeCall, RopeKernel, Storage};
use crate::grid::{Noise, Runner};
use crate::params::{RoPEOpParams, RoPEParams};
use crate::rope::Pairing;
use crate::scalar;

pub(super) const PAIRINGS: [Pairing; 2] = [Pairing::Adjacent, Pairing::Split];

/// Canary words beyond each buffer's end.
const CANARIES: usize = 7;

/// A runner and the random numbers of a law.
pub(super) struct Bench<'a> {
    pub(super) runner: &'a mut dyn Runner,
    pub(super) noise: Noise,
}

impl<'a> Bench<'a> {
    pub(super) fn new(runner: &'a mut dyn Runner, seed: u64) -> Bench<'a> {
        Bench { runner, noise: Noise::new(seed) }
    }

    /// Runs a call on these buffers with canaries and checks that the canaries are intact.
    pub(super) fn run(
        &mut self,
        call: &RopeCall,
        mut buffers: Vec<Vec<u32>>,
    ) -> Result<Vec<Vec<u32>>, String> {
        let canaries = self.noise.words(CANARIES);
        buffers.iter_mut().for_each(|buffer| buffer.extend(&canaries));
        let lengths: Vec<usize> = buffers.iter().map(Vec::len).collect();
        let name = || format!("{} on {}", call.name(), self.runner.name());
        let title = name();
        self.runner.run_rope(call, &mut buffers).map_err(|error| format!("{title}: {error} ({call:?})"))?;
        for (i, (buffer, length)) in buffers.iter_mut().zip(lengths).enumerate() {
            if buffer.len() != length || buffer[length - CANARIES..] != canaries {
                return Err(format!("{title}: buffer {i} was written beyond its end ({call:?})"));
            }
            buffer.truncate(length - CANARIES);
        }
        Ok(buffers)
    }

    /// Numbers from −2 to 2 that the storage holds exactly.
    pub(super) fn numbers(&mut self, storage: Storage, n: usize) -> Vec<f64> {
        (0..n).map(|_| rounded(storage, self.noise.number() * 2.0)).collect()
    }

    /// Rotates heads `[tokens, heads, head_dim]` in place at consecutive positions.
    pub(super) fn rotate(&mut self, heads: &Heads, x: &[f64]) -> Result<Vec<f64>, String> {
        let call = heads.call(Freqs::Turns, 0);
        self.in_place(&call, vec![pack(heads.storage, x), heads.table(1.0)], x.len())
    }

    /// The same at given positions, one for each token.
    pub(super) fn rotate_at(
        &mut self,
        heads: &Heads,
        x: &[f64],
        positions: &[u32],
    ) -> Result<Vec<f64>, String> {
        let call = heads.call(Freqs::Turns, 1);
        let (x_words, table) = (pack(heads.storage, x), heads.table(1.0));
        let buffers = match heads.pairing {
            Pairing::Adjacent => vec![x_words, table, positions.to_vec()],
            Pairing::Split => vec![x_words, positions.to_vec(), table],
        };
        self.in_place(&call, buffers, x.len())
    }

    /// Runs a call whose first buffer is read and written, and returns its values; the others must not change.
    pub(super) fn in_place(
        &mut self,
        call: &RopeCall,
        buffers: Vec<Vec<u32>>,
        n: usize,
    ) -> Result<Vec<f64>, String> {
        let before = buffers.clone();
        let after = self.run(call, buffers)?;
        if let Some(i) = (1..before.len()).find(|&i| before[i] != after[i]) {
            return Err(format!("{}: buffer {i}, an input, was written ({call:?})", call.name()));
        }
        Ok(unpack(call.storage, &after[0], n))
    }

    /// `rope_fwd` or `rope_bwd` of a tensor.
    pub(super) fn op(
        &mut self,
        op: &OpShape,
        direction: Direction,
        x: &[f64],
        angles: &[f32],
    ) -> Result<Vec<f64>, String> {
        let call = op.call(direction);
        let x_words = pack(op.storage, x);
        let angles: Vec<u32> = angles.iter().map(|angle| angle.to_bits()).collect();
        let y = self.noise.words(x_words.len());
        let before = [x_words.clone(), angles.clone()];
        let after = self.run(&call, vec![x_words, angles, y])?;
        if after[..2] != before {
            return Err(format!("{}: an input was written ({call:?})", call.name()));
        }
        Ok(unpack(op.storage, &after[2], x.len()))
    }

    /// Checks that two results are equal, or nearly so if the runner may contract to fma.
    pub(super) fn same(&self, what: &str, storage: Storage, a: &[f64], b: &[f64]) -> Result<(), String> {
        if self.runner.fuses() { near(what, a, b, unit(storage)) } else { equal(what, a, b) }
    }
}

/// Heads to be rotated in place.
#[derive(Debug, Clone, Copy)]
pub(super) struct Heads {
    pub(super) pairing: Pairing,
    pub(super) storage: Storage,
    pub(super) direction: Direction,
    pub(super) tokens: u32,
    pub(super) heads: u32,
    pub(super) head_dim: u32,
    pub(super) rope_dim: u32,
    pub(super) offset: u32,
    pub(super) base: f32,
    pub(super) position: u32,
    /// Elements from one token to the next beyond those of its heads.
    pub(super) gap: u32,
}

impl Heads {
    pub(super) fn draw(noise: &mut Noise) -> Heads {
        let head_dim = noise.pick(&[2, 6, 16, 32, 64, 70, 80, 128, 192, 256]);
        let rope_dim = if noise.below(3) == 0 { 2 * (1 + noise.below(head_dim / 2)) } else { head_dim };
        let rest = head_dim - rope_dim;
        Heads {
            pairing: noise.pick(&PAIRINGS),
            storage: noise.pick(&[Storage::F32, Storage::F16]),
            direction: Direction::Forward,
            tokens: noise.pick(&[1, 2, 3, 9, 33]),
            heads: noise.pick(&[1, 2, 3, 8]),
            head_dim,
            rope_dim,
            offset: noise.pick(&[0, rest, rest / 2]),
            base: noise.pick(&[1e4, 5e5, 1e6]),
            position: noise.pick(&[0, 1, 4095, 32_767, 131_071, 1_048_000]),
            gap: 0,
        }
    }

    pub(super) fn len(&self) -> usize {
        (self.tokens * self.heads * self.head_dim) as usize
    }

    /// A row's elements, the gap included.
    pub(super) fn stride(&self) -> u32 {
        self.heads * self.head_dim + self.gap
    }

    pub(super) fn call(&self, freqs: Freqs, positions: u32) -> RopeCall {
        let params = RoPEParams {
            seq_len: self.tokens,
            head_dim: self.head_dim,
            n_heads: self.heads,
            pos_offset: self.position,
            theta: self.base,
            row_stride: if self.gap == 0 { 0 } else { self.stride() },
            rope_dim: if self.rope_dim == self.head_dim { 0 } else { self.rope_dim },
            rope_offset: self.offset,
        };
        let kernel = RopeKernel::InPlace { pairing: self.pairing, params };
        RopeCall { kernel, storage: self.storage, direction: self.direction, freqs, positions }
    }

    pub(super) fn table(&self, scale: f64) -> Vec<u32> {
        turns_table(self.base, self.rope_dim, scale)
    }

    /// The two elements of each pair of a head.
    pub(super) fn pairs(&self) -> impl Iterator<Item = (usize, usize)> {
        let (offset, half, pairing) = (self.offset as usize, self.rope_dim as usize / 2, self.pairing);
        (0..half).map(move |i| match pairing {
            Pairing::Adjacent => (offset + 2 * i, offset + 2 * i + 1),
            Pairing::Split => (offset + i, offset + i + half),
        })
    }
}

/// A call of `rope_fwd` or `rope_bwd`: `[batch, heads, positions, head_dim]`.
#[derive(Debug, Clone, Copy)]
pub(super) struct OpShape {
    pub(super) storage: Storage,
    pub(super) batch: u32,
    pub(super) heads: u32,
    pub(super) positions: u32,
    pub(super) head_dim: u32,
    pub(super) rope_dim: u32,
    pub(super) freqs_dim: u32,
    pub(super) scale: f32,
}

impl OpShape {
    pub(super) fn draw(noise: &mut Noise) -> OpShape {
        let head_dim = noise.pick(&[2, 6, 12, 16, 64, 70, 128, 192]);
        let rope_dim = if noise.below(2) == 0 { 2 * (1 + noise.below(head_dim / 2)) } else { head_dim };
        OpShape {
            storage: noise.pick(&[Storage::F32, Storage::F16, Storage::Bf16]),
            batch: noise.pick(&[1, 2, 3]),
            heads: noise.pick(&[1, 2, 5]),
            positions: noise.pick(&[1, 2, 7, 33]),
            head_dim,
            rope_dim,
            freqs_dim: noise.pick(&[rope_dim, rope_dim / 2]),
            scale: noise.pick(&[1.0, 0.125, 0.088_388_35, 1.5]),
        }
    }

    pub(super) fn len(&self) -> usize {
        (self.batch * self.heads * self.positions * self.head_dim) as usize
    }

    pub(super) fn call(&self, direction: Direction) -> RopeCall {
        let params = RoPEOpParams {
            batch: self.batch,
            n_heads: self.heads,
            seq_len: self.positions,
            head_dim: self.head_dim,
            rope_dim: self.rope_dim,
            freqs_dim: self.freqs_dim,
            output_scale: self.scale,
            _pad0: 0,
        };
        let kernel = RopeKernel::Op { params };
        RopeCall { kernel, storage: self.storage, direction, freqs: Freqs::Inline, positions: 0 }
    }

    /// The angles of positions from `first` on, `[positions, freqs_dim]`.
    pub(super) fn angles(&self, first: f64, base: f64) -> Vec<f32> {
        let half = self.rope_dim / 2;
        (0..self.positions * self.freqs_dim)
            .map(|at| {
                let (position, pair) = (first + f64::from(at / self.freqs_dim), at % self.freqs_dim % half);
                (position * base.powf(-2.0 * f64::from(pair) / f64::from(self.rope_dim))) as f32
            })
            .collect()
    }
}

/// A base's frequencies times a scale, as turns per position in 64-bit fixed point.
pub(super) fn turns_table(base: f32, rope_dim: u32, scale: f64) -> Vec<u32> {
    (0..rope_dim / 2)
        .flat_map(|pair| {
            let frequency = f64::from(base).powf(-2.0 * f64::from(pair) / f64::from(rope_dim)) * scale;
            let turns = ((frequency / TAU).fract() * 2f64.powi(64)) as u64 & !3;
            [turns as u32, (turns >> 32) as u32]
        })
        .collect()
}

/// A number as the storage holds it.
pub(super) fn rounded(storage: Storage, value: f64) -> f64 {
    let mut word = [0];
    scalar::set(&mut word, storage, 0, value);
    scalar::element(&word, storage, 0)
}

/// Numbers as words, the last of them filled up with zero.
pub(super) fn pack(storage: Storage, numbers: &[f64]) -> Vec<u32> {
    let mut words = vec![0; numbers.len().div_ceil(4 / storage.bytes() as usize)];
    for (at, &number) in numbers.iter().enumerate() {
        scalar::set(&mut words, storage, at, number);
    }
    words
}

pub(super) fn unpack(storage: Storage, words: &[u32], n: usize) -> Vec<f64> {
    (0..n).map(|at| scalar::element(words, storage, at)).collect()
}

/// The relative error of one rounding to the storage, with a margin; f32 has more, since the arithmetic is f32 too.
pub(super) fn unit(storage: Storage) -> f64 {
    match storage {
        Storage::F32 => 1e-6,
        Storage::F16 => 1e-3,
        Storage::Bf16 => 8e-3,
    }
}

/// The tolerance for gradients: one rounding of the inputs and one of the outputs.
pub(super) fn gradient_tolerance(storage: Storage) -> f64 {
    match storage {
        Storage::F32 => 1e-5,
        Storage::F16 => 4e-3,
        Storage::Bf16 => 3e-2,
    }
}

/// `‖a − b‖∞ ≤ tolerance·‖b‖∞`.
pub(super) fn near(what: &str, a: &[f64], b: &[f64], tolerance: f64) -> Result<(), String> {
    let largest = b.iter().fold(0.0, |most: f64, v| most.max(v.abs()));
    within(what, a, b, |_| tolerance * largest)
}

/// `|a − b| ≤ allowed(i)` for each element.
pub(super) fn within(what: &str, a: &[f64], b: &[f64], allowed: impl Fn(usize) -> f64) -> Result<(), String> {
    if a.len() != b.len() {
        return Err(format!("{what}: {} numbers and {}", a.len(), b.len()));
    }
    // Written so that a NaN does not pass.
    let far = (0..a.len()).find(|&i| !(a[i] == b[i] || (a[i] - b[i]).abs() <= allowed(i)));
    match far {
        None => Ok(()),
        Some(i) => Err(format!(
            "{what}: {} and {} at {i}, {:e} apart, {:e} allowed",
            a[i],
            b[i],
            (a[i] - b[i]).abs(),
            allowed(i)
        )),
    }
}

/// Equal numbers. Not equal bits: `x·1 − y·0` turns a negative zero into a positive one.
pub(super) fn equal(what: &str, a: &[f64], b: &[f64]) -> Result<(), String> {
    within(what, a, b, |_| 0.0)
}
