//! The hand-written splitters against a regex engine that runs the published patterns.

mod common;

use common::{random_requests, write_requests};
use gyrus_text::{pre_names, pretokenize};

#[test]
fn scanners_cut_where_the_patterns_do() {
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

#[test]
fn pieces_lose_nothing() {
    for request in random_requests(21, gyrus_testkit::cases(300)) {
        for name in pre_names() {
            assert_eq!(pretokenize(name, &request.text).expect("known").concat(), request.text, "{name}");
        }
    }
}
