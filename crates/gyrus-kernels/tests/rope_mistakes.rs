//! Mistakes that engines make with rotary embeddings, each with its effect. Mistakes in reading a model's file are
//! tested in the crate that reads it.

mod common;

use common::{apart, dot, random_head, rotated, rotated_at};
use gyrus_kernels::{Batch, LongRope, Pairing, Phases, Rope, RopeSpec, Scaling, Sections, Spectrum, Yarn};
use gyrus_testkit::Rng;

fn whole(pairing: Pairing, head_dim: usize) -> RopeSpec {
    RopeSpec::new(pairing, head_dim, 10000.0)
}

/// A number rounded to bf16: the upper half of f32, ties to even.
fn bf16(x: f64) -> f64 {
    let bits = (x as f32).to_bits();
    let rounded = bits.wrapping_add(0x7FFF + ((bits >> 16) & 1)) & 0xFFFF_0000;
    f64::from(f32::from_bits(rounded))
}

/// Adjacent pairs on weights made for split ones. Scores still depend on distance, so the text is fluent,
/// but they are not the model's.
#[test]
fn adjacent_pairing_on_split_layout_weights() {
    let mut rng = Rng::new(27);
    let (q, k) = (random_head(&mut rng, 64), random_head(&mut rng, 64));
    let score = |pairing| {
        let rope = Rope::new(whole(pairing, 64)).unwrap();
        dot(&rotated(&rope, &q, 40), &rotated(&rope, &k, 3))
    };
    // The rows of a converted file are permuted; then, and only then, adjacent pairs are right.
    let permuted = |x: &[f32]| -> Vec<f32> { (0..64).map(|i| x[i / 2 + 32 * (i % 2)]).collect() };
    let rope = Rope::new(whole(Pairing::Adjacent, 64)).unwrap();
    let converted = dot(&rotated(&rope, &permuted(&q), 40), &rotated(&rope, &permuted(&k), 3));
    assert!((score(Pairing::Split) - converted).abs() < 1e-5);
    let wrong = score(Pairing::Adjacent);
    assert!((score(Pairing::Split) - wrong).abs() > 0.1, "the mistake would not be seen");
}

/// Adjacent pairs whose results are written as two halves. Q and K made alike still give right scores, but a
/// cache, a norm or an adapter that knows the layout does not fit them.
#[test]
fn rotated_pairs_concatenated_instead_of_interleaved() {
    let rope = Rope::new(whole(Pairing::Adjacent, 8)).unwrap();
    let x: Vec<f32> = (1..=8).map(|v| v as f32).collect();
    let y = rotated(&rope, &x, 5);
    let angle = |pair: usize| 5.0 * 10000f64.powf(-(pair as f64) / 4.0);
    let expected: Vec<f32> = (0..4)
        .flat_map(|pair| {
            let (sin, cos) = angle(pair).sin_cos();
            let (a, b) = (f64::from(x[2 * pair]), f64::from(x[2 * pair + 1]));
            [(a * cos - b * sin) as f32, (a * sin + b * cos) as f32]
        })
        .collect();
    assert!(apart(&y, &expected) < 1e-6);
    let concatenated: Vec<f32> =
        expected.iter().step_by(2).chain(expected.iter().skip(1).step_by(2)).copied().collect();
    assert!(apart(&y, &concatenated) > 0.1, "the mistake would not be seen");
}

/// Split pairs with the frequencies of adjacent ones, each twice in a row: element `i` and `i + half` are
/// then rotated at different speeds, and norms are not preserved.
#[test]
fn frequency_index_of_the_element_instead_of_the_pair() {
    let rope = Rope::new(whole(Pairing::Split, 8)).unwrap();
    let x: Vec<f32> = (1..=8).map(|v| v as f32).collect();
    let turn = |frequency: &dyn Fn(usize) -> usize| -> Vec<f32> {
        (0..8)
            .map(|i| {
                let (sin, cos) = (5.0 * rope.frequencies()[frequency(i)]).sin_cos();
                let partner = if i < 4 { -x[i + 4] } else { x[i - 4] };
                (f64::from(x[i]) * cos + f64::from(partner) * sin) as f32
            })
            .collect()
    };
    let y = rotated(&rope, &x, 5);
    assert!(apart(&y, &turn(&|element| element % 4)) < 1e-6);
    let wrong = turn(&|element| element / 2);
    assert!(apart(&y, &wrong) > 0.1, "the mistake would not be seen");
    assert!((dot(&wrong, &wrong) - dot(&x, &x)).abs() > 1.0, "it does not keep lengths");
}

