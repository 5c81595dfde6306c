//! Any text as a JSON schema: an error, or masks that lead to JSON or a limit.
#![no_main]

#[path = "walk.rs"]
mod walk;

use gyrus_constrain::Source;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &str| match walk::bytes().compile(&Source::Schema(data.to_owned())) {
    Ok(constraint) => walk::walk(&constraint, data.len() as u64),
    Err(error) => assert!(!error.to_string().is_empty()),
});
