//! Properties of cache changes beside the op-test grid's: shifts cancel, equal a write there, and move any number of
//! positions.

mod common;

use common::device;
use gyrus_gpu::GpuRunner;
use gyrus_kernels::call::engine::{self, Heads, Paged};
use gyrus_kernels::call::{KvCopyCall, KvShiftCall, Storage};
use gyrus_kernels::params::AttendParams;
use gyrus_kernels::scalar::{self, element};
use gyrus_kernels::shader::Rungs;
use gyrus_kernels::{KV_BLOCK, KvShape, LongRope, Magnitude, Pairing, Rope, RopeSpec, Scaling, Yarn};
use gyrus_testkit::Rng;

const BLOCKS: u32 = 7;

fn shape(kv: Storage, n_kv_heads: u32, head_dim: u32) -> KvShape {
    KvShape { kv, blocks: BLOCKS, n_kv_heads, head_dim }
}

fn elements(cache: KvShape) -> usize {
    cache.blocks as usize * KV_BLOCK * (cache.n_kv_heads * cache.head_dim) as usize
}

/// A cache of random numbers, followed by words that must not be written.
fn filled(rng: &mut Rng, cache: KvShape) -> Vec<u32> {
    let n = elements(cache);
    let mut words = vec![0x7777_7777; n * cache.kv.bytes() as usize / 4 + 8];
    (0..n).for_each(|i| scalar::set(&mut words, cache.kv, i, rng.gaussian()));
    words
}

/// Heads differ by at most some roundings to the cache's type and the errors of f32.
fn assert_alike(cache: KvShape, found: &[u32], expected: &[u32], roundings: f64, what: &str) {
    let n = cache.head_dim as usize;
    let unit = if cache.kv == Storage::F16 { 2f64.powi(-11) } else { 5e-7 };
    for head in 0..elements(cache) / n {
        let heads = [found, expected]
            .map(|words| (0..n).map(|i| element(words, cache.kv, head * n + i)).collect::<Vec<f64>>());
        let most = heads[1].iter().fold(0f64, |most, v| most.max(v.abs()));
        for (i, (f, e)) in heads[0].iter().zip(&heads[1]).enumerate() {
            assert!((f - e).abs() <= roundings * unit * most, "{what}: {i} of head {head} is {f}, not {e}");
        }
    }
    let end = elements(cache) * cache.kv.bytes() as usize / 4;
    assert_eq!(found[end..], expected[end..], "{what}: after the cache");
}

/// A rope that rotates `rope_dim` elements from `offset` on, and has factors.
fn rope(pairing: Pairing, head_dim: usize, rope_dim: usize, offset: usize) -> Rope {
    let yarn = Yarn { magnitude: Magnitude::Given(1.3), ..Yarn::new(4.0, 4096.0) };
    let scaling = Scaling::Yarn(yarn);
    Rope::new(RopeSpec { rope_dim, offset, scaling, ..RopeSpec::new(pairing, head_dim, 1e4) }).unwrap()
}

struct Shift<'a> {
    call: KvShiftCall,
    rope: &'a Rope,
    length: usize,
}

impl Shift<'_> {
    /// K and V after the moves.
    fn run(&self, runner: &GpuRunner, k: &[u32], v: &[u32], moves: &[[u32; 2]]) -> [Vec<u32>; 2] {
        let call = KvShiftCall { moves: moves.len() as u32, ..self.call };
        let mut buffers = vec![k.to_vec()];
        if !call.in_place {
            buffers.push(v.to_vec());
        }
        buffers.push(call.moves(moves).unwrap());
        buffers.push(engine::turns(self.rope, self.length));
        runner.run_launch(&call.launch(runner.gpu().rungs()).unwrap(), &mut buffers).unwrap();
        let values = if call.in_place { v.to_vec() } else { buffers[1].clone() };
        [buffers.swap_remove(0), values]
    }
}

const CASES: [(Storage, u32, u32, u32, u32, Pairing); 7] = [
    (Storage::F16, 2, 64, 64, 0, Pairing::Split),
    (Storage::F32, 1, 80, 32, 0, Pairing::Adjacent),
    (Storage::F16, 1, 192, 64, 128, Pairing::Split),
    (Storage::F16, 3, 6, 6, 0, Pairing::Split),
    (Storage::F16, 2, 128, 128, 0, Pairing::Adjacent),
    (Storage::F32, 2, 10, 4, 2, Pairing::Split),
    (Storage::F32, 1, 512, 512, 0, Pairing::Split),
];

