//! The tokens of Whisper: text, languages, tasks and timestamps.

use std::collections::HashMap;
use std::sync::OnceLock;

use gyrus_formats::Checkpoint;
use gyrus_formats::gguf::Metadata;
use gyrus_text::gguf::Vocabulary;
use gyrus_text::{Special, Tokenizer};

use super::languages::{self, LANGUAGES};
use crate::{Error, tokenizer};

/// Timestamp tokens: 0 to 30 s.
const TIMESTAMPS: usize = 1501;
/// Tokens after the languages and before the timestamps.
const AFTER_LANGUAGES: usize = 6;

/// What a decoder does with speech.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Task {
    /// Writes what is said.
    #[default]
    Transcribe,
    /// Translates what is said to English.
    Translate,
}

/// The vocabulary, and the ids of special tokens.
pub(super) struct Tokens {
    /// The bytes of each token of text.
    texts: Vec<Vec<u8>>,
    /// The first special token: the end of the text. Tokens below it are text.
    pub(super) end: u32,
    pub(super) start: u32,
    languages: usize,
    /// Whether the model knows languages and tasks, and prompts name them.
    pub(super) is_multilingual: bool,
    pub(super) first_timestamp: u32,
    /// The id of each text.
    ranks: HashMap<Vec<u8>, u32>,
    /// Encodes prompts; made when there is one.
    tokenizer: OnceLock<Tokenizer>,
}

impl Tokens {
    /// Those of a model with this many tokens.
    pub(super) fn read(checkpoint: &Checkpoint, vocab: usize) -> Result<Tokens, Error> {
        let texts: Vec<Vec<u8>> = match (checkpoint.ggml(), checkpoint.gguf()) {
            (Some(file), _) => file.tokens().map(<[u8]>::to_vec).collect(),
            (None, Some(metadata)) => return Tokens::of_gguf(metadata, vocab),
            (None, None) => {
                let tokenizer = tokenizer::read(checkpoint)?.ok_or(Error::NoTokenizer)?;
                let end = tokenizer.id_of("<|endoftext|>").unwrap_or(0);
                (0..end).map(|id| tokenizer.token_bytes(id).to_vec()).collect()
            }
        };
        Tokens::new(texts, vocab)
    }

    /// Those of a GGUF file, which are spelled as in all its byte-level vocabularies.
    fn of_gguf(metadata: Metadata<'_>, vocab: usize) -> Result<Tokens, Error> {
        if let Some(other) = metadata.get::<&str>("tokenizer.ggml.model")?.filter(|model| *model != "gpt2") {
            return Err(Error::Unsupported(format!("tokenizer '{}' of Whisper", other.escape_debug())));
        }
        let spelled: Vec<&str> = metadata.require("tokenizer.ggml.tokens")?;
        let bytes: HashMap<char, u8> = (0..=255).map(|byte| (letter(byte), byte)).collect();
        let read = |text: &&str| text.chars().map(|letter| bytes.get(&letter).copied()).collect();
        let texts: Vec<Option<Vec<u8>>> = spelled.iter().map(read).collect();
        let unreadable = texts.iter().position(Option::is_none);
        let tokens = Tokens::new(texts.into_iter().map(Option::unwrap_or_default).collect(), vocab)?;
        // Special tokens have no text that is written.
        match unreadable.filter(|id| *id < tokens.end as usize) {
            Some(id) => Err(Error::Setting(format!(
                "tokenizer.ggml.tokens: token {id}, '{}', has a character that no byte is spelled as",
                spelled[id].escape_debug()
            ))),
            None => Ok(tokens),
        }
    }

    fn new(mut texts: Vec<Vec<u8>>, vocab: usize) -> Result<Tokens, Error> {
        // Files may list special tokens after those of text.
        let end = match vocab {
            51_864 => 50_256,
            51_865 | 51_866 => 50_257,
            _ => texts.iter().position(|text| text == b"<|endoftext|>").unwrap_or(texts.len()),
        };
        if texts.len() < end {
            return Err(Error::Dimension {
                name: "number of tokens in the file",
                value: texts.len() as u64,
                expected: format!("but a vocabulary of {vocab} has {end} tokens of text"),
            });
        }
        texts.truncate(end);
        let special = vocab.saturating_sub(end);
        let languages = special.saturating_sub(2 + AFTER_LANGUAGES + TIMESTAMPS);
        if !(1..=LANGUAGES.len()).contains(&languages) {
            return Err(Error::Dimension {
                name: "vocabulary size",
                value: vocab as u64,
                expected: format!("which leaves {languages} languages beside {end} tokens of text"),
            });
        }
        let start = end as u32 + 1;
        let ranks = texts.iter().cloned().zip(0..).collect();
        Ok(Tokens {
            texts,
            end: end as u32,
            start,
            languages,
            is_multilingual: vocab != 51_864,
            first_timestamp: start + 1 + (languages + AFTER_LANGUAGES) as u32,
            ranks,
            tokenizer: OnceLock::new(),
        })
    }

