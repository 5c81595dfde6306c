//! Bad calls are errors before anything runs.

use super::bench::{Bench, Heads, OpShape};
use super::fused::Qkv;
use crate::Direction;
use crate::call::{Cache, Freqs, RopeCall, RopeKernel, Storage};
use crate::grid::{Noise, RunError, Runner, rope_buffers};
use crate::launch::LaunchError;
use crate::params::{NormEpsParams, RoPEBase, RoPEDims, RoPEOpParams, RoPEParams, RoPEQKVWriteParams};
use crate::rope::Pairing;
use crate::shader::Rungs;

/// The kinds of refusal. Matching is exhaustive, so that a new one needs a case here.
fn kind(error: &LaunchError) -> &'static str {
    match error {
        LaunchError::Odd { .. } => "odd",
        LaunchError::RopeDim { .. } => "rope_dim",
        LaunchError::Zero { .. } => "zero",
        LaunchError::NotPositive { .. } => "not positive",
        LaunchError::Heads { .. } => "heads",
        LaunchError::TooLow { .. } => "too low",
        LaunchError::Unaligned { .. } => "unaligned",
        LaunchError::CacheFull { .. } => "cache full",
        LaunchError::Positions { .. } => "positions",
        LaunchError::PositionIds { .. } => "position ids",
        LaunchError::Angles { .. } => "angles",
        LaunchError::Large { .. } => "large",
        LaunchError::Storage { .. } => "storage",
        LaunchError::Buffers { .. } => "buffers",
        LaunchError::Small { .. } => "small",
        LaunchError::Alias { .. } => "alias",
        LaunchError::NotMultiple { .. } => "not a multiple",
        LaunchError::Tuning { .. } => "tuning",
        LaunchError::Pairs { .. } => "pairs",
        LaunchError::Beyond { .. } => "beyond",
        LaunchError::Clash { .. } => "clash",
    }
}

/// Every kind that [`bad_calls_are_refused`] must have seen.
const KINDS: [&str; 17] = [
    "odd",
    "rope_dim",
    "zero",
    "not positive",
    "heads",
    "too low",
    "unaligned",
    "cache full",
    "positions",
    "position ids",
    "angles",
    "large",
    "storage",
    "buffers",
    "small",
    "alias",
    "beyond",
];

/// T16. Odd sizes, more rotated elements than a head has, slots beyond the cache's end, positions beyond the largest,
/// too few, too small or aliased buffers: each is an error of its kind, and nothing is written. No numbers make a check
/// overflow.
pub fn bad_calls_are_refused(runner: &mut dyn Runner, seed: u64, count: usize) -> Result<(), String> {
    let mut bench = Bench::new(runner, seed);
    let mut seen = Vec::new();
    for (expected, what, call) in bad_calls(&mut bench.noise) {
        let mut buffers = vec![bench.noise.words(64); 9];
        let before = buffers.clone();
        let found = bench.runner.run_rope(&call, &mut buffers);
        seen.push(refused(what, expected, &call, found)?);
        if buffers != before {
            return Err(format!("T16 {what}: refused, and yet something was written ({call:?})"));
        }
    }
    for _ in 0..count {
        let (call, buffers) = loop {
            let heads = bench.noise.pick(&[(1, 1), (8, 2)]);
            let call = match bench.noise.below(3) {
                0 => Heads::draw(&mut bench.noise).call(Freqs::Turns, 1),
                1 => Qkv::draw(&mut bench.noise, heads).one(),
                _ => OpShape::draw(&mut bench.noise).call(Direction::Forward),
            };
            if let Some(buffers) = rope_buffers(call, bench.noise.bits().into()) {
                break (call, buffers);
            }
        };
        seen.extend(bad_buffers(&mut bench, &call, &buffers)?);
        // Arbitrary numbers: any answer, but no panic.
        for _ in 0..50 {
            let _ = wild(&mut bench.noise).launch(Rungs::NONE, Default::default());
        }
    }
    let paged = paged_call();
    let buffers = rope_buffers(paged, seed).ok_or_else(|| format!("T16: no case for {paged:?}"))?;
    seen.extend(bad_buffers(&mut bench, &paged, &buffers)?);
    match KINDS.iter().find(|kind| !seen.contains(kind)) {
        Some(kind) if count > 0 => Err(format!("T16: no call was refused as {kind:?}")),
        _ => Ok(()),
    }
}

