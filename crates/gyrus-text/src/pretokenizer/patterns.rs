//! The main patterns: each splits text into words, numbers, punctuation and white space.

use super::scan::{CodePoint, Text};
use crate::unicode::Class;

const WORD: Class = Class::LETTER.or(Class::MARK);
const LETTER_OR_NUMBER: Class = Class::LETTER.or(Class::NUMBER);
const NOT_PUNCTUATION: Class = LETTER_OR_NUMBER.or(Class::SPACE);
const PUNCTUATION: Class = Class::PUNCTUATION.or(Class::SYMBOL);

/// GPT-2: contractions; words, numbers and runs of punctuation, each with a leading space; white space.
pub(crate) fn gpt2(text: &Text<'_>, at: usize) -> usize {
    let end = text.contraction(at);
    if end > at {
        return end;
    }
    let start = at + usize::from(text.byte(at) == b' ');
    match text.get(start) {
        Some(next) if next.class.is(Class::LETTER) => text.run(start, |g| g.class.is(Class::LETTER)),
        Some(next) if next.class.is(Class::NUMBER) => text.run(start, |g| g.class.is(Class::NUMBER)),
        Some(next) if !next.class.is(Class::SPACE) => text.run(start, |g| !g.class.is(NOT_PUNCTUATION)),
        _ => text.blank(at),
    }
}

/// The parameters of cl100k, the pattern of GPT-4, and its many variants.
pub(crate) struct Cl100k {
    /// Contractions are split off, in any case.
    pub(crate) contractions: bool,
    /// The most digits in one piece.
    pub(crate) digits: usize,
    /// Combining marks are part of words.
    pub(crate) marks: bool,
    /// Line breaks are part of the punctuation before them.
    pub(crate) punctuation_newlines: bool,
}

/// Contractions; words with one leading punctuation mark or blank; numbers; punctuation with a leading space and
/// trailing line breaks; white space up to a line break; white space.
#[inline(always)]
fn cl100k(params: &Cl100k, text: &Text<'_>, at: usize) -> usize {
    let Some(first) = text.get(at) else { return at };
    let word = if params.marks { WORD } else { Class::LETTER };
    if first.class.is(word) {
        return text.run(at + first.len, |g| g.class.is(word));
    }
    if params.contractions && first.code == u32::from(b'\'') {
        let end = text.contraction_any_case(at);
        if end > at {
            return end;
        }
    }
    if first.class.is(Class::NUMBER) {
        return text.run_up_to(at, params.digits, |g| g.class.is(Class::NUMBER));
    }
    let second = text.get(at + first.len);
    if !first.is_newline() && second.is_some_and(|g| g.class.is(word)) {
        return text.run(at + first.len, |g| g.class.is(word));
    }
    let is_punctuation = |g: CodePoint| !g.class.is(NOT_PUNCTUATION.or(word));
    let sign = if is_punctuation(first) {
        Some(at)
    } else if first.code == 0x20 && second.is_some_and(is_punctuation) {
        Some(at + 1)
    } else {
        None
    };
    match sign {
        Some(start) => {
            let end = text.run(start, is_punctuation);
            if params.punctuation_newlines { text.newlines(end, false) } else { end }
        }
        None => text.lines_or_blank(at),
    }
}

/// cl100k with up to three digits in a piece, as in Llama 3.
pub(crate) fn llama3(text: &Text<'_>, at: usize) -> usize {
    cl100k(&Cl100k { contractions: true, digits: 3, marks: false, punctuation_newlines: true }, text, at)
}

/// cl100k with single digits.
pub(crate) fn qwen2(text: &Text<'_>, at: usize) -> usize {
    cl100k(&Cl100k { contractions: true, digits: 1, marks: false, punctuation_newlines: true }, text, at)
}

/// Qwen 3.5: combining marks are part of words.
pub(crate) fn qwen35(text: &Text<'_>, at: usize) -> usize {
    cl100k(&Cl100k { contractions: true, digits: 1, marks: true, punctuation_newlines: true }, text, at)
}

