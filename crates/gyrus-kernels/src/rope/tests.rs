use super::*;

fn plain(pairing: Pairing) -> Rope {
    Rope::new(RopeSpec::new(pairing, 8, 10000.0)).unwrap()
}

fn rotate(rope: &Rope, x: &[f32], position: u32) -> Vec<f32> {
    let mut phases = vec![[0.0; 2]; rope.rope_dim() / 2];
    rope.phases(position, &mut phases);
    let mut x = x.to_vec();
    rope.apply(&mut x, &phases);
    x
}

#[test]
fn position_zero_changes_nothing_and_lengths_are_kept() {
    let x: Vec<f32> = (1..=8).map(|v| v as f32).collect();
    for pairing in [Pairing::Adjacent, Pairing::Split] {
        let rope = plain(pairing);
        assert_eq!(rotate(&rope, &x, 0), x);
        let y = rotate(&rope, &x, 12345);
        let norm = |v: &[f32]| v.iter().map(|x| x * x).sum::<f32>();
        assert!((norm(&x) - norm(&y)).abs() < 1e-3);
    }
}

#[test]
fn scores_depend_on_the_distance_alone() {
    let q: Vec<f32> = (0..8).map(|v| (v as f32).sin()).collect();
    let k: Vec<f32> = (0..8).map(|v| (v as f32 + 0.5).cos()).collect();
    let rope = plain(Pairing::Split);
    let score = |p: u32, s: u32| -> f32 {
        rotate(&rope, &q, p).iter().zip(rotate(&rope, &k, s)).map(|(a, b)| a * b).sum()
    };
    assert!((score(10, 3) - score(1_000_010, 1_000_003)).abs() < 1e-5);
}

#[test]
fn pairings_are_a_permutation_of_each_other() {
    let x: Vec<f32> = (1..=8).map(|v| v as f32).collect();
    // Element i of the split layout is element 2i (first half) or 2(i − 4) + 1 of the adjacent one.
    let to_adjacent = |s: &[f32]| -> Vec<f32> { (0..8).map(|i| s[i / 2 + 4 * (i % 2)]).collect() };
    let split = rotate(&plain(Pairing::Split), &x, 77);
    let adjacent = rotate(&plain(Pairing::Adjacent), &to_adjacent(&x), 77);
    assert_eq!(to_adjacent(&split), adjacent);
}

#[test]
fn elements_beyond_the_rope_dim_pass_through() {
    let rope = Rope::new(RopeSpec { rope_dim: 4, ..RopeSpec::new(Pairing::Split, 8, 10000.0) }).unwrap();
    let x: Vec<f32> = (1..=8).map(|v| v as f32).collect();
    let y = rotate(&rope, &x, 9);
    assert_eq!(y[4..], x[4..]);
    assert_ne!(y[..4], x[..4]);
}

#[test]
fn llama3_bands_are_kept_ramped_or_stretched() {
    let scaling = Scaling::Llama3 { factor: 8.0, low: 1.0, high: 4.0, original: 8192.0 };
    let rope = Rope::new(RopeSpec { scaling, ..RopeSpec::new(Pairing::Split, 128, 5e5) }).unwrap();
    let plain = Rope::new(RopeSpec::new(Pairing::Split, 128, 5e5)).unwrap();
    let ratio: Vec<f64> = plain.frequencies().iter().zip(rope.frequencies()).map(|(a, b)| a / b).collect();
    assert_eq!(ratio[0], 1.0);
    assert!((ratio[63] - 8.0).abs() < 1e-12);
    assert!(ratio.windows(2).all(|w| w[0] <= w[1] + 1e-12));
    assert!(ratio.iter().any(|r| (1.5..7.0).contains(r)), "a ramp lies between");
}

#[test]
fn yarn_scales_the_result_and_keeps_short_waves() {
    let scaling = Scaling::Yarn(Yarn::new(4.0, 32768.0));
    let rope = Rope::new(RopeSpec { scaling, ..RopeSpec::new(Pairing::Split, 128, 1e6) }).unwrap();
    assert!((rope.attention_factor() - 1.138_629_436).abs() < 1e-8);
    assert_eq!(rope.frequencies()[0], 1.0);
    assert!((rope.frequencies()[63] * 4.0 / 1e6f64.powf(-126.0 / 128.0) - 1.0).abs() < 1e-12);
}

#[test]
fn phases_are_right_at_a_million() {
    let rope = plain(Pairing::Split);
    let mut phases = [[0.0; 2]; 4];
    rope.phases(1_048_576, &mut phases);
    // cos and sin of 1048576 radians, to the digits a single has.
    assert!((f64::from(phases[0][0]) - 1048576f64.cos()).abs() < 1e-7);
    assert!((f64::from(phases[0][1]) - 1048576f64.sin()).abs() < 1e-7);
}

