//! Regular expressions of published tokenizers that have a hand-written scanner.

use super::scan::{ScanFn, Scanner};
use super::{patterns, stages};

/// The scanner of a regular expression, if it has one.
pub(crate) fn known_regex(regex: &str) -> Option<Scanner> {
    KNOWN.iter().find(|(_, known)| *known == regex).map(|(scan, _)| Scanner::new(*scan))
}

/// Each scanner with a regular expression that it computes. The tests compare both.
#[rustfmt::skip]
const KNOWN: &[(ScanFn, &str)] = &[
    (patterns::gpt2, r#"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"#),
    (patterns::llama3, r#"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"#),
    (patterns::llama3, r#"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"#),
    (patterns::qwen2, r#"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"#),
    (patterns::qwen2, r#"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"#),
    (patterns::minicpm5, r#"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}+| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"#),
    (patterns::qwen35, r#"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"#),
    (patterns::ufakzeka, r#"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"#),
    (patterns::gpt4o, r#"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"#),
    (patterns::tekken, r#"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"#),
    (patterns::gpt4o_single_digits, r#"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"#),
    (patterns::kimi_k2, r#"\p{Han}+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"#),
    (patterns::deepseek_v3, r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##),
    (patterns::exaone_moe, r#"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+"#),
    (stages::digit, r#"\p{N}"#),
    (stages::number, r#"\p{N}+"#),
    (stages::three_digits, r#"\p{N}{1,3}"#),
    (stages::ascii_triple, r#"[0-9][0-9][0-9]"#),
    (stages::newline, r#"[\r\n]"#),
    (stages::line, r#"[^\n]+|[\n]+"#),
    (stages::han_and_kana, r#"[一-龥぀-ゟ゠-ヿ]+"#),
    (stages::coder_word, r#"\s?\p{L}+"#),
    (stages::coder_punctuation, r#"\s?\p{P}+"#),
    (stages::bloom, r#" ?[^(\s|[.,!?…。，、।۔،])]+"#),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::Pattern;
    use crate::matcher::Matcher;
    use crate::unicode::{Class, classes};
    use gyrus_testkit::Rng;

    const PARTS: &[&str] = &[
        "'s",
        "'LL",
        "'ſ",
        "don't",
        "Hello",
        "HTMLParser",
        "camelCase",
        "123456",
        "१२३",
        "½",
        " ",
        "  ",
        "\n",
        "\r\n",
        "\t",
        "\u{3000}",
        "\u{a0}",
        "!=",
        "//",
        "…",
        "，",
        "(a|b)",
        "e\u{301}",
        "\u{301}\u{308}",
        "漢字",
        "かな",
        "カナ",
        "한국어",
        "ǅ",
        "ʰ",
        "👍🏽",
        "€",
        "`~^",
        "क्षि",
        "\u{0}",
        "\u{200d}",
    ];

    fn random_text(rng: &mut Rng) -> String {
        let mut text = String::new();
        for _ in 0..1 + rng.below(10) {
            if rng.below(4) > 0 {
                text.push_str(PARTS[rng.below(PARTS.len())]);
            } else {
                // The engine's Unicode release may know characters that the class table does not have.
                let c = char::from_u32(rng.below(0x3_0000) as u32);
                text.extend(c.filter(|&c| classes().of_char(c) != Class::NONE));
            }
        }
        text
    }

    #[test]
    fn scanners_match_as_their_regular_expressions() {
        let mut rng = Rng::new(5);
        for (scan, regex) in KNOWN {
            let scanner = Matcher::new(&Pattern::Scanner(Scanner::new(*scan))).expect("a scanner");
            let engine = Matcher::new(&Pattern::Regex((*regex).to_owned())).expect(regex);
            for _ in 0..gyrus_testkit::cases(400).min(4000) {
                let text = random_text(&mut rng);
                let matches = |matcher: &Matcher| {
                    let mut all = Vec::new();
                    matcher.for_each(&text, &mut |start, end| all.push(&text[start..end]));
                    all
                };
                assert_eq!(matches(&scanner), matches(&engine), "{regex} in {text:?}");
            }
        }
    }
}
