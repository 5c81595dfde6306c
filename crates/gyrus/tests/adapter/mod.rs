//! The GPU adapter for tests.

/// The adapter in `GYRUS_TEST_ADAPTER`, else the best one, which may be a software adapter. Without any, the test is
/// skipped.
pub(crate) fn adapter() -> Option<String> {
    let named = std::env::var("GYRUS_TEST_ADAPTER").ok();
    let found = named.or_else(|| gyrus_gpu::adapters().first().map(|adapter| adapter.name.clone()));
    if found.is_none() {
        gyrus_testkit::skip(gyrus_testkit::Need::Gpu, "no GPU was found");
    }
    found
}
