//! What every rotary embedding must satisfy, whatever its parameters.

mod common;

use common::{apart, dot, random_head, random_rope, rotated, rotated_at};
use gyrus_kernels::{Direction, Pairing, Rope, RopeSpec, Scaling};
use gyrus_testkit::{Rng, cases};

/// Runs a property over random ropes.
fn each(seed: u64, property: impl Fn(&Rope, &mut Rng)) {
    let mut rng = Rng::new(seed);
    for _ in 0..cases(300) {
        let rope = random_rope(&mut rng);
        property(&rope, &mut rng);
    }
}

/// Positions that are small, that are large, and that are as large as they can be.
fn position(rng: &mut Rng) -> u32 {
    let most = *rng.pick(&[4, 4096, 1 << 20, u32::MAX as usize]);
    rng.below(most) as u32
}

/// The factor on the norm of the rotated part.
fn gain(rope: &Rope) -> f64 {
    rope.attention_factor() * rope.output_scale()
}

fn norm(x: &[f32]) -> f64 {
    dot(x, x).sqrt()
}

/// The rotated part.
fn part<'a>(rope: &Rope, x: &'a [f32]) -> &'a [f32] {
    &x[rope.offset()..rope.offset() + rope.rope_dim()]
}

/// T1: position 0 is the identity, bit for bit, where all factors are 1.
#[test]
fn position_zero_is_the_identity() {
    each(1, |rope, rng| {
        let rope = rope.unit();
        let x = random_head(rng, rope.head_dim());
        assert_eq!(rotated(&rope, &x, 0), x, "{rope}");
    });
}

/// T2: norms are preserved, of each pair and of the whole, up to the factors.
#[test]
fn lengths_are_kept() {
    each(2, |rope, rng| {
        let x = random_head(rng, rope.head_dim());
        let y = rotated(rope, &x, position(rng));
        for pair in 0..rope.pairs() {
            let (a, b) = rope.elements(pair);
            let (before, after) = (norm(&[x[a], x[b]]), norm(&[y[a], y[b]]));
            assert!((after - gain(rope) * before).abs() < 1e-6 * (1.0 + after), "{rope}: pair {pair}");
        }
    });
}

/// T3: scores depend on the distance alone.
#[test]
fn scores_depend_on_the_distance() {
    each(3, |rope, rng| {
        let rope = rope.unit();
        let (q, k) = (random_head(rng, rope.head_dim()), random_head(rng, rope.head_dim()));
        let (m, n) = (rng.below(1 << 20) as u32, rng.below(1 << 20) as u32);
        let score = |m, n| dot(&rotated(&rope, &q, m), &rotated(&rope, &k, n));
        let here = score(m, n);
        for shift in [1, 17, 1000, 1 << 30] {
            let there = score(m + shift, n + shift);
            assert!((here - there).abs() < 2e-5, "{rope}: {m}, {n}, {shift}: {here} {there}");
        }
    });
}

/// T4: a rotation by one position and then by another is a rotation by their sum.
#[test]
fn turns_add_up() {
    each(4, |rope, rng| {
        let rope = rope.unit();
        let x = random_head(rng, rope.head_dim());
        let (a, b) = (rng.below(1 << 31) as u32, rng.below(1 << 31) as u32);
        let twice = rotated(&rope, &rotated(&rope, &x, a), b);
        assert!(apart(&twice, &rotated(&rope, &x, a + b)) < 4e-6, "{rope}: {a} + {b}");
    });
}

/// T5: backward of forward is the square of the factors, so it is the identity where they are 1.
#[test]
fn backward_undoes_forward() {
    each(5, |rope, rng| {
        let (x, at) = (random_head(rng, rope.head_dim()), position(rng));
        let back = rotated(&rope.inverse(), &rotated(rope, &x, at), at);
        for (i, (x, back)) in x.iter().zip(&back).enumerate() {
            let inside = (rope.offset()..rope.offset() + rope.rope_dim()).contains(&i);
            let square = if inside { gain(rope).powi(2) } else { rope.output_scale().powi(2) };
            let expected = f64::from(*x) * square;
            assert!((f64::from(*back) - expected).abs() < 3e-6 * (1.0 + square), "{rope}: element {i}");
        }
        assert_eq!(rope.inverse().direction(), Direction::Inverse);
        assert_eq!(rope.inverse().inverse(), *rope);
    });
}

