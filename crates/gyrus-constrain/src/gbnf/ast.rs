//! Grammars as trees.

use std::fmt::Write;

use crate::Error;
use crate::work::Work;

/// A rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Rule {
    pub(super) name: String,
    /// The byte of the text where its definition begins.
    pub(super) offset: usize,
    pub(super) body: Expr,
}

/// What a rule consists of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Expr {
    /// One character of a set.
    Class(Set),
    /// A rule by its index.
    Ref(usize),
    /// One after the other. The empty text if there is none.
    Seq(Vec<Expr>),
    /// One of several. Nothing at all if there is none.
    Alt(Vec<Expr>),
    /// At least `min` times, at most `max` times.
    Repeat { body: Box<Expr>, min: u32, max: Option<u32> },
}

impl Expr {
    pub(super) const EMPTY: Expr = Expr::Seq(Vec::new());

    pub(super) fn repeat(body: Expr, min: u32, max: Option<u32>) -> Expr {
        Expr::Repeat { body: Box::new(body), min, max }
    }

    /// A repetition of a repetition as one, where the counts of both together have no gap and are at most `most`.
    /// Otherwise the expression as it was.
    pub(super) fn folded(self, min: u32, max: Option<u32>, most: u64) -> Result<Expr, Expr> {
        let Expr::Repeat { body, min: inner_min, max: inner_max } = self else { return Err(self) };
        let (least, times) = (u64::from(inner_min), u64::from(min));
        // Counts of `k` and of `k + 1` rounds leave the largest gap at the smallest `k`.
        let has_no_gap = max == Some(min)
            || match inner_max {
                Some(inner_max) => least <= times * (u64::from(inner_max) - least) + 1,
                None => times > 0 || least <= 1,
            };
        let folded_max = match (inner_max, max) {
            (Some(0), _) | (_, Some(0)) => Some(0),
            (Some(inner_max), Some(max)) => Some(u64::from(inner_max) * u64::from(max)),
            _ => None,
        };
        let folded_min = least * times;
        match (u32::try_from(folded_min), folded_max.map(u32::try_from).transpose()) {
            (Ok(min), Ok(max)) if has_no_gap && folded_min.max(folded_max.unwrap_or(0)) <= most => {
                Ok(Expr::Repeat { body, min, max })
            }
            _ => Err(Expr::Repeat { body, min: inner_min, max: inner_max }),
        }
    }

    /// The parts in it, and itself.
    pub(super) fn size(&self) -> usize {
        self.children().iter().fold(1, |sum, part| sum + part.size())
    }

    /// The parts directly inside.
    pub(super) fn children(&self) -> &[Expr] {
        match self {
            Expr::Class(_) | Expr::Ref(_) => &[],
            Expr::Seq(parts) | Expr::Alt(parts) => parts,
            Expr::Repeat { body, .. } => std::slice::from_ref(body),
        }
    }

    /// Whether the expression has the empty text, given which rules have.
    pub(super) fn is_nullable(&self, rules: &[bool]) -> bool {
        match self {
            Expr::Class(_) => false,
            Expr::Ref(rule) => rules[*rule],
            Expr::Seq(parts) => parts.iter().all(|part| part.is_nullable(rules)),
            Expr::Alt(parts) => parts.iter().any(|part| part.is_nullable(rules)),
            Expr::Repeat { body, min, .. } => *min == 0 || body.is_nullable(rules),
        }
    }
}

/// A property of each rule, from those of the rules that it uses: computes it anew until nothing changes.
pub(super) fn fixpoint<T: Copy + PartialEq>(
    rules: &[Rule],
    work: &Work<'_>,
    unknown: T,
    property: impl Fn(&Expr, &[T]) -> T,
) -> Result<Vec<T>, Error> {
    let mut known = vec![unknown; rules.len()];
    let size = rules.iter().map(|rule| rule.body.size()).sum();
    // Forwards and backwards in turn: a chain of rules in either order settles at once.
    let mut order: Vec<usize> = (0..rules.len()).collect();
    loop {
        work.spend(size)?;
        order.reverse();
        let mut changed = false;
        for &rule in &order {
            let next = property(&rules[rule].body, &known);
            changed |= next != known[rule];
            known[rule] = next;
        }
        if !changed {
            return Ok(known);
        }
    }
}

/// A set of characters: ranges of code points in ascending order, without gaps of zero length.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Set(Vec<(u32, u32)>);

impl Set {
    pub(super) fn one(c: char) -> Set {
        Set::new(vec![(c, c)])
    }

    pub(super) fn any() -> Set {
        Set::new(vec![('\0', char::MAX)])
    }

    pub(super) fn new(ranges: Vec<(char, char)>) -> Set {
        let mut ranges: Vec<(u32, u32)> =
            ranges.into_iter().map(|(from, to)| (from as u32, to as u32)).collect();
        ranges.sort_unstable();
        let mut merged: Vec<(u32, u32)> = Vec::new();
        for (from, to) in ranges {
            match merged.last_mut() {
                Some(last) if from <= last.1.saturating_add(1) => last.1 = last.1.max(to),
                _ => merged.push((from, to)),
            }
        }
        Set(merged)
    }

