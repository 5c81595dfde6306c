//! What is known of a text that grows.

use crate::Event;
use crate::json::{Brackets, End};
use crate::marked::hold;

/// How far a call that streams in has been read, so that no byte of it is searched twice for the same thing. Places are
/// bytes from the beginning of the call.
#[derive(Debug, Default)]
pub(crate) struct Scan {
    values: Vec<(usize, Brackets)>,
    searches: Vec<Search>,
    /// Calls of a list that have been read, and where the rest of it begins.
    pub(crate) calls: (Vec<Event>, usize),
    /// Where [`Scan::seek`] goes on.
    cursor: usize,
    /// Whether that is inside a string.
    pub(crate) in_string: bool,
}

#[derive(Debug)]
struct Search {
    from: usize,
    needle: &'static str,
    /// Where it was found, or else where the search goes on.
    at: usize,
    found: bool,
}

impl Scan {
    /// Where the object or array that begins at `from` ends, as [`crate::json::end`] says, from the beginning of the text.
    pub(crate) fn json(&mut self, text: &str, from: usize, stop: &str) -> End {
        let known = self.values.iter().position(|(start, _)| *start == from);
        let at = known.unwrap_or_else(|| {
            self.values.push((from, Brackets::default()));
            self.values.len() - 1
        });
        match self.values[at].1.end(&text[from..], stop) {
            End::At(length) => End::At(from + length),
            other => other,
        }
    }

    /// The first occurrence of `needle` from `from` on.
    pub(crate) fn find(&mut self, text: &str, from: usize, needle: &'static str) -> Option<usize> {
        let known = self.searches.iter().position(|one| one.from == from && one.needle == needle);
        let index = known.unwrap_or_else(|| {
            self.searches.push(Search { from, needle, at: from, found: false });
            self.searches.len() - 1
        });
        let search = &mut self.searches[index];
        if !search.found {
            let found = text[search.at..].find(needle);
            search.found = found.is_some();
            let end = text.len() - hold(&text[search.at..], &[needle]);
            search.at = found.map_or(end, |found| search.at + found);
        }
        search.found.then_some(search.at)
    }

    /// The next of the needles, which begin with the same character, and where it is. The one after it is found next.
    pub(crate) fn seek<'n>(&mut self, text: &str, needles: &[&'n str]) -> Option<(usize, &'n str)> {
        let rest = &text[self.cursor..];
        let found = needles.first().and_then(|needle| needle.chars().next()).and_then(|first| {
            let here = |at: usize| needles.iter().find(|needle| rest[at..].starts_with(**needle));
            rest.match_indices(first).find_map(|(at, _)| Some((self.cursor + at, *here(at)?)))
        });
        self.cursor = match found {
            Some((at, needle)) => at + needle.len(),
            None => text.len() - hold(rest, needles),
        };
        found
    }

    /// A list of calls goes on at `next`: what is known of the last one is not needed any more.
    pub(crate) fn advance(&mut self, event: Event, next: usize) {
        self.calls.0.push(event);
        self.calls.1 = next;
        self.values.clear();
        self.searches.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_that_grow_are_searched_as_whole_ones() {
        let text = "ab</</x>é{\"a\": \"</x>\\\"\", \"b\": [{}]} </y></x>";
        let brace = text.find('{').unwrap();
        let (find, json) = (text.find("</x>"), crate::json::end(&text[brace..], "</z>"));
        let End::At(length) = json else { panic!("{json:?}") };
        let mut scan = Scan::default();
        let mut seen = Vec::new();
        for end in (0..=text.len()).filter(|end| text.is_char_boundary(*end)) {
            let part = &text[..end];
            assert_eq!(scan.find(part, 0, "</x>"), find.filter(|at| at + 4 <= end), "{part}");
            while let Some(found) = scan.seek(part, &["</x>", "</y>"]) {
                seen.push(found);
            }
            if end > brace {
                let expected = if end >= brace + length { End::At(brace + length) } else { End::More };
                assert_eq!(scan.json(part, brace, "</z>"), expected, "{part}");
            }
        }
        let whole: Vec<(usize, &str)> =
            text.match_indices("</x>").chain(text.match_indices("</y>")).collect();
        assert_eq!(seen.len(), 4);
        assert!(seen.is_sorted() && seen.iter().all(|found| whole.contains(found)), "{seen:?}");
        // A stop that comes in parts.
        let mut scan = Scan::default();
        let ends = ["{\"a\": 1 <", "{\"a\": 1 </", "{\"a\": 1 </x>"].map(|text| scan.json(text, 0, "</x>"));
        assert_eq!(ends, [End::More, End::More, End::Never]);
    }
}
