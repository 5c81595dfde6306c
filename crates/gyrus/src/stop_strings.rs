/// Searches a stream of text for stop strings and holds back text that could begin one.
#[derive(Debug)]
pub(crate) struct StopStrings {
    strings: Vec<String>,
    held: String,
}

impl StopStrings {
    pub(crate) fn new(strings: Vec<String>) -> StopStrings {
        StopStrings { strings, held: String::new() }
    }

    /// Takes new text and appends to `out` the text that cannot be part of a stop string. Returns the stop string if
    /// one was found; then `out` ends before it.
    pub(crate) fn push(&mut self, text: &str, out: &mut String) -> Option<&str> {
        if self.strings.is_empty() {
            out.push_str(text);
            return None;
        }
        self.held.push_str(text);
        let first = self
            .strings
            .iter()
            .filter_map(|s| self.held.find(s.as_str()).map(|at| (at, s)))
            .min_by_key(|(at, s)| (*at, std::cmp::Reverse(s.len())));
        if let Some((at, stop)) = first {
            out.push_str(&self.held[..at]);
            self.held.clear();
            return Some(stop);
        }
        let keep = self.strings.iter().map(|s| overlap(&self.held, s)).max().unwrap_or(0);
        let show = self.held.len() - keep;
        out.push_str(&self.held[..show]);
        self.held.drain(..show);
        None
    }

    /// Appends the text that is still held back to `out`.
    pub(crate) fn finish(&mut self, out: &mut String) {
        out.push_str(&self.held);
        self.held.clear();
    }
}

/// The length of the longest suffix of `text` that is a prefix of `stop`.
fn overlap(text: &str, stop: &str) -> usize {
    let most = stop.len().min(text.len());
    (1..=most).rev().find(|&n| stop.is_char_boundary(n) && text.ends_with(&stop[..n])).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(stops: &[&str], pieces: &[&str]) -> (String, Option<String>) {
        let mut watch = StopStrings::new(stops.iter().map(|s| s.to_string()).collect());
        let mut out = String::new();
        for piece in pieces {
            if let Some(stop) = watch.push(piece, &mut out).map(str::to_owned) {
                return (out, Some(stop));
            }
        }
        watch.finish(&mut out);
        (out, None)
    }

    #[test]
    fn a_stop_string_is_found_across_pieces_and_never_shown() {
        assert_eq!(run(&["END"], &["one E", "N", "D two"]), ("one ".into(), Some("END".into())));
        assert_eq!(run(&["END"], &["one EN", "O two"]), ("one ENO two".into(), None));
        assert_eq!(run(&["aab"], &["aa", "aa", "b"]), ("aa".into(), Some("aab".into())));
        assert_eq!(run(&["é!"], &["caf", "é", "."]), ("café.".into(), None));
        assert_eq!(run(&["ab", "abc"], &["xabc"]), ("x".into(), Some("abc".into())));
        assert_eq!(run(&["tail"], &["a ta"]), ("a ta".into(), None));
        assert_eq!(run(&[], &["a", "b"]), ("ab".into(), None));
    }
}
