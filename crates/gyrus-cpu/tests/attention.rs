//! Attention against a reference in `f64`, between instruction sets, and between batch shapes.

use gyrus_cpu::{Attention, CpuError, Isa, KvRow, KvStore, Pool, Scratch, Span, Strided, attention};
use gyrus_kernels::KV_BLOCK;
use gyrus_kernels::KvGroup;
use gyrus_kernels::call::Storage;
use gyrus_testkit::Rng;

struct Sequence {
    table: Vec<u32>,
    /// `q` is `[len, heads · head_dim]`; `k` and `v` are `[len, kv_heads · head_dim]`.
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    len: usize,
}

/// From one that takes almost all of the weight to one that takes none.
const SINKS: [f32; 9] = [9.0, -0.5, 0.0, -40.0, 1.5, 0.25, 3.0, -2.0, 60.0];

struct Case {
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    window: Option<u32>,
    softcap: Option<f32>,
    /// Of each head, or none.
    sinks: &'static [f32],
}

impl Case {
    fn params(&self) -> Attention<'static> {
        let scale = 1.0 / (self.head_dim as f32).sqrt();
        let sinks = (!self.sinks.is_empty()).then_some(self.sinks);
        Attention {
            layer: 1,
            heads: self.heads,
            scale,
            span: Span::Causal,
            window: self.window,
            softcap: self.softcap,
            sinks,
        }
    }

    fn q_width(&self) -> usize {
        self.heads * self.head_dim
    }

    fn kv_width(&self) -> usize {
        self.kv_heads * self.head_dim
    }

    /// Sequences whose blocks are scattered over the cache.
    fn sequences(&self, rng: &mut Rng, lens: &[usize]) -> Vec<Sequence> {
        let mut free: Vec<u32> = (0..lens.iter().map(|l| l.div_ceil(KV_BLOCK) as u32).sum()).collect();
        let random = |rng: &mut Rng, n: usize| (0..n).map(|_| rng.gaussian() as f32).collect::<Vec<_>>();
        let mut sequences = Vec::new();
        for &len in lens {
            let table =
                (0..len.div_ceil(KV_BLOCK)).map(|_| free.swap_remove(rng.below(free.len()))).collect();
            let q = random(rng, len * self.q_width());
            let (k, v) = (random(rng, len * self.kv_width()), random(rng, len * self.kv_width()));
            sequences.push(Sequence { table, q, k, v, len });
        }
        sequences
    }

    fn store(&self, pool: &Pool, sequences: &[Sequence], dtype: Storage) -> KvStore {
        let blocks = sequences.iter().map(|s| s.table.len()).sum();
        let shape = KvGroup { layers: 2, kv_heads: self.kv_heads, head_dim: self.head_dim, window: None };
        let mut store = KvStore::new(shape, blocks, dtype).unwrap();
        // Fill all blocks with NaN first: attention must not read stale values of an earlier sequence.
        let all: Vec<u32> = (0..blocks as u32).collect();
        let rows: Vec<KvRow> = (0..blocks * KV_BLOCK).map(|p| KvRow::causal(&all, p as u32)).collect();
        let poison = vec![f32::NAN; blocks * KV_BLOCK * self.kv_width()];
        store.write_rows(
            pool,
            1,
            &rows,
            Strided { data: &poison, stride: self.kv_width() },
            Strided { data: &poison, stride: self.kv_width() },
        );
        for s in sequences {
            let rows: Vec<KvRow> = (0..s.len).map(|p| KvRow::causal(&s.table, p as u32)).collect();
            store.write_rows(
                pool,
                1,
                &rows,
                Strided { data: &s.k, stride: self.kv_width() },
                Strided { data: &s.v, stride: self.kv_width() },
            );
        }
        store
    }

    /// The output of every row, in batches of `chunk` rows of each sequence.
    fn run(&self, pool: &Pool, store: &KvStore, sequences: &[Sequence], chunk: usize) -> Vec<Vec<f32>> {
        let width = self.q_width();
        let mut outs: Vec<Vec<f32>> = sequences.iter().map(|s| vec![f32::NAN; s.len * width]).collect();
        let mut scratch = Scratch::new();
        let longest = sequences.iter().map(|s| s.len).max().unwrap();
        for from in (0..longest).step_by(chunk) {
            let (mut rows, mut q, mut places) = (Vec::new(), Vec::new(), Vec::new());
            for (i, s) in sequences.iter().enumerate() {
                for position in from..s.len.min(from + chunk) {
                    rows.push(KvRow::causal(&s.table, position as u32));
                    // The stride is wider than a row; NaN fills the gap.
                    q.extend_from_slice(&s.q[position * width..(position + 1) * width]);
                    q.extend([f32::NAN; 3]);
                    places.push((i, position));
                }
            }
            let mut out = vec![f32::NAN; rows.len() * width];
            attention(
                pool,
                store,
                &self.params(),
                &rows,
                Strided { data: &q, stride: width + 3 },
                &mut out,
                &mut scratch,
            );
            for (out, (i, position)) in out.chunks_exact(width).zip(places) {
                outs[i][position * width..(position + 1) * width].copy_from_slice(out);
            }
        }
        outs
    }

    /// The definition, in `f64`.
    fn reference(&self, s: &Sequence, position: usize, head: usize) -> Vec<f64> {
        let (hd, kv) = (self.head_dim, head / (self.heads / self.kv_heads));
        let q = &s.q[position * self.q_width() + head * hd..][..hd];
        let at = |x: &'_ [f32], p: usize, i: usize| f64::from(x[p * self.kv_width() + kv * hd + i]);
        let first = self.window.map_or(0, |w| (position + 1).saturating_sub(w as usize));
        let scores: Vec<f64> = (first..=position)
            .map(|p| {
                let dot: f64 = (0..hd).map(|i| f64::from(q[i]) * at(&s.k, p, i)).sum();
                let score = dot / (hd as f64).sqrt();
                self.softcap.map_or(score, |cap| f64::from(cap) * (score / f64::from(cap)).tanh())
            })
            .collect();
        let sink = self.sinks.get(head).map_or(f64::NEG_INFINITY, |sink| f64::from(*sink));
        let max = scores.iter().copied().fold(sink, f64::max);
        let sum: f64 = scores.iter().map(|s| (s - max).exp()).sum::<f64>() + (sink - max).exp();
        let weight = |p: usize| (scores[p - first] - max).exp() / sum;
        (0..hd).map(|i| (first..=position).map(|p| weight(p) * at(&s.v, p, i)).sum()).collect()
    }
}