    pub(super) fn translate(&self) -> u32 {
        self.start + 1 + self.languages as u32
    }

    pub(super) fn transcribe(&self) -> u32 {
        self.translate() + 1
    }

    /// Begins the text of earlier windows.
    pub(super) fn previous(&self) -> u32 {
        self.translate() + 3
    }

    pub(super) fn no_speech(&self) -> u32 {
        self.translate() + 4
    }

    pub(super) fn no_timestamps(&self) -> u32 {
        self.translate() + 5
    }

    /// The tokens of all languages.
    pub(super) fn language_tokens(&self) -> std::ops::Range<u32> {
        self.start + 1..self.start + 1 + self.languages as u32
    }

    /// The token of a language, by its code or name.
    pub(super) fn language(&self, language: &str) -> Result<u32, Error> {
        let index = languages::index_of(language).filter(|index| *index < self.languages);
        let index = index.ok_or_else(|| {
            Error::Request(format!("the model knows no language '{}'", language.escape_debug()))
        })?;
        Ok(self.start + 1 + index as u32)
    }

    /// The code of a language's token.
    pub(super) fn code(&self, token: u32) -> &'static str {
        LANGUAGES[(token.saturating_sub(self.start + 1) as usize).min(self.languages - 1)].0
    }

    pub(super) fn is_timestamp(&self, token: u32) -> bool {
        token >= self.first_timestamp
    }

    pub(super) fn is_text(&self, token: u32) -> bool {
        token < self.end
    }

    /// The bytes of the tokens of text among these.
    pub(super) fn bytes(&self, tokens: &[u32]) -> Vec<u8> {
        tokens.iter().filter_map(|&token| self.texts.get(token as usize)).flatten().copied().collect()
    }

    /// The text of the tokens of text among these.
    pub(super) fn text(&self, tokens: &[u32]) -> String {
        String::from_utf8_lossy(&self.bytes(tokens)).into_owned()
    }

    /// The tokens of a text. Nothing in it is a special token.
    pub(super) fn encode(&self, text: &str) -> Result<Vec<u32>, Error> {
        let tokenizer = match self.tokenizer.get() {
            Some(tokenizer) => tokenizer,
            None => {
                let made = self.prompt_tokenizer()?;
                self.tokenizer.get_or_init(|| made)
            }
        };
        Ok(tokenizer.encode(text, Special::Literal, false))
    }

    /// The tokens of a word, or of signs that belong together.
    fn encode_piece(&self, piece: &str) -> Vec<u32> {
        let bytes = piece.as_bytes();
        let ends = merged(bytes, u32::MAX, &self.ranks);
        ends.windows(2).filter_map(|ends| self.ranks.get(&bytes[ends[0]..ends[1]]).copied()).collect()
    }

    /// The token of a single space, if there is one.
    pub(super) fn blank(&self) -> Option<u32> {
        self.ranks.get(&b" "[..]).copied()
    }

    /// A byte-level BPE tokenizer whose merges follow from the order of its tokens: a token is merged from the two parts
    /// that the merges of lower ids make of its bytes.
    fn prompt_tokenizer(&self) -> Result<Tokenizer, Error> {
        let spelled = |bytes: &[u8]| -> String { bytes.iter().map(|byte| letter(*byte)).collect() };
        let mut merges = Vec::new();
        for (text, id) in self.texts.iter().zip(0..).filter(|(text, _)| text.len() > 1) {
            if let [_, middle, _] = merged(text, id, &self.ranks)[..] {
                merges.push(format!("{} {}", spelled(&text[..middle]), spelled(&text[middle..])));
            }
        }
        let vocabulary = Vocabulary {
            model: "gpt2".to_owned(),
            pre: Some("gpt-2".to_owned()),
            tokens: self.texts.iter().map(|text| spelled(text)).collect(),
            merges,
            ..Vocabulary::default()
        };
        Ok(Tokenizer::new(vocabulary.into_data()?)?)
    }

    /// Tokens of brackets, notes and other signs that stand for sounds and speakers, as OpenAI lists them.
    pub(super) fn non_speech(&self) -> Vec<u32> {
        const SIGNS: &str = "\" # ( ) * + / : ; < = > @ [ \\ ] ^ _ ` { | } ~ 「 」 『 』 << >> <<< >>> -- --- -( -[ (' (\" (( )) ((( ))) [[ ]] {{ }} ♪♪ ♪♪♪";
        const NOTES: &str = "♩ ♪ ♫ ♬ ♭ ♮ ♯";
        let mut found = Vec::new();
        for dash in [" -", " '"] {
            found.extend(self.encode_piece(dash).first());
        }
        let signs = SIGNS.split(' ').map(|sign| (sign, false));
        for (sign, is_note) in signs.chain(NOTES.split(' ').map(|note| (note, true))) {
            for tokens in [self.encode_piece(sign), self.encode_piece(&format!(" {sign}"))] {
                if let [first, rest @ ..] = tokens.as_slice()
                    && (rest.is_empty() || is_note)
                {
                    found.push(*first);
                }
            }
        }
        found.sort_unstable();
        found.dedup();
        found
    }
}