fn refused(
    what: &str,
    expected: &str,
    call: &RopeCall,
    found: Result<(), RunError>,
) -> Result<&'static str, String> {
    match found {
        Err(RunError::Launch(error)) if kind(&error) == expected => Ok(kind(&error)),
        Err(error) => Err(format!("T16 {what}: refused as {error:?}, expected {expected:?} ({call:?})")),
        Ok(()) => Err(format!("T16 {what}: accepted ({call:?})")),
    }
}

/// A valid call that reads a block table.
fn paged_call() -> RopeCall {
    let params = RoPEQKVWriteParams {
        n_heads: 2,
        n_kv_heads: 1,
        head_dim: 8,
        max_seq_len: 4,
        pos: 3,
        k_elem_offset: 5,
        theta: 1e4,
        freq_scale: 1.0,
        ..Default::default()
    };
    let cache = Cache::Paged { entries: 12, blocks: 15 };
    RopeCall {
        kernel: RopeKernel::BatchKvWrite { pairing: Pairing::Split, params, cache },
        storage: Storage::F32,
        direction: Direction::Forward,
        freqs: Freqs::Inline,
        positions: 0,
    }
}

/// A valid call with wrong buffers.
fn bad_buffers(
    bench: &mut Bench<'_>,
    call: &RopeCall,
    buffers: &[Vec<u32>],
) -> Result<Vec<&'static str>, String> {
    let launch = call.launch(Rungs::NONE, Default::default()).map_err(|error| error.to_string())?;
    let mut seen = Vec::new();
    for i in 0..buffers.len() {
        let mut short = buffers.to_vec();
        short[i].truncate((launch.slots[i].bytes as usize / 4).saturating_sub(1));
        let before = short.clone();
        // A buffer of no bytes at all cannot be made on every device; there is always one more to leave out.
        if short[i].is_empty() {
            continue;
        }
        let found = bench.runner.run_rope(call, &mut short);
        seen.push(refused(&format!("a short {}", launch.slots[i].name), "small", call, found)?);
        if short != before {
            return Err(format!("T16: refused, and yet something was written ({call:?})"));
        }
    }
    if let Some(at) = launch.slots.iter().position(|slot| slot.name == "block_table") {
        // Every entry, so that those the call uses are among them.
        let mut wrong = buffers.to_vec();
        wrong[at].fill(u32::MAX);
        let before = wrong.clone();
        let found = bench.runner.run_rope(call, &mut wrong);
        seen.push(refused("a table of blocks beyond the cache", "beyond", call, found)?);
        if wrong != before {
            return Err(format!("T16: refused, and yet something was written ({call:?})"));
        }
    }
    for count in [buffers.len() - 1, buffers.len() + 1] {
        let mut wrong = [buffers, buffers].concat();
        wrong.truncate(count);
        let found = bench.runner.run_rope(call, &mut wrong);
        seen.push(refused(&format!("{count} buffers"), "buffers", call, found)?);
    }
    // A runner's buffers are vectors and cannot be the same memory; devices ask this function.
    let bytes: Vec<u64> = buffers.iter().map(|buffer| 4 * buffer.len() as u64).collect();
    for (i, j) in (0..bytes.len()).flat_map(|i| (i + 1..bytes.len()).map(move |j| (i, j))) {
        use crate::launch::Access::ReadWrite;
        let written = launch.slots[i].access == ReadWrite || launch.slots[j].access == ReadWrite;
        let found = launch.check_buffers(&bytes, |a, b| (a, b) == (i, j)).map_err(RunError::from);
        match written {
            true => seen.push(refused("one memory twice", "alias", call, found)?),
            false => found.map_err(|error| format!("T16 one memory read twice: {error} ({call:?})"))?,
        }
    }
    Ok(seen)
}

