//! The GPU that tests run on.

/// An adapter for tests: the one that is named, the best, or one in software.
pub(crate) fn adapter() -> Option<String> {
    let named = std::env::var("GYRUS_TEST_ADAPTER").ok();
    let found = named.or_else(|| gyrus_gpu::adapters().first().map(|adapter| adapter.name.clone()));
    if found.is_none() {
        gyrus_testkit::skip(gyrus_testkit::Need::Gpu, "no GPU was found");
    }
    found
}
