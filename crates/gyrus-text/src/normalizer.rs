//! Normalisers: changes to text before it is split.

use unicode_normalization::UnicodeNormalization;
use unicode_normalization::{IsNormalized, is_nfc_quick, is_nfd_quick, is_nfkc_quick, is_nfkd_quick};
use unicode_segmentation::UnicodeSegmentation;

use crate::byte_level;
use crate::charsmap::Charsmap;
use crate::data::{BertOptions, Form, Normalizer, Spaces};
use crate::error::TokenizerError;
use crate::matcher::Matcher;
use crate::unicode::{Class, classes};
use crate::vocab::ESCAPED_SPACE;

/// Normalisers in order, ready to run.
pub(crate) struct Normalizers {
    steps: Vec<Step>,
}

enum Step {
    Replace(Matcher, String),
    Charsmap(Charsmap),
    SentencePiece(Charsmap, Spaces),
    /// A step that needs no preparation.
    Plain(Normalizer),
}

/// Buffers, reused between calls.
#[derive(Default)]
pub(crate) struct NormalText {
    from: String,
    to: String,
}

impl Normalizers {
    pub(crate) fn new(steps: Vec<Normalizer>) -> Result<Self, TokenizerError> {
        let compile = |step| {
            Ok(match step {
                Normalizer::Replace { pattern, with } => Step::Replace(Matcher::new(&pattern)?, with),
                Normalizer::Charsmap(map) => Step::Charsmap(Charsmap::new(&map)?),
                Normalizer::SentencePiece { charsmap, spaces } => {
                    Step::SentencePiece(Charsmap::new(&charsmap)?, spaces)
                }
                plain => Step::Plain(plain),
            })
        };
        Ok(Self { steps: steps.into_iter().map(compile).collect::<Result<_, TokenizerError>>()? })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// The normalised text. `prefix`: it stands at the start or after a special token, where prefixes are added.
    pub(crate) fn apply<'a>(&self, text: &'a str, prefix: bool, buffers: &'a mut NormalText) -> &'a str {
        let NormalText { from, to } = buffers;
        let mut changed = false;
        for step in &self.steps {
            to.clear();
            if step.apply(if changed { from } else { text }, prefix, to) {
                std::mem::swap(from, to);
                changed = true;
            }
        }
        if changed { from } else { text }
    }

    /// As [`apply`](Self::apply) for any bytes; invalid UTF-8 stays as it is.
    pub(crate) fn apply_bytes<'a>(&self, text: &'a [u8], prefix: bool, out: &'a mut Vec<u8>) -> &'a [u8] {
        if self.is_empty() {
            return text;
        }
        out.clear();
        let mut buffers = NormalText::default();
        for (index, chunk) in text.utf8_chunks().enumerate() {
            let valid = self.apply(chunk.valid(), prefix && index == 0, &mut buffers);
            if valid.len() == text.len() && valid.as_bytes() == text {
                return text;
            }
            out.extend_from_slice(valid.as_bytes());
            out.extend_from_slice(chunk.invalid());
        }
        out
    }
}

impl Step {
    /// Appends the changed text to `out`, or returns `false` if there is no change.
    fn apply(&self, text: &str, prefix: bool, out: &mut String) -> bool {
        match self {
            Self::Replace(matcher, with) => {
                let mut at = 0;
                matcher.for_each(text, &mut |start, end| {
                    out.push_str(&text[at..start]);
                    out.push_str(with);
                    at = end;
                });
                out.push_str(&text[at..]);
            }
            Self::Charsmap(map) => graphemes(map, text, out),
            Self::SentencePiece(map, spaces) => sentencepiece(map, *spaces, text, out),
            Self::Plain(plain) => return apply_plain(plain, text, prefix, out),
        }
        true
    }
}

fn apply_plain(step: &Normalizer, text: &str, prefix: bool, out: &mut String) -> bool {
    match step {
        Normalizer::Unicode(form) => return normalise(*form, text, out),
        Normalizer::Lowercase => out.extend(text.chars().flat_map(char::to_lowercase)),
        Normalizer::StripAccents => {
            let classes = classes();
            out.extend(text.chars().filter(|&c| !classes.of_char(c).is(Class::COMBINING)));
        }
        Normalizer::Strip { left, right } => {
            let text = if *left { text.trim_start() } else { text };
            out.push_str(if *right { text.trim_end() } else { text });
        }
        Normalizer::Prepend(start) => {
            if !prefix || text.is_empty() {
                return false;
            }
            out.push_str(start);
            out.push_str(text);
        }
        Normalizer::Nmt => out.extend(text.chars().filter_map(nmt)),
        Normalizer::Bert(options) => bert(*options, text, out),
        Normalizer::ByteAlphabet => out.extend(text.bytes().map(|byte| byte_level::CHARS[byte as usize])),
        // Prepared steps.
        Normalizer::Replace { .. } | Normalizer::Charsmap(_) | Normalizer::SentencePiece { .. } => {
            return false;
        }
    }
    true
}

/// Normalises the characters of the reference's Unicode release. A character that has no decomposition there stays as it
/// is and blocks reordering.
fn normalise(form: Form, text: &str, out: &mut String) -> bool {
    let quick = match form {
        _ if text.is_ascii() => IsNormalized::Yes,
        Form::Nfc => is_nfc_quick(text.chars()),
        Form::Nfd => is_nfd_quick(text.chars()),
        Form::Nfkc => is_nfkc_quick(text.chars()),
        Form::Nfkd => is_nfkd_quick(text.chars()),
    };
    if quick == IsNormalized::Yes {
        return false;
    }
    let classes = classes();
    let is_later = |c: char| match classes.of_char(c) {
        Class::NONE => true,
        class if class.is(Class::DECOMPOSES) || c.is_ascii() => false,
        _ => is_nfkd_quick(std::iter::once(c)) == IsNormalized::No,
    };
    let mut rest = text;
    while !rest.is_empty() {
        let later = rest.find(is_later).unwrap_or(rest.len());
        let known = &rest[..later];
        match form {
            Form::Nfc => out.extend(known.nfc()),
            Form::Nfd => out.extend(known.nfd()),
            Form::Nfkc => out.extend(known.nfkc()),
            Form::Nfkd => out.extend(known.nfkd()),
        }
        rest = &rest[later..];
        let known = rest.find(|c| !is_later(c)).unwrap_or(rest.len());
        out.push_str(&rest[..known]);
        rest = &rest[known..];
    }
    true
}

/// Control characters are dropped; separators and U+2581 become spaces.
fn nmt(c: char) -> Option<char> {
    match c as u32 {
        0x1..=0x8 | 0xB | 0xE..=0x1F | 0x7F | 0x8F | 0x9F => None,
        0x9 | 0xA | 0xC | 0xD | 0x1680 | 0x200B..=0x200F | 0x2028 | 0x2029 | 0x2581 | 0xFEFF | 0xFFFD => {
            Some(' ')
        }
        _ => Some(c),
    }
}

/// BERT's cleaning, in its order: controls, ideographs, accents, case.
fn bert(options: BertOptions, text: &str, out: &mut String) {
    let classes = classes();
    let cleaned = text.chars().filter_map(|c| match classes.of_char(c) {
        class if options.clean && class.is(Class::BERT_CONTROL) => None,
        class if options.clean && class.is(Class::SPACE) => Some(' '),
        _ => Some(c),
    });
    let mut take = |c: char| if options.lowercase { out.extend(c.to_lowercase()) } else { out.push(c) };
    let spaced = cleaned.flat_map(|c| {
        let space = (options.ideographs && is_ideograph(c)).then_some(' ');
        space.into_iter().chain([c]).chain(space)
    });
    if options.strip_accents {
        spaced.nfd().filter(|&c| !classes.of_char(c).is(Class::BERT_ACCENT)).for_each(&mut take);
    } else {
        spaced.for_each(&mut take);
    }
}

/// Each Chinese character is a word. The blocks are BERT's, including a gap in one of them.
fn is_ideograph(c: char) -> bool {
    matches!(c as u32,
        0x3400..=0x4DBF | 0x4E00..=0x9FFF | 0xF900..=0xFAFF | 0x2_0000..=0x2_A6DF | 0x2_A700..=0x2_B81F
        | 0x2_B920..=0x2_CEAF | 0x2_F800..=0x2_FA1F)
}

/// The longest grapheme cluster in bytes that Hugging Face looks up as a whole.
const LONGEST_GRAPHEME: usize = 5;

/// The compiled rules as Hugging Face applies them: a short grapheme cluster is replaced as a whole by the rule of its
/// shortest prefix, else each of its characters by its own rule.
fn graphemes(map: &Charsmap, text: &str, out: &mut String) {
    for grapheme in text.graphemes(true) {
        if grapheme.len() <= LONGEST_GRAPHEME
            && let Some(piece) = map.shortest(grapheme.as_bytes())
        {
            out.push_str(piece);
            continue;
        }
        let mut buffer = [0; 4];
        for c in grapheme.chars() {
            match map.shortest(c.encode_utf8(&mut buffer).as_bytes()) {
                Some(piece) => out.push_str(piece),
                None => out.push(c),
            }
        }
    }
}

/// The replacement of the first character, or of a longer sequence of the map, and the rest.
fn replace<'a>(map: &'a Charsmap, text: &'a str) -> Option<(&'a str, &'a str)> {
    let first = text.chars().next()?;
    Some(match map.longest(text.as_bytes()) {
        // A match that ends inside a character only occurs in a malformed map.
        Some((len, piece)) if text.is_char_boundary(len) => (piece, &text[len..]),
        _ => text.split_at(first.len_utf8()),
    })
}

/// Applies the character map and the white-space rules.
fn sentencepiece(map: &Charsmap, spaces: Spaces, text: &str, normal: &mut String) {
    let Spaces { add_prefix, remove_extra, as_suffix } = spaces;
    let mut rest = text;
    while remove_extra && let Some((" ", next)) = replace(map, rest) {
        rest = next;
    }
    if rest.is_empty() {
        return;
    }
    if add_prefix && !as_suffix {
        normal.push_str(ESCAPED_SPACE);
    }
    let mut after_space = remove_extra;
    while let Some((piece, next)) = replace(map, rest) {
        rest = next;
        let piece = if after_space { piece.trim_start_matches(' ') } else { piece };
        for c in piece.chars() {
            if c == ' ' { normal.push_str(ESCAPED_SPACE) } else { normal.push(c) }
        }
        if !piece.is_empty() {
            after_space = remove_extra && piece.ends_with(' ');
        }
    }
    if remove_extra {
        normal.truncate(normal.trim_end_matches(ESCAPED_SPACE).len());
    }
    if add_prefix && as_suffix {
        normal.push_str(ESCAPED_SPACE);
    }
}
