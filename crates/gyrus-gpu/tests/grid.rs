//! The op-test grid on the best adapter; in CI that is lavapipe, and its absence a failure.
//!
//! `GYRUS_CASES` is the number of cases of each family, up to ten times those of a short run, since most of the time is
//! the compilation of kernels; a million runs the whole grid. `GYRUS_FAMILY` runs only families whose names contain it.

mod common;

use common::device;
use gyrus_kernels::grid::{Runner, check, families};
use gyrus_kernels::shader::Rungs;

/// Runs a part of every family that is `1 / part` of a short run.
fn run(rungs: Rungs, part: usize) {
    let Some(mut runner) = device(rungs) else { return };
    let (mut failures, mut count) = (Vec::new(), 0);
    let part_of_name = std::env::var("GYRUS_FAMILY").unwrap_or_default();
    for family in families().iter().filter(|family| family.name.contains(&part_of_name)) {
        let few = family.few.div_ceil(part);
        let most = match gyrus_testkit::cases(few) {
            1_000_000.. => usize::MAX,
            asked => asked.min(10 * few),
        };
        for case in family.cases(runner.rungs(), most) {
            if runner.fits(&case) {
                count += 1;
                failures
                    .extend(check(&mut runner, &case).err().map(|error| format!("{}: {error}", family.name)));
            }
        }
    }
    let first = failures[..failures.len().min(8)].join("\n");
    assert!(failures.is_empty(), "{} of {count} on {}:\n{first}", failures.len(), runner.name());
}

#[test]
fn all_rungs() {
    run(Rungs::ALL, 1);
}

#[test]
fn without_cooperative_matrices() {
    let Some(runner) = device(Rungs::ALL) else { return };
    // Others are tested without them anyway.
    if runner.rungs().cooperative {
        run(Rungs { cooperative: false, int8_matrix: false, ..Rungs::ALL }, 1);
    }
}

#[test]
fn without_f16() {
    run(Rungs { f16: false, ..Rungs::ALL }, 6);
}

#[test]
fn without_subgroups() {
    run(Rungs { subgroups: false, ..Rungs::ALL }, 6);
}

#[test]
fn without_immediates() {
    run(Rungs { immediates: false, ..Rungs::ALL }, 6);
}

#[test]
fn without_any_rung() {
    run(Rungs::NONE, 4);
}
