//! Speed of attention and of an empty parallel loop: `cargo run --release -p gyrus-cpu --example attention_bench`.
//!
//! Each line is the best of many short runs. GFLOP/s counts both GEMMs over the attended positions; GB/s
//! counts the keys and values of a decode step once.

use std::time::{Duration, Instant};

use gyrus_cpu::{Attention, KvRow, KvStore, Pool, Scratch, Span, Strided, attention};
use gyrus_kernels::KV_BLOCK;
use gyrus_kernels::KvGroup;
use gyrus_kernels::call::Storage;

fn best(mut body: impl FnMut()) -> f64 {
    let (begin, mut best, mut rounds) = (Instant::now(), f64::INFINITY, 0);
    while rounds < 3 || begin.elapsed() < Duration::from_millis(300) {
        let start = Instant::now();
        body();
        best = best.min(start.elapsed().as_secs_f64());
        rounds += 1;
    }
    best
}

fn main() {
    for threads in [1, 2] {
        let pool = Pool::new(threads);
        let seconds = best(|| (0..1000).for_each(|_| pool.run(threads, &|_: usize| ()))) / 1000.0;
        println!("empty loop, {threads} threads: {:.2} µs", seconds * 1e6);
    }
    println!("heads/kv×dim      rows  depth type threads  GFLOP/s     GB/s       µs");
    for (heads, kv_heads, head_dim) in [(9, 3, 64), (32, 8, 64), (16, 8, 128)] {
        for (m, depth) in [(512, 0), (1, 512), (1, 2048), (8, 512)] {
            for dtype in [Storage::F16, Storage::F32] {
                for threads in [1, 2] {
                    let pool = Pool::new(threads);
                    let len: usize = m + depth;
                    let blocks = len.div_ceil(KV_BLOCK);
                    let shape = KvGroup { layers: 1, kv_heads, head_dim, window: None };
                    let mut store = KvStore::new(shape, blocks, dtype).expect("a good shape");
                    let table: Vec<u32> = (0..blocks as u32).rev().collect();
                    let all: Vec<KvRow> = (0..len).map(|p| KvRow::causal(&table, p as u32)).collect();
                    let random =
                        |n: usize| (0..n).map(|i| ((i * 37 % 101) as f32 - 50.0) / 50.0).collect::<Vec<_>>();
                    let kv = random(len * kv_heads * head_dim);
                    let kv = Strided { data: &kv, stride: kv_heads * head_dim };
                    let write = best(|| store.write_rows(&pool, 0, &all, kv, kv));
                    let q = random(m * heads * head_dim);
                    let q = Strided { data: &q, stride: heads * head_dim };
                    let mut out = vec![0.0; m * heads * head_dim];
                    let params = Attention {
                        layer: 0,
                        heads,
                        scale: 0.125,
                        span: Span::Causal,
                        window: None,
                        softcap: None,
                        sinks: None,
                    };
                    let mut scratch = Scratch::new();
                    let rows = &all[depth..];
                    let seconds = best(|| attention(&pool, &store, &params, rows, q, &mut out, &mut scratch));
                    let attended: usize = rows.iter().map(|row| row.position as usize + 1).sum();
                    let gflops = 4.0 * (attended * heads * head_dim) as f64 / seconds / 1e9;
                    let bytes = 2 * len * kv_heads * head_dim * dtype.bytes() as usize;
                    println!(
                        "{heads:>3}/{kv_heads}×{head_dim:<4} {m:>10} {depth:>6} {dtype:?}  {threads} {gflops:>12.1} {:>8.2} {:>9.1}  (cache write: {:.1} µs)",
                        bytes as f64 / seconds / 1e9,
                        seconds * 1e6,
                        write * 1e6
                    );
                }
            }
        }
    }
}
