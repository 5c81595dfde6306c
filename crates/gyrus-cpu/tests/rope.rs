//! The rope kernels against the scalar reference, on every instruction set of this CPU.

use gyrus_cpu::{CpuError, CpuRunner, Isa, Pool, rope};
use gyrus_kernels::Direction;
use gyrus_kernels::call::{Cache, Freqs, RopeCall, RopeKernel, Storage};
use gyrus_kernels::grid::{Case, Runner, check, families, identities, rope_case};
use gyrus_kernels::params::{RoPEParams, RoPEQKVWriteParams};
use gyrus_kernels::shader::Rungs;
use gyrus_kernels::{LaunchError, Pairing};

/// A runner for each instruction set, with one and with two threads.
fn runners() -> Vec<CpuRunner> {
    let of = |isa| [1, 2].map(|threads| CpuRunner::new(Pool::with_isa(threads, isa)));
    Isa::supported().flat_map(of).collect()
}

/// Cases of the grid's published rope kernels.
fn rope_cases(count: usize) -> impl Iterator<Item = Case> {
    let rope = families().iter().find(|family| family.name == "rope").unwrap();
    rope.cases(Rungs::NONE, count)
}

#[test]
fn grid_cases_match_the_scalar_reference() {
    // Each case runs on some six runners, and on the reference for each.
    let count = gyrus_testkit::cases(300).min(2000);
    for runner in &mut runners() {
        let failures: Vec<String> = rope_cases(count).filter_map(|case| check(runner, &case).err()).collect();
        assert!(
            failures.is_empty(),
            "{} of {count}:\n{}",
            failures.len(),
            failures[..failures.len().min(8)].join("\n")
        );
    }
}

#[test]
fn every_rope_identity_holds() {
    let count = gyrus_testkit::cases(500) / 20;
    for runner in &mut runners() {
        let failures: Vec<String> = identities::all()
            .iter()
            .enumerate()
            .filter_map(|(seed, (name, law))| {
                Some(format!("{name}: {}", law(runner, seed as u64, count).err()?))
            })
            .collect();
        assert!(failures.is_empty(), "{}", failures.join("\n"));
    }
}

/// Compares all words, tables and canaries included.
#[test]
fn instruction_sets_and_threads_give_the_same_bits() {
    let mut runners = runners();
    for case in rope_cases(gyrus_testkit::cases(300).min(2000)) {
        let mut expected: Option<Vec<Vec<u32>>> = None;
        for runner in &mut runners {
            let mut buffers: Vec<Vec<u32>> = case.buffers().into_iter().map(|buffer| buffer.before).collect();
            runner.run(&case.steps[0].launch, &mut buffers).unwrap();
            let expected = expected.get_or_insert_with(|| buffers.clone());
            assert!(*expected == buffers, "{} differs: {}", runner.name(), case.name);
        }
    }
}

/// Shapes with many tokens, and with one token of many heads.
#[test]
fn large_tensors_are_split_over_threads() {
    for (seq_len, n_heads) in [(700, 40), (1, 1600), (3, 900)] {
        for (pairing, storage) in [(Pairing::Split, Storage::F16), (Pairing::Adjacent, Storage::F32)] {
            let params = RoPEParams {
                seq_len,
                head_dim: 64,
                n_heads,
                pos_offset: 1000,
                theta: 1e4,
                ..Default::default()
            };
            let call = RopeCall {
                kernel: RopeKernel::InPlace { pairing, params },
                storage,
                direction: Direction::Forward,
                freqs: Freqs::Turns,
                positions: 0,
            };
            let case = rope_case(call, Rungs::NONE, 5).expect("a good call");
            check(&mut CpuRunner::new(Pool::new(3)), &case).unwrap();
        }
    }
}

/// Block tables are untrusted data.
#[test]
fn block_tables_are_checked() {
    let params = RoPEQKVWriteParams {
        n_kv_heads: 1,
        head_dim: 8,
        max_seq_len: 4,
        pos: 3,
        theta: 1e4,
        n_heads: 2,
        k_elem_offset: 6,
        freq_scale: 1.0,
        ..Default::default()
    };
    let cache = Cache::Paged { entries: 3, blocks: 2 };
    let call = RopeCall {
        kernel: RopeKernel::BatchKvWrite { pairing: Pairing::Split, params, cache },
        storage: Storage::F32,
        direction: Direction::Forward,
        freqs: Freqs::Inline,
        positions: 0,
    };
    let pool = Pool::new(2);
    let run = |table: [u32; 3]| {
        let mut buffers = [vec![1; 96], vec![1; 48], vec![1; 48], vec![0; 64], vec![0; 64], table.to_vec()];
        let mut slices: Vec<&mut [u32]> = buffers.iter_mut().map(Vec::as_mut_slice).collect();
        let result = rope(&pool, &call, &mut slices);
        assert!(
            result.is_ok() || buffers[3].iter().all(|&word| word == 0),
            "a rejected call wrote to its buffers"
        );
        result.map_err(|error| error.to_string())
    };
    // Slots 3 to 8 span all three blocks.
    assert_eq!(run([0, 2, 1]).unwrap_err(), "rope_neox_batch_kv_write_f32: block 2 of a cache that has 2");
    assert_eq!(
        run([0, 1, 0]).unwrap_err(),
        "rope_neox_batch_kv_write_f32: block 0 is written, and read or written by another of the same launch"
    );
    // With one token the rest of the table is not read.
    let RopeKernel::BatchKvWrite { mut params, .. } = call.kernel else { unreachable!() };
    params.k_elem_offset = 1;
    let kernel = RopeKernel::BatchKvWrite { pairing: Pairing::Split, params, cache };
    let mut buffers = [vec![1; 96], vec![1; 48], vec![1; 48], vec![0; 64], vec![0; 64], vec![1, 9, 9]];
    let mut slices: Vec<&mut [u32]> = buffers.iter_mut().map(Vec::as_mut_slice).collect();
    rope(&pool, &RopeCall { kernel, ..call }, &mut slices).unwrap();
    let few: CpuError = rope(&pool, &call, &mut slices[..5]).unwrap_err();
    assert!(matches!(few, CpuError::Launch(error) if matches!(*error, LaunchError::Buffers { .. })));
}
