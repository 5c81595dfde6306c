//! The scalar twin of the published rope kernels: angles and products in `f64`, one rounding at the end.

use std::f64::consts::TAU;

use crate::abi::{Cache, Freqs, RopeCall, RopeKernel};
use crate::launch::LaunchError;
use crate::params::RoPEQKVWriteParams;
use crate::rope::{Pairing, rotate_pair};
use crate::scalar::{element, set};
use crate::shader::Rungs;

/// What a call wrote: for each buffer and element the larger magnitude of its pair, the scale of its error; `None` if
/// it was not written.
pub type Written = Vec<Vec<Option<f64>>>;

/// Runs a call on buffers of 32-bit words, given in the order of its bindings.
pub fn rope(call: &RopeCall, buffers: &mut [Vec<u32>]) -> Result<Written, LaunchError> {
    let launch = call.launch(Rungs::NONE, Default::default())?;
    let bytes: Vec<u64> = buffers.iter().map(|buffer| 4 * buffer.len() as u64).collect();
    launch.check_buffers(&bytes, |_, _| false)?;
    // By name: optional buffers change the order.
    let at = |name: &str| launch.slots.iter().position(|slot| slot.name == name);
    let angles = Angles {
        call,
        freqs: at("freqs").map(|i| buffers[i].clone()).unwrap_or_default(),
        positions: at("position_ids").map(|i| buffers[i].clone()).unwrap_or_default(),
    };
    let table = at("block_table").map(|i| buffers[i].clone()).unwrap_or_default();
    call.check_block_table(&table)?;
    let shape = call.shape();
    let n = shape.head_dim as usize;
    let per_word = 4 / call.storage.bytes() as usize;
    let mut written: Written = buffers.iter().map(|words| vec![None; words.len() * per_word]).collect();
    for token in 0..shape.tokens as usize {
        for head in 0..shape.heads as usize {
            let route = route(call, &table, token, head);
            let from = at(route.source.0).expect("every head has a source");
            let to = at(route.target.0).expect("every head has a target");
            let read = |i| element(&buffers[from], call.storage, route.source.1 + i);
            let mut values: Vec<f64> = (0..n).map(read).collect();
            if let Some((weight, plus, eps)) = route.norm {
                let weight = at(weight).expect("a head norm has weights");
                let mean = values.iter().map(|v| v * v).sum::<f64>() / n as f64;
                let rms = (mean + f64::from(eps)).sqrt();
                for (i, value) in values.iter_mut().enumerate() {
                    *value *= (plus + element(&buffers[weight], call.storage, i)) / rms;
                }
            }
            let mut magnitudes: Vec<f64> = values.iter().map(|value| value.abs()).collect();
            if route.rotated {
                let (offset, half) = (shape.offset as usize, shape.rope_dim as usize / 2);
                for pair in 0..half {
                    let (a, b) = match pairing(call) {
                        Pairing::Adjacent => (offset + 2 * pair, offset + 2 * pair + 1),
                        Pairing::Split => (offset + pair, offset + pair + half),
                    };
                    let (sin, cos) = angles.of(token, pair).sin_cos();
                    let sin = sin * call.direction.sign();
                    let (x, y) = (values[a], values[b]);
                    [values[a], values[b]] = rotate_pair([x, y], [cos, sin]);
                    magnitudes[a] = x.abs().max(y.abs());
                    magnitudes[b] = magnitudes[a];
                }
            }
            for (i, value) in values.iter().enumerate() {
                set(&mut buffers[to], call.storage, route.target.1 + i, value * route.scale);
                written[to][route.target.1 + i] = Some(magnitudes[i] * route.scale);
            }
        }
    }
    Ok(written)
}