/// Where a text is divided after the merges of ranks below `limit`.
fn merged(text: &[u8], limit: u32, ranks: &HashMap<Vec<u8>, u32>) -> Vec<usize> {
    let mut ends: Vec<usize> = (0..=text.len()).collect();
    let rank = |ends: &[usize], n: usize| {
        let pair = ends.get(n..n + 3).map(|ends| &text[ends[0]..ends[2]]);
        pair.and_then(|pair| ranks.get(pair)).copied().filter(|rank| *rank < limit).unwrap_or(u32::MAX)
    };
    // The rank of each part with the one after it. A merge changes two of them.
    let mut pairs: Vec<u32> = (0..text.len()).map(|n| rank(&ends, n)).collect();
    while let Some((n, least)) = pairs.iter().copied().enumerate().min_by_key(|(_, rank)| *rank)
        && least < u32::MAX
    {
        ends.remove(n + 1);
        pairs.remove(n);
        for changed in [n.checked_sub(1), Some(n)].into_iter().flatten() {
            if let Some(pair) = pairs.get_mut(changed) {
                *pair = rank(&ends, changed);
            }
        }
    }
    ends
}

/// The letter of a byte in the alphabet of byte-level vocabularies: printable bytes of Latin-1 stand for themselves, the
/// others are the characters from U+0100 on.
fn letter(byte: u8) -> char {
    let printable = |byte: u8| matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    match printable(byte) {
        true => char::from(byte),
        false => {
            let before = (0..byte).filter(|byte| !printable(*byte)).count() as u32;
            char::from_u32(0x100 + before).unwrap_or(' ')
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// The 256 bytes and a few merges.
    pub(in crate::speech) fn small(languages: usize) -> Tokens {
        let mut texts: Vec<Vec<u8>> = (0..=255).map(|byte| vec![byte]).collect();
        for word in [" t", "he", " the", "re", " there"] {
            texts.push(word.as_bytes().to_vec());
        }
        let vocab = texts.len() + 2 + languages + AFTER_LANGUAGES + TIMESTAMPS;
        Tokens::new(texts, vocab).unwrap()
    }

    #[test]
    fn special_ids_follow_from_the_size_of_the_vocabulary() {
        let texts: Vec<Vec<u8>> = (0..50_258u32).map(|id| id.to_string().into_bytes()).collect();
        for (vocab, end, timestamps) in
            [(51_864, 50_256, 50_363), (51_865, 50_257, 50_364), (51_866, 50_257, 50_365)]
        {
            let tokens = Tokens::new(texts.clone(), vocab).unwrap();
            assert_eq!((tokens.end, tokens.first_timestamp), (end, timestamps));
            assert_eq!(tokens.no_timestamps() + 1, timestamps);
            assert_eq!(tokens.is_multilingual, vocab != 51_864);
        }
        let tokens = Tokens::new(texts.clone(), 51_865).unwrap();
        assert_eq!([tokens.start, tokens.translate(), tokens.transcribe()], [50_258, 50_358, 50_359]);
        assert_eq!([tokens.previous(), tokens.no_speech()], [50_361, 50_362]);
        assert_eq!(tokens.language("de").unwrap(), 50_261);
        assert_eq!(tokens.code(50_261), "de");
        assert!(tokens.language("yue").is_err());
        for vocab in [0, 1509, 50_257, 60_000] {
            assert!(Tokens::new(texts.clone(), vocab).is_err(), "{vocab}");
        }
        assert!(Tokens::new(texts[..100].to_vec(), 51_865).is_err());
    }

    #[test]
    fn merges_follow_from_the_order_of_tokens() {
        let tokens = small(3);
        assert_eq!(tokens.encode(" the there").unwrap(), [258, 260]);
        assert_eq!(tokens.encode_piece(" there"), [260]);
        assert_eq!(tokens.text(&[258, 260, tokens.first_timestamp]), " the there");
        assert_eq!(tokens.encode("<|endoftext|>").unwrap().len(), 13);
    }

    #[test]
    fn merges_of_long_tokens_take_the_lowest_rank_first() {
        let tokens = small(3);
        // " the" and "re" come before " there".
        assert_eq!(merged(b" there", 260, &tokens.ranks), [0, 4, 6]);
        assert_eq!(merged(b" the", 258, &tokens.ranks), [0, 2, 4]);
        assert_eq!(merged(b"", u32::MAX, &tokens.ranks), [0]);
        let start = std::time::Instant::now();
        let long = merged(&b" there".repeat(85), u32::MAX, &tokens.ranks);
        assert_eq!(long.len(), 86);
        assert!(start.elapsed().as_secs() < 5);
    }
}
