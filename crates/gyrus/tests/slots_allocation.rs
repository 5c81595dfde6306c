//! Slots that decode allocate nothing, for any number of them.

mod short_tales;
mod slot_backend;
mod written;

use std::time::Duration;

use gyrus::{Precision, Sampler};
use gyrus_kernels::{Backend, Decode, KV_BLOCK, Slots, Work};
use gyrus_testkit::Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting::new();

/// Steps before allocations are counted, and in all.
const WARM: u32 = 150;
const STEPS: u32 = 300;

#[test]
fn steady_decoding_in_slots_allocates_nothing() {
    let Some(mut backend) = slot_backend::cpu(Precision::Fast, 0, 2) else { return };
    let groups = backend.plan().kv.len();
    let blocks = STEPS.div_ceil(KV_BLOCK as u32) + 1;
    for count in [1, 5, 64] {
        let tables: Vec<Vec<u32>> = (0..count).map(|n| (n * blocks..(n + 1) * blocks).collect()).collect();
        let grow = |backend: &mut dyn Slots, n: usize, limit: u32| {
            let table = &tables[n][..limit.div_ceil(KV_BLOCK as u32) as usize];
            backend.extend(n, &[table; 4][..groups], limit).unwrap();
        };
        for n in 0..count as usize {
            let sampled = Sampler { temperature: 0.9, seed: n as u64, ..Sampler::default() };
            let penalised = Sampler {
                repetition_penalty: 1.2,
                penalty_window: [40, u32::MAX][n / 3 % 2],
                ..sampled.clone()
            };
            let sampler = [Sampler::default(), sampled, penalised][n % 3].clone();
            backend.open(n, STEPS + 1).unwrap();
            grow(&mut backend, n, 32);
            let logprobs = [None, Some(5)][n % 2];
            let decode = Decode {
                tokens: &[7],
                limit: 32,
                sampler: &sampler,
                ends: &[],
                logprobs,
                masked: n % 5 == 4,
                records: [0; 2],
            };
            backend.start(n, &decode).unwrap();
        }
        let mask = vec![0x5555_5555; backend.plan().vocab.div_ceil(32)];
        let mut before = 0;
        for step in 1..STEPS {
            if step == WARM {
                before = ALLOCATOR.allocations();
            }
            for n in 0..count as usize {
                if step % 31 == 0 {
                    grow(&mut backend, n, step + 32);
                }
                if n % 5 == 4 {
                    backend.mask(n, step, &mask).unwrap();
                }
            }
            backend.submit(&Work { chunks: &[], between: 0, steps: 1 }).unwrap();
            assert!(backend.poll(Duration::ZERO).unwrap().is_some());
        }
        let during = ALLOCATOR.allocations() - before;
        assert_eq!(during, 0, "allocations in {} steps of {count} slots", STEPS - WARM);
        (0..count as usize).for_each(|n| backend.close(n));
    }
}
