//! Strings that track the origin of their bytes (taint tracking).
//!
//! A prompt mixes the template's literals with the inputs. Only the template may write control tokens, so every string
//! tracks the origin of its bytes, and every string operation preserves it. Comparisons, lengths and searches ignore
//! the origins.

use std::fmt;
use std::ops::{Deref, Range};
use std::sync::Arc;

/// The origin of a run of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// The template, or trusted inputs.
    Template,
    /// The inputs: messages, tools, documents, variables.
    Data,
    /// The content of a message from byte `start` on, unchanged.
    Content { message: u32, start: u32 },
}

impl Origin {
    /// The origin `bytes` further on.
    fn after(self, bytes: usize) -> Origin {
        match self {
            Origin::Content { message, start } => {
                match u32::try_from(bytes).ok().and_then(|n| start.checked_add(n)) {
                    Some(start) => Origin::Content { message, start },
                    None => Origin::Data,
                }
            }
            other => other,
        }
    }
}

/// Bytes of one origin, up to `end`.
#[derive(Clone, Copy, Debug)]
struct Run {
    end: usize,
    origin: Origin,
}

#[derive(Clone, Debug)]
enum Origins {
    One(Origin),
    /// Two runs or more.
    Many(Arc<[Run]>),
}

/// A string and the origins of its bytes.
#[derive(Clone, Debug)]
pub(crate) struct Text {
    text: Arc<str>,
    origins: Origins,
}

impl Deref for Text {
    type Target = str;

    fn deref(&self) -> &str {
        &self.text
    }
}

impl fmt::Display for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Text {
    pub(crate) fn new(text: impl Into<Arc<str>>, origin: Origin) -> Text {
        Text { text: text.into(), origins: Origins::One(origin) }
    }

    /// A string of the template.
    pub(crate) fn literal(text: impl Into<Arc<str>>) -> Text {
        Text::new(text, Origin::Template)
    }

    /// The string alone.
    pub(crate) fn shared(&self) -> &Arc<str> {
        &self.text
    }

    /// The bytes that a copy takes, for the budget.
    pub(crate) fn weight(&self) -> usize {
        match &self.origins {
            Origins::One(_) => self.text.len(),
            Origins::Many(runs) => self.text.len() + size_of_val(&runs[..]),
        }
    }

    /// One origin for the whole string: data if any part is data.
    pub(crate) fn overall(&self) -> Origin {
        let is_template = match &self.origins {
            Origins::One(origin) => *origin == Origin::Template,
            Origins::Many(runs) => runs.iter().all(|run| run.origin == Origin::Template),
        };
        if is_template { Origin::Template } else { Origin::Data }
    }

    /// The result of an operation that rewrites characters of this string. Its characters are not tracked one by one:
    /// it is data if any part of this string is data.
    pub(crate) fn rewritten(&self, text: impl Into<Arc<str>>) -> Text {
        Text::new(text, self.overall())
    }

    /// The runs of `range`, each with its position in this string.
    fn runs(&self, range: Range<usize>) -> impl Iterator<Item = (Range<usize>, Origin)> {
        let (one, many) = match &self.origins {
            Origins::One(origin) => {
                let whole = (range.clone(), origin.after(range.start));
                ((!range.is_empty()).then_some(whole), &[][..])
            }
            Origins::Many(runs) => (None, &runs[..]),
        };
        let first = many.partition_point(|run| run.end <= range.start);
        let mut begin = first.checked_sub(1).map_or(0, |before| many[before].end);
        let many = many[first..].iter().map_while(move |run| {
            let (from, to) = (begin.max(range.start), run.end.min(range.end));
            let origin = run.origin.after(from - begin);
            begin = run.end;
            (from < to).then_some((from..to, origin))
        });
        one.into_iter().chain(many)
    }

    /// The bytes of `range`.
    pub(crate) fn slice(&self, range: Range<usize>) -> Text {
        let mut writer = Writer::default();
        writer.push_slice(self, range);
        writer.finish()
    }

    /// The substring `part`, which is a slice of this string.
    pub(crate) fn part(&self, part: &str) -> Text {
        let start = (part.as_ptr() as usize).wrapping_sub(self.text.as_ptr() as usize);
        match start.checked_add(part.len()) {
            Some(end) if end <= self.text.len() => self.slice(start..end),
            // An empty slice may point anywhere; it has no origin.
            _ => Text::new(part, Origin::Data),
        }
    }

