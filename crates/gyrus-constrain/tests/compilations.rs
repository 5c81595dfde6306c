//! How long a compilation may take, and how many run at once.

use std::time::{Duration, Instant};

use gyrus_constrain::{Error, Limits, Piece, Source, Vocabulary};

fn vocabulary(change: impl FnOnce(&mut Limits)) -> Vocabulary {
    let all: Vec<[u8; 1]> = (0..=255).map(|byte| [byte]).collect();
    let pieces = all.iter().map(|byte| Piece::Text(byte)).chain([Piece::Control(b"<end>")]);
    let mut limits = Limits::default();
    change(&mut limits);
    Vocabulary::new(pieces, &[256], None, limits).unwrap()
}

/// A regular expression that the engine works on for longer than a test allows.
fn slow() -> Source {
    Source::Regex(r"\w".repeat(20_000))
}

#[test]
fn compilations_beyond_the_limit_wait_and_then_name_it() {
    let vocabulary = vocabulary(|limits| {
        limits.compilations = 1;
        limits.compile_work = u64::MAX;
        limits.compile_time = Duration::from_millis(100);
    });
    let late = vocabulary.compile(&slow()).unwrap_err();
    assert!(matches!(late, Error::Limit { limit: "compile_time", allowed: 100, .. }), "{late}");
    // The engine goes on with the first one.
    let start = Instant::now();
    let full = vocabulary.compile(&Source::Regex("a".into())).unwrap_err();
    assert_eq!(
        full.to_string(),
        "the constraint exceeds the limit `compilations` of 1: no other compilation has ended in time"
    );
    assert!(start.elapsed() >= Duration::from_millis(100));
    // When it has ended, others compile.
    while let Err(error) = vocabulary.compile(&Source::Regex("a".into())) {
        assert!(matches!(error, Error::Limit { limit: "compilations", .. }), "{error}");
        assert!(start.elapsed() < Duration::from_secs(120));
    }
}

/// Each brace of a pattern is looked at with what may be a quantifier behind it, and no more.
#[test]
fn patterns_of_braces_take_linear_time() {
    let vocabulary = vocabulary(|limits| limits.compile_time = Duration::from_secs(60));
    let time = |braces: usize| {
        let pattern = format!("{}[", "{".repeat(braces));
        let start = Instant::now();
        let error = vocabulary.compile(&Source::Schema(format!(r#"{{"pattern":"{pattern}"}}"#))).unwrap_err();
        assert!(error.to_string().contains("a class without an end"), "{error:.100}");
        start.elapsed()
    };
    let took = time(1_000_000);
    assert!(took < Duration::from_secs(20), "{took:?}");
}