fn pairing(call: &RopeCall) -> Pairing {
    match call.kernel {
        RopeKernel::InPlace { pairing, .. }
        | RopeKernel::QkvWrite { pairing, .. }
        | RopeKernel::BatchKvWrite { pairing, .. } => pairing,
        RopeKernel::X { .. } => Pairing::Adjacent,
        RopeKernel::HeadNorm { .. } | RopeKernel::Op { .. } => Pairing::Split,
    }
}

/// Where a head is read and written, and what happens to it.
struct Route {
    source: (&'static str, usize),
    target: (&'static str, usize),
    /// Name of the norm's weights, the number added to them, epsilon.
    norm: Option<(&'static str, f64, f32)>,
    rotated: bool,
    scale: f64,
}

fn route(call: &RopeCall, table: &[u32], token: usize, head: usize) -> Route {
    let in_place =
        |at: usize| Route { source: ("x", at), target: ("x", at), norm: None, rotated: true, scale: 1.0 };
    match call.kernel {
        RopeKernel::InPlace { params: p, .. } => {
            let row = if p.row_stride == 0 { p.n_heads * p.head_dim } else { p.row_stride };
            in_place(token * row as usize + head * p.head_dim as usize)
        }
        RopeKernel::X { dims, .. } => {
            in_place((token * dims.n_heads as usize + head) * dims.head_dim as usize)
        }
        RopeKernel::Op { params: p } => {
            let (sequence, position) = (token / p.seq_len as usize, token % p.seq_len as usize);
            let row = (sequence * p.n_heads as usize + head) * p.seq_len as usize + position;
            let at = row * p.head_dim as usize;
            Route { source: ("x", at), target: ("y", at), scale: p.output_scale.into(), ..in_place(0) }
        }
        RopeKernel::QkvWrite { params, cache, .. } => qkv(&params, cache, table, head, None),
        RopeKernel::HeadNorm { params, cache, eps, plus_one, .. } => {
            qkv(&params, cache, table, head, Some((f64::from(u8::from(plus_one)), eps.norm_eps)))
        }
        RopeKernel::BatchKvWrite { params: p, cache, .. } => {
            let (heads, kv, n) = (p.n_heads as usize, p.n_kv_heads as usize, p.head_dim as usize);
            let slot = p.pos.wrapping_add(p.slot_offset) as usize + token;
            if head < heads {
                let at = (token * heads + head) * n;
                Route { source: ("q", at), target: ("q", at), ..in_place(0) }
            } else if head < heads + kv {
                let source = ("k", (token * kv + head - heads) * n);
                let target = ("k_cache", cache_at(&p, cache, table, slot, head - heads));
                Route { source, target, ..in_place(0) }
            } else {
                let source = ("v", (token * kv + head - heads - kv) * n);
                let target = ("v_cache", cache_at(&p, cache, table, slot, head - heads - kv));
                Route { source, target, rotated: false, ..in_place(0) }
            }
        }
    }
}

fn qkv(p: &RoPEQKVWriteParams, cache: Cache, table: &[u32], head: usize, norm: Option<(f64, f32)>) -> Route {
    let (heads, kv, n) = (p.n_heads as usize, p.n_kv_heads as usize, p.head_dim as usize);
    let slot = p.pos.wrapping_add(p.slot_offset) as usize;
    let with = |weight| norm.map(|(plus, eps)| (weight, plus, eps));
    if head < heads {
        let at = ("qkv", head * n);
        Route { source: at, target: at, norm: with("q_norm_weight"), rotated: true, scale: 1.0 }
    } else if head < heads + kv {
        let source = ("qkv", p.k_elem_offset as usize + (head - heads) * n);
        let target = ("k_cache", cache_at(p, cache, table, slot, head - heads));
        Route { source, target, norm: with("k_norm_weight"), rotated: true, scale: 1.0 }
    } else {
        let source = ("qkv", p.v_elem_offset as usize + (head - heads - kv) * n);
        let target = ("v_cache", cache_at(p, cache, table, slot, head - heads - kv));
        Route { source, target, norm: None, rotated: false, scale: 1.0 }
    }
}

fn cache_at(p: &RoPEQKVWriteParams, cache: Cache, table: &[u32], slot: usize, kv_head: usize) -> usize {
    let length = p.max_seq_len as usize;
    let (block, within) = match cache {
        Cache::Contiguous => (0, slot),
        Cache::Paged { .. } => (table[slot / length] as usize, slot % length),
    };
    ((block * p.n_kv_heads as usize + kv_head) * length + within) * p.head_dim as usize
}

struct Angles<'a> {
    call: &'a RopeCall,
    freqs: Vec<u32>,
    positions: Vec<u32>,
}

impl Angles<'_> {
    /// The angle of a pair of a token, in radians.
    fn of(&self, token: usize, pair: usize) -> f64 {
        let shape = self.call.shape();
        let (theta, scale, first) = match self.call.kernel {
            RopeKernel::InPlace { params: p, .. } => (p.theta, 1.0, p.pos_offset),
            RopeKernel::QkvWrite { params: p, .. }
            | RopeKernel::BatchKvWrite { params: p, .. }
            | RopeKernel::HeadNorm { params: p, .. } => (p.theta, p.freq_scale, p.pos),
            RopeKernel::X { dims, base, .. } => (base.rope_base, 1.0, dims.pos_offset),
            RopeKernel::Op { params: p } => {
                let at = token % p.seq_len as usize * p.freqs_dim as usize + pair;
                return f32::from_bits(self.freqs[at]).into();
            }
        };
        let row = match self.call.freqs {
            Freqs::Turns => (self.freqs[2 * pair] & 3) as usize,
            _ => 0,
        };
        let position = match self.call.positions {
            0 => first + token as u32,
            1 => self.positions[token],
            _ => self.positions[row * shape.tokens as usize + token],
        };
        let scaled = f64::from(position) * f64::from(scale);
        match self.call.freqs {
            Freqs::Inline => scaled * f64::from(theta).powf(-2.0 * pair as f64 / f64::from(shape.rope_dim)),
            Freqs::Divisors => scaled / f64::from(f32::from_bits(self.freqs[pair])),
            Freqs::Turns => {
                let turns = u64::from(self.freqs[2 * pair]) | u64::from(self.freqs[2 * pair + 1]) << 32;
                phase(turns, position, scale) as f64 / 2f64.powi(64) * TAU
            }
        }
    }
}

/// `turns · position · scale` modulo one turn, in units of `2⁻⁶⁴`: in integers, which keep all digits of the fraction.
/// `scale` is positive.
fn phase(turns: u64, position: u32, scale: f32) -> u64 {
    let (exponent, fraction) = ((scale.to_bits() >> 23) as i32, scale.to_bits() & 0x7f_ffff);
    // scale = mantissa · 2^up
    let (mantissa, up) =
        if exponent == 0 { (fraction, -149) } else { (fraction | 0x80_0000, exponent - 150) };
    // 64, 32 and 24 bits: all of the product.
    let product = u128::from(turns) * u128::from(position) * u128::from(mantissa);
    match up {
        ..=-128 => 0,
        -127..0 => (product >> -up) as u64,
        0..64 => (product as u64) << up,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phases_lose_no_digits_to_whole_turns() {
        let turns = 0x1234_5678_9abc_def1;
        assert_eq!(phase(turns, 1, 1.0), turns);
        assert_eq!(phase(turns, u32::MAX, 1.0), turns.wrapping_mul(u32::MAX.into()));
        assert_eq!(phase(turns, u32::MAX, 3.0), turns.wrapping_mul(3 * u64::from(u32::MAX)));
        assert_eq!(phase(turns, 8, 0.25), turns << 1);
        assert_eq!(phase(turns, 1, 0.25), turns >> 2);
        assert_eq!((phase(turns, 7, f32::MAX), phase(turns, 7, f32::from_bits(1))), (0, 0));
    }
}
