//! Fused kernels equal their parts.

use super::bench::{Bench, Heads, PAIRINGS, equal, near, pack, rounded, turns_table, unit, unpack};
use crate::Direction;
use crate::call::{Cache, Freqs, RopeCall, RopeKernel, Storage};
use crate::grid::{Noise, Runner};
use crate::params::{NormEpsParams, RoPEQKVWriteParams};
use crate::rope::Pairing;
use crate::scalar;

/// One token's call, with the table of its cache.
#[derive(Debug, Clone)]
pub(super) struct Qkv {
    pub(super) pairing: Pairing,
    pub(super) storage: Storage,
    pub(super) params: RoPEQKVWriteParams,
    pub(super) cache: Cache,
    pub(super) blocks: Vec<u32>,
}

impl Qkv {
    pub(super) fn draw(noise: &mut Noise, (n_heads, n_kv_heads): (u32, u32)) -> Qkv {
        let head_dim = noise.pick(&[2, 6, 16, 64, 70, 128, 192]);
        let rope_dim = if noise.below(3) == 0 { 2 * (1 + noise.below(head_dim / 2)) } else { head_dim };
        let rest = head_dim - rope_dim;
        let gap = noise.pick(&[0, 0, 2, 8]);
        let k_elem_offset = n_heads * head_dim + gap;
        let pos = noise.pick(&[0, 1, 4095, 131_071, 1_048_000]);
        let paged = noise.below(2) == 0;
        let (max_seq_len, entries) = if paged { (4, 6) } else { (24, 1) };
        let first = noise.below(7);
        Qkv {
            pairing: noise.pick(&PAIRINGS),
            storage: noise.pick(&[Storage::F32, Storage::F16]),
            params: RoPEQKVWriteParams {
                n_kv_heads,
                head_dim,
                max_seq_len,
                pos,
                theta: noise.pick(&[1e4, 5e5]),
                n_heads,
                k_elem_offset,
                v_elem_offset: k_elem_offset + n_kv_heads * head_dim + gap,
                freq_scale: 1.0,
                rope_dim: if rope_dim == head_dim { 0 } else { rope_dim },
                rope_offset: noise.pick(&[0, rest, rest / 2]),
                slot_offset: noise.below(18).wrapping_sub(pos),
            },
            cache: if paged { Cache::Paged { entries, blocks: 7 } } else { Cache::Contiguous },
            // Every entry another block, in no order.
            blocks: if paged { (0..entries).map(|i| (first + 3 * i) % 7).collect() } else { Vec::new() },
        }
    }

    fn call(&self, kernel: RopeKernel) -> RopeCall {
        let (storage, direction) = (self.storage, Direction::Forward);
        RopeCall { kernel, storage, direction, freqs: Freqs::Turns, positions: 0 }
    }

    pub(super) fn one(&self) -> RopeCall {
        let Qkv { pairing, params, cache, .. } = *self;
        self.call(RopeKernel::QkvWrite { pairing, params, cache })
    }

    pub(super) fn rope_dim(&self) -> u32 {
        if self.params.rope_dim == 0 { self.params.head_dim } else { self.params.rope_dim }
    }

    fn q_len(&self) -> usize {
        (self.params.n_heads * self.params.head_dim) as usize
    }

    fn kv_len(&self) -> usize {
        (self.params.n_kv_heads * self.params.head_dim) as usize
    }

    /// Elements of the row of Q, K and V.
    pub(super) fn row_len(&self) -> usize {
        self.params.v_elem_offset as usize + self.kv_len()
    }

