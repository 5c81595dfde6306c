//! Any text as a GBNF grammar: an error with a place, or masks that lead to a complete text or a limit.
#![no_main]

#[path = "walk.rs"]
mod walk;

use gyrus_constrain::{Error, Source};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &str| match walk::bytes().compile(&Source::Gbnf(data.to_owned())) {
    Ok(constraint) => walk::walk(&constraint, data.len() as u64),
    Err(
        Error::Syntax { line, column, .. } | Error::LeftRecursion { line, column, .. },
    ) => assert!(line > 0 && column > 0),
    Err(Error::Limit { .. } | Error::Unsatisfiable { .. }) => {}
    Err(error) => panic!("a grammar of GBNF is not translated: {error}"),
});
