use std::arch::x86_64::{__cpuid, __cpuid_count};
use std::sync::OnceLock;

/// Bytes of the CPU's last-level cache.
pub(super) fn last_level_cache() -> usize {
    /// The default if CPUID does not report caches: that of a large desktop CPU.
    const UNKNOWN: usize = 32 << 20;
    static BYTES: OnceLock<usize> = OnceLock::new();
    *BYTES.get_or_init(|| {
        // The leaf of Intel and the leaf of AMD, which have the same fields.
        let known = [(0, 4), (0x8000_0000, 0x8000_001d)]
            .into_iter()
            .filter(|(most, leaf)| __cpuid(*most).eax >= *leaf);
        let sizes = known.flat_map(|(_, leaf)| {
            let caches = (0..16).map(move |i| __cpuid_count(leaf, i)).take_while(|cache| cache.eax & 31 != 0);
            caches.map(|cache| {
                let (line, parts, ways) = (cache.ebx & 0xfff, cache.ebx >> 12 & 0x3ff, cache.ebx >> 22);
                [line, parts, ways, cache.ecx].iter().map(|&v| v as usize + 1).product()
            })
        });
        sizes.max().unwrap_or(UNKNOWN)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_level_cache_has_a_plausible_size() {
        assert!((64 << 10..4 << 30).contains(&last_level_cache()), "{}", last_level_cache());
    }
}
