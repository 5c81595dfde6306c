//! Frequencies, scales and positions: several ways to say one angle.

use super::bench::{Bench, Heads, near, pack, unit, within};
use super::fused::Qkv;
use crate::call::Freqs;
use crate::grid::Runner;
use crate::rope::{Pairing, Rope, RopeSpec, Scaling};

/// T10. A table of divisors `b^(2i/n)`, a table of turns and no table give the same rotation. Frequencies in f32 lose
/// precision with the position, those computed in the shader a little more.
pub fn tables_and_the_base_agree(runner: &mut dyn Runner, seed: u64, count: usize) -> Result<(), String> {
    let mut bench = Bench::new(runner, seed);
    for _ in 0..count {
        let position = bench.noise.below(4096);
        let heads = Heads { position, ..Heads::draw(&mut bench.noise) };
        let x = bench.numbers(heads.storage, heads.len());
        let words = pack(heads.storage, &x);
        let exact = bench.rotate(&heads, &x)?;
        let divisor =
            |pair: u32| f64::from(heads.base).powf(2.0 * f64::from(pair) / f64::from(heads.rope_dim));
        let table: Vec<u32> = (0..heads.rope_dim / 2).map(|pair| (divisor(pair) as f32).to_bits()).collect();
        let by_table =
            bench.in_place(&heads.call(Freqs::Divisors, 0), vec![words.clone(), table], x.len())?;
        let inline = bench.in_place(&heads.call(Freqs::Inline, 0), vec![words], x.len())?;
        let last = f64::from(position + heads.tokens);
        // A step of the storage at two, and what an angle's error makes of a pair as long as they get.
        let allowed = |loss: f64| 2.0 * unit(heads.storage) + 3.0 * loss * last;
        within(&format!("T10 divisors {heads:?}"), &by_table, &exact, |_| allowed(3e-7))?;
        within(&format!("T10 inline {heads:?}"), &inline, &exact, |_| allowed(4e-6))?;
        within(&format!("T10 inline, divisors {heads:?}"), &inline, &by_table, |_| allowed(4e-6))?;
    }
    Ok(())
}

/// T11. A scale `s` on frequencies at position `p` equals the position `s·p` and frequencies times `s`. A scale and a
/// scaled table together apply it twice.
pub fn scale_is_a_change_of_positions(
    runner: &mut dyn Runner,
    seed: u64,
    count: usize,
) -> Result<(), String> {
    let mut bench = Bench::new(runner, seed);
    for _ in 0..count {
        let mut qkv = Qkv::draw(&mut bench.noise, (2, 1));
        // One pair alone might come round to the same angle.
        (qkv.params.head_dim, qkv.params.rope_dim, qkv.params.rope_offset) = (32, 0, 0);
        (qkv.params.k_elem_offset, qkv.params.v_elem_offset) = (64, 96);
        let slot = qkv.params.pos.wrapping_add(qkv.params.slot_offset);
        let at = |position: u32, scale: f32| {
            let mut qkv = qkv.clone();
            (qkv.params.pos, qkv.params.freq_scale) = (position, scale);
            qkv.params.slot_offset = slot.wrapping_sub(position);
            qkv
        };
        let row = bench.numbers(qkv.storage, qkv.row_len());
        let empty = [vec![0; qkv.cache_words()], vec![0; qkv.cache_words()]];
        // Q and K: what becomes of both.
        let mut run = |qkv: &Qkv, table: f64| -> Result<Vec<f64>, String> {
            let (rotated, [keys, _]) = qkv.run(&mut bench, &row, &empty, table)?;
            Ok([qkv.parts(&rotated)[0].to_vec(), qkv.take(keys, 0).0].concat())
        };
        for (scale, factor, parts) in [(0.25f32, 1, 4), (0.5, 1, 2), (2.0, 2, 1), (3.0, 3, 1)] {
            let position = 4 * (100 + qkv.params.pos / 8);
            let what = format!("T11 scale {scale} at {position} {qkv:?}");
            let scaled = run(&at(position, scale), 1.0)?;
            let moved = run(&at(position / parts * factor, 1.0), 1.0)?;
            let table = run(&at(position, 1.0), scale.into())?;
            let both = run(&at(position, scale), scale.into())?;
            near(&what, &scaled, &moved, unit(qkv.storage))?;
            near(&format!("{what}, table"), &scaled, &table, unit(qkv.storage))?;
            if near(&what, &both, &scaled, 0.1).is_ok() {
                return Err(format!("{what}: a scale and a scaled table count once"));
            }
            let squared = run(&at(position, 1.0), f64::from(scale) * f64::from(scale))?;
            near(&format!("{what}, twice"), &both, &squared, unit(qkv.storage))?;
        }
    }
    Ok(())
}

