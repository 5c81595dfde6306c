//! Distances of what two programs computed.

/// The largest of some differences, at least zero. A NaN anywhere is farther than anything: the result is NaN, which is
/// within no bound. `f32::max` would ignore it.
pub fn largest<T: Copy + Default + PartialOrd>(differences: impl IntoIterator<Item = T>) -> T {
    let is_nan = |value: T| value.partial_cmp(&value).is_none();
    let larger = |most, d| if is_nan(most) || d <= most { most } else { d };
    differences.into_iter().fold(T::default(), larger)
}

/// The largest difference of two lists of numbers of the same length.
pub fn distance(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    largest(a.iter().zip(b).map(|(a, b)| (a - b).abs()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_nan_anywhere_is_the_largest() {
        for at in 0..4 {
            let mut differences = [0.5, 2.0, 1.0, 0.0];
            assert_eq!(largest(differences), 2.0);
            differences[at] = f64::NAN;
            assert!(largest(differences).is_nan(), "at {at}");
            let mut values = [1f32, 2.0, 3.0, 4.0];
            assert_eq!(distance(&values, &[1.0, 2.5, 3.0, 3.75]), 0.5);
            values[at] = f32::NAN;
            assert!(distance(&values, &[1.0, 2.5, 3.0, 3.75]).is_nan(), "at {at}");
        }
        assert_eq!(largest::<f32>([]), 0.0);
    }
}