    /// Q, K and V of a row.
    pub(super) fn parts<'r>(&self, row: &'r [f64]) -> [&'r [f64]; 3] {
        let part = |at: u32, len| &row[at as usize..at as usize + len];
        let (k, v) = (self.params.k_elem_offset, self.params.v_elem_offset);
        [part(0, self.q_len()), part(k, self.kv_len()), part(v, self.kv_len())]
    }

    /// Words of a cache.
    pub(super) fn cache_words(&self) -> usize {
        let blocks = if let Cache::Paged { blocks, .. } = self.cache { blocks as usize } else { 1 };
        blocks * self.kv_len() * self.params.max_seq_len as usize * self.storage.bytes() as usize / 4
    }

    /// The tables that follow the tensors.
    pub(super) fn tables(&self, scale: f64) -> Vec<Vec<u32>> {
        let mut tables = vec![turns_table(self.params.theta, self.rope_dim(), scale)];
        if matches!(self.cache, Cache::Paged { .. }) {
            tables.push(self.blocks.clone());
        }
        tables
    }

    /// Runs a call on a row and two caches.
    pub(super) fn run(
        &self,
        bench: &mut Bench<'_>,
        row: &[f64],
        caches: &[Vec<u32>; 2],
        scale: f64,
    ) -> Result<(Vec<f64>, [Vec<u32>; 2]), String> {
        let mut buffers = vec![pack(self.storage, row), caches[0].clone(), caches[1].clone()];
        buffers.extend(self.tables(scale));
        let mut after = bench.run(&self.one(), buffers)?.into_iter();
        let mut next = || after.next().expect("as many buffers as went in");
        Ok((unpack(self.storage, &next(), row.len()), [next(), next()]))
    }

    /// First elements in the cache of the heads of a token that many places after the first.
    fn places(&self, token: u32) -> Vec<usize> {
        let p = &self.params;
        let slot = p.pos.wrapping_add(p.slot_offset) + token;
        let (block, within) = match self.cache {
            Cache::Contiguous => (0, slot),
            Cache::Paged { .. } => (self.blocks[(slot / p.max_seq_len) as usize], slot % p.max_seq_len),
        };
        let head = |h| (((block * p.n_kv_heads + h) * p.max_seq_len + within) * p.head_dim) as usize;
        (0..p.n_kv_heads).map(head).collect()
    }

    /// Takes a token's heads out of a cache: their values, and the cache with zeros in their place.
    pub(super) fn take(&self, mut words: Vec<u32>, token: u32) -> (Vec<f64>, Vec<u32>) {
        let mut values = Vec::new();
        for at in self.places(token) {
            for i in at..at + self.params.head_dim as usize {
                values.push(scalar::element(&words, self.storage, i));
                scalar::set(&mut words, self.storage, i, 0.0);
            }
        }
        (values, words)
    }

    fn caches(&self, noise: &mut Noise) -> [Vec<u32>; 2] {
        [noise.words(self.cache_words()), noise.words(self.cache_words())]
    }

    /// These heads as the plain kernel takes them.
    fn heads(&self, heads: u32) -> Heads {
        Heads {
            pairing: self.pairing,
            storage: self.storage,
            direction: Direction::Forward,
            tokens: 1,
            heads,
            head_dim: self.params.head_dim,
            rope_dim: self.rope_dim(),
            offset: self.params.rope_offset,
            base: self.params.theta,
            position: self.params.pos,
            gap: 0,
        }
    }

    /// Compares a token's place in both caches, and that nothing else was written.
    fn check(
        &self,
        bench: &Bench<'_>,
        token: u32,
        before: &[Vec<u32>; 2],
        after: &[Vec<u32>; 2],
        expected: [&[f64]; 2],
    ) -> Result<(), String> {
        for (i, name) in ["k_cache", "v_cache"].iter().enumerate() {
            let (found, rest) = self.take(after[i].clone(), token);
            if rest != self.take(before[i].clone(), token).1 {
                return Err(format!("{name}: another slot was written ({self:?})"));
            }
            let what = format!("{name} {self:?}");
            // Values are copied, so they are equal on every runner.
            if i == 1 {
                equal(&what, &found, expected[i])?
            } else {
                bench.same(&what, self.storage, &found, expected[i])?
            }
        }
        Ok(())
    }
}

