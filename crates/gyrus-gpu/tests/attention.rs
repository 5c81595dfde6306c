//! The plain attention kernel is batch-invariant. The op-test grid compares it with its twin.

mod common;

use common::device;
use gyrus_kernels::call::Storage;
use gyrus_kernels::call::engine::{self, Paged};
use gyrus_kernels::grid::{Noise, UNTOUCHED, words};
use gyrus_kernels::params::AttendParams;
use gyrus_kernels::shader::Rungs;
use gyrus_kernels::{KV_BLOCK, KvShape};

/// A row alone has the bits that it has in a batch.
#[test]
fn neighbours_change_no_bit() {
    for rungs in [Rungs::ALL, Rungs::NONE] {
        let Some(runner) = device(rungs) else { return };
        let noise = &mut Noise::new(5);
        for (heads, kv_heads, head_dim, window, kv) in
            [(4, 2, 64, 0, Storage::F16), (7, 1, 80, 40, Storage::F32), (3, 3, 6, 1, Storage::F16)]
        {
            let (blocks, positions) = (10, [130, 0, 1, 31, 32, 159]);
            let stride = (heads + 2 * kv_heads) * head_dim;
            let params = AttendParams {
                n_heads: heads,
                n_kv_heads: kv_heads,
                stride,
                scale: 1.0 / (head_dim as f32).sqrt(),
                window,
                ..Default::default()
            };
            let cached = (blocks * kv_heads * head_dim) as usize * KV_BLOCK * kv.bytes() as usize / 4;
            let [k, v] = [(), ()].map(|()| noise.elements(kv, cached));
            let qkv = words(&noise.gaussians(positions.len() * stride as usize));
            let table = vec![7, 2, 9, 0, 4, 5, 1, 3, 8, 6];
            // Rows of two sequences: the block table of each has five entries.
            let rows: Vec<u32> =
                positions.iter().zip([0, 5].iter().cycle()).flat_map(|(p, t)| [*p, *t]).collect();
            let attend = |first: usize, count: usize| {
                let entries = table.len() as u32;
                let cache = KvShape { kv, blocks, n_kv_heads: kv_heads, head_dim };
                let paged = Paged { cache, rows: count as u32, entries };
                let launch = engine::attention(runner.gpu().rungs(), params, false, false, paged).unwrap();
                let out = vec![UNTOUCHED; count * (heads * head_dim) as usize];
                let (qkv, rows) = (qkv[first * stride as usize..].to_vec(), rows[2 * first..].to_vec());
                let mut buffers = vec![qkv, k.clone(), v.clone(), rows, table.clone(), out];
                runner.run_launch(&launch, &mut buffers).unwrap();
                buffers.swap_remove(5)
            };
            let all = attend(0, positions.len());
            for (row, of_batch) in all.chunks_exact((heads * head_dim) as usize).enumerate() {
                assert_eq!(attend(row, 1), of_batch, "row {row} of {heads} heads of {head_dim}");
            }
        }
    }
}
