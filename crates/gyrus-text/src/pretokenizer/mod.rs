//! Pre-tokenizers: they split text into pieces before byte-level BPE merges run within each piece.
//!
//! A vocabulary names its pre-tokenizer, a short list of patterns that are applied one after another. The patterns are
//! hand-written scanners. Each does in one pass what the published regular expression does, including lookahead and
//! backtracking; the tests compare them with a regex engine.

mod known;
mod patterns;
mod scan;
mod split;
mod stages;

pub(crate) use known::known_regex;
pub use scan::Scanner;
pub(crate) use scan::{ScanFn, Text};
pub(crate) use split::{Position, Splitter};

use crate::data::PreTokenizer;
use crate::error::TokenizerError;

/// A pre-tokenizer that GGUF files name, and the properties that follow from its name.
#[derive(Clone, Copy)]
pub(crate) struct NamedPreTokenizer {
    /// The patterns, in order.
    patterns: &'static [ScanFn],
    /// A piece that is a token is encoded as that token, without merges.
    pub(crate) ignore_merges: bool,
    /// The BOS token is added unless the file says otherwise.
    pub(crate) add_bos: bool,
    /// Text is normalised to Unicode form C first.
    pub(crate) nfc: bool,
}

impl Scanner {
    /// The pattern of GPT-2.
    pub(crate) const GPT2: Self = Self::new(patterns::gpt2);
}

impl NamedPreTokenizer {
    pub(crate) fn scanners(self) -> impl Iterator<Item = Scanner> {
        self.patterns.iter().map(|&scan| Scanner::new(scan))
    }
}

const PLAIN: NamedPreTokenizer =
    NamedPreTokenizer { patterns: &[], ignore_merges: false, add_bos: false, nfc: false };
const GPT2: NamedPreTokenizer = NamedPreTokenizer { patterns: &[patterns::gpt2], ..PLAIN };
const DIGITS_GPT2: NamedPreTokenizer =
    NamedPreTokenizer { patterns: &[stages::digit, patterns::gpt2], ..PLAIN };
const LLAMA3: NamedPreTokenizer = NamedPreTokenizer { patterns: &[patterns::llama3], ..PLAIN };
const QWEN2: NamedPreTokenizer = NamedPreTokenizer { patterns: &[patterns::qwen2], ..PLAIN };
const BLOOM: NamedPreTokenizer = NamedPreTokenizer { patterns: &[stages::bloom], ..PLAIN };
const GPT4O: NamedPreTokenizer = NamedPreTokenizer { patterns: &[patterns::gpt4o], ..PLAIN };
const DEEPSEEK_V3: NamedPreTokenizer = NamedPreTokenizer {
    patterns: &[stages::three_digits, stages::han_and_kana, patterns::deepseek_v3],
    ..PLAIN
};

/// Every pre-tokenizer by its names in files, sorted within each group of relatives.
const PRE_TOKENIZERS: &[(&[&str], NamedPreTokenizer)] = &[
    (
        &["default"],
        NamedPreTokenizer {
            patterns: &[stages::default_punctuation, patterns::gpt2, stages::number, stages::ascii_triple],
            ..PLAIN
        },
    ),
    (
        &[
            "a.x-4.0",
            "exaone4",
            "gigachat",
            "gpt-2",
            "granite-docling",
            "jais",
            "jina-de",
            "jina-es",
            "jina-v1-en",
            "jina-v2-code",
            "jina-v2-de",
            "jina-v2-es",
            "mellum",
            "modern-bert",
            "phi-2",
            "roberta-bpe",
            "trillion",
        ],
        GPT2,
    ),
    // The GPT-NeoX family and Command R normalise their text.
    (&["mpt", "olmo"], NamedPreTokenizer { nfc: true, ..GPT2 }),
    (&["command-r"], NamedPreTokenizer { nfc: true, ..DIGITS_GPT2 }),
    (&["codeshell", "exaone", "mellum2", "minerva-7b", "refact", "smollm", "starcoder"], DIGITS_GPT2),
    (
        &[
            "falcon-h1",
            "falcon3",
            "jina-v5-nano",
            "lfm2",
            "llama-bpe",
            "llama-v3",
            "llama3",
            "midm-2.0",
            "pixtral",
        ],
        NamedPreTokenizer { ignore_merges: true, add_bos: true, ..LLAMA3 },
    ),
    (&["chatglm-bpe", "dbrx", "glm4", "smaug-bpe"], LLAMA3),
    (
        &["minicpm5"],
        NamedPreTokenizer {
            patterns: &[stages::three_digits, patterns::minicpm5],
            ignore_merges: true,
            ..PLAIN
        },
    ),
    (&["deepseek-r1-qwen", "f2llmv2", "kormo", "megrez", "qwen2"], NamedPreTokenizer { nfc: true, ..QWEN2 }),
    (&["bailingmoe", "bailingmoe2", "grok-2", "hunyuan", "llada-moe", "solar-open", "stablelm2"], QWEN2),
    (&["laguna"], NamedPreTokenizer { patterns: &[stages::line, patterns::qwen2], ..PLAIN }),
    (&["qwen35"], NamedPreTokenizer { patterns: &[patterns::qwen35], nfc: true, ..PLAIN }),
    (&["seed-coder"], NamedPreTokenizer { patterns: &[patterns::seed_coder], ..PLAIN }),
    (&["ufakzeka"], NamedPreTokenizer { patterns: &[patterns::ufakzeka], ..PLAIN }),
    (&["gpt-4o", "kanana2", "llama4", "minimax-m2", "talkie"], GPT4O),
    (&["granite-embed-multi-97m"], NamedPreTokenizer { ignore_merges: true, ..GPT4O }),
    (
        &["tekken"],
        NamedPreTokenizer { patterns: &[patterns::tekken], ignore_merges: true, add_bos: true, ..PLAIN },
    ),
    (
        &["youtu"],
        NamedPreTokenizer {
            patterns: &[stages::youtu_east, patterns::gpt4o_single_digits],
            ignore_merges: true,
            ..PLAIN
        },
    ),
    (&["kimi-k2"], NamedPreTokenizer { patterns: &[patterns::kimi_k2], ..PLAIN }),
    (
        &["deepseek-llm"],
        NamedPreTokenizer {
            patterns: &[
                stages::newline,
                stages::deepseek_word,
                stages::deepseek_punctuation,
                stages::trailing_space,
                stages::deepseek_east,
                stages::number,
            ],
            ..PLAIN
        },
    ),
    (
        &["deepseek-coder"],
        NamedPreTokenizer {
            patterns: &[
                stages::newline,
                stages::coder_word,
                stages::coder_punctuation,
                stages::deepseek_east,
                stages::digit,
            ],
            ..PLAIN
        },
    ),
    (&["deepseek-v3", "hunyuan-dense", "hy_v4", "joyai-llm"], DEEPSEEK_V3),
    (
        &["spark2_5"],
        NamedPreTokenizer {
            patterns: &[stages::three_digits, stages::han_and_kana, patterns::spark, stages::digit],
            ..PLAIN
        },
    ),
    (
        &["falcon"],
        NamedPreTokenizer {
            patterns: &[stages::falcon_punctuation, patterns::gpt2, stages::ascii_triple],
            ..PLAIN
        },
    ),
    (&["bloom", "gpt3-finnish", "poro-chat"], BLOOM),
    (&["viking"], NamedPreTokenizer { patterns: &[stages::bloom, stages::digit], ..PLAIN }),
    (
        &["chameleon"],
        NamedPreTokenizer {
            patterns: &[
                stages::chameleon_marks,
                stages::chameleon_space,
                stages::digit,
                stages::single_punctuation,
                patterns::gpt2,
            ],
            add_bos: true,
            ..PLAIN
        },
    ),
    (&["exaone-moe"], NamedPreTokenizer { patterns: &[patterns::exaone_moe], ..PLAIN }),
];

