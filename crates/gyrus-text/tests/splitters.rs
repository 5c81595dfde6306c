//! The hand-written pre-tokenizers compared with a regex engine that runs the published patterns.

mod common;

use common::{random_requests, write_requests};
use gyrus_text::{pre_names, pretokenize};

#[test]
fn scanners_match_the_regex_patterns() {
    let requests = random_requests(20, gyrus_testkit::cases(300));
    let folder = gyrus_testkit::tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("requests");
    write_requests(&file, &requests);
    let Some(answer) = gyrus_testkit::oracle("split_hf.py", &[&file]) else { return };
    let mut rules = 0;
    let mut wrong = 0;
    for section in answer.split("rule ").skip(1) {
        let (name, lines) = section.split_once('\n').expect("a name");
        rules += 1;
        let mut shown = 0;
        let lines: Vec<_> = lines.lines().collect();
        assert_eq!(lines.len(), requests.len());
        for (request, line) in requests.iter().zip(lines) {
            let found = pretokenize(name, &request.text).expect("a known rule");
            let mut rest = request.text.as_str();
            let expected: Vec<_> = line
                .split_whitespace()
                .map(|len| {
                    let (piece, tail) = rest.split_at(len.parse().expect("a length"));
                    rest = tail;
                    piece
                })
                .collect();
            if found != expected {
                wrong += 1;
                shown += 1;
                if shown <= 3 {
                    eprintln!("{name}: {:?}\n  found    {found:?}\n  expected {expected:?}", request.text);
                }
            }
        }
    }
    eprintln!("{rules} rules on {} texts", requests.len());
    assert_eq!(wrong, 0);
    assert!(rules > 20);
}

/// The same comparison with recorded results, for machines without the regex engine. The first lines of the file are
/// the texts in hexadecimal. `GYRUS_BLESS=1` records it again.
#[test]
fn scanners_match_the_recorded_results() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/splits.txt");
    if std::env::var_os("GYRUS_BLESS").is_some() {
        let folder = gyrus_testkit::tempfile::tempdir().expect("a temporary folder");
        let file = folder.path().join("requests");
        write_requests(&file, &random_requests(22, 40));
        let answer = gyrus_testkit::oracle("split_hf.py", &[&file]).expect("an engine to ask");
        let texts = std::fs::read_to_string(file).expect("requests");
        std::fs::write(&path, texts + &answer).expect("a writable repository");
    }
    let golden = std::fs::read_to_string(path).expect("the recorded answers");
    let (texts, answers) = golden.split_once("rule ").expect("a rule");
    let texts: Vec<_> = texts
        .lines()
        .map(|line| {
            let digits = line.split_once(' ').expect("flags and text").1;
            let bytes = (0..digits.len()).step_by(2).map(|at| u8::from_str_radix(&digits[at..at + 2], 16));
            String::from_utf8(bytes.collect::<Result<_, _>>().expect("hexadecimal")).expect("text")
        })
        .collect();
    let mut compared = 0;
    for section in answers.split("rule ") {
        let (name, lines) = section.split_once('\n').expect("a name");
        for (text, line) in texts.iter().zip(lines.lines()) {
            let found: Vec<_> =
                pretokenize(name, text).expect("known").iter().map(|p| p.len() as u32).collect();
            assert_eq!(found, common::ids(line), "{name}: {text:?}");
            compared += 1;
        }
    }
    assert_eq!(compared, 24 * 40);
}

#[test]
fn pieces_concatenate_to_the_text() {
    for request in random_requests(21, gyrus_testkit::cases(300)) {
        for name in pre_names() {
            assert_eq!(pretokenize(name, &request.text).expect("known").concat(), request.text, "{name}");
        }
    }
}
