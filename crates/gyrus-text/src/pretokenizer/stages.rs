//! Small patterns that run before or after a main pattern and split off one kind of character.

use super::scan::{CodePoint, Text};
use crate::unicode::Class;

fn within(code: u32, ranges: &[(u32, u32)]) -> bool {
    let index = ranges.partition_point(|&(_, last)| last < code);
    ranges.get(index).is_some_and(|&(first, _)| first <= code)
}

/// `\p{N}`
pub(crate) fn digit(text: &Text<'_>, at: usize) -> usize {
    text.run_up_to(at, 1, |g| g.class.is(Class::NUMBER))
}

/// `\p{N}{1,3}`
pub(crate) fn three_digits(text: &Text<'_>, at: usize) -> usize {
    text.run_up_to(at, 3, |g| g.class.is(Class::NUMBER))
}

/// `\p{N}+`
pub(crate) fn number(text: &Text<'_>, at: usize) -> usize {
    text.run(at, |g| g.class.is(Class::NUMBER))
}

/// `[0-9][0-9][0-9]`
pub(crate) fn ascii_triple(text: &Text<'_>, at: usize) -> usize {
    let all = (at..at + 3).all(|i| text.byte(i).is_ascii_digit());
    if all { at + 3 } else { at }
}

/// One carriage return or line feed.
pub(crate) fn newline(text: &Text<'_>, at: usize) -> usize {
    at + usize::from(matches!(text.byte(at), b'\r' | b'\n'))
}

/// Runs of line feeds, and runs of anything else.
pub(crate) fn line(text: &Text<'_>, at: usize) -> usize {
    let feeds = text.byte(at) == b'\n';
    text.run(at, |g| (g.code == 0x0A) == feeds)
}

/// Runs of punctuation and the ASCII symbols; `grave` includes the grave accent.
fn punctuation(text: &Text<'_>, at: usize, grave: bool) -> usize {
    text.run(at, |g| {
        g.class.is(Class::PUNCTUATION)
            || matches!(u8::try_from(g.code), Ok(b'$' | b'+' | b'<' | b'=' | b'>' | b'^' | b'~' | b'|'))
            || grave && g.code == u32::from(b'`')
    })
}

/// Falcon's punctuation.
pub(crate) fn falcon_punctuation(text: &Text<'_>, at: usize) -> usize {
    punctuation(text, at, true)
}

/// The punctuation of files without a pre-tokenizer name.
pub(crate) fn default_punctuation(text: &Text<'_>, at: usize) -> usize {
    punctuation(text, at, false)
}

/// Chinese characters and Japanese kana, as in DeepSeek V3.
pub(crate) fn han_and_kana(text: &Text<'_>, at: usize) -> usize {
    text.run(at, |g| matches!(g.code, 0x3040..=0x30FF | 0x4E00..=0x9FA5))
}

/// Everything from Samaritan to the last Hangul syllable block but one gap, as in the first DeepSeek models.
pub(crate) fn deepseek_east(text: &Text<'_>, at: usize) -> usize {
    text.run(at, |g| matches!(g.code, 0x0800..=0x9FA5 | 0xAC00..=0xD7FF))
}

/// A run of `test` with an optional leading character of white space.
#[inline(always)]
fn led_by_space(text: &Text<'_>, at: usize, test: impl Fn(CodePoint) -> bool) -> usize {
    let start = match text.get(at) {
        Some(first) if first.class.is(Class::SPACE) && !test(first) => at + first.len,
        // White space that is itself in the set is the leading character only if the set follows.
        Some(first) if first.class.is(Class::SPACE) && text.has(at + first.len, &test) => at + first.len,
        _ => at,
    };
    let end = text.run(start, test);
    if end > start { end } else { at }
}

/// DeepSeek Coder's words.
pub(crate) fn coder_word(text: &Text<'_>, at: usize) -> usize {
    led_by_space(text, at, |g| g.class.is(Class::LETTER))
}

