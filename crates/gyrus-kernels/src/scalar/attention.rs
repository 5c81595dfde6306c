use crate::batch::KV_BLOCK;
use crate::plan::KvSpec;

/// A paged cache in `f32`: for each layer K and V as blocks of `[kv_heads, KV_BLOCK, head_dim]`.
#[derive(Debug)]
pub struct KvCache {
    spec: KvSpec,
    k: Vec<Vec<f32>>,
    v: Vec<Vec<f32>>,
}

impl KvCache {
    /// A cache of this many blocks.
    pub fn new(spec: KvSpec, blocks: usize) -> KvCache {
        let layer = || vec![0.0; blocks * KV_BLOCK * spec.row()];
        KvCache {
            spec,
            k: (0..spec.layers).map(|_| layer()).collect(),
            v: (0..spec.layers).map(|_| layer()).collect(),
        }
    }

    /// First element of one head's vector at a position.
    fn at(&self, table: &[u32], position: usize, head: usize) -> usize {
        let block = table[position / KV_BLOCK] as usize;
        ((block * self.spec.kv_heads + head) * KV_BLOCK + position % KV_BLOCK) * self.spec.head_dim
    }

    /// Stores the K and V rows `[kv_heads·head_dim]` of a position.
    pub fn write(&mut self, layer: usize, table: &[u32], position: usize, k: &[f32], v: &[f32]) {
        let n = self.spec.head_dim;
        for head in 0..self.spec.kv_heads {
            let at = self.at(table, position, head);
            self.k[layer][at..at + n].copy_from_slice(&k[head * n..(head + 1) * n]);
            self.v[layer][at..at + n].copy_from_slice(&v[head * n..(head + 1) * n]);
        }
    }

    fn k(&self, layer: usize, table: &[u32], position: usize, head: usize) -> &[f32] {
        let at = self.at(table, position, head);
        &self.k[layer][at..at + self.spec.head_dim]
    }

    fn v(&self, layer: usize, table: &[u32], position: usize, head: usize) -> &[f32] {
        let at = self.at(table, position, head);
        &self.v[layer][at..at + self.spec.head_dim]
    }
}

/// One row's question to the cache.
#[derive(Debug, Clone, Copy)]
pub struct Query<'a> {
    /// `[heads·head_dim]`.
    pub q: &'a [f32],
    /// The block table of the row's sequence.
    pub table: &'a [u32],
    /// The row's position.
    pub position: usize,
    /// Factor on the scores.
    pub scale: f32,
    /// How many positions the row sees, itself included.
    pub window: Option<u32>,
}

/// Attention of one row; `out` is `[heads·head_dim]`.
pub fn attention(cache: &KvCache, layer: usize, query: Query<'_>, out: &mut [f32]) {
    let KvSpec { heads, kv_heads, head_dim, .. } = cache.spec;
    let Query { q, table, position, scale, window } = query;
    let first = window.map_or(0, |w| (position + 1).saturating_sub(w as usize));
    for head in 0..heads {
        let kv_head = head / (heads / kv_heads);
        let q = &q[head * head_dim..(head + 1) * head_dim];
        let scores: Vec<f64> = (first..=position)
            .map(|p| {
                let k = cache.k(layer, table, p, kv_head);
                let dot: f64 = q.iter().zip(k).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum();
                dot * f64::from(scale)
            })
            .collect();
        let most = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let weights: Vec<f64> = scores.iter().map(|s| (s - most).exp()).collect();
        let total: f64 = weights.iter().sum();
        let out = &mut out[head * head_dim..(head + 1) * head_dim];
        for (i, out) in out.iter_mut().enumerate() {
            let sum: f64 = (first..=position)
                .zip(&weights)
                .map(|(p, w)| w * f64::from(cache.v(layer, table, p, kv_head)[i]))
                .sum();
            *out = (sum / total) as f32;
        }
    }
}
