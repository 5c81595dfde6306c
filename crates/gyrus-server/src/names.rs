//! Names that are near to one that does not exist.

/// The names nearest to a wrong one, the nearest first; at most three.
pub(crate) fn nearest<'a>(wrong: &str, names: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    // A name that is much longer than any model's is near to none.
    let wrong: String = wrong.chars().take(100).collect::<String>().to_lowercase();
    let mut near: Vec<(usize, &str)> = names
        .filter_map(|name| {
            let lower = name.to_lowercase();
            let contains = wrong.len() >= 3 && (lower.contains(&wrong) || wrong.contains(&lower));
            let distance = if contains { 1 } else { distance(&wrong, &lower) };
            (distance <= 2.max(name.len() / 3)).then_some((distance, name))
        })
        .collect();
    near.sort();
    near.into_iter().take(3).map(|(_, name)| name).collect()
}

/// The number of characters to insert, remove or replace.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().take(100).collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, y) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(x != *y);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_typo_is_near_and_nonsense_is_not() {
        let names = ["smollm2-135m", "tales-7m", "qwen2.5-coder-0.5b"];
        assert_eq!(nearest("smolm2-135m", names.into_iter()), ["smollm2-135m"]);
        assert_eq!(nearest("Tales7m", names.into_iter()), ["tales-7m"]);
        assert_eq!(nearest("coder", names.into_iter()), ["qwen2.5-coder-0.5b"]);
        assert!(nearest("../../etc/passwd", names.into_iter()).is_empty());
        assert!(nearest(&"x".repeat(1 << 20), names.into_iter()).is_empty());
        assert_eq!(distance("kitten", "sitting"), 3);
    }
}