/// Positions cast to bfloat16 before they are multiplied: beyond 256 neighbours become one.
#[test]
fn positions_in_bf16() {
    assert_eq!(bf16(257.0), 256.0, "what the mistake does");
    let rope = Rope::new(whole(Pairing::Split, 64)).unwrap();
    let mut rng = Rng::new(30);
    let x = random_head(&mut rng, 64);
    let step = apart(&rotated(&rope, &x, 0), &rotated(&rope, &x, 1));
    for position in [256, 4096, 131_072, 1 << 20, u32::MAX - 1] {
        let next = rotated(&rope, &x, position + 1);
        let here = rotated(&rope, &x, position);
        assert!(apart(&here, &next) > 0.2 * step, "positions {position} and the next are one");
        // The step from any position is the step from zero, rotated.
        let stepped = rotated(&rope, &here, 1);
        assert!(apart(&stepped, &next) < 4e-6, "position {position}");
    }
}

/// Angles in half or single precision. At position 4095 bfloat16 is off by most of a radian, at a million
/// single precision is off by hundredths.
#[test]
fn phases_in_half_precision() {
    let rope = Rope::new(RopeSpec { base: 500_000.0, ..whole(Pairing::Split, 128) }).unwrap();
    let worst = |position: u32, angle: &dyn Fn(f64) -> f64| -> f64 {
        let mut phases = vec![[0.0; 2]; 64];
        rope.phases(position, &mut phases);
        let mut worst = [0f64; 2];
        for (phase, &frequency) in phases.iter().zip(rope.frequencies()) {
            let (sin, cos) = (f64::from(position) * frequency).sin_cos();
            let off = |c: f64, s: f64| gyrus_testkit::largest([(c - cos).abs(), (s - sin).abs()]);
            worst[0] = gyrus_testkit::largest([worst[0], off(phase[0].into(), phase[1].into())]);
            let wrong = angle(frequency);
            worst[1] = worst[1].max(off(wrong.cos(), wrong.sin()));
        }
        assert!(worst[0] < 1e-7, "ours is off by {} at {position}", worst[0]);
        worst[1]
    };
    assert!(worst(4095, &|f| bf16(4095.0 * bf16(f))) > 0.8);
    assert!(worst(1 << 20, &|f| f64::from((1u32 << 20) as f32 * f as f32)) > 1e-2);
    assert!(worst(131_072, &|f| f64::from(131_072f32 * f as f32)) > 1e-3);
}

fn long_rope() -> Rope {
    let long = LongRope {
        short: vec![1.0; 16],
        long: (0..16).map(|i| 1.0 + f64::from(i)).collect(),
        original: 64.0,
        attention_factors: [1.0, 1.2],
    };
    Rope::new(RopeSpec { scaling: Scaling::LongRope(long), ..whole(Pairing::Split, 32) }).unwrap()
}

/// LongRoPE's factors chosen anew for each piece of a prompt: keys of the first pieces are rotated with the
/// short factors, queries of the last with the long ones, and scores are those of no model.
#[test]
fn longrope_chosen_per_batch_instead_of_per_sequence() {
    let rope = long_rope();
    let phases_of = |positions: &[u32], length: u32| {
        let zeros = vec![0; positions.len()];
        let (tokens, sequences) = (zeros.as_slice(), zeros.as_slice());
        let lengths = &[length][..];
        let mut phases = Phases::default();
        let batch = Batch {
            tokens,
            positions,
            sequences,
            kind: gyrus_kernels::RowKind::Prompt,
            logits: &[],
            tables: &[&[]],
            lengths,
            records: &[],
            inputs: Default::default(),
        };
        phases.compute(&rope, &batch);
        (0..positions.len()).map(|row| phases.row(row).to_vec()).collect::<Vec<_>>()
    };
    let all: Vec<u32> = (0..100).collect();
    let whole = phases_of(&all, 100);
    let mut pieces = phases_of(&all[..60], 100);
    pieces.extend(phases_of(&all[60..], 100));
    assert_eq!(whole, pieces);
    // The mistake: each piece by how far it reaches itself.
    let mut wrong = phases_of(&all[..60], 60);
    wrong.extend(phases_of(&all[60..], 100));
    assert_ne!(whole, wrong, "the mistake would not be seen");
    assert_eq!(whole[60..], wrong[60..]);
}

