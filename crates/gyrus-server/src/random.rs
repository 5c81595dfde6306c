//! Random numbers for ids and seeds. They need not be secret.

use std::hash::{BuildHasher, Hasher, RandomState};

/// A random number.
pub(crate) fn number() -> u64 {
    // Every `RandomState` has keys of its own, from the system's random source.
    RandomState::new().build_hasher().finish()
}

/// An id with a prefix, such as `chatcmpl-…`.
pub(crate) fn id(prefix: &str) -> String {
    format!("{prefix}{:016x}{:08x}", number(), number() as u32)
}

/// Seconds since 1970.
pub(crate) fn now() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(0, |now| now.as_secs())
}
