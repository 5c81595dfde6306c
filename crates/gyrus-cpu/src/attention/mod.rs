//! Attention of a batch of rows over the paged KV cache.
//!
//! A row's positions are processed in blocks of [`KV_BLOCK`] and splits of [`SPLIT`] blocks, both at fixed
//! positions of its sequence. Within a split an online softmax runs block by block; splits are merged in
//! ascending order. So a row gets the same bits alone, in any chunk of a prompt, or batched with other
//! sequences, and on any number of threads.

mod kernel;

use std::ops::Range;

use gyrus_kernels::{KV_BLOCK, Span};
use kernel::{GemmShape, SoftmaxState, gemm, merge, softmax_block};

use crate::exp::exp;
use crate::kv::{KvRow, KvStore, Stored, Strided, f16_to_f32};
use crate::pool::Pool;
use crate::scratch::{Scratch, grow};
use crate::storage::Disjoint;
use crate::thread_scratch;

/// Blocks of a split, over which one online softmax runs: 256 positions.
const SPLIT: usize = 8;

/// Rows that a task processes together, counting each query head of the KV head as a row.
const TASK_ROWS: usize = 64;

/// The most query heads per KV head (grouped-query attention).
const MAX_HEADS_PER_KV_HEAD: usize = 128;

/// Up to this many rows the GEMM converts f16 blocks on the fly; for more, a block is converted once.
const ON_THE_FLY_ROWS: usize = 4;

/// Up to this many rows the next block is prefetched.
const PREFETCH_ROWS: usize = 16;

/// Elements of one row's partial results over a sequence of `blocks` blocks.
pub(crate) fn partial_elems(heads: usize, head_dim: usize, blocks: usize) -> usize {
    heads.saturating_mul(blocks.div_ceil(SPLIT)).saturating_mul(2 + head_dim)
}

/// Batches of up to this many rows may run their splits in parallel.
const SPLIT_ROWS: usize = 8;

/// The parameters of an attention op.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Attention<'a> {
    /// The layer of the KV cache.
    pub layer: usize,
    /// Query heads, a multiple of the KV heads.
    pub heads: usize,
    /// The scale of the scores, usually `1 / √head_dim`.
    pub scale: f32,
    /// Which positions a row attends to.
    pub span: Span,
    /// Sliding window of a causal span: the most positions a row attends to, its own included.
    pub window: Option<u32>,
    /// Soft cap of the scores: `score ← cap · tanh(score / cap)`.
    pub softcap: Option<f32>,
    /// `[heads]`: a score of each head that joins the softmax and has no value.
    pub sinks: Option<&'a [f32]>,
}

/// Adjacent rows of one sequence, or of sequences that share blocks.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Group {
    first: usize,
    count: usize,
}

