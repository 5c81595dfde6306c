//! Scans text character by character, with classes, for the patterns.

use crate::unicode::{Class, Classes, classes, code_at};

/// A pattern at one position: the end of the match, or the position itself if it does not match.
pub(crate) type ScanFn = fn(&Text<'_>, usize) -> usize;

/// One decoded character.
#[derive(Clone, Copy)]
pub(crate) struct CodePoint {
    pub(crate) code: u32,
    pub(crate) class: Class,
    pub(crate) len: usize,
}

impl CodePoint {
    /// Carriage return or line feed.
    #[inline]
    pub(crate) fn is_newline(self) -> bool {
        self.code == 0x0A || self.code == 0x0D
    }
}

/// The text to split. Patterns see its ends as the ends of the input.
pub(crate) struct Text<'a> {
    pub(crate) bytes: &'a [u8],
    classes: &'static Classes,
}

impl<'a> Text<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, classes: classes() }
    }

    /// The character at `at`; `None` at the end.
    #[inline]
    pub(crate) fn get(&self, at: usize) -> Option<CodePoint> {
        if at >= self.bytes.len() {
            return None;
        }
        let (code, len) = code_at(self.bytes, at);
        Some(CodePoint { code, class: self.classes.of(code), len })
    }

    /// The byte at `at`, or zero at the end.
    #[inline]
    pub(crate) fn byte(&self, at: usize) -> u8 {
        self.bytes.get(at).copied().unwrap_or(0)
    }

    /// Whether the character at `at` exists and satisfies `test`.
    #[inline]
    pub(crate) fn has(&self, at: usize, test: impl Fn(CodePoint) -> bool) -> bool {
        self.get(at).is_some_and(test)
    }

    /// The end of the longest run from `at` of characters that satisfy `test`.
    #[inline]
    pub(crate) fn run(&self, mut at: usize, test: impl Fn(CodePoint) -> bool) -> usize {
        while let Some(glyph) = self.get(at) {
            if !test(glyph) {
                break;
            }
            at += glyph.len;
        }
        at
    }

    /// As [`run`](Self::run), with at most `max` characters.
    #[inline]
    pub(crate) fn run_up_to(&self, mut at: usize, max: usize, test: impl Fn(CodePoint) -> bool) -> usize {
        for _ in 0..max {
            match self.get(at) {
                Some(glyph) if test(glyph) => at += glyph.len,
                _ => break,
            }
        }
        at
    }

    /// `[\r\n]*`, or `[\r\n/]*` with `slash`.
    #[inline]
    pub(crate) fn newlines(&self, mut at: usize, slash: bool) -> usize {
        while matches!(self.byte(at), b'\r' | b'\n') || slash && self.byte(at) == b'/' {
            at += 1;
        }
        at
    }

    /// `\s+(?!\S)|\s+`: the last character of a run of white space belongs to the word after it.
    #[inline]
    pub(crate) fn blank(&self, at: usize) -> usize {
        let mut end = at;
        let mut last = at;
        while let Some(glyph) = self.get(end) {
            if !glyph.class.is(Class::SPACE) {
                return if last > at { last } else { end };
            }
            last = end;
            end += glyph.len;
        }
        end
    }

    /// `\s*[\r\n]+|\s+(?!\S)|\s+`: white space up to its last line break, else as [`blank`](Self::blank).
    #[inline]
    pub(crate) fn lines_or_blank(&self, at: usize) -> usize {
        let mut end = at;
        let mut last = at;
        let mut line = at;
        loop {
            match self.get(end) {
                Some(glyph) if glyph.class.is(Class::SPACE) => {
                    last = end;
                    end += glyph.len;
                    if glyph.is_newline() {
                        line = end;
                    }
                }
                next => {
                    return if line > at {
                        line
                    } else if next.is_some() && last > at {
                        last
                    } else {
                        end
                    };
                }
            }
        }
    }

    /// An English contraction (`'s`, `'t`, `'re`, `'ve`, `'m`, `'ll`, `'d`) in lower case.
    #[inline]
    pub(crate) fn contraction(&self, at: usize) -> usize {
        if self.byte(at) != b'\'' {
            return at;
        }
        match (self.byte(at + 1), self.byte(at + 2)) {
            (b's' | b't' | b'm' | b'd', _) => at + 2,
            (b'r' | b'v', b'e') | (b'l', b'l') => at + 3,
            _ => at,
        }
    }

    /// As [`contraction`](Self::contraction) in any case. Case folding makes the long s (U+017F) an s.
    #[inline]
    pub(crate) fn contraction_any_case(&self, at: usize) -> usize {
        if self.byte(at) != b'\'' {
            return at;
        }
        match (self.byte(at + 1) | 0x20, self.byte(at + 2) | 0x20) {
            (b's' | b't' | b'm' | b'd', _) => at + 2,
            (b'r' | b'v', b'e') | (b'l', b'l') => at + 3,
            _ if self.byte(at + 1) == 0xC5 && self.byte(at + 2) == 0xBF => at + 3,
            _ => at,
        }
    }
}

/// A hand-written scanner of one pattern.
#[derive(Clone, Copy)]
pub struct Scanner(ScanFn);

impl Scanner {
    pub(crate) const fn new(scan: ScanFn) -> Self {
        Self(scan)
    }

    pub(crate) fn scan(self) -> ScanFn {
        self.0
    }
}

impl PartialEq for Scanner {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::fn_addr_eq(self.0, other.0)
    }
}

impl std::fmt::Debug for Scanner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Scanner")
    }
}
