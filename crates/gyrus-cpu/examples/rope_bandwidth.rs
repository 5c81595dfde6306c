//! The memory bandwidth of the rope kernels, compared with a copy of as many bytes in the same run.
//!
//! ```text
//! cargo run --release -p gyrus-cpu --example rope_bandwidth [tokens] [rounds]
//! ```
//!
//! `rope` and `rope_neox` read and write one tensor; `rope_fwd`, `rope_bwd` and the copy read one and write another.
//! All move twice the tensor's bytes. Rope and copy alternate, so other load on the machine slows both; the ratio is
//! the median over the rounds.

use std::time::Instant;

use gyrus_cpu::{Pool, rope};
use gyrus_kernels::Direction;
use gyrus_kernels::Pairing;
use gyrus_kernels::call::{Freqs, RopeCall, RopeKernel, Storage};
use gyrus_kernels::grid::{Noise, rope_buffers};
use gyrus_kernels::params::{RoPEOpParams, RoPEParams};

const HEADS: u32 = 40;
const HEAD_DIM: u32 = 128;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1).map(|argument| argument.parse::<u32>());
    let tokens = arguments.next().transpose()?.unwrap_or(8192);
    let rounds = arguments.next().transpose()?.unwrap_or(15).max(1);
    let all = Pool::available_threads();
    println!("[{tokens}, {HEADS}, {HEAD_DIM}], medians of {rounds} rounds, bytes read and written");
    println!(
        "{:<18} {:>7} {:>9} {:>12} {:>12} {:>7}",
        "kernel", "threads", "MB", "rope GB/s", "copy GB/s", "ratio"
    );
    for threads in if all > 1 { vec![1, all] } else { vec![1] } {
        let pool = Pool::new(threads);
        for (storage, tokens) in [(Storage::F16, tokens), (Storage::F32, tokens / 2)] {
            for pairing in [Pairing::Split, Pairing::Adjacent] {
                let params = RoPEParams {
                    seq_len: tokens,
                    head_dim: HEAD_DIM,
                    n_heads: HEADS,
                    theta: 5e5,
                    ..Default::default()
                };
                let kernel = RopeKernel::InPlace { pairing, params };
                measure(&pool, kernel, Direction::Forward, storage, rounds)?;
            }
            let params = RoPEOpParams {
                batch: 1,
                n_heads: HEADS,
                seq_len: tokens,
                head_dim: HEAD_DIM,
                rope_dim: HEAD_DIM,
                freqs_dim: HEAD_DIM / 2,
                output_scale: 1.0,
                _pad0: 0,
            };
            for direction in [Direction::Forward, Direction::Inverse] {
                measure(&pool, RopeKernel::Op { params }, direction, storage, rounds)?;
            }
        }
    }
    Ok(())
}

fn measure(
    pool: &Pool,
    kernel: RopeKernel,
    direction: Direction,
    storage: Storage,
    rounds: u32,
) -> Result<(), Box<dyn std::error::Error>> {
    let call = RopeCall { kernel, storage, direction, freqs: Freqs::Turns, positions: 0 };
    let mut buffers = rope_buffers(call, 1).ok_or("the kernel refuses this shape")?;
    let mut slices: Vec<&mut [u32]> = buffers.iter_mut().map(Vec::as_mut_slice).collect();
    let words = slices[0].len();
    let from = Noise::new(2).words(words);
    let mut to = vec![1u32; words];
    let (mut rotated, mut copied) = (Vec::new(), Vec::new());
    for round in 0..=rounds {
        let start = Instant::now();
        rope(pool, &call, &mut slices)?;
        let rope_time = start.elapsed().as_secs_f64();
        let start = Instant::now();
        copy(pool, &from, &mut to);
        let copy_time = start.elapsed().as_secs_f64();
        // The first round is warm-up: it maps pages.
        if round > 0 {
            rotated.push(rope_time);
            copied.push(copy_time);
        }
    }
    let bytes = 8.0 * words as f64;
    // The ratio is per round, because the machine's speed changes between rounds.
    let ratio = median(rotated.iter().zip(&copied).map(|(rotated, copied)| copied / rotated).collect());
    let (rotated, copied) = (bytes / median(rotated) / 1e9, bytes / median(copied) / 1e9);
    let (name, threads, size) = (call.name(), pool.threads(), bytes / 2e6);
    println!("{name:<18} {threads:>7} {size:>9.1} {rotated:>12.2} {copied:>12.2} {ratio:>7.3}");
    Ok(())
}

/// A copy by all threads, one contiguous piece each.
fn copy(pool: &Pool, from: &[u32], to: &mut [u32]) {
    let piece = from.len().div_ceil(pool.threads());
    let pieces: Vec<_> = from.chunks(piece).zip(to.chunks_mut(piece)).map(std::sync::Mutex::new).collect();
    pool.run(pieces.len(), &|task| {
        let mut piece = pieces[task].lock().expect("no task panics");
        let (from, to) = &mut *piece;
        to.copy_from_slice(from);
    });
}

fn median(mut seconds: Vec<f64>) -> f64 {
    seconds.sort_by(f64::total_cmp);
    seconds[seconds.len() / 2]
}