/// Two sequences of one batch, one long and one short, each with its own factors.
#[test]
fn longrope_of_a_neighbour_in_the_batch() {
    let rope = long_rope();
    let mut phases = Phases::default();
    let batch = Batch {
        tokens: &[0; 4],
        positions: &[9, 9, 9, 10],
        sequences: &[0, 1, 0, 0],
        kind: gyrus_kernels::RowKind::Prompt,
        logits: &[],
        tables: &[&[], &[]],
        lengths: &[64, 65],
        records: &[],
        inputs: Default::default(),
    };
    phases.compute(&rope, &batch);
    let expected = |length, position| {
        let mut out = vec![[0.0; 2]; 16];
        rope.phases_in(&rope.spectrum(length), &[position], &mut out);
        out
    };
    assert_eq!(phases.row(0), expected(64, 9));
    assert_eq!(phases.row(1), expected(65, 9));
    assert_eq!(phases.row(2), expected(64, 9));
    assert_eq!(phases.row(3), expected(64, 10));
    assert_ne!(phases.row(0), phases.row(1), "the mistake would not be seen");
}

/// Frequencies of a partly rotated head from the part instead of from the whole: pair `i` of the part then
/// turns like pair `i · whole / part`.
#[test]
fn proportional_from_the_rotated_part() {
    let scaling = Scaling::Proportional { rotated: 16, factor: 1.0 };
    let rope = Rope::new(RopeSpec { scaling, ..whole(Pairing::Split, 128) }).unwrap();
    let plain = Rope::new(whole(Pairing::Split, 128)).unwrap();
    assert_eq!(rope.frequencies()[..16], plain.frequencies()[..16]);
    assert!(rope.frequencies()[16..].iter().all(|&f| f == 0.0));
    // The mistake: a rope over the first 32 elements.
    let part = Rope::new(RopeSpec { rope_dim: 32, ..whole(Pairing::Split, 128) }).unwrap();
    assert!(rope.frequencies()[15] > 100.0 * part.frequencies()[15], "the mistake would not be seen");
    // Nor are the elements the same: pairs are half a head apart, not half a part.
    assert_eq!(rope.elements(0), (0, 64));
    assert_eq!(part.elements(0), (0, 16));
}

/// The rows for height and width dropped, by a fused kernel or a drafter that knows time alone: text is
/// untouched, and pictures have no places.
#[test]
fn mrope_height_and_width_rows() {
    let x: Vec<f32> = (0..128).map(|i| (i as f32).sin()).collect();
    for (interleaved, sizes) in [(false, vec![16, 24, 24]), (true, vec![24, 20, 20])] {
        let sections = Some(Sections { sizes: sizes.clone(), interleaved });
        let rope = Rope::new(RopeSpec { sections, ..whole(Pairing::Split, 128) }).unwrap();
        let plain = Rope::new(whole(Pairing::Split, 128)).unwrap();
        assert_eq!(rope.position_rows(), 3);
        let count = |row| rope.rows().iter().filter(|&&r| r == row).count();
        assert_eq!([count(0), count(1), count(2)].to_vec(), sizes);
        // In text all rows are equal, and the mistake is not seen.
        assert_eq!(rotated(&rope, &x, 77), rotated(&plain, &x, 77));
        let patch = rotated_at(&rope, &x, &[9, 30, 45], 0);
        assert!(apart(&patch, &rotated(&plain, &x, 9)) > 0.5, "the mistake would not be seen");
        // Each pair turns by its own row.
        for (pair, &row) in rope.rows().iter().enumerate() {
            let alone = rotated(&plain, &x, [9, 30, 45][usize::from(row)]);
            let (a, b) = rope.elements(pair);
            assert_eq!((patch[a], patch[b]), (alone[a], alone[b]), "pair {pair} of row {row}");
        }
    }
    let interleaved = Sections { sizes: vec![24, 20, 20], interleaved: true };
    let rope = Rope::new(RopeSpec { sections: Some(interleaved), ..whole(Pairing::Split, 128) }).unwrap();
    assert_eq!(rope.rows()[..7], [0, 1, 2, 0, 1, 2, 0]);
    assert_eq!(rope.rows()[58..], [1, 2, 0, 0, 0, 0]);
}