/// T8. `rope_qkv_write` equals `rope` of queries and keys plus a copy of keys and values; the batch kernels equal a
/// loop of it; the kernel with head norms equals the norm followed by it.
///
/// The last is equal up to the storage's rounding only: the fused kernel does not round the normalised head.
pub fn fused_kernels_are_their_parts(runner: &mut dyn Runner, seed: u64, count: usize) -> Result<(), String> {
    let mut bench = Bench::new(runner, seed);
    for _ in 0..count {
        let heads = bench.noise.pick(&[(1, 1), (4, 4), (8, 2), (6, 1)]);
        let qkv = Qkv::draw(&mut bench.noise, heads);
        one_token(&mut bench, &qkv).map_err(|error| format!("T8 {error}"))?;
        several_tokens(&mut bench, &qkv).map_err(|error| format!("T8 {error}"))?;
        head_norm(&mut bench, &Qkv { pairing: Pairing::Split, ..qkv })
            .map_err(|error| format!("T8 {error}"))?;
    }
    Ok(())
}

fn one_token(bench: &mut Bench<'_>, qkv: &Qkv) -> Result<(), String> {
    let row = bench.numbers(qkv.storage, qkv.row_len());
    let caches = qkv.caches(&mut bench.noise);
    let (rotated, after) = qkv.run(bench, &row, &caches, 1.0)?;
    let [q, k, v] = qkv.parts(&row);
    let q = bench.rotate(&qkv.heads(qkv.params.n_heads), q)?;
    let k = bench.rotate(&qkv.heads(qkv.params.n_kv_heads), k)?;
    bench.same(&format!("Q {qkv:?}"), qkv.storage, qkv.parts(&rotated)[0], &q)?;
    // Keys and values in the row, and what lies between them.
    equal(&format!("the rest of the row {qkv:?}"), &rotated[q.len()..], &row[q.len()..])?;
    qkv.check(bench, 0, &caches, &after, [&k, v])
}

fn several_tokens(bench: &mut Bench<'_>, qkv: &Qkv) -> Result<(), String> {
    let tokens = 1 + bench.noise.below(6);
    let (q_len, kv_len) = (qkv.q_len(), qkv.kv_len());
    let [q, k, v] = [q_len, kv_len, kv_len].map(|len| bench.numbers(qkv.storage, tokens as usize * len));
    let caches = qkv.caches(&mut bench.noise);
    let params = RoPEQKVWriteParams { k_elem_offset: tokens, v_elem_offset: 0, ..qkv.params };
    let call = qkv.call(RopeKernel::BatchKvWrite { pairing: qkv.pairing, params, cache: qkv.cache });
    let mut buffers: Vec<Vec<u32>> = [&q, &k, &v].iter().map(|x| pack(qkv.storage, x)).collect();
    buffers.extend(caches.clone());
    buffers.extend(qkv.tables(1.0));
    let after = bench.run(&call, buffers)?;
    let rotated = unpack(qkv.storage, &after[0], q.len());
    let mut found = [after[3].clone(), after[4].clone()];

    let mut expected = caches;
    for token in 0..tokens as usize {
        let mut one = qkv.clone();
        one.params.pos += token as u32;
        (one.params.k_elem_offset, one.params.v_elem_offset) = (q_len as u32, (q_len + kv_len) as u32);
        let of = |x: &[f64], len| x[token * len..(token + 1) * len].to_vec();
        let row = [of(&q, q_len), of(&k, kv_len), of(&v, kv_len)].concat();
        let (row, caches) = one.run(bench, &row, &expected, 1.0)?;
        expected = caches;
        bench.same(
            &format!("Q of token {token} {qkv:?}"),
            qkv.storage,
            &of(&rotated, q_len),
            one.parts(&row)[0],
        )?;
    }
    for token in 0..tokens {
        for i in 0..2 {
            let (a, b) = (qkv.take(found[i].clone(), token), qkv.take(expected[i].clone(), token));
            bench.same(&format!("cache {i}, token {token} {qkv:?}"), qkv.storage, &a.0, &b.0)?;
            (found[i], expected[i]) = (a.1, b.1);
        }
    }
    if found != expected {
        return Err(format!("another slot was written by the batch ({qkv:?})"));
    }
    Ok(())
}

