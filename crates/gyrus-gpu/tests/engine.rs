//! The kernels of a plan's ops, each against the scalar reference over a grid of shapes.

mod common;
#[path = "common/numbers.rs"]
mod numbers;

use common::device;
use gyrus_gpu::GpuRunner;
use gyrus_kernels::call::Storage;
use gyrus_kernels::call::engine::{self, Heads, Paged};
use gyrus_kernels::params::AttendParams;
use gyrus_kernels::scalar::{self, KvCache, Query, element};
use gyrus_kernels::shader::Rungs;
use gyrus_kernels::{Activation, KV_BLOCK, KvGroup, Launch, Pairing, Rope, RopeSpec};
use gyrus_testkit::Rng;
use numbers::{floats, values, words};

fn run(runner: &GpuRunner, launch: &Launch, buffers: &mut [Vec<u32>]) {
    runner.run_launch(launch, buffers).unwrap();
}

fn assert_close(found: &[f32], expected: &[f32], tolerance: f32, what: &str) {
    let most = expected.iter().fold(0f32, |most, v| most.max(v.abs()));
    for (i, (f, e)) in found.iter().zip(expected).enumerate() {
        assert!((f - e).abs() <= tolerance * most, "{what}: element {i} is {f}, expected {e}");
    }
}

fn on_every_rung(test: impl Fn(&GpuRunner, Rungs)) {
    for rungs in [Rungs::ALL, Rungs::NONE] {
        let Some(runner) = device(rungs) else { return };
        test(&runner, runner.gpu().rungs());
    }
}

#[test]
fn norms() {
    on_every_rung(|runner, rungs| {
        let mut rng = Rng::new(1);
        for (rows, dim) in [(1, 1), (3, 33), (2, 64), (5, 576), (2, 4097)] {
            let (x, weight) = (floats(&mut rng, rows * dim), floats(&mut rng, dim));
            let mut expected = vec![0.0; rows * dim];
            for (x, out) in x.chunks_exact(dim).zip(expected.chunks_exact_mut(dim)) {
                scalar::rms_norm(x, &weight, 1e-5, out);
            }
            let mut buffers = vec![words(&x), words(&weight), vec![0; x.len()]];
            run(
                runner,
                &engine::rms_norm(rungs, rows as u32, dim as u32, 1e-5, false).unwrap(),
                &mut buffers,
            );
            assert_close(&values(&buffers[2]), &expected, 1e-6, "norm");
            let mut buffers = vec![words(&x), words(&weight)];
            run(runner, &engine::rms_norm(rungs, rows as u32, dim as u32, 1e-5, true).unwrap(), &mut buffers);
            assert_close(&values(&buffers[0]), &expected, 1e-6, "norm in place");
        }
        // A row of zeros stays zero.
        let mut buffers = vec![vec![0; 64], words(&[1.0; 64]), vec![1; 64]];
        run(runner, &engine::rms_norm(rungs, 1, 64, 1e-6, false).unwrap(), &mut buffers);
        assert_eq!(values(&buffers[2]), [0.0; 64]);
    });
}

#[test]
fn gates() {
    on_every_rung(|runner, rungs| {
        let mut rng = Rng::new(2);
        for activation in [Activation::Silu, Activation::GeluTanh] {
            for (rows, n) in [(1, 1), (3, 255), (2, 1536)] {
                let mut x = floats(&mut rng, rows * 2 * n);
                // Large values of either sign do not overflow.
                x[0] = 80.0;
                x[2 * n * (rows - 1)] = -80.0;
                let mut expected = vec![0.0; rows * n];
                for (x, out) in x.chunks_exact(2 * n).zip(expected.chunks_exact_mut(n)) {
                    scalar::gate(activation, x, out);
                }
                let mut buffers = vec![words(&x), vec![0; rows * n]];
                run(runner, &engine::gate(rungs, rows as u32, n as u32, activation).unwrap(), &mut buffers);
                for (f, e) in values(&buffers[1]).iter().zip(&expected) {
                    assert!((f - e).abs() <= 1e-5 * (1.0 + e.abs()), "{activation:?}: {f}, expected {e}");
                }
            }
        }
    });
}

#[test]
fn gathered_rows() {
    on_every_rung(|runner, rungs| {
        let x = floats(&mut Rng::new(3), 5 * 300);
        let mut buffers = vec![words(&x), vec![4, 0, 3, 3, 0], vec![0; 3 * 300]];
        let launch = engine::gather(rungs, 5, 3, 300).unwrap();
        run(runner, &launch, &mut buffers);
        for (i, row) in [4, 0, 3].into_iter().enumerate() {
            assert_eq!(values(&buffers[2])[i * 300..(i + 1) * 300], x[row * 300..(row + 1) * 300]);
        }
    });
}

