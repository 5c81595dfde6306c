//! The op-test grid on whatever adapter there is; in CI that is lavapipe, and its absence a failure.

use gyrus_gpu::{Gpu, GpuError, GpuRunner, Options};
use gyrus_kernels::grid::{check, rope_cases};
use gyrus_kernels::shader::Rungs;

/// A device with these rungs at most, or `None` with a line that says so.
fn device(rungs: Rungs) -> Option<GpuRunner> {
    let adapter = std::env::var("GYRUS_TEST_ADAPTER").ok();
    let open = |adapter: Option<String>| Gpu::open(&Options { adapter, rungs, ..Options::default() });
    let opened = match open(adapter.clone()) {
        // A software adapter is what one tests on where there is no other.
        Err(GpuError::NoAdapter { software }) if !software.is_empty() => open(Some(software[0].clone())),
        other => other,
    };
    match opened {
        Ok(gpu) => Some(GpuRunner::new(gpu)),
        Err(error) if std::env::var("GYRUS_REQUIRE_GPU").as_deref() != Ok("1") => {
            println!("skipped: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

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
    run(Rungs::ALL, gyrus_testkit::cases(200));
}

#[test]
fn without_f16() {
    run(Rungs { f16: false, ..Rungs::ALL }, gyrus_testkit::cases(70));
}

#[test]
fn without_subgroups() {
    run(Rungs { subgroups: false, ..Rungs::ALL }, gyrus_testkit::cases(70));
}

#[test]
fn without_immediates() {
    run(Rungs { immediates: false, ..Rungs::ALL }, gyrus_testkit::cases(70));
}

#[test]
fn without_anything() {
    run(Rungs::NONE, gyrus_testkit::cases(70));
}
