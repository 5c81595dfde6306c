use crate::kv::{KV_BLOCK, KvGroup};
use crate::op::Span;

/// The paged cache of a group in `f32`: for each layer K and V as blocks of `[kv_heads, KV_BLOCK, head_dim]`.
#[derive(Debug)]
pub struct KvCache {
    group: KvGroup,
    k: Vec<Vec<f32>>,
    v: Vec<Vec<f32>>,
}

impl KvCache {
    /// A cache of this many blocks.
    pub fn new(group: KvGroup, blocks: usize) -> KvCache {
        let layer = || vec![0.0; blocks * KV_BLOCK * group.row()];
        KvCache {
            group,
            k: (0..group.layers).map(|_| layer()).collect(),
            v: (0..group.layers).map(|_| layer()).collect(),
        }
    }

    /// The group whose keys and values it holds.
    pub(super) fn group(&self) -> KvGroup {
        self.group
    }

    /// First element of one head's vector at a position.
    fn at(&self, table: &[u32], position: usize, head: usize) -> usize {
        let block = table[position / KV_BLOCK] as usize;
        ((block * self.group.kv_heads + head) * KV_BLOCK + position % KV_BLOCK) * self.group.head_dim
    }

    /// Stores the K and V rows `[kv_heads·head_dim]` of a position.
    pub fn write(&mut self, layer: usize, table: &[u32], position: usize, k: &[f32], v: &[f32]) {
        let n = self.group.head_dim;
        for head in 0..self.group.kv_heads {
            let at = self.at(table, position, head);
            self.k[layer][at..at + n].copy_from_slice(&k[head * n..(head + 1) * n]);
            self.v[layer][at..at + n].copy_from_slice(&v[head * n..(head + 1) * n]);
        }
    }

    pub(super) fn k(&self, layer: usize, table: &[u32], position: usize, head: usize) -> &[f32] {
        let at = self.at(table, position, head);
        &self.k[layer][at..at + self.group.head_dim]
    }

    pub(super) fn v(&self, layer: usize, table: &[u32], position: usize, head: usize) -> &[f32] {
        let at = self.at(table, position, head);
        &self.v[layer][at..at + self.group.head_dim]
    }
}

/// One row's query over the positions of a span.
#[derive(Debug, Clone, Copy)]
pub struct Query<'a> {
    /// `[heads·head_dim]`.
    pub q: &'a [f32],
    /// The block table of the row's sequence.
    pub table: &'a [u32],
    /// The row's position.
    pub position: usize,
    /// Which positions it attends to.
    pub span: Span,
    /// Positions of the sequence in the cache's group, for spans that are not causal.
    pub extent: u32,
    /// Factor on the scores.
    pub scale: f32,
    /// Scores become `soft_cap·tanh(score / soft_cap)`.
    pub soft_cap: Option<f32>,
    /// `[heads]`: scores that join the softmax and have no value.
    pub sinks: Option<&'a [f32]>,
}

/// Attention of one row; `out` is `[heads·head_dim]`.
pub fn attention(cache: &KvCache, layer: usize, query: Query<'_>, out: &mut [f32]) {
    let Query { q, table, position, span, extent, scale, soft_cap, sinks } = query;
    let seen = span.seen(position as u32, cache.group.window, extent);
    let seen: Vec<usize> = seen.map(|position| position as usize).collect();
    attend(cache, layer, Question { q, table, seen: &seen, scale, soft_cap, sinks }, out);
}

/// One row's query over any set of positions.
#[derive(Debug, Clone, Copy)]
pub struct Question<'a> {
    /// `[heads·head_dim]`.
    pub q: &'a [f32],
    /// The block table of the row's sequence.
    pub table: &'a [u32],
    /// The positions that the row attends to.
    pub seen: &'a [usize],
    /// Factor on the scores.
    pub scale: f32,
    /// Scores become `soft_cap·tanh(score / soft_cap)`.
    pub soft_cap: Option<f32>,
    /// `[heads]`: scores that join the softmax and have no value.
    pub sinks: Option<&'a [f32]>,
}

/// Attention of one row over its visible positions; `out` is `[heads·head_dim]`, zeros if there are none.
pub fn attend(cache: &KvCache, layer: usize, question: Question<'_>, out: &mut [f32]) {
    let KvGroup { kv_heads, head_dim, .. } = cache.group;
    let Question { q, table, seen, scale, soft_cap, sinks } = question;
    let heads = q.len() / head_dim;
    for head in 0..heads {
        let kv_head = head / (heads / kv_heads);
        let q = &q[head * head_dim..(head + 1) * head_dim];
        let scores: Vec<f64> = seen
            .iter()
            .map(|&p| {
                let k = cache.k(layer, table, p, kv_head);
                let dot: f64 = q.iter().zip(k).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum();
                let score = dot * f64::from(scale);
                soft_cap.map_or(score, |cap| f64::from(cap) * (score / f64::from(cap)).tanh())
            })
            .collect();
        let sink = sinks.map_or(f64::NEG_INFINITY, |sinks| sinks[head].into());
        let most = scores.iter().copied().fold(sink, f64::max);
        let weights: Vec<f64> = scores.iter().map(|s| (s - most).exp()).collect();
        let total: f64 = weights.iter().sum::<f64>() + (sink - most).exp();
        let out = &mut out[head * head_dim..(head + 1) * head_dim];
        for (i, out) in out.iter_mut().enumerate() {
            let sum: f64 = seen
                .iter()
                .zip(&weights)
                .map(|(&p, w)| w * f64::from(cache.v(layer, table, p, kv_head)[i]))
                .sum();
            *out = if seen.is_empty() { 0.0 } else { (sum / total) as f32 };
        }
    }
}