#[test]
fn a_shift_and_its_inverse_cancel() {
    let Some(runner) = device(Rungs::ALL) else { return };
    let mut rng = Rng::new(3);
    for (kv, heads, head_dim, rope_dim, offset, pairing) in CASES {
        let cache = shape(kv, heads, head_dim);
        let rope = rope(pairing, head_dim as usize, rope_dim as usize, offset as usize);
        let (k, v) = (filled(&mut rng, cache), filled(&mut rng, cache));
        let all: Vec<[u32; 2]> = (0..BLOCKS * KV_BLOCK as u32).map(|slot| [slot, slot]).collect();
        let mut now = k.clone();
        for by in [4099, -4099] {
            let shift = Shift { call: KvShiftCall::new(cache, &rope, by, 0), rope: &rope, length: 0 };
            now = shift.run(&runner, &now, &v, &all)[0].clone();
        }
        // Rounded twice. The first error is rotated, so that an element of it grows by the square root of two at most.
        assert_alike(cache, &now, &k, 2.5, &format!("{kv:?}, {head_dim}"));
    }
}

/// A cache with the key of each row written at its position by the engine's kernel, in slots 0, 1, 2 and so on.
fn written(runner: &GpuRunner, cache: KvShape, rope: &Rope, length: usize, k: &[f32], from: u32) -> Vec<u32> {
    let width = (cache.n_kv_heads * cache.head_dim) as usize;
    let rows = (k.len() / width) as u32;
    let params = AttendParams {
        n_heads: cache.n_kv_heads,
        n_kv_heads: cache.n_kv_heads,
        rope_dim: rope.rope_dim() as u32,
        rope_offset: rope.offset() as u32,
        stride: 3 * width as u32,
        pass_scale: 1.0,
        ..Default::default()
    };
    let qkv: Vec<u32> = k.chunks_exact(width).flat_map(|k| [k, k, k].concat()).map(f32::to_bits).collect();
    // Position p is in slot p − from: its table begins that many blocks before the first.
    assert!((from as usize).is_multiple_of(KV_BLOCK));
    let skipped = from / KV_BLOCK as u32;
    let table: Vec<u32> = (0..skipped + cache.blocks).map(|i| i.saturating_sub(skipped)).collect();
    let entries = table.len() as u32;
    let paged = Paged { cache, rows, entries };
    let heads = Heads { pairing: rope.pairing(), norm: false, write: true };
    let launch = engine::rope_write(runner.gpu().rungs(), params, heads, paged).unwrap();
    let words = elements(cache) * cache.kv.bytes() as usize / 4 + 8;
    let of_rows: Vec<u32> = (0..rows).flat_map(|row| [from + row, 0]).collect();
    let mut buffers = vec![qkv, vec![0; words], vec![0; words], of_rows, table, engine::turns(rope, length)];
    runner.run_launch(&launch, &mut buffers).unwrap();
    buffers.swap_remove(1)
}

/// Cached keys already have their factors; a shift rotates them further with the frequencies of their sequence.
#[test]
fn a_shifted_key_is_as_if_written_there() {
    let Some(runner) = device(Rungs::ALL) else { return };
    let mut rng = Rng::new(4);
    for (kv, heads, head_dim, rope_dim, offset, pairing) in CASES {
        let cache = shape(kv, heads, head_dim);
        let yarn = rope(pairing, head_dim as usize, rope_dim as usize, offset as usize);
        let pairs = rope_dim as usize / 2;
        let long = LongRope {
            short: vec![1.0; pairs],
            long: (0..pairs).map(|i| 1.0 + i as f64 / 3.0).collect(),
            original: 4096.0,
            attention_factors: [1.0, 1.19],
        };
        let spec = RopeSpec { scaling: Scaling::LongRope(long), ..yarn.spec().clone() };
        for (rope, length) in [(yarn, 0), (Rope::new(spec).unwrap(), 1 << 17)] {
            let k: Vec<f32> = (0..40 * heads * head_dim).map(|_| rng.gaussian() as f32).collect();
            let there = written(&runner, cache, &rope, length, &k, 96);
            let here = written(&runner, cache, &rope, length, &k, 0);
            let slots: Vec<[u32; 2]> = (0..40).map(|slot| [slot, slot]).collect();
            for factors in [rope.clone(), rope.unit()] {
                let shift = Shift { call: KvShiftCall::new(cache, &rope, -96, 0), rope: &factors, length };
                let [found, _] = shift.run(&runner, &there, &there, &slots);
                assert_alike(cache, &found, &here, 3.0, &format!("{kv:?}, {head_dim}"));
            }
        }
    }
}