/// T6: backward is forward transposed, and what finite differences give.
#[test]
fn backward_is_the_gradient() {
    each(6, |rope, rng| {
        let (x, dy) = (random_head(rng, rope.head_dim()), random_head(rng, rope.head_dim()));
        let at = position(rng);
        let dx = rotated(&rope.inverse(), &dy, at);
        let (left, right) = (dot(&dy, &rotated(rope, &x, at)), dot(&dx, &x));
        assert!((left - right).abs() < 2e-5 * (1.0 + norm(&dy) * norm(&x)), "{rope}: {left} {right}");
        // The op is linear, so a whole step is as good a difference as a small one.
        let i = rng.below(x.len());
        let mut moved = x.clone();
        moved[i] += 1.0;
        let slope = dot(&dy, &rotated(rope, &moved, at)) - dot(&dy, &rotated(rope, &x, at));
        assert!((slope - f64::from(dx[i])).abs() < 1e-4 * (1.0 + norm(&dy)), "{rope}: {slope} {}", dx[i]);
    });
}

/// T7: the pairings differ by a permutation only.
#[test]
fn pairings_are_a_permutation_of_each_other() {
    each(7, |rope, rng| {
        let other = match rope.pairing() {
            Pairing::Adjacent => Pairing::Split,
            Pairing::Split => Pairing::Adjacent,
        };
        let other = Rope::new(RopeSpec { pairing: other, ..rope.spec().clone() }).unwrap();
        let (x, at) = (random_head(rng, rope.head_dim()), position(rng));
        let permuted = |from: &[f32]| {
            let mut to = from.to_vec();
            for pair in 0..rope.pairs() {
                let ((a, b), (c, d)) = (rope.elements(pair), other.elements(pair));
                (to[c], to[d]) = (from[a], from[b]);
            }
            to
        };
        assert_eq!(permuted(&rotated(rope, &x, at)), rotated(&other, &permuted(&x), at), "{rope}");
    });
}

/// T11: positions divided by a factor, and frequencies divided by it, are the same; both at once are not.
#[test]
fn linear_scaling_divides_positions() {
    let mut rng = Rng::new(11);
    let plain = Rope::new(RopeSpec::new(Pairing::Split, 64, 10000.0)).unwrap();
    let scaling = Scaling::Linear { factor: 4.0 };
    let linear = Rope::new(RopeSpec { scaling: scaling.clone(), ..plain.spec().clone() }).unwrap();
    let table = Rope::new(RopeSpec { factors: Some(vec![4.0; 32]), ..plain.spec().clone() }).unwrap();
    let both = Rope::new(RopeSpec { scaling, ..table.spec().clone() }).unwrap();
    for _ in 0..50 {
        let (x, at) = (random_head(&mut rng, 64), 1 + rng.below(1 << 18) as u32);
        let expected = rotated(&plain, &x, at);
        assert!(apart(&rotated(&linear, &x, 4 * at), &expected) < 1e-6);
        assert_eq!(rotated(&linear, &x, at), rotated(&table, &x, at));
        assert!(apart(&rotated(&both, &x, 4 * at), &expected) > 1e-2, "scaled twice");
    }
}

/// T12: a row's phases depend on its own position alone.
#[test]
fn rows_are_independent() {
    let rope = Rope::new(RopeSpec::new(Pairing::Split, 32, 10000.0)).unwrap();
    let batch = |positions: &[u32]| {
        let zeros = vec![0; positions.len()];
        let mut phases = gyrus_kernels::Phases::default();
        let batch = gyrus_kernels::Batch {
            tokens: &zeros,
            positions,
            sequences: &zeros,
            kind: gyrus_kernels::RowKind::Prompt,
            logits: &[],
            tables: &[&[]],
            lengths: &[0],
            records: &[],
            inputs: Default::default(),
        };
        phases.compute(&rope, &batch);
        (0..positions.len()).map(|row| phases.row(row).to_vec()).collect::<Vec<_>>()
    };
    let sequential = batch(&[7, 8, 9, 10]);
    let permuted = batch(&[9, 7, 10, 8]);
    assert_eq!([2, 0, 3, 1].map(|row: usize| sequential[row].clone()).to_vec(), permuted);
}