/// A cache, rows of two sequences, and the scalar reference's results.
struct Scene {
    heads: usize,
    spec: KvGroup,
    kv: Storage,
    paged: Paged,
    tables: Vec<Vec<u32>>,
    /// Sequence and position of each row.
    rows: Vec<(usize, u32)>,
    qkv: Vec<f32>,
}

impl Scene {
    fn new(rng: &mut Rng, heads: usize, kv_heads: usize, head_dim: usize, kv: Storage) -> Scene {
        let spec = KvGroup { layers: 1, kv_heads, head_dim, window: None };
        let tables = vec![vec![7, 2, 9, 0, 4], vec![5, 1, 3, 8, 6]];
        let rows = vec![(0, 0), (0, 1), (1, 31), (1, 32), (0, 130), (1, 159)];
        let stride = (heads + 2 * kv_heads) * head_dim;
        let qkv = floats(rng, rows.len() * stride);
        let paged = Paged { kv, blocks: 10, rows: rows.len() as u32, entries: 10 };
        Scene { heads, spec, kv, paged, tables, rows, qkv }
    }

    fn stride(&self) -> usize {
        (self.heads + 2 * self.spec.kv_heads) * self.spec.head_dim
    }

    fn row_words(&self) -> Vec<u32> {
        self.rows.iter().flat_map(|(s, position)| [*position, *s as u32 * 5]).collect()
    }

    fn cache_words(&self) -> usize {
        10 * KV_BLOCK * self.spec.row() * self.kv.bytes() as usize / 4
    }

    /// Index of the first element of a head's vector in the device's cache.
    fn at(&self, sequence: usize, position: usize, head: usize) -> usize {
        let block = self.tables[sequence][position / KV_BLOCK] as usize;
        ((block * self.spec.kv_heads + head) * KV_BLOCK + position % KV_BLOCK) * self.spec.head_dim
    }
}

#[test]
fn ropes_and_cache_writes() {
    on_every_rung(|runner, rungs| {
        let mut rng = Rng::new(4);
        for (heads, kv_heads, head_dim, rope_dim, offset, pairing, norm, kv) in [
            (4, 2, 64, 64, 0, Pairing::Split, true, Storage::F16),
            (3, 1, 80, 32, 0, Pairing::Adjacent, false, Storage::F32),
            (2, 2, 192, 64, 128, Pairing::Split, false, Storage::F16),
            (8, 4, 6, 6, 0, Pairing::Split, true, Storage::F32),
        ] {
            let scene = Scene::new(&mut rng, heads, kv_heads, head_dim, kv);
            let spec =
                RopeSpec { rope_dim, offset, output_scale: 1.25, ..RopeSpec::new(pairing, head_dim, 1e4) };
            let rope = Rope::new(spec).unwrap();
            let weights = [floats(&mut rng, head_dim), floats(&mut rng, head_dim)];
            let mut expected = scene.qkv.clone();
            for (qkv, (_, position)) in expected.chunks_exact_mut(scene.stride()).zip(&scene.rows) {
                let mut phases = vec![[0.0; 2]; rope.pairs()];
                rope.phases(*position, &mut phases);
                for (i, head) in qkv.chunks_exact_mut(head_dim).take(heads + kv_heads).enumerate() {
                    if norm {
                        let x = head.to_vec();
                        scalar::rms_norm(&x, &weights[usize::from(i >= heads)], 1e-6, head);
                    }
                    rope.apply(head, &phases);
                }
            }
            let params = AttendParams {
                n_heads: heads as u32,
                n_kv_heads: kv_heads as u32,
                rope_dim: rope_dim as u32,
                rope_offset: offset as u32,
                stride: scene.stride() as u32,
                eps: 1e-6,
                pass_scale: 1.25,
                ..Default::default()
            };
            let canary = vec![0x7777_7777; scene.cache_words()];
            let tables: Vec<u32> = scene.tables.concat();
            let mut buffers = vec![words(&scene.qkv), canary.clone(), canary.clone()];
            buffers.extend([scene.row_words(), tables, engine::turns(&rope, 0)]);
            if norm {
                buffers.push(words(&weights.concat()));
            }
            let heads_of = Heads { head_dim: head_dim as u32, pairing, norm, write: true };
            let launch = engine::rope_write(rungs, params, heads_of, scene.paged).unwrap();
            run(runner, &launch, &mut buffers);
            let found = values(&buffers[0]);
            let tolerance = if kv == Storage::F16 { 1e-3 } else { 3e-6 };
            let mut touched = vec![false; 10 * KV_BLOCK * scene.spec.row()];
            for (row, (sequence, position)) in scene.rows.iter().enumerate() {
                let of_row =
                    |v: &[f32], from: usize, n: usize| v[row * scene.stride() + from..][..n].to_vec();
                let q = heads * head_dim;
                assert_close(&of_row(&found, 0, q), &of_row(&expected, 0, q), 3e-6, "Q");
                for head in 0..kv_heads {
                    let at = scene.at(*sequence, *position as usize, head);
                    touched[at..at + head_dim].fill(true);
                    for (buffer, first) in [(1, q), (2, q + kv_heads * head_dim)] {
                        let cached: Vec<f32> =
                            (at..at + head_dim).map(|i| element(&buffers[buffer], kv, i) as f32).collect();
                        let wanted = of_row(&expected, first + head * head_dim, head_dim);
                        assert_close(&cached, &wanted, tolerance, "cache");
                    }
                }
            }
            for (i, _) in touched.iter().enumerate().filter(|(_, touched)| !**touched) {
                for buffer in [1, 2] {
                    let (found, was) = (element(&buffers[buffer], kv, i), element(&canary, kv, i));
                    assert_eq!(found.to_bits(), was.to_bits(), "slot {i} is of another position");
                }
            }
        }
    });
}