/// cl100k with digits in runs of any length.
pub(crate) fn minicpm5(text: &Text<'_>, at: usize) -> usize {
    cl100k(
        &Cl100k { contractions: true, digits: usize::MAX, marks: false, punctuation_newlines: true },
        text,
        at,
    )
}

/// Single digits, and line breaks are separate from punctuation.
pub(crate) fn seed_coder(text: &Text<'_>, at: usize) -> usize {
    cl100k(&Cl100k { contractions: true, digits: 1, marks: false, punctuation_newlines: false }, text, at)
}

/// Single digits, no contractions.
pub(crate) fn ufakzeka(text: &Text<'_>, at: usize) -> usize {
    cl100k(&Cl100k { contractions: false, digits: 1, marks: false, punctuation_newlines: true }, text, at)
}

/// The parameters of o200k, the pattern of GPT-4o, and its variants.
struct O200k {
    /// Contractions are part of their word.
    contractions: bool,
    /// The most digits in one piece.
    digits: usize,
    /// Slashes, like line breaks, are part of the punctuation before them.
    slash: bool,
    /// Han characters form separate runs and are not part of words.
    han: bool,
}

/// Words are split between a lower-case and an upper-case letter. Letters without case and marks match either; there
/// the pattern backtracks: see [`cased_word`].
#[inline(always)]
fn o200k(params: &O200k, text: &Text<'_>, at: usize) -> usize {
    let Some(first) = text.get(at) else { return at };
    if params.han && first.class.is(Class::HAN) {
        return text.run(at, |g| g.class.is(Class::HAN));
    }
    if !first.is_newline() && !first.class.is(Class::NUMBER) {
        // A letter cannot be the leading punctuation of a word; a mark can.
        let after_first = (!first.class.is(Class::LETTER)).then_some(at + first.len);
        let end = after_first
            .and_then(|start| cased_word(params.han, text, start, true))
            .or_else(|| cased_word(params.han, text, at, true))
            .or_else(|| after_first.and_then(|start| cased_word(params.han, text, start, false)))
            .or_else(|| cased_word(params.han, text, at, false));
        if let Some(end) = end {
            return if params.contractions { text.contraction_any_case(end) } else { end };
        }
    }
    if first.class.is(Class::NUMBER) {
        return text.run_up_to(at, params.digits, |g| g.class.is(Class::NUMBER));
    }
    let is_punctuation = |g: CodePoint| !g.class.is(NOT_PUNCTUATION);
    let start = at + usize::from(first.code == 0x20);
    if text.has(start, is_punctuation) {
        return text.newlines(text.run(start, is_punctuation), params.slash);
    }
    text.lines_or_blank(at)
}

/// Upper-case letters, then lower-case letters (at least one if `lower`). Letters without case and marks match both. A
/// regex engine matches as many as possible as upper case and backtracks until a lower-case letter can follow.
#[inline(always)]
fn cased_word(no_han: bool, text: &Text<'_>, at: usize, lower: bool) -> Option<usize> {
    let in_word = |g: CodePoint| g.class.is(WORD) && !(no_han && g.class.is(Class::HAN));
    let is_upper = |g: CodePoint| in_word(g) && !g.class.is(Class::LOWER);
    let is_lower = |g: CodePoint| in_word(g) && !g.class.is(Class::UPPER);
    let mut end = at;
    let mut given_back = None;
    while let Some(glyph) = text.get(end).filter(|&g| is_upper(g)) {
        end += glyph.len;
        if is_lower(glyph) {
            given_back = Some(end);
        }
    }
    if text.has(end, is_lower) {
        return Some(text.run(end, is_lower));
    }
    if lower { given_back } else { (end > at).then_some(end) }
}

/// GPT-4o.
pub(crate) fn gpt4o(text: &Text<'_>, at: usize) -> usize {
    o200k(&O200k { contractions: true, digits: 3, slash: true, han: false }, text, at)
}