#[test]
fn impossible_parameters_are_refused() {
    let good = || RopeSpec::new(Pairing::Split, 8, 1e4);
    let refused = |spec: RopeSpec| Rope::new(spec).unwrap_err().to_string();
    let dim = |rope_dim, offset| refused(RopeSpec { rope_dim, offset, ..good() });
    assert!(dim(7, 0).contains("7 rotated elements from 0 on in a head of 8"));
    assert!(dim(10, 0).contains("reach beyond"));
    assert!(dim(6, 4).contains("reach beyond"));
    assert!(dim(8, usize::MAX).contains("reach beyond"));
    assert!(refused(RopeSpec::new(Pairing::Split, 7, 1e4)).contains("even numbers"));
    assert!(refused(RopeSpec::new(Pairing::Split, usize::MAX - 1, 1e4)).contains("no head is"));
    assert!(refused(RopeSpec::new(Pairing::Split, 0, 1e4)).contains("even numbers"));
    for base in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        assert!(refused(RopeSpec { base, ..good() }).contains(&format!("base is {base}")));
    }
    assert!(refused(RopeSpec { base: 1e-12, ..good() }).contains("would rotate by"));
    assert!(refused(RopeSpec { output_scale: 0.0, ..good() }).contains("output scale is 0"));
    let factors = |factors: &[f32]| refused(RopeSpec { factors: Some(factors.to_vec()), ..good() });
    assert!(factors(&[1.0; 3]).contains("3 rope frequency factors for 4 pairs"));
    assert!(factors(&[1.0, 0.0, 1.0, 1.0]).contains("frequency factor is 0"));
    assert!(factors(&[1.0, f32::NAN, 1.0, 1.0]).contains("frequency factor is NaN"));
}

#[test]
fn impossible_scalings_are_refused() {
    let refused = |rope_dim, scaling| {
        Rope::new(RopeSpec { rope_dim, scaling, ..RopeSpec::new(Pairing::Split, 8, 1e4) })
            .unwrap_err()
            .to_string()
    };
    assert!(refused(8, Scaling::Linear { factor: -1.0 }).contains("factor is -1"));
    assert!(refused(2, Scaling::Ntk { factor: 2.0 }).contains("two are needed"));
    assert!(refused(0, Scaling::Ntk { factor: 2.0 }).contains("two are needed"));
    assert!(refused(8, Scaling::DynamicNtk { factor: 2.0, original: 0.0 }).contains("original context is 0"));
    let yarn = Yarn { beta_fast: 1.0, ..Yarn::new(4.0, 2048.0) };
    assert!(refused(8, Scaling::Yarn(yarn)).contains("betas: 1 and 1"));
    let yarn = Yarn { magnitude: Magnitude::Given(0.0), ..Yarn::new(4.0, 2048.0) };
    assert!(refused(8, Scaling::Yarn(yarn)).contains("attention factor is 0"));
    let mscales = Magnitude::Quotient { mscale: 1.0, all_dim: f64::NAN };
    let yarn = Yarn { magnitude: mscales, ..Yarn::new(4.0, 2048.0) };
    assert!(refused(8, Scaling::Yarn(yarn)).contains("attention factor is NaN"));
    let long = |short: &[f64], long: &[f64]| {
        let (short, long) = (short.to_vec(), long.to_vec());
        Scaling::LongRope(LongRope { short, long, original: 4096.0, attention_factors: [1.0; 2] })
    };
    assert!(refused(8, long(&[1.0; 4], &[1.0; 3])).contains("3 rope long factors for 4 pairs"));
    assert!(refused(8, long(&[], &[1.0; 4])).contains("0 rope short factors for 4 pairs"));
    let llama3 = Scaling::Llama3 { factor: 8.0, low: 4.0, high: 4.0, original: 8192.0 };
    assert!(refused(8, llama3).contains("4 and 4 leave no range"));
    let proportional = Scaling::Proportional { rotated: 5, factor: 1.0 };
    assert!(refused(8, proportional).contains("5 rope rotated pairs for 4 pairs"));
}

#[test]
fn impossible_sections_are_refused() {
    let refused = |sizes: &[usize], interleaved| {
        let sections = Some(Sections { sizes: sizes.to_vec(), interleaved });
        Rope::new(RopeSpec { sections, ..RopeSpec::new(Pairing::Split, 16, 1e4) }).unwrap_err().to_string()
    };
    assert!(refused(&[], false).contains("one to four rows"));
    assert!(refused(&[2, 2, 2, 1, 1], false).contains("one to four rows"));
    assert!(refused(&[2, 2, 2], false).contains("all pairs"));
    assert!(refused(&[usize::MAX, 9], false).contains("all pairs"));
    assert!(refused(&[0, 4, 4], true).contains("interleave"));
}