/// Calls that are wrong whatever their buffers, and the kind of refusal.
fn bad_calls(noise: &mut Noise) -> Vec<(&'static str, &'static str, RopeCall)> {
    let mut calls = Vec::new();
    let good = Heads { tokens: 3, heads: 2, head_dim: 16, rope_dim: 16, offset: 0, ..Heads::draw(noise) };
    let good = good.call(Freqs::Inline, 0);
    let mut plain = |kind, what, change: &dyn Fn(&mut RoPEParams)| {
        let mut call = RopeCall { storage: Storage::F16, ..good };
        if let RopeKernel::InPlace { params, .. } = &mut call.kernel {
            change(params);
        }
        calls.push((kind, what, call));
    };
    plain("odd", "an odd head", &|p| p.head_dim = 15);
    plain("odd", "no head", &|p| p.head_dim = 0);
    plain("odd", "an odd number of rotated elements", &|p| p.rope_dim = 7);
    plain("rope_dim", "more rotated than there are", &|p| p.rope_dim = 18);
    plain("rope_dim", "rotated beyond the end", &|p| (p.rope_dim, p.rope_offset) = (8, 10));
    plain("rope_dim", "an offset without end", &|p| (p.rope_dim, p.rope_offset) = (8, u32::MAX - 1));
    plain("zero", "no tokens", &|p| p.seq_len = 0);
    plain("zero", "no heads", &|p| p.n_heads = 0);
    plain("not positive", "no base", &|p| p.theta = 0.0);
    plain("not positive", "a base that is NaN", &|p| p.theta = f32::NAN);
    plain("too low", "rows that overlap", &|p| p.row_stride = 30);
    plain("unaligned", "an odd stride of f16", &|p| p.row_stride = 33);
    plain("positions", "past the last position", &|p| p.pos_offset = u32::MAX - 1);
    plain("large", "more elements than indices", &|p| (p.seq_len, p.n_heads) = (1 << 20, 1 << 20));
    plain("large", "more than 64 bits count", &|p| {
        (p.seq_len, p.n_heads, p.head_dim) = (u32::MAX, u32::MAX, u32::MAX - 1);
        p.pos_offset = 0;
    });
    calls.push(("large", "five rows of ids", RopeCall { positions: 5, ..good }));
    calls.push(("storage", "bf16 in place", RopeCall { storage: Storage::Bf16, ..good }));

    let x = RopeKernel::X {
        of: 'q',
        dims: RoPEDims { seq_len: 3, n_heads: 2, head_dim: 16, pos_offset: 0 },
        base: RoPEBase { rope_base: 1e4, ..Default::default() },
    };
    let x = RopeCall { kernel: x, storage: Storage::F32, ..good };
    calls.push(("position ids", "ids for rope_q", RopeCall { positions: 1, ..x }));
    calls.push(("storage", "f16 for rope_q", RopeCall { storage: Storage::F16, ..x }));

    let params = RoPEOpParams {
        batch: 2,
        n_heads: 2,
        seq_len: 3,
        head_dim: 16,
        rope_dim: 8,
        freqs_dim: 8,
        output_scale: 1.0,
        _pad0: 0,
    };
    let mut op = |kind, what, change: &dyn Fn(&mut RoPEOpParams)| {
        let mut params = params;
        change(&mut params);
        calls.push((kind, what, RopeCall { kernel: RopeKernel::Op { params }, ..good }));
    };
    op("odd", "nothing to rotate", &|p| (p.rope_dim, p.freqs_dim) = (0, 0));
    op("odd", "an odd number of angles", &|p| (p.rope_dim, p.freqs_dim) = (7, 7));
    op("rope_dim", "more angles than elements", &|p| (p.rope_dim, p.freqs_dim) = (18, 18));
    op("angles", "too few angles", &|p| p.freqs_dim = 6);
    op("not positive", "no scale", &|p| p.output_scale = 0.0);
    op("not positive", "a negative scale", &|p| p.output_scale = -1.0);

    let fused = Qkv::draw(noise, (8, 2));
    let params = RoPEQKVWriteParams {
        head_dim: 16,
        rope_dim: 0,
        rope_offset: 0,
        k_elem_offset: 128,
        v_elem_offset: 160,
        pos: 5,
        slot_offset: 0,
        max_seq_len: 24,
        ..fused.params
    };
    let mut write = |kind, what, change: &dyn Fn(&mut RoPEQKVWriteParams, &mut Cache)| {
        let (mut params, mut cache) = (params, Cache::Contiguous);
        change(&mut params, &mut cache);
        let eps = NormEpsParams { norm_eps: 1e-6, ..Default::default() };
        for kernel in [
            RopeKernel::QkvWrite { pairing: Pairing::Split, params, cache },
            RopeKernel::HeadNorm { params, eps, plus_one: false, cache },
        ] {
            calls.push((kind, what, RopeCall { kernel, ..good }));
        }
    };
    write("heads", "query heads that key heads do not divide", &|p, _| p.n_heads = 7);
    write("heads", "no query heads", &|p, _| p.n_heads = 0);
    write("zero", "no key heads", &|p, _| p.n_kv_heads = 0);
    write("zero", "no cache", &|p, _| p.max_seq_len = 0);
    write("not positive", "no scale", &|p, _| p.freq_scale = 0.0);
    write("too low", "keys within queries", &|p, _| p.k_elem_offset = 126);
    write("too low", "values within keys", &|p, _| p.v_elem_offset = 158);
    write("cache full", "a slot beyond the end", &|p, _| p.pos = 24);
    write("cache full", "a slot before the start", &|p, _| p.slot_offset = 6u32.wrapping_neg());
    write("cache full", "a slot beyond the table", &|p, cache| {
        *cache = Cache::Paged { entries: 2, blocks: 9 };
        p.pos = 48;
    });
    let batch = |pos, tokens| {
        let params = RoPEQKVWriteParams { k_elem_offset: tokens, pos, ..params };
        RopeKernel::BatchKvWrite { pairing: Pairing::Adjacent, params, cache: Cache::Contiguous }
    };
    calls.push(("cache full", "tokens beyond the end", RopeCall { kernel: batch(20, 5), ..good }));
    calls.push(("zero", "no tokens", RopeCall { kernel: batch(0, 0), ..good }));
    let kernel = RopeKernel::HeadNorm {
        params,
        eps: NormEpsParams::default(),
        plus_one: false,
        cache: Cache::Contiguous,
    };
    calls.push(("not positive", "no epsilon", RopeCall { kernel, ..good }));
    calls
}

