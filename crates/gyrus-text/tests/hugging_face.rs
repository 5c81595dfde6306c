//! Tokenizers read from `tokenizer.json`, compared with Hugging Face tokenizers reading the same file.

mod common;

use std::path::{Path, PathBuf};

use common::{Request, ids, random_requests, write_requests};
use gyrus_text::hugging_face::{self, Files};
use gyrus_text::{Detokenizer, Special, TokenKind, Tokenizer};

fn open(path: &Path) -> Tokenizer {
    open_with_scores(path).0
}

fn open_with_scores(path: &Path) -> (Tokenizer, Vec<f64>) {
    let tokenizer = std::fs::read(path).expect("a file");
    let beside = |name: &str| std::fs::read(path.with_file_name(name)).ok();
    let (config, map) = (beside("tokenizer_config.json"), beside("special_tokens_map.json"));
    let files =
        Files { tokenizer: &tokenizer, config: config.as_deref(), special_tokens_map: map.as_deref() };
    let data = hugging_face::read(&files);
    let scores = data.as_ref().map_or(Vec::new(), |data| data.scores.clone());
    let tokenizer = data.and_then(Tokenizer::new);
    (tokenizer.unwrap_or_else(|error| panic!("{}: {error}", path.display())), scores)
}

/// Text with the special tokens that the trained tokenizers have, and words that they were trained on.
fn requests(seed: u64, count: usize) -> Vec<Request> {
    let mut rng = gyrus_testkit::Rng::new(seed);
    let parts = [
        "ka",
        "to",
        "mi",
        "ren",
        "the",
        "ing",
        "ßü",
        "漢字",
        "ｶﾀ",
        "ﬁ",
        "Ⅳ",
        "e\u{301}",
        " ",
        " ",
        "  ",
        "\u{3000}",
        "\t",
        "\n",
        "word",
        " word ",
        "<left>",
        "<right>",
        " <left> ",
        " <right> ",
        "NEW Token",
        "new token",
        "<mask>",
        "<s>",
        "</s>",
        "<unk>",
        "``",
        "''",
        "don't",
        " .",
        "!",
        "12345",
        "0x41",
    ];
    let mut requests = random_requests(seed, count);
    for request in &mut requests {
        if rng.below(2) == 0 {
            (0..2 + rng.below(16)).for_each(|_| request.text.push_str(parts[rng.below(parts.len())]));
        }
    }
    requests
}

/// How the result may differ from the reference; docs/tokenizers.md has the reasons.
#[derive(Clone, Copy, PartialEq)]
enum Agreement {
    /// In nothing.
    Full,
    /// A space that the encoder added after a special token is not rendered, and text is never a special token in
    /// literal mode.
    Safer,
}

fn compare(path: &Path, requests: &[Request], agreement: Agreement) {
    let (tokenizer, scores) = open_with_scores(path);
    let folder = gyrus_testkit::tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("requests");
    write_requests(&file, requests);
    let Some(answer) = gyrus_testkit::oracle("tokenizer_json.py", &[path, &file]) else { return };
    let lines: Vec<_> = answer.lines().collect();
    assert_eq!(lines.len(), requests.len(), "one answer for each request");
    let (mut wrong, mut safer, mut ties) = (0, 0, 0);
    for (request, line) in requests.iter().zip(lines) {
        let fields: Vec<_> = line.split('\t').collect();
        let expected = ids(fields[0]);
        let found = tokenizer.encode(&request.text, request.special, request.add);
        let texts = [unhex(fields[1]), unhex(fields[2])];
        let decoded = [stream(&tokenizer, &expected, false), stream(&tokenizer, &expected, true)];
        assert_eq!(decoded[0], tokenizer.decode(&expected, false));
        let same_text = decoded[0] == texts[0] && (agreement == Agreement::Safer || decoded[1] == texts[1]);
        // Bytes that are not UTF-8 are replaced one by one there, and in maximal parts here.
        let replaced = texts.iter().any(|text| text.contains('\u{FFFD}'));
        // The reference decodes a token that is matched in normalised text as its normalised text.
        let names =
            |id: &u32| ["<left>", "<right>", "NEW Token"].map(Some).contains(&tokenizer.token_text(*id));
        if found == expected && (same_text || replaced || expected.iter().any(names)) {
            continue;
        }
        // The sum of the scores decides. The reference reads a score with an error of one unit in the last place.
        let sum = |ids: &[u32]| ids.iter().filter_map(|&id| scores.get(id as usize)).sum::<f64>();
        if !scores.is_empty() && (sum(&found) - sum(&expected)).abs() < 1e-9 {
            ties += 1;
            continue;
        }
        if agreement == Agreement::Safer && is_safer(&tokenizer, request, &expected) {
            safer += 1;
            continue;
        }
        wrong += 1;
        if wrong <= 8 {
            let names = |ids: &[u32]| {
                ids.iter().map(|&id| tokenizer.token_text(id).unwrap_or("?").to_owned()).collect::<Vec<_>>()
            };
            eprintln!("{request:?}\n  found    {:?}\n  expected {:?}", names(&found), names(&expected));
            eprintln!("  decoded  {decoded:?}\n  expected {texts:?}");
        }
    }
    eprintln!("{}: {} requests, {wrong} wrong, {safer} safer, {ties} ties", path.display(), requests.len());
    assert_eq!(wrong, 0, "{} of {} texts differ for {}", wrong, requests.len(), path.display());
}

