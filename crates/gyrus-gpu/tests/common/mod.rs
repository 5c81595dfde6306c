//! The adapter that tests run on.

use gyrus_gpu::{Gpu, GpuError, GpuRunner, Options};
use gyrus_kernels::shader::Rungs;

/// A device with these rungs at most, or `None` with a message.
pub(crate) fn device(rungs: Rungs) -> Option<GpuRunner> {
    let adapter = std::env::var("GYRUS_TEST_ADAPTER").ok();
    let open = |adapter: Option<String>| Gpu::open(&Options { adapter, rungs, ..Options::default() });
    let opened = match open(adapter.clone()) {
        // Tests run on a software adapter if there is no other.
        Err(GpuError::NoAdapter { software }) if !software.is_empty() => open(Some(software[0].clone())),
        other => other,
    };
    match opened {
        Ok(gpu) => Some(GpuRunner::new(gpu)),
        Err(error @ (GpuError::NoAdapter { .. } | GpuError::UnknownAdapter { .. })) => {
            gyrus_testkit::skip(gyrus_testkit::Need::Gpu, &error.to_string());
            None
        }
        Err(error) => panic!("{error}"),
    }
}
