//! Sizes in bytes as people write them: `2GiB`, `512M`, `1.5 GB`.

/// Units and their bytes. A letter alone is a power of 1,024, as in most tools.
const UNITS: [(&str, u64); 14] = [
    ("", 1),
    ("b", 1),
    ("k", 1 << 10),
    ("kib", 1 << 10),
    ("kb", 1_000),
    ("m", 1 << 20),
    ("mib", 1 << 20),
    ("mb", 1_000_000),
    ("g", 1 << 30),
    ("gib", 1 << 30),
    ("gb", 1_000_000_000),
    ("t", 1 << 40),
    ("tib", 1 << 40),
    ("tb", 1_000_000_000_000),
];

/// Bytes, at least one.
pub(crate) fn parse(text: &str) -> Result<u64, String> {
    let wrong = || "a size above 0 is needed, such as 2GiB, 512MiB or 1.5GB".to_owned();
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let unit = unit.trim_start().to_ascii_lowercase();
    let (_, bytes) = UNITS.iter().find(|(name, _)| *name == unit).ok_or_else(wrong)?;
    let size = match number.parse::<u64>() {
        Ok(whole) => whole.checked_mul(*bytes),
        // `as` saturates, and the check below refuses what does not fit.
        Err(_) => number.parse::<f64>().ok().map(|number| (number * *bytes as f64) as u64),
    };
    size.filter(|size| (1..=1 << 60).contains(size)).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units() {
        for (text, bytes) in [
            ("2GiB", 2 << 30),
            ("512MiB", 512 << 20),
            ("512m", 512 << 20),
            ("1.5 GB", 1_500_000_000),
            ("4096", 4096),
            ("0.5KiB", 512),
            ("1TB", 1_000_000_000_000),
        ] {
            assert_eq!(parse(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn what_is_no_size_is_refused() {
        let wrong = [
            "",
            "0",
            "-1",
            "GiB",
            "2XB",
            "1.2.3G",
            "nan",
            "inf",
            "0.1",
            "1e9",
            "0GiB",
            "18446744073709551615TiB",
            "99999999999999999999999G",
            "2 Gi B",
        ];
        for text in wrong {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