/// DeepSeek Coder's punctuation.
pub(crate) fn coder_punctuation(text: &Text<'_>, at: usize) -> usize {
    led_by_space(text, at, |g| g.class.is(Class::PUNCTUATION))
}

/// The cased letters of DeepSeek LLM: a fixed list in the model's tokenizer.
const CASED: [(u32, u32); 84] = [
    (0x41, 0x5A),
    (0x61, 0x7A),
    (0xB5, 0xB5),
    (0xC0, 0xD6),
    (0xD8, 0xF6),
    (0xF8, 0x1BA),
    (0x1BC, 0x1BF),
    (0x1C4, 0x293),
    (0x295, 0x2AF),
    (0x370, 0x373),
    (0x376, 0x377),
    (0x37B, 0x37D),
    (0x37F, 0x37F),
    (0x386, 0x386),
    (0x388, 0x38A),
    (0x38C, 0x38C),
    (0x38E, 0x3A1),
    (0x3A3, 0x3F5),
    (0x3F7, 0x481),
    (0x48A, 0x52F),
    (0x531, 0x556),
    (0x10A0, 0x10C5),
    (0x13A0, 0x13F5),
    (0x13F8, 0x13FD),
    (0x1C90, 0x1CBA),
    (0x1CBD, 0x1CBF),
    (0x1D00, 0x1D2B),
    (0x1D6B, 0x1D77),
    (0x1D79, 0x1D9A),
    (0x1E00, 0x1F15),
    (0x1F18, 0x1F1D),
    (0x1F20, 0x1F45),
    (0x1F48, 0x1F4D),
    (0x1F50, 0x1F57),
    (0x1F59, 0x1F59),
    (0x1F5B, 0x1F5B),
    (0x1F5D, 0x1F5D),
    (0x1F5F, 0x1F7D),
    (0x1F80, 0x1FB4),
    (0x1FB6, 0x1FBC),
    (0x1FBE, 0x1FBE),
    (0x1FC2, 0x1FC4),
    (0x1FC6, 0x1FCC),
    (0x1FD0, 0x1FD3),
    (0x1FD6, 0x1FDB),
    (0x1FE0, 0x1FEC),
    (0x1FF2, 0x1FF4),
    (0x1FF6, 0x1FFC),
    (0x2102, 0x2102),
    (0x2107, 0x2107),
    (0x210A, 0x2113),
    (0x2115, 0x2115),
    (0x2119, 0x211D),
    (0x2124, 0x2124),
    (0x2126, 0x2126),
    (0x2128, 0x2128),
    (0x212A, 0x212D),
    (0x212F, 0x2134),
    (0x2139, 0x2139),
    (0x213C, 0x213F),
    (0x2145, 0x2149),
    (0x214E, 0x214E),
    (0x2183, 0x2184),
    (0x2C00, 0x2C7B),
    (0x2C7E, 0x2CE4),
    (0x2CEB, 0x2CEE),
    (0x2CF2, 0x2CF3),
    (0xA640, 0xA66D),
    (0xA680, 0xA69B),
    (0xA722, 0xA76F),
    (0xA771, 0xA787),
    (0xA78B, 0xA78E),
    (0xAB70, 0xABBF),
    (0xFB00, 0xFB06),
    (0xFB13, 0xFB17),
    (0xFF21, 0xFF3A),
    (0xFF41, 0xFF5A),
    (0x10400, 0x1044F),
    (0x104B0, 0x104D3),
    (0x104D8, 0x104FB),
    (0x10C80, 0x10CB2),
    (0x10CC0, 0x10CF2),
    (0x118A0, 0x118DF),
    (0x1E900, 0x1E943),
];

/// DeepSeek LLM's words.
pub(crate) fn deepseek_word(text: &Text<'_>, at: usize) -> usize {
    led_by_space(text, at, |g| {
        if g.code < 0x80 { (g.code as u8).is_ascii_alphabetic() } else { within(g.code, &CASED) }
    })
}