/// GPT-4o's pattern with single digits.
pub(crate) fn gpt4o_single_digits(text: &Text<'_>, at: usize) -> usize {
    o200k(&O200k { contractions: true, digits: 1, slash: true, han: false }, text, at)
}

/// Mistral's Tekken: single digits, contractions separate from their word.
pub(crate) fn tekken(text: &Text<'_>, at: usize) -> usize {
    o200k(&O200k { contractions: false, digits: 1, slash: true, han: false }, text, at)
}

/// Kimi K2: Han characters are separate.
pub(crate) fn kimi_k2(text: &Text<'_>, at: usize) -> usize {
    o200k(&O200k { contractions: true, digits: 3, slash: false, han: true }, text, at)
}

/// DeepSeek V3, after its stages for numbers and for Chinese and Japanese: an ASCII punctuation mark with the ASCII
/// word after it; words, with one leading character unless that is punctuation or a line break; punctuation; white
/// space. Numbers and characters without a class do not match.
pub(crate) fn deepseek_v3(text: &Text<'_>, at: usize) -> usize {
    deepseek(text, at, true)
}

/// As DeepSeek V3, but every line break is a piece.
pub(crate) fn spark(text: &Text<'_>, at: usize) -> usize {
    deepseek(text, at, false)
}

#[inline(always)]
fn deepseek(text: &Text<'_>, at: usize, join_newlines: bool) -> usize {
    let Some(first) = text.get(at) else { return at };
    let byte = text.byte(at);
    if byte.is_ascii_punctuation() && text.byte(at + 1).is_ascii_alphabetic() {
        return text.run(at + 1, |g| g.code < 0x80 && (g.code as u8).is_ascii_alphabetic());
    }
    let is_word = |g: CodePoint| g.class.is(WORD);
    if is_word(first) {
        return text.run(at, is_word);
    }
    if !first.is_newline() && !first.class.is(PUNCTUATION) && text.has(at + first.len, is_word) {
        return text.run(at + first.len, is_word);
    }
    let is_punctuation = |g: CodePoint| g.class.is(PUNCTUATION);
    let start = at + usize::from(byte == b' ');
    if text.has(start, is_punctuation) {
        let end = text.run(start, is_punctuation);
        return if join_newlines { text.newlines(end, false) } else { end };
    }
    if !first.class.is(Class::SPACE) {
        return at;
    }
    if join_newlines {
        text.lines_or_blank(at)
    } else if first.is_newline() {
        at + 1
    } else {
        text.blank(at)
    }
}

/// EXAONE MoE: words of letters and marks may be joined by single spaces.
pub(crate) fn exaone_moe(text: &Text<'_>, at: usize) -> usize {
    let Some(first) = text.get(at) else { return at };
    let end = text.contraction_any_case(at);
    if end > at {
        return end;
    }
    let is_letter = |g: CodePoint| g.class.is(Class::LETTER);
    let start = if is_letter(first) {
        Some(at)
    } else if !first.is_newline() && !first.class.is(Class::NUMBER) && text.has(at + first.len, is_letter) {
        Some(at + first.len)
    } else {
        None
    };
    if let Some(start) = start {
        // One letter and its marks, then more of them, each with an optional leading space.
        let unit = |at: usize| {
            let letter = text.get(at).filter(|&g| is_letter(g))?;
            Some(text.run(at + letter.len, |g| g.class.is(Class::MARK)))
        };
        let mut end = start;
        let mut next = start;
        while let Some(reached) = unit(next) {
            end = reached;
            next = end + usize::from(text.byte(end) == b' ');
        }
        return end;
    }
    if first.class.is(Class::NUMBER) {
        return at + first.len;
    }
    let is_punctuation = |g: CodePoint| !g.class.is(NOT_PUNCTUATION);
    let start = at + usize::from(first.code == 0x20);
    if text.has(start, is_punctuation) {
        let end = text.run(start, is_punctuation);
        return end + usize::from(matches!(text.byte(end), b'\r' | b'\n' | b'/'));
    }
    text.lines_or_blank(at)
}