#[test]
fn attention_over_a_paged_cache() {
    on_every_rung(|runner, rungs| {
        let mut rng = Rng::new(5);
        for (heads, kv_heads, head_dim, window, kv) in [
            (4, 2, 64, None, Storage::F16),
            (7, 1, 80, Some(40), Storage::F32),
            (2, 2, 192, None, Storage::F32),
            (3, 3, 6, Some(1), Storage::F16),
        ] {
            let scene = Scene::new(&mut rng, heads, kv_heads, head_dim, kv);
            let mut cache = KvCache::new(KvGroup { window, ..scene.spec }, 10);
            let mut device = [vec![0; scene.cache_words()], vec![0; scene.cache_words()]];
            for (sequence, table) in scene.tables.iter().enumerate() {
                for position in 0..160 {
                    let mut vectors =
                        [floats(&mut rng, scene.spec.row()), floats(&mut rng, scene.spec.row())];
                    for (vector, words) in vectors.iter_mut().zip(&mut device) {
                        for (i, value) in vector.iter_mut().enumerate() {
                            let at = scene.at(sequence, position, i / head_dim) + i % head_dim;
                            scalar::set(words, kv, at, f64::from(*value));
                            *value = element(words, kv, at) as f32;
                        }
                    }
                    cache.write(0, table, position, &vectors[0], &vectors[1]);
                }
            }
            let scale = 1.0 / (head_dim as f32).sqrt();
            let mut expected = Vec::new();
            for (row, (sequence, position)) in scene.rows.iter().enumerate() {
                let q = &scene.qkv[row * scene.stride()..][..heads * head_dim];
                let mut out = vec![0.0; heads * head_dim];
                let (table, position) = (scene.tables[*sequence].as_slice(), *position as usize);
                scalar::attention(&cache, 0, Query { q, table, position, scale, soft_cap: None }, &mut out);
                expected.extend(out);
            }
            let params = AttendParams {
                n_heads: heads as u32,
                n_kv_heads: kv_heads as u32,
                stride: scene.stride() as u32,
                scale,
                window: window.unwrap_or(0),
                ..Default::default()
            };
            let [k, v] = device;
            let out = vec![0; expected.len()];
            let mut buffers = vec![words(&scene.qkv), k, v, scene.row_words(), scene.tables.concat(), out];
            let launch = engine::attention(rungs, params, head_dim as u32, scene.paged).unwrap();
            run(runner, &launch, &mut buffers);
            assert_close(&values(&buffers[5]), &expected, 3e-6, "attention");
            // A row alone has the bits that it has in a batch.
            let all = buffers[5].clone();
            let one = heads * head_dim;
            buffers[5] = vec![0; expected.len()];
            let paged = Paged { rows: 1, ..scene.paged };
            let alone = engine::attention(rungs, params, head_dim as u32, paged).unwrap();
            run(runner, &alone, &mut buffers);
            assert_eq!(buffers[5][..one], all[..one]);
        }
    });
}
