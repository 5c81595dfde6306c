//! Whether the text of a window is likely to be what was said.

use std::io::Write;

use flate2::Compression;
use flate2::write::ZlibEncoder;

/// How many times longer a text is than its compressed form. Texts that repeat themselves have large ratios.
pub(super) fn compression_ratio(text: &str) -> f64 {
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::default());
    // Writing to memory does not fail.
    let compressed = encoder.write_all(text.as_bytes()).and_then(|()| encoder.finish());
    text.len() as f64 / compressed.map_or(1, |bytes| bytes.len().max(1)) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_text_has_a_large_ratio() {
        assert!(compression_ratio("And so, my fellow Americans, ask not what your country can do") < 1.2);
        assert!(compression_ratio(&"thank you. ".repeat(20)) > 5.0);
        assert_eq!(compression_ratio(""), 0.0);
    }
}