/// T12. Consecutive position ids equal no ids; permuted rows and ids give permuted results; several equal rows of ids
/// (M-RoPE on text) equal one.
pub fn position_ids_are_positions(runner: &mut dyn Runner, seed: u64, count: usize) -> Result<(), String> {
    let mut bench = Bench::new(runner, seed);
    for _ in 0..count {
        let heads = Heads::draw(&mut bench.noise);
        let x = bench.numbers(heads.storage, heads.len());
        let ids: Vec<u32> = (0..heads.tokens).map(|token| heads.position + token).collect();
        let sequential = bench.rotate(&heads, &x)?;
        let by_ids = bench.rotate_at(&heads, &x, &ids)?;
        bench.same(&format!("T12 {heads:?}"), heads.storage, &by_ids, &sequential)?;

        let mut order: Vec<usize> = (0..heads.tokens as usize).collect();
        for i in (1..order.len()).rev() {
            order.swap(i, bench.noise.below(i as u32 + 1) as usize);
        }
        let n = heads.stride() as usize;
        let shuffled =
            |rows: &[f64]| order.iter().flat_map(|&i| rows[i * n..(i + 1) * n].to_vec()).collect::<Vec<_>>();
        let shuffled_ids: Vec<u32> = order.iter().map(|&i| ids[i]).collect();
        let rotated = bench.rotate_at(&heads, &shuffled(&x), &shuffled_ids)?;
        // The same kernel does the same sums: equal on every runner.
        within(&format!("T12 in another order {heads:?}"), &rotated, &shuffled(&by_ids), |_| 0.0)?;

        let mut table = heads.table(1.0);
        table.iter_mut().step_by(2).enumerate().for_each(|(pair, low)| *low |= pair as u32 % 3);
        let words = pack(heads.storage, &x);
        let buffers = match heads.pairing {
            Pairing::Adjacent => vec![words, table, ids.repeat(3)],
            Pairing::Split => vec![words, ids.repeat(3), table],
        };
        let by_rows = bench.in_place(&heads.call(Freqs::Turns, 3), buffers, x.len())?;
        // Which row a pair reads stands in the last bits of its frequency.
        near(&format!("T12 with three rows of ids {heads:?}"), &by_rows, &by_ids, unit(heads.storage))?;
    }
    Ok(())
}

/// T13. Llama 3's bands: short wavelengths unchanged, long ones stretched, and no jump at either end of the ramp. A law
/// of the table, the same for every runner; the divisors are those of base 500,000 and heads of 128.
pub fn llama3_bands_are_continuous(_: &mut dyn Runner, seed: u64, count: usize) -> Result<(), String> {
    const DIVISORS: [(usize, f64); 9] = [
        (28, 311.386_211),
        (29, 461.558_892),
        (30, 728.919_519),
        (31, 1_167.199_709),
        (32, 1_905.320_214),
        (33, 3_198.017_225),
        (34, 5_601.995_703),
        (35, 10_464.397_012),
        (63, 3_258_468.935),
    ];
    let divisors = |base: f64, head_dim: usize, scaling: Scaling| -> Result<Vec<f64>, String> {
        let rope = Rope::new(RopeSpec { scaling, ..RopeSpec::new(Pairing::Split, head_dim, base) })
            .map_err(|e| e.to_string())?;
        Ok(rope.frequencies().iter().map(|f| 1.0 / f).collect())
    };
    let llama3 = |factor| Scaling::Llama3 { factor, low: 1.0, high: 4.0, original: 8192.0 };
    let (plain, scaled) = (divisors(5e5, 128, Scaling::None)?, divisors(5e5, 128, llama3(8.0))?);
    for (pair, expected) in DIVISORS {
        if (scaled[pair] / expected - 1.0).abs() > 2e-9 {
            return Err(format!("T13: the divisor of pair {pair} is {}, expected {expected}", scaled[pair]));
        }
    }
    let ratio = |pair: usize| scaled[pair] / plain[pair];
    let kept = (0..64).filter(|&i| (ratio(i) - 1.0).abs() < 1e-12).count();
    let stretched = (0..64).filter(|&i| (ratio(i) - 8.0).abs() < 1e-12).count();
    if (kept, stretched) != (29, 29) {
        return Err(format!("T13: {kept} pairs are kept and {stretched} stretched, expected 29 and 29"));
    }

    let mut noise = crate::grid::Noise::new(seed);
    for _ in 0..count {
        let factor = 1.0 + f64::from(noise.below(64)) / 2.0;
        // One pair whose wave is at an end of the ramp, from both sides.
        for turns in [1.0, 4.0] {
            let stretch = |turns: f64| -> Result<f64, String> {
                let base = (8192.0 / (turns * std::f64::consts::TAU)).powi(2);
                let (plain, scaled) = (divisors(base, 4, Scaling::None)?, divisors(base, 4, llama3(factor))?);
                Ok(scaled[1] / plain[1])
            };
            let (below, above) = (stretch(turns * (1.0 - 1e-9))?, stretch(turns * (1.0 + 1e-9))?);
            if (below - above).abs() > 1e-6 * factor {
                return Err(format!(
                    "T13: at {turns} turns the factor jumps from {below} to {above}, factor {factor}"
                ));
            }
        }
        let base = 1e4 * f64::from(1 + noise.below(1000));
        let (head_dim, scaling) = (noise.pick(&[64, 128, 256]), llama3(factor));
        let table = divisors(base, head_dim, scaling)?;
        if let Some(i) = (1..table.len()).find(|&i| table[i] < table[i - 1]) {
            return Err(format!(
                "T13: divisor {i} falls from {} to {}, base {base}, factor {factor}",
                table[i - 1],
                table[i]
            ));
        }
    }
    Ok(())
}