fn head_norm(bench: &mut Bench<'_>, qkv: &Qkv) -> Result<(), String> {
    let row = bench.numbers(qkv.storage, qkv.row_len());
    let caches = qkv.caches(&mut bench.noise);
    let n = qkv.params.head_dim as usize;
    let weights = [bench.numbers(qkv.storage, n), bench.numbers(qkv.storage, n)];
    let plus_one = bench.noise.below(2) == 0;
    let eps = NormEpsParams { norm_eps: bench.noise.pick(&[1e-6, 1e-5]), ..Default::default() };
    let call = qkv.call(RopeKernel::HeadNorm { params: qkv.params, eps, plus_one, cache: qkv.cache });
    let mut buffers = vec![pack(qkv.storage, &row), caches[0].clone(), caches[1].clone()];
    buffers.extend(weights.iter().map(|weight| pack(qkv.storage, weight)));
    buffers.extend(qkv.tables(1.0));
    let after = bench.run(&call, buffers)?;
    let rotated = unpack(qkv.storage, &after[0], row.len());

    let mut normed = row.clone();
    let starts = [(0, qkv.q_len()), (qkv.params.k_elem_offset as usize, qkv.kv_len())];
    for ((start, len), weight) in starts.into_iter().zip(&weights) {
        for head in normed[start..start + len].chunks_exact_mut(n) {
            let mean = head.iter().map(|v| v * v).sum::<f64>() / n as f64;
            let factor = 1.0 / (mean + f64::from(eps.norm_eps)).sqrt();
            for (value, weight) in head.iter_mut().zip(weight) {
                *value = rounded(qkv.storage, *value * factor * (weight + f64::from(u8::from(plus_one))));
            }
        }
    }
    let (expected, expected_caches) = qkv.run(bench, &normed, &caches, 1.0)?;
    let tolerance = 2.0 * unit(qkv.storage);
    near(&format!("normalised Q {qkv:?}"), qkv.parts(&rotated)[0], qkv.parts(&expected)[0], tolerance)?;
    let q_len = qkv.q_len();
    equal(&format!("the rest of the row {qkv:?}"), &rotated[q_len..], &row[q_len..])?;
    let (found, rest) = qkv.take(after[1].clone(), 0);
    let (wanted, wanted_rest) = qkv.take(expected_caches[0].clone(), 0);
    near(&format!("normalised K {qkv:?}"), &found, &wanted, tolerance)?;
    if rest != wanted_rest || after[2] != expected_caches[1] {
        return Err(format!("head norm: values, or another slot, differ ({qkv:?})"));
    }
    Ok(())
}

/// T9. Keys and values have their own heads: whatever queries there are, the cache gets the key heads and nothing
/// else, each in the place of its own number.
pub fn only_key_heads_reach_the_cache(
    runner: &mut dyn Runner,
    seed: u64,
    count: usize,
) -> Result<(), String> {
    let mut bench = Bench::new(runner, seed);
    for case in 0..count {
        let heads = [(3, 3), (8, 2), (7, 1), (12, 3)][case % 4];
        let qkv = Qkv::draw(&mut bench.noise, heads);
        let caches = qkv.caches(&mut bench.noise);
        let row = bench.numbers(qkv.storage, qkv.row_len());
        let (rotated, after) = qkv.run(&mut bench, &row, &caches, 1.0)?;
        let [_, k, v] = qkv.parts(&row);
        let k = bench.rotate(&qkv.heads(qkv.params.n_kv_heads), k)?;
        qkv.check(&bench, 0, &caches, &after, [&k, v]).map_err(|error| format!("T9 {error}"))?;

        // The same kernel does the same sums: bits are equal on every runner.
        let mut other = bench.numbers(qkv.storage, qkv.row_len());
        other[qkv.q_len()..].copy_from_slice(&row[qkv.q_len()..]);
        if qkv.run(&mut bench, &other, &caches, 1.0)?.1 != after {
            return Err(format!("T9: other queries, another cache ({qkv:?})"));
        }
        let mut other = bench.numbers(qkv.storage, qkv.row_len());
        other[..qkv.q_len()].copy_from_slice(&row[..qkv.q_len()]);
        let (other, _) = qkv.run(&mut bench, &other, &caches, 1.0)?;
        equal(
            &format!("T9 queries beside other keys {qkv:?}"),
            qkv.parts(&other)[0],
            qkv.parts(&rotated)[0],
        )?;
    }
    Ok(())
}
