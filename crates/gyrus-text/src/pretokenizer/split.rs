//! Runs pre-tokenizers: each splits the pieces of the one before it.

use super::scan::{ScanFn, Text};
use crate::byte_level;
use crate::data::{Behavior, Pattern, PreTokenizer, Prepend};
use crate::error::TokenizerError;
use crate::matcher::Matcher;
use crate::pretokenizer::Scanner;

/// Where a text stands; prefixes are added by it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Position {
    /// At the start of everything.
    Start,
    /// After a special token, or split from the text before it.
    AfterSpecial,
    /// Continues the text before it.
    Inside,
}

/// Pre-tokenizers in order, ready to run.
pub(crate) struct Splitter {
    steps: Vec<Step>,
}

enum Step {
    /// Pieces are the matches and the text between them, in any bytes.
    Scan(ScanFn),
    Split {
        matcher: Matcher,
        behavior: Behavior,
        invert: bool,
    },
    PrefixSpace,
    Metaspace {
        replacement: char,
        prepend: Prepend,
        split: bool,
    },
    ByteAlphabet,
}

impl PreTokenizer {
    /// The matches of a scanner and the text between them are pieces.
    pub fn isolated(scanner: Scanner) -> Self {
        Self::Split { pattern: Pattern::Scanner(scanner), behavior: Behavior::Isolated, invert: false }
    }

    /// BERT's: words without the white space between them; each punctuation mark is a word.
    pub fn bert() -> Vec<Self> {
        let split = |pattern, behavior| Self::Split { pattern, behavior, invert: false };
        vec![split(Pattern::Whitespace, Behavior::Removed), split(Pattern::Punctuation, Behavior::Isolated)]
    }
}

impl Splitter {
    pub(crate) fn new(steps: Vec<PreTokenizer>) -> Result<Self, TokenizerError> {
        let compile = |step| {
            Ok(match step {
                PreTokenizer::Split {
                    pattern: Pattern::Scanner(scanner),
                    behavior: Behavior::Isolated,
                    invert: _,
                } => Step::Scan(scanner.scan()),
                PreTokenizer::Split { pattern, behavior, invert } => {
                    Step::Split { matcher: Matcher::new(&pattern)?, behavior, invert }
                }
                PreTokenizer::PrefixSpace => Step::PrefixSpace,
                PreTokenizer::Metaspace { replacement, prepend, split } => {
                    Step::Metaspace { replacement, prepend, split }
                }
                PreTokenizer::ByteAlphabet => Step::ByteAlphabet,
            })
        };
        Ok(Self { steps: steps.into_iter().map(compile).collect::<Result<_, TokenizerError>>()? })
    }

    /// Passes the pieces of `text` to `emit`, in order.
    pub(crate) fn split(&self, text: &[u8], position: Position, emit: &mut dyn FnMut(&[u8])) {
        run(&self.steps, text, position, emit);
    }
}

fn run(steps: &[Step], text: &[u8], position: Position, emit: &mut dyn FnMut(&[u8])) {
    let Some((step, rest)) = steps.split_first() else {
        return emit(text);
    };
    // Each piece of a split text is a text of its own for the prefixes that later steps add.
    let mut next = position;
    let mut pass = |piece: &[u8]| {
        if rest.is_empty() {
            emit(piece);
        } else {
            run(rest, piece, next, emit);
        }
        next = Position::AfterSpecial;
    };
    match step {
        Step::Scan(scan) => isolate(*scan, text, &mut pass),
        Step::Split { matcher, behavior, invert } => {
            for chunk in text.utf8_chunks() {
                split_matches(matcher, *behavior, *invert, chunk.valid(), &mut pass);
                if !chunk.invalid().is_empty() {
                    pass(chunk.invalid());
                }
            }
        }
        Step::PrefixSpace => {
            if position == Position::Inside || text.first() == Some(&b' ') {
                return pass(text);
            }
            pass(&[b" ", text].concat());
        }
        Step::Metaspace { replacement, prepend, split } => {
            let text = String::from_utf8_lossy(text);
            let mut marked = String::with_capacity(text.len() + replacement.len_utf8());
            let wanted = match prepend {
                Prepend::Never => false,
                Prepend::First => position == Position::Start,
                Prepend::Always => position != Position::Inside,
            };
            if wanted && !text.starts_with([' ', *replacement]) {
                marked.push(*replacement);
            }
            marked.extend(text.chars().map(|c| if c == ' ' { *replacement } else { c }));
            if !split {
                return pass(marked.as_bytes());
            }
            let mut start = 0;
            for (at, _) in marked.match_indices(*replacement).filter(|&(at, _)| at > 0) {
                pass(&marked.as_bytes()[start..at]);
                start = at;
            }
            pass(&marked.as_bytes()[start..]);
        }
        Step::ByteAlphabet => {
            let written: String = text.iter().map(|&byte| byte_level::CHARS[byte as usize]).collect();
            pass(written.as_bytes());
        }
    }
}

/// Every byte of `text` reaches `pass` exactly once, in order.
fn isolate(scan: ScanFn, text: &[u8], pass: &mut dyn FnMut(&[u8])) {
    let characters = Text::new(text);
    let (mut at, mut gap) = (0, 0);
    while let Some(next) = characters.get(at) {
        let end = scan(&characters, at);
        if end == at {
            at += next.len;
            continue;
        }
        if gap < at {
            pass(&text[gap..at]);
        }
        pass(&text[at..end]);
        at = end;
        gap = end;
    }
    if gap < text.len() {
        pass(&text[gap..]);
    }
}

fn split_matches(
    matcher: &Matcher,
    behavior: Behavior,
    invert: bool,
    text: &str,
    pass: &mut dyn FnMut(&[u8]),
) {
    // The matches and the text between them: start, end, and whether it is a match.
    let mut parts: Vec<(usize, usize, bool)> = Vec::new();
    let mut gap = 0;
    matcher.for_each(text, &mut |start, end| {
        if gap < start {
            parts.push((gap, start, invert));
        }
        parts.push((start, end, !invert));
        gap = end;
    });
    if gap < text.len() {
        parts.push((gap, text.len(), invert));
    }
    let mut pieces: Vec<(usize, usize)> = Vec::with_capacity(parts.len());
    let mut after_match = false;
    match behavior {
        Behavior::Removed => pieces.extend(parts.iter().filter(|part| !part.2).map(|part| (part.0, part.1))),
        Behavior::Isolated => pieces.extend(parts.iter().map(|part| (part.0, part.1))),
        Behavior::Contiguous => {
            for (index, &(start, end, is_match)) in parts.iter().enumerate() {
                match pieces.last_mut() {
                    Some(last) if index > 0 && is_match == after_match => last.1 = end,
                    _ => pieces.push((start, end)),
                }
                after_match = is_match;
            }
        }
        // Of a run of matches only the first is merged: the others are pieces.
        Behavior::MergedWithPrevious => {
            for &(start, end, is_match) in &parts {
                match pieces.last_mut() {
                    Some(last) if is_match && !after_match => last.1 = end,
                    _ => pieces.push((start, end)),
                }
                after_match = is_match;
            }
        }
        Behavior::MergedWithNext => {
            for &(start, end, is_match) in parts.iter().rev() {
                match pieces.last_mut() {
                    Some(last) if is_match && !after_match => last.0 = start,
                    _ => pieces.push((start, end)),
                }
                after_match = is_match;
            }
            pieces.reverse();
        }
    }
    pieces.into_iter().for_each(|(start, end)| pass(&text.as_bytes()[start..end]));
}