fn bits(outs: &[Vec<f32>]) -> Vec<Vec<u32>> {
    outs.iter().map(|out| out.iter().map(|v| v.to_bits()).collect()).collect()
}

#[test]
fn attention_matches_f64_on_a_grid_of_shapes() {
    let mut rng = Rng::new(20);
    for (heads, kv_heads, head_dim) in
        [(1, 1, 8), (9, 3, 64), (4, 4, 12), (8, 2, 80), (4, 1, 256), (6, 3, 5), (5, 1, 16)]
    {
        for (window, softcap) in [(None, None), (Some(1), None), (Some(40), Some(20.0)), (Some(300), None)] {
            let sinks = if softcap.is_none() && window.is_none() { &[] } else { &SINKS[..heads] };
            let case = Case { heads, kv_heads, head_dim, window, softcap, sinks };
            let sequences = case.sequences(&mut rng, &[1, 33, 310]);
            for (dtype, tolerance) in [(Storage::F32, 3e-6), (Storage::F16, 4e-3)] {
                let pool = Pool::new(2);
                let store = case.store(&pool, &sequences, dtype);
                let outs = case.run(&pool, &store, &sequences, 64);
                for (s, out) in sequences.iter().zip(&outs) {
                    for position in (0..s.len).filter(|p| p % 23 == 0 || *p + 1 == s.len || p % 32 == 31) {
                        for head in 0..heads {
                            let got = &out[(position * heads + head) * head_dim..][..head_dim];
                            for (got, want) in got.iter().zip(case.reference(s, position, head)) {
                                let error = (f64::from(*got) - want).abs();
                                assert!(
                                    error <= tolerance,
                                    "{heads}/{kv_heads}×{head_dim} {dtype:?} {window:?} at {position}: {got} {want}"
                                );
                            }
                        }
                    }
                }
            }
        }
    }
}