    pub(super) fn complement(&self) -> Set {
        let (mut next, mut out) = (0, Vec::new());
        for &(from, to) in &self.0 {
            if next < from {
                out.push((next, from - 1));
            }
            next = to + 1;
        }
        if next <= char::MAX as u32 {
            out.push((next, char::MAX as u32));
        }
        Set(out)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The number of ranges.
    pub(super) fn ranges(&self) -> usize {
        self.0.len()
    }

    pub(super) fn intersects(&self, other: &Set) -> bool {
        let (mut a, mut b) = (self.0.iter().peekable(), other.0.iter().peekable());
        while let (Some(x), Some(y)) = (a.peek(), b.peek()) {
            if x.0 <= y.1 && y.0 <= x.1 {
                return true;
            }
            if x.1 < y.1 {
                a.next()
            } else {
                b.next()
            };
        }
        false
    }

    /// The first bytes of the characters in UTF-8.
    pub(super) fn lead_bytes(&self) -> Bytes {
        let mut bytes = Bytes::default();
        for &(from, to) in &self.0 {
            (lead_byte(from)..=lead_byte(to)).for_each(|byte| bytes.insert(byte));
        }
        bytes
    }

    /// The set in the syntax of regular expressions.
    pub(super) fn write(&self, out: &mut String) {
        // The surrogates are no characters; a range over them is one of the characters around them.
        let code = |code: u32| match char::from_u32(code) {
            Some(c) if c.is_ascii_alphanumeric() => c.to_string(),
            Some(_) => format!("\\x{{{code:X}}}"),
            None if code < 0xDC00 => "\\x{D7FF}".to_owned(),
            None => "\\x{E000}".to_owned(),
        };
        if let [(from, to)] = self.0[..]
            && from == to
        {
            return out.push_str(&code(from));
        }
        out.push('[');
        for &(from, to) in &self.0 {
            // Writing to a string cannot fail.
            let _ = if from == to {
                write!(out, "{}", code(from))
            } else {
                write!(out, "{}-{}", code(from), code(to))
            };
        }
        out.push(']');
    }
}

/// The first byte of a code point in UTF-8.
fn lead_byte(code: u32) -> u8 {
    match code {
        0..0x80 => code as u8,
        0x80..0x800 => 0xC0 | (code >> 6) as u8,
        0x800..0x10000 => 0xE0 | (code >> 12) as u8,
        _ => 0xF0 | (code >> 18) as u8,
    }
}

/// A set of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Bytes([u64; 4]);

impl Bytes {
    fn insert(&mut self, byte: u8) {
        self.0[usize::from(byte) / 64] |= 1 << (byte % 64);
    }

    pub(super) fn union(self, other: Bytes) -> Bytes {
        Bytes(std::array::from_fn(|at| self.0[at] | other.0[at]))
    }

    pub(super) fn intersects(self, other: Bytes) -> bool {
        self.0.iter().zip(other.0).any(|(a, b)| a & b != 0)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Every pair of small counts, against the counts that rounds of the inner repetition add up to.
    #[test]
    fn repetitions_are_folded_only_where_no_count_is_missing() {
        let ranges: Vec<(u32, Option<u32>)> =
            (0..5).flat_map(|min| (min..5).map(move |max| (min, Some(max))).chain([(min, None)])).collect();
        const END: u32 = 24;
        let counts =
            |min: u32, max: Option<u32>| (min..=max.unwrap_or(END).min(END)).collect::<BTreeSet<_>>();
        let (mut folded, mut kept) = (0, 0);
        for &(m, n) in &ranges {
            for &(p, q) in &ranges {
                let (mut sums, mut expected) = (BTreeSet::from([0]), BTreeSet::new());
                for round in 0..=q.unwrap_or(END) {
                    if round >= p {
                        expected.extend(sums.iter().copied());
                    }
                    let next =
                        sums.iter().flat_map(|sum| counts(m, n).into_iter().map(move |more| sum + more));
                    sums = next.filter(|&sum| sum <= END).collect();
                }
                match Expr::repeat(Expr::Ref(0), m, n).folded(p, q, 1000) {
                    Ok(Expr::Repeat { min, max, .. }) => {
                        folded += 1;
                        assert_eq!(counts(min, max), expected, "{m} {n:?}, {p} {q:?}");
                    }
                    Ok(other) => panic!("{other:?}"),
                    Err(_) => {
                        kept += 1;
                        let (first, last) = (expected.first().unwrap(), expected.last().unwrap());
                        assert!(((last - first + 1) as usize) > expected.len(), "{m} {n:?}, {p} {q:?}");
                    }
                }
            }
        }
        assert!(folded > 200 && kept > 20, "{folded} folded, {kept} kept");
        assert!(
            Expr::repeat(Expr::Ref(0), 100, Some(100)).folded(100, Some(100), 9_999).is_err(),
            "too many"
        );
    }

    #[test]
    fn sets_are_merged_complemented_and_compared() {
        let set = Set::new(vec![('c', 'f'), ('a', 'b'), ('x', 'x')]);
        let text = |set: &Set| {
            let mut out = String::new();
            set.write(&mut out);
            out
        };
        assert_eq!(text(&set), "[a-fx]");
        assert_eq!(text(&set.complement()), r"[\x{0}-\x{60}g-wy-\x{10FFFF}]");
        assert!(set.intersects(&Set::one('d')) && !set.intersects(&set.complement()));
        assert!(Set::any().complement().is_empty());
        assert!(Set::one('é').lead_bytes().intersects(Set::one('è').lead_bytes()), "both begin with 0xC3");
        assert!(!Set::one('é').lead_bytes().intersects(Set::one('e').lead_bytes()));
    }
}