    /// The string repeated `times` times.
    pub(crate) fn repeat(&self, times: usize) -> Text {
        match &self.origins {
            Origins::One(origin @ (Origin::Template | Origin::Data)) => {
                Text::new(self.text.repeat(times), *origin)
            }
            _ => {
                let mut writer = Writer::default();
                (0..if self.is_empty() { 0 } else { times }).for_each(|_| writer.push(self));
                writer.finish()
            }
        }
    }

    /// Each character as a string.
    pub(crate) fn characters(&self) -> impl Iterator<Item = Text> {
        self.runs(0..self.text.len()).flat_map(|(range, origin)| {
            let text = &self.text[range];
            text.char_indices().map(move |(at, c)| Text::new(&*c.encode_utf8(&mut [0; 4]), origin.after(at)))
        })
    }

    /// The parts of the string by origin, in order.
    pub(crate) fn parts(&self) -> impl Iterator<Item = (&str, Origin)> {
        self.runs(0..self.text.len()).map(|(range, origin)| (&self.text[range], origin))
    }
}

/// Builds a [`Text`].
#[derive(Debug, Default)]
pub(crate) struct Writer {
    text: String,
    runs: Vec<Run>,
}

impl Writer {
    pub(crate) fn len(&self) -> usize {
        self.text.len()
    }

    /// Appends a string of the template.
    pub(crate) fn literal(&mut self, text: &str) {
        self.push_as(text, Origin::Template);
    }

    pub(crate) fn push(&mut self, text: &Text) {
        self.push_slice(text, 0..text.len());
    }

    pub(crate) fn push_slice(&mut self, text: &Text, range: Range<usize>) {
        for (range, origin) in text.runs(range) {
            self.push_as(&text[range], origin);
        }
    }

    pub(crate) fn push_as(&mut self, text: &str, origin: Origin) {
        if text.is_empty() {
            return;
        }
        let begin = self.text.len();
        self.text.push_str(text);
        let end = self.text.len();
        let before = self.runs.len().checked_sub(2).map_or(0, |at| self.runs[at].end);
        match self.runs.last_mut() {
            Some(last) if last.origin.after(begin - before) == origin => last.end = end,
            _ => self.runs.push(Run { end, origin }),
        }
    }

    pub(crate) fn finish(self) -> Text {
        let origins = match &self.runs[..] {
            [] => Origins::One(Origin::Template),
            [run] => Origins::One(run.origin),
            _ => Origins::Many(self.runs.into()),
        };
        Text { text: self.text.into(), origins }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn content(text: &str) -> Text {
        Text::new(text, Origin::Content { message: 3, start: 0 })
    }

    fn shown(text: &Text) -> Vec<(&str, Origin)> {
        text.parts().collect()
    }

    fn at(start: u32) -> Origin {
        Origin::Content { message: 3, start }
    }

    #[test]
    fn origins_follow_slices_and_joins() {
        let mut writer = Writer::default();
        writer.literal("<a>");
        writer.push(&content("hello"));
        writer.literal("</");
        writer.literal("a>");
        let text = writer.finish();
        assert_eq!(&*text, "<a>hello</a>");
        let all = [("<a>", Origin::Template), ("hello", at(0)), ("</a>", Origin::Template)];
        assert_eq!(shown(&text), all);
        assert_eq!(shown(&text.slice(4..6)), [("el", at(1))]);
        assert_eq!(shown(&text.slice(2..4)), [(">", Origin::Template), ("h", at(0))]);
        assert_eq!(shown(&text.part(&text[7..])), [("o", at(4)), ("</a>", Origin::Template)]);
        assert!(shown(&text.slice(5..5)).is_empty());
        assert_eq!(text.overall(), Origin::Data);
        assert_eq!(text.characters().map(|c| c.to_string()).collect::<String>(), "<a>hello</a>");
    }

    #[test]
    fn content_cut_apart_and_put_together_again_is_whole() {
        let whole = content("héllo");
        let mut writer = Writer::default();
        whole.characters().for_each(|c| writer.push(&c));
        assert_eq!(shown(&writer.finish()), [("héllo", at(0))]);
        let mut twice = Writer::default();
        twice.push(&whole);
        twice.push(&whole);
        assert_eq!(shown(&twice.finish()), [("héllo", at(0)), ("héllo", at(0))]);
    }

    #[test]
    fn what_is_rewritten_is_data_if_any_of_it_was() {
        assert_eq!(content("a").rewritten("A").overall(), Origin::Data);
        assert_eq!(Text::literal("a").rewritten("A").overall(), Origin::Template);
    }
}
