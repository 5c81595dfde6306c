//! Shared by the integration tests: vocabularies from files, random text, reference programs.
#![allow(dead_code, reason = "each test uses its part")]

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use gyrus_formats::gguf::{Gguf, Value};
use gyrus_testkit::Rng;
use gyrus_text::gguf::Vocabulary;
use gyrus_text::{Special, SpecialIds, TokenKind, Tokenizer};

/// Reads the vocabulary of a GGUF file.
pub(crate) fn load(path: &Path) -> Vocabulary {
    let file = Gguf::open(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let keys = file.metadata();
    let key = |name: &str| format!("tokenizer.ggml.{name}");
    let id = |name: &str| keys.get::<u32>(&key(name)).expect("an id");
    let flag = |name: &str| keys.get::<bool>(&key(name)).expect("a flag");
    let text = |name: &str| keys.get::<&str>(name).expect("text").map(str::to_owned);
    let strings = |name: &str| {
        let strings = keys.get::<Vec<&str>>(&key(name)).expect("strings").unwrap_or_default();
        strings.into_iter().map(str::to_owned).collect::<Vec<_>>()
    };
    let kinds = keys.get::<Vec<i32>>(&key("token_type")).expect("kinds").unwrap_or_default();
    Vocabulary {
        model: text(&key("model")).expect("a model"),
        pre: text(&key("pre")),
        tokens: strings("tokens"),
        kinds: kinds.into_iter().map(|kind| TokenKind::from_gguf(kind).expect("a kind")).collect(),
        scores: keys.get(&key("scores")).expect("scores").unwrap_or_default(),
        merges: strings("merges"),
        ids: SpecialIds {
            bos: id("bos_token_id"),
            eos: id("eos_token_id"),
            eot: id("eot_token_id"),
            eom: id("eom_token_id"),
            unk: id("unknown_token_id"),
            sep: id("seperator_token_id"),
            pad: id("padding_token_id"),
            mask: id("mask_token_id"),
            cls: id("cls_token_id"),
            ..SpecialIds::default()
        },
        add_bos: flag("add_bos_token"),
        add_eos: flag("add_eos_token"),
        add_sep: flag("add_sep_token"),
        add_space_prefix: flag("add_space_prefix"),
        remove_extra_whitespaces: flag("remove_extra_whitespaces"),
        treat_whitespace_as_suffix: flag("treat_whitespace_as_suffix"),
        precompiled_charsmap: match keys.value(&key("precompiled_charsmap")) {
            Some(Value::Array(array)) => array.bytes().to_vec(),
            _ => Vec::new(),
        },
        general_name: text("general.name"),
        ..Vocabulary::default()
    }
}

/// The tokenizer of a GGUF file.
pub(crate) fn tokenizer(path: &Path) -> Tokenizer {
    load(path).into_data().and_then(Tokenizer::new).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// A file in the folder of downloaded models. `scripts/verify grids` downloads them all. Elsewhere a missing file skips
/// its test, even where the default model is required.
pub(crate) fn model(name: &str) -> Option<PathBuf> {
    let folder = std::env::var_os("GYRUS_MODELS").map(|folder| gyrus_testkit::repository().join(folder));
    let path = folder.map(|folder| folder.join(name)).filter(|path| path.exists());
    if path.is_none() {
        let reason = format!("{name} is not in the folder that GYRUS_MODELS names");
        gyrus_testkit::skip(gyrus_testkit::Need::Extra, &reason);
    }
    path
}

/// One request to a reference program.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    /// The text.
    pub(crate) text: String,
    /// How special tokens are encoded.
    pub(crate) special: Special,
    /// Whether special tokens are added.
    pub(crate) add: bool,
}

/// Writes requests in the format of the scripts under `scripts/oracle`.
pub(crate) fn write_requests(path: &Path, requests: &[Request]) {
    let mut lines = String::new();
    for request in requests {
        let flags = u8::from(request.special == Special::Parse) + 2 * u8::from(request.add);
        write!(lines, "{flags} ").expect("memory");
        request.text.bytes().for_each(|byte| write!(lines, "{byte:02x}").expect("memory"));
        lines.push('\n');
    }
    std::fs::write(path, lines).expect("a temporary file");
}

/// Numbers separated by spaces.
pub(crate) fn ids(line: &str) -> Vec<u32> {
    line.split_whitespace().map(|word| word.parse().expect("an id")).collect()
}

/// Runs `script` on `requests` and compares; `skip` selects known differences, which are listed in docs/tokenizers.md.
/// Returns whether the program could be run.
pub(crate) fn compare(
    script: &str,
    source: &Path,
    tokenizer: &Tokenizer,
    requests: &[Request],
    skip: impl Fn(&Request) -> bool,
) -> bool {
    let folder = gyrus_testkit::tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("requests");
    write_requests(&file, requests);
    let Some(answer) = gyrus_testkit::oracle(script, &[source, &file]) else { return false };
    let lines: Vec<_> = answer.lines().filter(|line| !line.starts_with("end")).collect();
    assert_eq!(lines.len(), requests.len(), "one answer for each request");
    let mut wrong = 0;
    let mut skipped = 0;
    for (request, line) in requests.iter().zip(lines) {
        let expected = ids(line);
        let found = tokenizer.encode(&request.text, request.special, request.add);
        if found == expected {
            continue;
        }
        if skip(request) {
            skipped += 1;
            continue;
        }
        wrong += 1;
        if wrong <= 10 {
            let texts = |ids: &[u32]| {
                ids.iter().map(|&id| tokenizer.token_text(id).unwrap_or("?").to_owned()).collect::<Vec<_>>()
            };
            eprintln!("{request:?}\n  found    {:?}\n  expected {:?}", texts(&found), texts(&expected));
        }
    }
    eprintln!(
        "{script}, {}: {} requests, {wrong} wrong, {skipped} known differences",
        source.display(),
        requests.len()
    );
    assert_eq!(wrong, 0, "{} of {} texts differ from {script}", wrong, requests.len());
    true
}

const SNIPPETS: &[&str] = &[
    "Hello",
    " world",
    "I'm",
    "you'LL",
    "'s",
    "'S",
    "'ſ",
    "don't",
    "’t",
    "'re",
    "'VE",
    "naïve",
    "ÀÉÎ",
    "ß",
    "İstanbul",
    "e\u{301}",
    "a\u{308}\u{323}",
    "ก\u{e33}",
    "नमस्ते",
    "क\u{93c}",
    "\u{958}",
    "日本語",
    "漢字かな",
    "カタカナ",
    "한국어",
    "\u{1100}\u{1161}\u{11a8}",
    "العربية",
    "עִבְרִית",
    "Ελληνικά",
    "русский",
    "ქართული",
    "👍🏽",
    "👨‍👩‍👧‍👦",
    "🇩🇪",
    "❤️",
    "①",
    "½",
    "Ⅷ",
    "٣٤٥",
    "१२३",
    "123456789",
    "3.14159",
    "1,000",
    "0x1F",
    "\n",
    "\r\n",
    "\n\n\n",
    "\t",
    "\t\t",
    "    ",
    " ",
    "  ",
    "\u{a0}",
    "\u{3000}",
    "\u{2028}",
    "\u{200b}",
    "\u{200d}",
    "\u{feff}",
    "\u{0}",
    "\u{7}",
    "\u{7f}",
    "\u{85}",
    "\u{ad}",
    "()",
    "{}[]",
    "!=",
    "===",
    "->",
    "//",
    "/*",
    "`",
    "```",
    "~",
    "$",
    "+",
    "<=>",
    "^",
    "|",
    "_",
    "\\",
    "…",
    "—",
    "“”",
    "«»",
    "foo_bar",
    "camelCase",
    "HTMLParser",
    "SCREAMING_CASE",
    "x1",
    "v2.0",
    "http://a.b/c?d=e",
    "fn main() {",
    "#include <x>",
    "ǅ",
    "ʼn",
    "ﬁ",
    "ſt",
    "K",
    "Ω",
    "\u{212b}",
    "가",
    "龥",
    "鿿",
    "ࠀ",
    "퟿",
    "\u{e000}",
    "\u{10ffff}",
    "\u{1f9ff}",
    "𝔘𝔫𝔦",
    "𐐷",
    "𠀀",
    "<s>",
    "</s>",
    "<unk>",
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|eot_id|>",
    "<|begin_of_text|>",
    "<bos>",
    "<start_of_turn>",
    "[CLS]",
    "[SEP]",
    "[UNK]",
    "<0x41>",
    "<|im_",
    "end|>",
    "<|",
    "|>",
    "▁",
    "▁the",
    "Ġ",
    "Ċ",
    "##ing",
];

/// Random text: mixed scripts, all planes, control characters, runs, and strings like special tokens.
pub(crate) fn random_text(rng: &mut Rng) -> String {
    let mut text = String::new();
    for _ in 0..1 + rng.below(12) {
        match rng.below(12) {
            0..=4 => text.push_str(SNIPPETS[rng.below(SNIPPETS.len())]),
            5 => {
                let c = char::from_u32(rng.below(0x11_0000) as u32);
                text.extend(c);
            }
            6 => text.extend(char::from_u32(rng.below(0x3000) as u32)),
            7 => text.extend((0..1 + rng.below(6)).filter_map(|_| char::from_u32(rng.below(0x250) as u32))),
            8 => {
                // A run of one character.
                let c = *rng
                    .pick(&[' ', ' ', '\n', '\t', '0', '7', 'a', '=', '-', 'é', '中', '\u{3000}', '\u{301}']);
                let longest = if rng.below(20) == 0 { 200 } else { 12 };
                text.extend(std::iter::repeat_n(c, 1 + rng.below(longest)));
            }
            9 => text.extend((0..1 + rng.below(8)).map(|_| char::from(32 + rng.below(95) as u8))),
            10 => {
                // A run of one script.
                let start = *rng.pick(&[
                    0x370, 0x400, 0x590, 0x600, 0x900, 0xE00, 0x10A0, 0x1100, 0x1E00, 0x3040, 0x4E00, 0xAC00,
                    0x1F600,
                ]);
                text.extend(
                    (0..1 + rng.below(8)).filter_map(|_| char::from_u32((start + rng.below(96)) as u32)),
                );
            }
            _ => text.push(' '),
        }
    }
    text
}

/// Random requests, determined by the seed.
pub(crate) fn random_requests(seed: u64, count: usize) -> Vec<Request> {
    let mut rng = Rng::new(seed);
    (0..count)
        .map(|_| Request {
            text: random_text(&mut rng),
            special: if rng.below(2) == 0 { Special::Parse } else { Special::Literal },
            add: rng.below(4) == 0,
        })
        .collect()
}