/// Whether the text spells a special token in literal mode, or a byte token. Unigram and `ignore_merges` of the reference
/// encode it as that token; here text never becomes one.
fn is_safer(tokenizer: &Tokenizer, request: &Request, expected: &[u32]) -> bool {
    let spelt = |id: u32| tokenizer.token_text(id).is_some_and(|text| request.text.contains(text));
    let special = ["<s>", "</s>", "<unk>", "<mask>"].into_iter().any(|text| request.text.contains(text));
    special && request.special == Special::Literal
        || expected.iter().any(|&id| tokenizer.kind(id) == Some(TokenKind::Byte) && spelt(id))
}

fn unhex(digits: &str) -> String {
    let bytes = (0..digits.len()).step_by(2).map(|at| u8::from_str_radix(&digits[at..at + 2], 16));
    String::from_utf8(bytes.collect::<Result<_, _>>().expect("hexadecimal")).expect("text")
}

fn stream(tokenizer: &Tokenizer, ids: &[u32], render_special: bool) -> String {
    let mut detokenizer = Detokenizer::new(tokenizer, render_special);
    let mut text: String = ids.iter().map(|&id| detokenizer.push(id)).collect();
    text.push_str(&detokenizer.finish());
    text
}

fn published(name: &str, seed: u64, agreement: Agreement) {
    let Some(path) = common::model(name) else { return };
    compare(&path, &requests(seed, gyrus_testkit::cases(500)), agreement);
}

#[test]
fn qwen3() {
    published("tokenizer-qwen3/tokenizer.json", 1, Agreement::Full);
}

#[test]
fn llama3() {
    published("tokenizer-llama3_2/tokenizer.json", 2, Agreement::Full);
}

#[test]
fn gemma3() {
    published("tokenizer-gemma3/tokenizer.json", 3, Agreement::Full);
}

#[test]
fn minilm() {
    published("all-MiniLM-L6-v2/tokenizer.json", 4, Agreement::Full);
}

#[test]
fn tales() {
    let Some(path) = gyrus_testkit::data("tales/tokenizer.json") else { return };
    compare(&path, &requests(5, gyrus_testkit::cases(500)), Agreement::Full);
}

#[test]
fn trained() {
    let requests = requests(6, gyrus_testkit::cases(500).min(5000));
    let folder = gyrus_testkit::tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("requests");
    write_requests(&file, &requests);
    let arguments: [PathBuf; 2] = [folder.path().into(), file];
    let Some(names) = gyrus_testkit::oracle("train_tokenizers.py", &arguments) else { return };
    let mut failed = Vec::new();
    for name in names.lines() {
        let path = folder.path().join(format!("{name}.json"));
        let checked = std::panic::catch_unwind(|| compare(&path, &requests, Agreement::Safer));
        if checked.is_err() {
            failed.push(name);
        }
    }
    assert!(failed.is_empty(), "{failed:?}");
}

/// The same vocabulary in both formats gives the same ids.
#[test]
fn gguf_twins() {
    let pairs = [
        ("vocab/ggml-vocab-qwen2.gguf", "tokenizer-qwen3/tokenizer.json"),
        ("vocab/ggml-vocab-llama-bpe.gguf", "tokenizer-llama3_2/tokenizer.json"),
    ];
    for (gguf, json) in pairs {
        let (Some(gguf), Some(json)) = (gyrus_testkit::data(gguf), common::model(json)) else { continue };
        twins(&gguf, &json);
    }
    let tales = ("tales/tales-7m-q8_0.gguf", "tales/tokenizer.json");
    if let (Some(gguf), Some(json)) = (gyrus_testkit::data(tales.0), gyrus_testkit::data(tales.1)) {
        twins(&gguf, &json);
    }
}

fn twins(gguf: &Path, json: &Path) {
    let (gguf, json) = (common::tokenizer(gguf), open(json));
    for request in requests(7, gyrus_testkit::cases(500)) {
        let found = json.encode(&request.text, request.special, false);
        assert_eq!(found, gguf.encode(&request.text, request.special, false), "{request:?}");
        assert_eq!(json.decode(&found, false), gguf.decode(&found, false), "{request:?}");
    }
}

#[test]
fn special_tokens_are_text_in_literal_mode() {
    let Some(path) = gyrus_testkit::data("tales/tokenizer.json") else { return };
    let tokenizer = open(&path);
    assert_eq!(tokenizer.encode("<|endoftext|>", Special::Parse, false), [0]);
    assert!(!tokenizer.encode("<|endoftext|>", Special::Literal, false).contains(&0));
    assert!(tokenizer.is_end(0));
}