/// A call of numbers that mean nothing.
fn wild(noise: &mut Noise) -> RopeCall {
    let mut any = || match noise.below(4) {
        0 => noise.bits(),
        1 => u32::MAX - noise.below(3),
        2 => 1 << noise.below(32),
        _ => noise.below(9),
    };
    let params = RoPEQKVWriteParams {
        n_kv_heads: any(),
        head_dim: any(),
        max_seq_len: any(),
        pos: any(),
        theta: 1e4,
        n_heads: any(),
        k_elem_offset: any(),
        v_elem_offset: any(),
        freq_scale: 1.0,
        rope_dim: any(),
        rope_offset: any(),
        slot_offset: any(),
    };
    let plain = RoPEParams {
        seq_len: any(),
        head_dim: any(),
        n_heads: any(),
        pos_offset: any(),
        theta: 1e4,
        row_stride: any(),
        rope_dim: any(),
        rope_offset: any(),
    };
    let op = RoPEOpParams {
        batch: any(),
        n_heads: any(),
        seq_len: any(),
        head_dim: any(),
        rope_dim: any(),
        freqs_dim: any(),
        output_scale: 1.0,
        _pad0: 0,
    };
    let dims = RoPEDims { seq_len: any(), n_heads: any(), head_dim: any(), pos_offset: any() };
    let eps = NormEpsParams { norm_eps: 1e-6, ..Default::default() };
    let cache =
        if any() % 2 == 0 { Cache::Contiguous } else { Cache::Paged { entries: any(), blocks: any() } };
    let positions = any();
    let pairing = noise.pick(&[Pairing::Adjacent, Pairing::Split]);
    let kernel = match noise.below(6) {
        0 => RopeKernel::InPlace { pairing, params: plain },
        1 => RopeKernel::QkvWrite { pairing, params, cache },
        2 => RopeKernel::BatchKvWrite { pairing, params, cache },
        3 => RopeKernel::HeadNorm { params, eps, plus_one: false, cache },
        4 => RopeKernel::X { of: 'k', dims, base: RoPEBase { rope_base: 1e4, ..Default::default() } },
        _ => RopeKernel::Op { params: op },
    };
    RopeCall {
        kernel,
        storage: noise.pick(&[Storage::F32, Storage::F16, Storage::Bf16]),
        direction: Direction::Forward,
        freqs: noise.pick(&[Freqs::Turns, Freqs::Divisors, Freqs::Inline]),
        positions: if noise.below(2) == 0 { noise.below(4) } else { positions },
    }
}