/// Moving a cached key by rotating it again. With the rope's own factors it would have them twice; with
/// M-RoPE one number of positions cannot move all rows; from a half-precision cache it loses each time.
#[test]
fn rotating_a_cached_key_again() {
    let mut rng = Rng::new(39);
    let key = random_head(&mut rng, 64);
    let yarn = Scaling::Yarn(Yarn::new(4.0, 1024.0));
    let rope = Rope::new(RopeSpec { scaling: yarn, ..whole(Pairing::Split, 64) }).unwrap();
    let (cached, expected) = (rotated(&rope, &key, 500), rotated(&rope, &key, 600));
    assert!(apart(&rotated(&rope.unit(), &cached, 100), &expected) < 4e-6);
    let wrong = rotated(&rope, &cached, 100);
    assert!(apart(&wrong, &expected) > 0.1, "the mistake would not be seen");
    let ratio = (dot(&wrong, &wrong) / dot(&expected, &expected)).sqrt();
    assert!((ratio - rope.attention_factor()).abs() < 1e-5, "it is the factor twice");

    let sections = Some(Sections { sizes: vec![8, 12, 12], interleaved: false });
    let rope = Rope::new(RopeSpec { sections, ..whole(Pairing::Split, 64) }).unwrap();
    let cached = rotated_at(&rope, &key, &[50, 53, 57], 0);
    let expected = rotated_at(&rope, &key, &[40, 43, 47], 0);
    let back = |by: &[u32]| rotated_at(&rope.unit().inverse(), &cached, by, 0);
    assert!(apart(&back(&[10, 10, 10]), &expected) < 4e-6);
    assert!(apart(&back(&[10, 0, 0]), &expected) > 0.1, "time alone does not move a patch");
}

/// Dynamic NTK recomputed as the text grows: every step has another base, and no key fits.
#[test]
fn dynamic_ntk_recomputed_as_the_text_grows() {
    let scaling = Scaling::DynamicNtk { factor: 2.0, original: 64.0 };
    let rope = Rope::new(RopeSpec { scaling, ..whole(Pairing::Split, 32) }).unwrap();
    let plain = Rope::new(whole(Pairing::Split, 32)).unwrap();
    let frequencies = |length| rope.spectrum(length).frequencies().to_vec();
    assert_eq!(frequencies(64), plain.frequencies());
    assert_ne!(frequencies(65), frequencies(66), "why a length must be pinned");
    // At twice the original length the stretch of the slowest pair is 2·2 − 1.
    let slowest = plain.frequencies()[15] / frequencies(128)[15];
    assert!((slowest - 3.0).abs() < 1e-9, "{slowest}");
    assert_eq!(rope.length_class(64), 0);
    assert_eq!(rope.length_class(128), 128);
}

/// A factor of 1 leaves every kind as it is, so a file that states scaling it does not use is harmless.
#[test]
fn a_factor_of_one_changes_nothing() {
    let plain = Rope::new(whole(Pairing::Split, 64)).unwrap();
    for scaling in [
        Scaling::Linear { factor: 1.0 },
        Scaling::Ntk { factor: 1.0 },
        Scaling::Yarn(Yarn::new(1.0, 4096.0)),
        Scaling::Llama3 { factor: 1.0, low: 1.0, high: 4.0, original: 8192.0 },
        Scaling::Proportional { rotated: 32, factor: 1.0 },
    ] {
        let name = scaling.name();
        let rope = Rope::new(RopeSpec { scaling, ..whole(Pairing::Split, 64) }).unwrap();
        let spectrum: &Spectrum = &rope.spectrum(1 << 20);
        assert_eq!(spectrum.attention_factor(), 1.0, "{name}");
        for (a, b) in spectrum.frequencies().iter().zip(plain.frequencies()) {
            assert!((a / b - 1.0).abs() < 1e-15, "{name}");
        }
    }
}
