//! Any text as a GBNF grammar: an error with a place, or masks that lead to a complete text or a limit.
//!
//! Text between two control characters U+0001 is repeated up to the limit of source bytes, so that short inputs reach what
//! only large grammars do, such as deep recursion.
#![no_main]

#[path = "walk.rs"]
mod walk;

use gyrus_constrain::{Error, Limits, Source};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &str| match walk::bytes().compile(&Source::Gbnf(expanded(data))) {
    Ok(constraint) => walk::walk(&constraint, data.len() as u64),
    Err(Error::Syntax { line, column, .. } | Error::LeftRecursion { line, column, .. }) => {
        assert!(line > 0 && column > 0)
    }
    Err(Error::Limit { .. } | Error::Unsatisfiable { .. }) => {}
    Err(error) => panic!("a grammar of GBNF is not translated: {error}"),
});

fn expanded(data: &str) -> String {
    let mut parts = data.splitn(3, '\u{1}');
    match (parts.next(), parts.next(), parts.next()) {
        (Some(head), Some(unit), Some(tail)) if !unit.is_empty() => {
            let free = Limits::default().source_bytes.saturating_sub(head.len() + tail.len());
            format!("{head}{}{tail}", unit.repeat(free / unit.len()))
        }
        _ => data.to_owned(),
    }
}