/// Attention of each row over the positions of its own sequence that its span has. A row whose span is empty gets zeros.
///
/// A row of `q` is `[heads, head_dim]`; `out` is dense, `[m, heads · head_dim]`. The keys and values of all
/// positions, the rows' own included, are already in `store`.
///
/// # Panics
/// If a slice has the wrong length, or a block that a row attends to is missing or out of range.
pub fn attention(
    pool: &Pool,
    store: &KvStore,
    params: &Attention,
    rows: &[KvRow],
    q: Strided,
    out: &mut [f32],
    scratch: &mut Scratch,
) {
    let group = store.group();
    let (hd, kv_heads) = (group.head_dim, group.kv_heads);
    assert!(
        params.heads > 0 && params.heads.is_multiple_of(kv_heads),
        "{} heads over {kv_heads}",
        params.heads
    );
    assert_eq!(out.len(), rows.len() * params.heads * hd, "output length for {} rows", rows.len());
    assert!(params.window != Some(0), "a sliding window must be at least 1");
    if rows.is_empty() {
        return;
    }
    assert!(
        q.data.len() >= (rows.len() - 1) * q.stride + params.heads * hd,
        "{} query elements are too few for {} rows",
        q.data.len(),
        rows.len()
    );
    for row in rows {
        let seen = seen(row, params);
        let needed = seen.end.div_ceil(KV_BLOCK);
        assert!(
            row.table.len() >= needed,
            "{} positions need {needed} blocks, the table has {}",
            seen.end,
            row.table.len()
        );
        let attended = &row.table[(seen.start / KV_BLOCK).min(needed)..needed];
        assert!(
            attended.iter().all(|&b| (b as usize) < store.blocks()),
            "a block index is outside the cache of {} blocks",
            store.blocks()
        );
    }

    let per_head = params.heads / kv_heads;
    assert!(
        per_head <= MAX_HEADS_PER_KV_HEAD,
        "{per_head} query heads per KV head, at most {MAX_HEADS_PER_KV_HEAD} are supported"
    );
    let most = (TASK_ROWS / per_head).max(1);
    // Rows that share blocks still make enough tasks for all threads.
    let most_sharing = (rows.len() * kv_heads / (4 * pool.threads())).clamp(1, most);
    group_rows(rows, params, [most, most_sharing], [kv_heads, pool.threads()], &mut scratch.groups);
    let job = Job { pool, store, params, rows, q, per_head, hd };
    let groups = &scratch.groups[..];
    let tasks = groups.len() * kv_heads;
    let splits = |row: &KvRow| seen(row, params).end.div_ceil(SPLIT * KV_BLOCK).max(1);
    let most = rows.iter().map(splits).max().unwrap_or(1);
    let output = Disjoint::new(out);
    if tasks >= 4 * pool.threads() || most == 1 || rows.len() > SPLIT_ROWS || pool.threads() == 1 {
        pool.run(tasks, &|task| job.run_group(groups[task / kv_heads], task % kv_heads, &output));
        return;
    }

    // Few rows with long contexts (decode): each split is a task, and a second loop merges the results.
    let size = hd + 2;
    grow(&mut scratch.partials, rows.len() * params.heads * most * size);
    let partials = Disjoint::new(&mut scratch.partials);
    pool.run(tasks * most, &|task| {
        let (task, split) = (task / most, task % most);
        job.run_partial(groups[task / kv_heads], task % kv_heads, split, most, &partials);
    });
    pool.run(rows.len(), &|row| {
        for head in 0..params.heads {
            let at = row * params.heads + head;
            // SAFETY: each task accesses its own row in both buffers, and the first loop has finished.
            let (out, parts) = unsafe {
                (
                    output.part(at * hd..(at + 1) * hd),
                    partials.part(at * most * size..(at * most + splits(&rows[row])) * size),
                )
            };
            let mut state = SoftmaxState::EMPTY;
            for part in parts.chunks_exact(size) {
                let (head, part_out) = part.split_at(2);
                let part_state = SoftmaxState { max: head[0], sum: head[1] };
                if part_state.sum != 0.0 {
                    merge(&mut state, out, part_state, part_out);
                }
            }
            match seen(&rows[row], params).is_empty() {
                true => out.fill(0.0),
                false => finish(out, state, params.sinks.map(|sinks| sinks[head])),
            }
        }
    });
}

/// Divides the weighted sum of values by the sum of weights, to which a sink adds its own. If all scores were −∞, the
/// result is NaN, like softmax there.
fn finish(out: &mut [f32], state: SoftmaxState, sink: Option<f32>) {
    let mut sum = state.sum;
    if let Some(sink) = sink {
        if sink > state.max {
            crate::activation::scale(out, exp(state.max - sink));
            sum = sum * exp(state.max - sink) + 1.0;
        } else {
            sum += exp(sink - state.max);
        }
    }
    if sum == 0.0 {
        out.fill(f32::NAN);
    } else {
        crate::activation::scale(out, 1.0 / sum);
    }
}

/// The positions that a row attends to.
fn seen(row: &KvRow, params: &Attention) -> Range<usize> {
    let seen = params.span.seen(row.position, params.window, row.extent);
    seen.start as usize..seen.end as usize
}

/// Splits the batch into groups: adjacent rows with the same block table in equal groups of at most `most` rows, other rows
/// in groups of at most `most_sharing` whose sequences begin with the same block.
///
/// A task is a group and one of `kv_heads`. Few tasks are as many as occupy all threads to the end, and the longest start
/// first.
fn group_rows(
    rows: &[KvRow],
    params: &Attention,
    [most, most_sharing]: [usize; 2],
    [kv_heads, threads]: [usize; 2],
    groups: &mut Vec<Group>,
) {
    groups.clear();
    let first_block = |row: &KvRow| {
        let entry = seen(row, params).start / KV_BLOCK;
        (entry, row.table.get(entry).copied())
    };
    let mut first = 0;
    for run in rows.chunk_by(|a, b| std::ptr::eq(a.table, b.table)) {
        let shares = |group: &Group| {
            group.count < most_sharing && first > 0 && first_block(&rows[first - 1]) == first_block(&run[0])
        };
        match groups.last_mut().filter(|group| run.len() == 1 && shares(group)) {
            Some(group) => group.count += 1,
            None => {
                let mut parts = run.len().div_ceil(most);
                while parts * kv_heads < 4 * threads
                    && !(parts * kv_heads).is_multiple_of(threads)
                    && parts < run.len()
                {
                    parts += 1;
                }
                let mut start = first;
                for part in 0..parts {
                    let count = run.len() / parts + usize::from(part < run.len() % parts);
                    groups.push(Group { first: start, count });
                    start += count;
                }
            }
        }
        first += run.len();
    }
    let work = |group: &Group| {
        let last = &rows[group.first + group.count - 1];
        group.count * seen(last, params).len()
    };
    groups.sort_unstable_by_key(|group| (std::cmp::Reverse(work(group)), group.first));
}