/// A row has the same bits alone or batched, in chunks of any size, on any number of threads.
#[test]
fn attention_is_invariant_to_chunks_batches_and_threads() {
    let mut rng = Rng::new(21);
    for (window, softcap, dtype) in
        [(None, None, Storage::F16), (None, Some(30.0), Storage::F32), (Some(100), None, Storage::F16)]
    {
        let case = Case { heads: 6, kv_heads: 2, head_dim: 24, window, softcap, sinks: &SINKS[..6] };
        let sequences = case.sequences(&mut rng, &[700, 5, 290]);
        let store = case.store(&Pool::new(1), &sequences, dtype);
        let alone: Vec<Vec<f32>> = sequences
            .iter()
            .flat_map(|s| case.run(&Pool::new(1), &store, std::slice::from_ref(s), 1))
            .collect();
        for threads in [1, 2, 4] {
            let pool = Pool::new(threads);
            for chunk in [1, 2, 7, 64, 512] {
                let outs = case.run(&pool, &store, &sequences, chunk);
                assert!(bits(&outs) == bits(&alone), "{window:?} {dtype:?} chunk {chunk}, {threads} threads");
            }
        }
    }
}

#[test]
fn attention_is_bit_equal_on_all_instruction_sets() {
    let mut rng = Rng::new(22);
    for head_dim in [8, 40, 64, 20] {
        let case = Case {
            heads: 4,
            kv_heads: 2,
            head_dim,
            window: Some(50),
            softcap: Some(10.0),
            sinks: &SINKS[..4],
        };
        let sequences = case.sequences(&mut rng, &[300, 40]);
        for dtype in [Storage::F32, Storage::F16] {
            let run = |isa| {
                let pool = Pool::with_isa(2, isa);
                let store = case.store(&pool, &sequences, dtype);
                bits(&case.run(&pool, &store, &sequences, 16))
            };
            let portable = run(Isa::PORTABLE);
            for isa in Isa::supported() {
                assert!(run(isa) == portable, "{head_dim} {dtype:?} {isa:?}");
            }
        }
    }
}

#[test]
fn invalid_cache_shapes_are_rejected() {
    let shape = KvGroup { layers: 1, kv_heads: 8, head_dim: 64, window: None };
    assert!(matches!(KvStore::new(shape, usize::MAX / 64, Storage::F16), Err(CpuError::Cache { .. })));
    let shape = KvGroup { layers: 1, kv_heads: 0, head_dim: 64, window: None };
    assert!(matches!(KvStore::new(shape, 1, Storage::F16), Err(CpuError::Cache { .. })));
}

/// Rows of sequences that share blocks get the bits that they get alone, wherever their sequences part.
#[test]
fn rows_that_share_blocks_match_rows_alone() {
    let mut rng = Rng::new(23);
    for (heads, kv_heads, window) in [(9, 3, None), (4, 4, None), (8, 1, Some(70))] {
        let case = Case { heads, kv_heads, head_dim: 64, window, softcap: None, sinks: &[] };
        let len = 400;
        let all = case.sequences(&mut rng, &[len; 5]);
        for dtype in [Storage::F16, Storage::F32] {
            for threads in [1, 2] {
                let pool = Pool::new(threads);
                let store = case.store(&pool, &all, dtype);
                // The first blocks are those of sequence 0, the others a sequence's own.
                let tables: Vec<Vec<u32>> = (0..40)
                    .map(|n| {
                        let (own, shared) = (&all[n % 5].table, rng.below(len / KV_BLOCK));
                        [&all[0].table[..shared], &own[shared..]].concat()
                    })
                    .collect();
                let place = |table| KvRow::causal(table, rng.below(len) as u32);
                let rows: Vec<KvRow> = tables.iter().map(Vec::as_slice).map(place).collect();
                let width = case.q_width();
                let q: Vec<f32> = (0..rows.len() * width).map(|i| all[0].q[i % (len * width)]).collect();
                let run = |rows: &[KvRow], q: &[f32]| {
                    let mut out = vec![f32::NAN; rows.len() * width];
                    let q = Strided { data: q, stride: width };
                    attention(&pool, &store, &case.params(), rows, q, &mut out, &mut Scratch::new());
                    out
                };
                let together = run(&rows, &q);
                for (n, together) in together.chunks_exact(width).enumerate() {
                    let alone = run(&rows[n..n + 1], &q[n * width..(n + 1) * width]);
                    assert_eq!(
                        bits(&[together.to_vec()]),
                        bits(&[alone]),
                        "row {n}, {heads} heads, {dtype:?}, {threads} threads"
                    );
                }
            }
        }
    }
}