/// The names of all pre-tokenizers, in alphabetical order.
pub fn pre_names() -> Vec<&'static str> {
    let mut names: Vec<_> = PRE_TOKENIZERS.iter().flat_map(|(names, _)| names.iter().copied()).collect();
    names.sort_unstable();
    names
}

/// The pieces into which the pre-tokenizer `name` splits `text`, in order and without loss. No token spans two pieces.
pub fn pretokenize<'t>(name: &str, text: &'t str) -> Result<Vec<&'t str>, TokenizerError> {
    let mut pieces = Vec::new();
    let mut rest = text;
    let steps = named(name)?.scanners().map(PreTokenizer::isolated).collect();
    Splitter::new(steps)?.split(text.as_bytes(), Position::Inside, &mut |piece| {
        let (head, tail) = rest.split_at(piece.len());
        pieces.push(head);
        rest = tail;
    });
    Ok(pieces)
}

/// The pre-tokenizer of that name.
pub(crate) fn named(name: &str) -> Result<NamedPreTokenizer, TokenizerError> {
    PRE_TOKENIZERS
        .iter()
        .find(|(names, _)| names.contains(&name))
        .map(|(_, pre_tokenizer)| *pre_tokenizer)
        .ok_or_else(|| TokenizerError::UnknownPre { name: name.to_owned(), known: pre_names().join(", ") })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces<'t>(name: &str, text: &'t str) -> Vec<&'t str> {
        pretokenize(name, text).expect("a known pre-tokenizer")
    }

    #[test]
    fn gpt2_pieces() {
        assert_eq!(
            pieces("gpt-2", "I'll  go\n\n now 123!"),
            ["I", "'ll", " ", " go", "\n\n", " now", " 123", "!"]
        );
        assert_eq!(pieces("gpt-2", "  "), ["  "]);
        assert_eq!(pieces("gpt-2", "a\u{3000}\u{3000}b"), ["a", "\u{3000}", "\u{3000}", "b"]);
    }

    #[test]
    fn llama3_and_qwen2_differ_in_digits() {
        assert_eq!(pieces("llama-bpe", "x=1234;\n\n y"), ["x", "=", "123", "4", ";\n\n", " y"]);
        assert_eq!(pieces("qwen2", "12'S 'S"), ["1", "2", "'S", " '", "S"]);
    }

    #[test]
    fn letters_without_case_belong_to_either_part_of_a_cased_word() {
        assert_eq!(pieces("gpt-4o", "HelloWorld XMLHttp"), ["Hello", "World", " XMLHttp"]);
        assert_eq!(pieces("gpt-4o", "AB中C"), ["AB中", "C"]);
        assert_eq!(pieces("gpt-4o", "don't a/b//\n"), ["don't", " a", "/b", "//\n"]);
        assert_eq!(pieces("tekken", "don't 12"), ["don", "'t", " ", "1", "2"]);
    }

    #[test]
    fn the_error_for_an_unknown_name_lists_the_known_names() {
        let message = named("nonesuch").err().expect("refused").to_string();
        assert!(message.contains("\"nonesuch\"") && message.contains("llama-bpe"), "{message}");
    }
}