/// DeepSeek LLM's punctuation: ASCII, full-width forms, quotes, the ideographic space and stops.
pub(crate) fn deepseek_punctuation(text: &Text<'_>, at: usize) -> usize {
    led_by_space(text, at, |g| {
        matches!(g.code,
            0x21..=0x2F | 0x3A..=0x7E | 0x2018..=0x201F | 0x3000..=0x3002 | 0xFF01..=0xFF0F | 0xFF1A..=0xFF5E)
    })
}

/// White space up to the end of the text. Only the start of a run is tried: if the run does not reach the end from its
/// start, it does not from its middle either, and trying would take quadratic time.
pub(crate) fn trailing_space(text: &Text<'_>, at: usize) -> usize {
    if at > 0 {
        let before = (1..=at.min(4)).find(|&back| text.byte(at - back) & 0xC0 != 0x80);
        if before.is_some_and(|back| text.has(at - back, |g| g.class.is(Class::SPACE))) {
            return at;
        }
    }
    let end = text.run(at, |g| g.class.is(Class::SPACE));
    if end == text.bytes.len() { end } else { at }
}

/// BLOOM: anything but white space and sentence marks, with one space in front.
pub(crate) fn bloom(text: &Text<'_>, at: usize) -> usize {
    let start = at + usize::from(text.byte(at) == b' ');
    let end = text.run(start, |g| {
        !g.class.is(Class::SPACE)
            && !matches!(
                char::from_u32(g.code),
                Some('(' | ')' | '|' | '.' | ',' | '!' | '?' | '…' | '。' | '，' | '、' | '।' | '۔' | '،')
            )
    });
    if end > start { end } else { at }
}

/// Youtu: separate runs of Hangul, Chinese punctuation, Bopomofo, and Chinese with kana.
pub(crate) fn youtu_east(text: &Text<'_>, at: usize) -> usize {
    let sets: [fn(u32) -> bool; 4] = [
        |c| matches!(c, 0xAC00..=0xD7A3 | 0x3131..=0x318E),
        |c| {
            matches!(c, 0xFF01 | 0x2026 | 0x201C | 0x201D | 0x2018 | 0x2019 | 0x2014 | 0xFF1A | 0xFF1B | 0xFF0C
                | 0x3001..=0x303F | 0xFE30..=0xFE4F)
        },
        |c| matches!(c, 0x3105..=0x312F),
        |c| matches!(c, 0x4E00..=0x9FA5 | 0x3040..=0x30FF),
    ];
    sets.iter().map(|set| text.run(at, |g| set(g.code))).find(|&end| end > at).unwrap_or(at)
}

/// Chameleon's image placeholders: `<sentinel:12>` and `IMGIMG` with one to four of A to I and a Z.
pub(crate) fn chameleon_marks(text: &Text<'_>, at: usize) -> usize {
    let rest = &text.bytes[at..];
    if let Some(tail) = rest.strip_prefix(b"<sentinel:") {
        let digits = tail.iter().take_while(|b| b.is_ascii_digit()).count();
        if digits > 0 && tail.get(digits) == Some(&b'>') {
            return at + 10 + digits + 1;
        }
    }
    if let Some(tail) = rest.strip_prefix(b"IMGIMG") {
        let letters = tail.iter().take(4).take_while(|b| (b'A'..=b'I').contains(b)).count();
        if letters > 0 && tail.get(letters) == Some(&b'Z') {
            return at + 6 + letters + 1;
        }
    }
    at
}

/// Chameleon: single tabs and line feeds, and spaces in fours and twos.
pub(crate) fn chameleon_space(text: &Text<'_>, at: usize) -> usize {
    let rest = &text.bytes[at..];
    match rest {
        [b'\t' | b'\n', ..] => at + 1,
        [b' ', b' ', b' ', b' ', ..] => at + 4,
        [b' ', b' ', ..] => at + 2,
        _ => at,
    }
}

/// One punctuation mark or one ASCII symbol.
pub(crate) fn single_punctuation(text: &Text<'_>, at: usize) -> usize {
    text.run_up_to(at, 1, |g| {
        g.class.is(Class::PUNCTUATION) || g.code < 0x80 && (g.code as u8).is_ascii_punctuation()
    })
}