/// T13: Llama 3's divisors for 128 elements, base 500000, factor 8, factors 1 and 4, context 8192.
#[test]
fn llama3_bands() {
    let spec = RopeSpec::new(Pairing::Split, 128, 500_000.0);
    let scaling = Scaling::Llama3 { factor: 8.0, low: 1.0, high: 4.0, original: 8192.0 };
    let rope = Rope::new(RopeSpec { scaling, ..spec }).unwrap();
    let divisors: Vec<f64> = rope.frequencies().iter().map(|f| 1.0 / f).collect();
    let expected = [
        (28, 311.386211),
        (29, 461.558892),
        (30, 728.919519),
        (31, 1167.199709),
        (32, 1905.320214),
        (33, 3198.017225),
        (34, 5601.995703),
        (35, 10464.397012),
        (63, 3258468.935),
    ];
    for (pair, divisor) in expected {
        assert!((divisors[pair] / divisor - 1.0).abs() < 2e-9, "pair {pair}: {}", divisors[pair]);
    }
    let stretch: Vec<f64> = rope.unscaled().iter().zip(&divisors).map(|(plain, d)| plain * d).collect();
    let bands = stretch.iter().map(|&s| if s < 1.0 + 1e-12 { 0 } else { 1 + i32::from(s > 8.0 - 1e-12) });
    let bands: Vec<i32> = bands.collect();
    let count = |band| bands.iter().filter(|&&b| b == band).count();
    assert_eq!((count(0), count(1), count(2)), (29, 6, 29));
    assert!(divisors.is_sorted(), "slower from pair to pair");
}

/// T13: no jump where the bands meet.
#[test]
fn llama3_is_continuous() {
    let stretch = |base: f64| {
        let scaling = Scaling::Llama3 { factor: 8.0, low: 1.0, high: 4.0, original: 8192.0 };
        let rope = Rope::new(RopeSpec { scaling, ..RopeSpec::new(Pairing::Split, 4, base) }).unwrap();
        rope.unscaled()[1] / rope.frequencies()[1]
    };
    // Pair 1 of 4 elements has the wavelength 2π·√base: bases for the two ends of the ramp.
    for end in [8192.0, 8192.0 / 4.0] {
        let base = (end / std::f64::consts::TAU).powi(2);
        let (before, after) = (stretch(base * (1.0 - 1e-9)), stretch(base * (1.0 + 1e-9)));
        assert!((before - after).abs() < 1e-6, "{before} {after}");
    }
}

/// T14: folding the softmax's scale, and the change to base 2, into the ropes of Q and K gives the same
/// attention and the same gradients, if the backward op has the scales of the forward one.
#[test]
fn scales_can_be_folded_into_the_ropes() {
    const D: usize = 12;
    const ROWS: usize = 5;
    let alpha = 1.0 / (D as f64).sqrt();
    let log2_e = std::f64::consts::LOG2_E;
    let mut rng = Rng::new(14);
    let mut random = || -> Vec<Vec<f32>> { (0..ROWS).map(|_| random_head(&mut rng, D)).collect() };
    let (q, k, v, d_out) = (random(), random(), random(), random());

    let attention = |q_scale: f64, k_scale: f64, score_scale: f64, base_2: bool| -> Vec<f64> {
        let rope = |output_scale| {
            let whole = RopeSpec::new(Pairing::Split, D, 100.0);
            Rope::new(RopeSpec { rope_dim: 8, offset: 4, output_scale, ..whole }).unwrap()
        };
        let (q_rope, k_rope) = (rope(q_scale), rope(k_scale));
        let turn = |rope: &Rope, x: &[Vec<f32>]| -> Vec<Vec<f32>> {
            x.iter().enumerate().map(|(row, x)| rotated(rope, x, row as u32)).collect()
        };
        let (q, k) = (turn(&q_rope, &q), turn(&k_rope, &k));
        let mut all = Vec::new();
        let mut dq = vec![vec![0.0; D]; ROWS];
        let mut dk = vec![vec![0.0; D]; ROWS];
        let mut dv = vec![vec![0.0; D]; ROWS];
        for row in 0..ROWS {
            let scores: Vec<f64> = k.iter().map(|k| score_scale * dot(&q[row], k)).collect();
            let weight = |s: &f64| if base_2 { s.exp2() } else { s.exp() };
            let sum: f64 = scores.iter().map(weight).sum();
            let p: Vec<f64> = scores.iter().map(|s| weight(s) / sum).collect();
            let out = |i: usize| (0..ROWS).map(|j| p[j] * f64::from(v[j][i])).sum::<f64>();
            all.extend((0..D).map(out));
            let dp: Vec<f64> = v.iter().map(|v| dot(&d_out[row], v)).collect();
            let mean: f64 = p.iter().zip(&dp).map(|(p, dp)| p * dp).sum();
            for j in 0..ROWS {
                let ds = p[j] * (dp[j] - mean) * if base_2 { std::f64::consts::LN_2 } else { 1.0 };
                for i in 0..D {
                    dq[row][i] += score_scale * ds * f64::from(k[j][i]);
                    dk[j][i] += score_scale * ds * f64::from(q[row][i]);
                    dv[j][i] += p[j] * f64::from(d_out[row][i]);
                }
            }
        }
        let back = |rope: &Rope, x: Vec<Vec<f64>>| {
            let x: Vec<Vec<f32>> = x.iter().map(|x| x.iter().map(|&x| x as f32).collect()).collect();
            turn(&rope.inverse(), &x).concat().into_iter().map(f64::from).collect::<Vec<_>>()
        };
        all.extend(back(&q_rope, dq));
        all.extend(back(&k_rope, dk));
        all.extend(dv.concat());
        all
    };
    let plain = attention(1.0, 1.0, alpha, false);
    let root = alpha.sqrt();
    let folds = [
        ("Q alone", attention(alpha, 1.0, 1.0, false)),
        ("both", attention(root, root, 1.0, false)),
        ("Q alone, base 2", attention(alpha * log2_e, 1.0, 1.0, true)),
        ("both, base 2", attention(root * log2_e, root, 1.0, true)),
    ];
    for (name, folded) in folds {
        for (a, b) in plain.iter().zip(&folded) {
            assert!((a - b).abs() < 2e-6 * (1.0 + a.abs()), "{name}: {a} {b}");
        }
    }
    let wrong = attention(alpha * log2_e, 1.0, 1.0, false);
    assert!(plain.iter().zip(&wrong).any(|(a, b)| (a - b).abs() > 1e-2), "folded on one side only");
}

