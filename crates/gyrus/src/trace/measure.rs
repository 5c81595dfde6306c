//! Checksums, magnitudes and differences of values.

use super::{Difference, Summary};

impl Summary {
    /// Of these values.
    pub(super) fn of(values: &[f32]) -> Summary {
        let mut checksum = 0xcbf2_9ce4_8422_2325u64;
        let mut largest = 0f32;
        for value in values {
            for byte in value.to_le_bytes() {
                checksum = (checksum ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
            }
            // `max` would ignore NaN.
            largest = if value.is_nan() || largest.is_nan() { f32::NAN } else { largest.max(value.abs()) };
        }
        Summary { checksum, largest }
    }
}

impl Difference {
    /// Between rows of `width` elements. The first `each` are at position `first`, the next ones at the one after it.
    pub(super) fn between(
        a: &[f32],
        b: &[f32],
        width: usize,
        (first, each): (usize, usize),
        tolerance: f32,
    ) -> Difference {
        let mut most =
            Difference { absolute: 0.0, relative: 0.0, row: 0, column: 0, position: first, tolerance };
        for (row, (a, b)) in a.chunks_exact(width).zip(b.chunks_exact(width)).enumerate() {
            let finite = a.iter().chain(b).filter(|value| value.is_finite());
            let scale = finite.fold(0f32, |most, value| most.max(value.abs()));
            for (column, (a, b)) in a.iter().zip(b).enumerate() {
                let absolute = apart(*a, *b);
                // Never 0/0: where nothing differs, nothing is divided.
                let relative = if absolute == 0.0 { 0.0 } else { absolute / scale };
                most.absolute = most.absolute.max(absolute);
                if relative > most.relative {
                    most = Difference { relative, row, column, position: first + row / each, ..most };
                }
            }
        }
        most
    }
}

/// The distance of two values: none if both are NaN or the same infinity, infinite if only one is finite.
fn apart(a: f32, b: f32) -> f32 {
    if a == b || a.is_nan() && b.is_nan() {
        0.0
    } else if a.is_finite() && b.is_finite() {
        (a - b).abs()
    } else {
        f32::INFINITY
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_are_fnv_1a_of_the_bits() {
        assert_eq!(Summary::of(&[]).checksum, 0xcbf2_9ce4_8422_2325);
        // A published test vector.
        let word = |bytes: [u8; 4]| Summary::of(&[f32::from_le_bytes(bytes)]).checksum;
        assert_eq!(word(*b"foob"), 0xdd12_0e79_0c25_12af);
        assert_ne!(Summary::of(&[0.0]).checksum, Summary::of(&[-0.0]).checksum);
        assert_ne!(Summary::of(&[1.0, 2.0]).checksum, Summary::of(&[2.0, 1.0]).checksum);
    }

    #[test]
    fn magnitudes_do_not_hide_nan() {
        assert_eq!(Summary::of(&[1.0, -3.0, 2.0]).largest, 3.0);
        for values in [[f32::NAN, 1.0], [1.0, f32::NAN]] {
            assert!(Summary::of(&values).largest.is_nan());
        }
    }

    #[test]
    fn differences_are_relative_to_their_row() {
        // The absolute difference is largest in row 0, the relative one in row 1.
        let a = [1000.0, 10.0, 0.0, 0.5, 1.0, 0.0];
        let b = [1000.0, 12.0, 0.0, 0.5, 1.0, 0.25];
        let found = Difference::between(&a, &b, 3, (40, 1), 0.1);
        assert_eq!((found.absolute, found.relative), (2.0, 0.25));
        assert_eq!((found.row, found.column, found.position, found.diverges()), (1, 2, 41, true));
        assert!(!Difference::between(&a, &b, 3, (0, 1), 0.25).diverges());
        let none = Difference::between(&a, &a, 3, (0, 1), 0.0);
        assert_eq!((none.absolute, none.relative, none.diverges()), (0.0, 0.0, false));
    }

    #[test]
    fn values_that_are_not_finite_differ_infinitely_from_others() {
        let between = |a: f32, b: f32| Difference::between(&[1.0, a], &[1.0, b], 2, (0, 1), 1e9);
        for (a, b) in [(f32::NAN, 1.0), (1.0, f32::INFINITY), (f32::INFINITY, f32::NEG_INFINITY)] {
            let found = between(a, b);
            assert!(found.diverges() && found.relative.is_infinite() && found.column == 1, "{a} {b}");
        }
        for same in [f32::NAN, f32::INFINITY] {
            assert!(!between(same, same).diverges(), "{same}");
        }
        // A row of zeros against anything else.
        assert!(Difference::between(&[0.0], &[1e-30], 1, (0, 1), 0.5).diverges());
    }
}