struct Job<'a> {
    pool: &'a Pool,
    store: &'a KvStore,
    params: &'a Attention<'a>,
    rows: &'a [KvRow<'a>],
    q: Strided<'a>,
    /// Query heads per KV head.
    per_head: usize,
    hd: usize,
}

/// A task's buffers for `n` rows.
struct Work<'a> {
    /// `[n, head_dim]`
    q: &'a mut [f32],
    /// `[n, KV_BLOCK]`
    scores: &'a mut [f32],
    /// `[n, head_dim]`: the accumulated output of the current split
    out: &'a mut [f32],
    /// `[n, head_dim]`: the merged splits
    total: &'a mut [f32],
    /// `[head_dim, KV_BLOCK]`: keys converted to f32
    keys: &'a mut [f32],
    /// `[KV_BLOCK, head_dim]`: values converted to f32
    values: &'a mut [f32],
    state: [SoftmaxState; MAX_HEADS_PER_KV_HEAD],
    total_state: [SoftmaxState; MAX_HEADS_PER_KV_HEAD],
}

impl Job<'_> {
    /// Calls `body` with scratch buffers and the group's queries of KV head `head`.
    fn with_work(&self, group: Group, head: usize, body: impl FnOnce(&mut Work)) {
        let (hd, n) = (self.hd, group.count * self.per_head);
        thread_scratch::with(3 * n * hd + n * KV_BLOCK + 2 * KV_BLOCK * hd, |buffer| {
            let (q, rest) = buffer.split_at_mut(n * hd);
            let (out, rest) = rest.split_at_mut(n * hd);
            let (total, rest) = rest.split_at_mut(n * hd);
            let (scores, rest) = rest.split_at_mut(n * KV_BLOCK);
            let (keys, values) = rest.split_at_mut(KV_BLOCK * hd);
            // The query heads of one KV head are contiguous in a row.
            let run = self.per_head * hd;
            for (i, q) in q.chunks_exact_mut(run).enumerate() {
                let at = (group.first + i) * self.q.stride + head * run;
                q.copy_from_slice(&self.q.data[at..at + run]);
            }
            let (state, total_state) =
                ([SoftmaxState::EMPTY; MAX_HEADS_PER_KV_HEAD], [SoftmaxState::EMPTY; MAX_HEADS_PER_KV_HEAD]);
            body(&mut Work { q, scores, out, total, keys, values, state, total_state });
        });
    }

    /// All splits of a group in sequence, merged and written to `output`.
    fn run_group(&self, group: Group, head: usize, output: &Disjoint<f32>) {
        let (hd, n) = (self.hd, group.count * self.per_head);
        let rows = &self.rows[group.first..group.first + group.count];
        let first = rows.iter().map(|row| seen(row, self.params).start).min().unwrap_or(0);
        let end = rows.iter().map(|row| seen(row, self.params).end).max().unwrap_or(0);
        self.with_work(group, head, |work| {
            for split in first / (SPLIT * KV_BLOCK)..end.div_ceil(SPLIT * KV_BLOCK) {
                self.split(group, head, split, work);
                for r in 0..n {
                    if work.state[r].sum != 0.0 {
                        let range = r * hd..(r + 1) * hd;
                        let (total, out) = (&mut work.total[range.clone()], &work.out[range]);
                        merge(&mut work.total_state[r], total, work.state[r], out);
                    }
                }
            }
            for (r, total) in work.total.chunks_exact_mut(hd).enumerate() {
                let at = (group.first + r / self.per_head) * self.params.heads
                    + head * self.per_head
                    + r % self.per_head;
                // SAFETY: each task writes its own rows and heads only.
                let out = unsafe { output.part(at * hd..(at + 1) * hd) };
                if seen(&rows[r / self.per_head], self.params).is_empty() {
                    out.fill(0.0);
                    continue;
                }
                let head = head * self.per_head + r % self.per_head;
                finish(total, work.total_state[r], self.params.sinks.map(|sinks| sinks[head]));
                out.copy_from_slice(total);
            }
        });
    }

    /// One split of a group, written to `partials` (`[row, head, splits, 2 + head_dim]`).
    fn run_partial(&self, group: Group, head: usize, split: usize, splits: usize, partials: &Disjoint<f32>) {
        let (hd, size) = (self.hd, self.hd + 2);
        self.with_work(group, head, |work| {
            self.split(group, head, split, work);
            for (r, out) in work.out.chunks_exact(hd).enumerate() {
                let row = group.first + r / self.per_head;
                let at = row * self.params.heads + head * self.per_head + r % self.per_head;
                let at = (at * splits + split) * size;
                // SAFETY: each task writes its own rows, heads and split only.
                let part = unsafe { partials.part(at..at + size) };
                part[..2].copy_from_slice(&[work.state[r].max, work.state[r].sum]);
                part[2..].copy_from_slice(out);
            }
        });
    }

    /// The online softmax over one split, for the rows of a group that attend to it.
    fn split(&self, group: Group, head: usize, split: usize, work: &mut Work) {
        work.state = [SoftmaxState::EMPTY; MAX_HEADS_PER_KV_HEAD];
        work.out.fill(0.0);
        let rows = &self.rows[group.first..group.first + group.count];
        for block in split * SPLIT..(split + 1) * SPLIT {
            // The slots of this block that row `i` attends to.
            let slots = |i: usize| {
                let seen = seen(&rows[i], self.params);
                let slot = |position: usize| position.saturating_sub(block * KV_BLOCK).min(KV_BLOCK);
                slot(seen.start)..slot(seen.end)
            };
            let mut i = 0;
            while i < rows.len() {
                if slots(i).is_empty() {
                    i += 1;
                    continue;
                }
                let here = rows[i].table[block];
                let ends = |&j: &usize| slots(j).is_empty() || rows[j].table[block] != here;
                let end = (i + 1..rows.len()).find(ends).unwrap_or(rows.len());
                // Few rows compute a block faster than it comes from memory.
                let next = rows[i].table.get(block + 1);
                if let Some(next) = next.filter(|_| (block + 1) * KV_BLOCK <= rows[i].position as usize)
                    && (end - i) * self.per_head <= PREFETCH_ROWS
                {
                    let (keys, values) = self.store.block(self.params.layer, *next, head);
                    keys.prefetch();
                    values.prefetch();
                }
                self.block(here, head, i..end, &slots, work);
                i = end;
            }
        }
    }

    /// One block, for adjacent rows that all attend to some of it.
    fn block(
        &self,
        block: u32,
        head: usize,
        rows: std::ops::Range<usize>,
        slots: &dyn Fn(usize) -> std::ops::Range<usize>,
        work: &mut Work,
    ) {
        let (isa, hd, per_head) = (self.pool.isa(), self.hd, self.per_head);
        let (mut keys, mut values) = self.store.block(self.params.layer, block, head);
        let r = rows.start * per_head..rows.end * per_head;
        if r.len() > ON_THE_FLY_ROWS
            && let (Stored::F16(k), Stored::F16(v)) = (keys, values)
        {
            f16_to_f32(isa, k, work.keys);
            f16_to_f32(isa, v, work.values);
            (keys, values) = (Stored::F32(work.keys), Stored::F32(work.values));
        }

        let scores = &mut work.scores[r.start * KV_BLOCK..r.end * KV_BLOCK];
        scores.fill(0.0);
        let e =
            GemmShape { rows: r.len(), cols: KV_BLOCK, depth: 0..hd, lda: hd, ldb: KV_BLOCK, ldc: KV_BLOCK };
        gemm(isa, &e, &work.q[r.start * hd..r.end * hd], keys, scores);

        let out = &mut work.out[r.start * hd..r.end * hd];
        let (each_score, _) = scores.as_chunks_mut::<KV_BLOCK>();
        for (n, (s, out)) in each_score.iter_mut().zip(out.chunks_exact_mut(hd)).enumerate() {
            let r = r.start + n;
            let state = &mut work.state[r];
            let factor =
                softmax_block(isa, s, slots(r / per_head), self.params.scale, self.params.softcap, state);
            if factor != 1.0 {
                crate::activation::scale(out, factor);
            }
        }

        // Rows with the same slots share a GEMM; each row sums exactly the positions it attends to.
        let mut i = rows.start;
        while i < rows.end {
            let depth = slots(i);
            let end = (i + 1..rows.end).find(|&j| slots(j) != depth).unwrap_or(rows.end);
            let (a, b) = ((i - rows.start) * per_head, (end - rows.start) * per_head);
            let e = GemmShape { rows: b - a, cols: hd, depth, lda: KV_BLOCK, ldb: hd, ldc: hd };
            gemm(isa, &e, &scores[a * KV_BLOCK..b * KV_BLOCK], values, &mut out[a * hd..b * hd]);
            i = end;
        }
    }
}
