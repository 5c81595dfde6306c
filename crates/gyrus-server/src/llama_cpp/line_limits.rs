//! Limits of llama.cpp that editors set so that a completion is a few lines of a block: `n_indent` and `t_max_predict_ms`.

use std::time::{Duration, Instant};

use gyrus::Cancel;

use crate::failure::Failure;
use crate::fields::Fields;

/// Ends an answer at a line break, by how far a line is indented or by time.
#[derive(Debug, Clone, Default)]
pub(crate) struct LineLimits {
    /// Blanks and tabs that each line after the first must begin with.
    indent: usize,
    /// Time since the first text after which the answer ends, if it has a line break.
    time: Option<Duration>,
    started: Option<Instant>,
    has_line_break: bool,
    /// The beginning of a line that is not known to be indented enough.
    held: Option<String>,
    /// Set when a limit is reached, so that the engine stops.
    cancel: Cancel,
}

impl LineLimits {
    /// Takes the fields. Zero and negative times are none.
    pub(super) fn take(fields: &mut Fields) -> Result<LineLimits, Failure> {
        let indent = fields.count("n_indent")?.unwrap_or(0);
        let ms = fields.integer("t_max_predict_ms", i64::MIN, i64::from(u32::MAX))?.unwrap_or(0);
        let time = u64::try_from(ms).ok().filter(|ms| *ms > 0).map(Duration::from_millis);
        Ok(LineLimits { indent, time, ..LineLimits::default() })
    }

    /// The flag that stops the engine.
    pub(super) fn cancel(&self) -> Cancel {
        self.cancel.clone()
    }

    /// Whether a limit has ended the answer.
    pub(super) fn is_over(&self) -> bool {
        self.cancel.is_cancelled()
    }

    /// What may be sent of a text that has come at this time.
    pub(super) fn pass(&mut self, text: &str, now: Instant) -> String {
        let started = *self.started.get_or_insert(now);
        let mut out = String::new();
        if self.is_over() {
            return out;
        }
        if self.has_line_break && self.time.is_some_and(|time| now.duration_since(started) > time) {
            self.cancel.cancel();
            return out;
        }
        for c in text.chars() {
            if let Some(held) = &mut self.held {
                if matches!(c, ' ' | '\t') {
                    held.push(c);
                    continue;
                }
                if held.len() < self.indent {
                    self.held = None;
                    self.cancel.cancel();
                    return out;
                }
                out.push_str(&std::mem::take(held));
                self.held = None;
            }
            out.push(c);
            if c == '\n' {
                self.has_line_break = true;
                self.held = (self.indent > 0).then(String::new);
            }
        }
        out
    }

    /// What is left at the end of an answer.
    pub(super) fn rest(&mut self) -> String {
        self.held.take().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(body: &str) -> LineLimits {
        LineLimits::take(&mut Fields::parse(body.as_bytes()).unwrap()).unwrap()
    }

    /// The text that passes, in pieces of this many bytes, and whether a limit ended it.
    fn passed(mut limits: LineLimits, text: &str, length: usize) -> (String, bool) {
        let pieces = text.as_bytes().chunks(length).map(|piece| std::str::from_utf8(piece).unwrap());
        let mut all: String = pieces.map(|piece| limits.pass(piece, Instant::now())).collect();
        all.push_str(&limits.rest());
        (all, limits.is_over())
    }

    #[test]
    fn lines_must_be_indented_however_text_is_cut() {
        for (indent, text, expected, is_over) in [
            (4, "a = 1\n    b\n\t   c\n  d", "a = 1\n    b\n\t   c\n", true),
            (4, "a\n\n    b", "a\n", true),
            (4, "a\n  ", "a\n  ", false),
            (2, "a\n  b\n   ", "a\n  b\n   ", false),
            (0, "a\n b\nc", "a\n b\nc", false),
        ] {
            for length in 1..=text.len() {
                let found = passed(limits(&format!("{{\"n_indent\": {indent}}}")), text, length);
                assert_eq!(found, (expected.to_owned(), is_over), "{text:?} in pieces of {length}");
            }
        }
    }

    #[test]
    fn time_counts_from_the_first_text_and_needs_a_line_break() {
        let start = Instant::now();
        let later = start + Duration::from_millis(60);
        let mut one = limits("{\"t_max_predict_ms\": 50}");
        assert_eq!(one.pass("a", start), "a");
        assert_eq!(one.pass("b\n", later), "b\n", "there was no line break");
        assert_eq!(
            (one.pass("c", later).as_str(), one.is_over(), one.cancel().is_cancelled()),
            ("", true, true)
        );
        for none in ["{}", "{\"t_max_predict_ms\": 0}", "{\"t_max_predict_ms\": -1}"] {
            let mut all = limits(none);
            assert_eq!(all.pass("a\n", start), "a\n");
            assert_eq!(all.pass("b", start + Duration::from_secs(100)), "b");
        }
    }
}