/// Fewer positions than a block are dropped after the first two, which stay; the rest moves in waves.
#[test]
fn any_number_of_positions_can_be_dropped() {
    let Some(runner) = device(Rungs::ALL) else { return };
    let mut rng = Rng::new(5);
    let table = [4, 0, 6, 2];
    for (kv, n) in [(Storage::F16, 13), (Storage::F32, 45)] {
        let cache = shape(kv, 2, 64);
        let rope = rope(Pairing::Split, 64, 64, 0);
        let (k, v) = (filled(&mut rng, cache), filled(&mut rng, cache));
        let (first, end) = (2 + n, 120);
        let call = KvShiftCall { in_place: false, ..KvShiftCall::new(cache, &rope, -(n as i32), 0) };
        let shift = Shift { call, rope: &rope, length: 0 };
        let mut now = [k.clone(), v.clone()];
        let waves = KvShiftCall::waves(&table, first, end, n).unwrap();
        for wave in &waves {
            now = shift.run(&runner, &now[0], &now[1], wave);
        }
        assert_eq!(waves.iter().map(Vec::len).sum::<usize>(), (end - first) as usize);
        // The scalar reference moves positions one by one, the lowest first.
        let mut expected = [k, v];
        let [k, v] = &mut expected;
        let slot = |position| KvShiftCall::slot(&table, position).unwrap();
        for position in first..end {
            scalar::kv_shift(&call, &rope, 0, k, v, &[[slot(position), slot(position - n)]]);
        }
        assert_alike(cache, &now[0], &expected[0], 2.0, "K");
        assert_eq!(now[1], expected[1], "V");
    }
    assert_eq!(KvShiftCall::waves(&table, 10, 129, 3), None, "beyond the table");
    assert_eq!(KvShiftCall::waves(&table, 10, 20, 11), None, "below zero");
    assert_eq!(KvShiftCall::waves(&table, 10, 20, 0), None, "nowhere");
}

#[test]
fn invalid_calls_are_refused() {
    let cache = shape(Storage::F16, 2, 64);
    let copy = KvCopyCall { cache, pairs: 2 };
    let rope = rope(Pairing::Split, 64, 64, 0);
    let shift = KvShiftCall::new(cache, &rope, -1, 2);
    let moved = KvShiftCall { in_place: false, ..shift };
    for (error, reason) in [
        (copy.pairs(&[[0, 7], [1, 2]]).err(), "kv_copy: block 7 of a cache that has 7"),
        (copy.pairs(&[[0, 2], [1, 2]]).err(), "kv_copy: block 2 is written, and"),
        (copy.pairs(&[[0, 2], [2, 1]]).err(), "kv_copy: block 2 is written, and"),
        (copy.pairs(&[[0, 0], [2, 1]]).err(), "kv_copy: block 0 is written, and"),
        (copy.pairs(&[[0, 1]]).err(), "kv_copy: a list of 1 blocks for 2"),
        (shift.moves(&[[0, 1], [2, 2]]).err(), "kv_shift: slot 1 is written, and"),
        (shift.moves(&[[5, 5], [5, 5]]).err(), "kv_shift: slot 5 is written, and"),
        (moved.moves(&[[0, 1], [1, 2]]).err(), "kv_shift: slot 1 is written, and"),
        (moved.moves(&[[0, 0], [1, 224]]).err(), "kv_shift: slot 224 of a cache that has 224"),
        (moved.moves(&[[0, 0], [0, 5]]).err(), "kv_shift: slot 0 is written, and"),
    ] {
        let error = error.map_or_else(|| "accepted".to_owned(), |error| error.to_string());
        assert!(error.starts_with(reason), "{error}, not {reason}");
    }
    let wide = |head_dim| KvShape { head_dim, ..cache };
    for (launch, reason) in [
        (
            KvCopyCall { pairs: 0, ..copy }.launch(Rungs::ALL),
            "kv_copy: the number of rows or workgroups is 0",
        ),
        (KvCopyCall { cache: wide(63), ..copy }.launch(Rungs::ALL), "kv_copy: head_dim is 63"),
        (KvCopyCall { cache: wide(514), ..copy }.launch(Rungs::ALL), "kv_copy: 514 elements of a head"),
        (
            KvCopyCall { cache: KvShape { blocks: u32::MAX, ..cache }, ..copy }.launch(Rungs::ALL),
            "kv_copy: 8796093020160 words of a cache",
        ),
        (
            KvShiftCall { rope_dim: 62, rope_offset: 4, ..shift }.launch(Rungs::ALL),
            "kv_shift: elements 4 to 4+62",
        ),
        (KvShiftCall { moves: 0, ..shift }.launch(Rungs::ALL), "kv_shift: moves is 0"),
        (KvShiftCall { each: 17, ..shift }.launch(Rungs::ALL), "kv_shift: each is 17"),
    ] {
        let error = launch.map_or_else(|error| error.to_string(), |_| "accepted".to_owned());
        assert!(error.starts_with(reason), "{error}, not {reason}");
    }
}