/// T15: elements that are not rotated are multiplied by the output scale and nothing else; any part may be rotated.
#[test]
fn the_rest_of_a_head_passes_through() {
    each(15, |rope, rng| {
        let (x, at) = (random_head(rng, rope.head_dim()), position(rng));
        let y = rotated(rope, &x, at);
        for i in (0..rope.offset()).chain(rope.offset() + rope.rope_dim()..rope.head_dim()) {
            assert_eq!(y[i], x[i] * rope.output_scale() as f32, "{rope}: element {i}");
        }
        // The rotated part equals a rotated head of that size, at any offset.
        let alone = RopeSpec { head_dim: rope.rope_dim(), offset: 0, ..rope.spec().clone() };
        assert_eq!(rotated(&Rope::new(alone).unwrap(), part(rope, &x), at), part(rope, &y), "{rope}");
    });
    let nothing = RopeSpec { rope_dim: 0, output_scale: 0.5, ..RopeSpec::new(Pairing::Split, 4, 1e4) };
    assert_eq!(rotated(&Rope::new(nothing).unwrap(), &[1.0, 2.0, 3.0, 4.0], 9), [0.5, 1.0, 1.5, 2.0]);
}

/// A position times the turns is the phase modulo one turn, for every position there is.
#[test]
fn turns_are_exact_at_every_position() {
    each(16, |rope, rng| {
        let spectrum = rope.spectrum(rng.below(1 << 20));
        for (&turns, &frequency) in spectrum.turns().iter().zip(spectrum.frequencies()) {
            let back = turns as f64 / 2f64.powi(64) * std::f64::consts::TAU;
            assert!((back - frequency).abs() <= 4e-16 * (1.0 + frequency), "{rope}: {back} {frequency}");
        }
        // Frequencies of a class are those of any length in it.
        let length = rng.below(1 << 20);
        assert_eq!(rope.spectrum(length), rope.spectrum(rope.length_class(length)), "{rope}");
        assert!(rope.length_class(length) <= length, "{rope}");
    });
    // A pair that makes exactly a quarter of a turn per position has one of four phases at any position.
    let quarter = RopeSpec {
        factors: Some(vec![(2.0 / std::f64::consts::PI) as f32]),
        ..RopeSpec::new(Pairing::Split, 2, 10000.0)
    };
    let rope = Rope::new(quarter).unwrap();
    let x = rotated_at(&rope, &[1.0, 0.0], &[4_000_000_000], 0);
    let slip = 4e9 * (rope.frequencies()[0] - std::f64::consts::FRAC_PI_2);
    assert!((f64::from(x[1]) - slip.sin()).abs() < 1e-5, "{x:?} {slip}");
}
