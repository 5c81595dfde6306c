//! The op-test grid on the best adapter; in CI that is lavapipe, and its absence a failure.

mod common;

use common::device;
use gyrus_kernels::grid::{check, rope_cases};
use gyrus_kernels::shader::Rungs;

fn run(rungs: Rungs, count: usize) {
    let Some(mut runner) = device(rungs) else { return };
    let failures: Vec<String> =
        rope_cases(7, count).filter_map(|case| check(&mut runner, &case).err()).collect();
    assert!(
        failures.is_empty(),
        "{} of {count}:\n{}",
        failures.len(),
        failures[..failures.len().min(8)].join("\n")
    );
}

#[test]
fn all_rungs() {
    run(Rungs::ALL, gyrus_testkit::cases(80));
}

#[test]
fn without_f16() {
    run(Rungs { f16: false, ..Rungs::ALL }, gyrus_testkit::cases(25));
}

#[test]
fn without_subgroups() {
    run(Rungs { subgroups: false, ..Rungs::ALL }, gyrus_testkit::cases(25));
}

#[test]
fn without_immediates() {
    run(Rungs { immediates: false, ..Rungs::ALL }, gyrus_testkit::cases(25));
}

#[test]
fn without_any_rung() {
    run(Rungs::NONE, gyrus_testkit::cases(25));
}
