//! Any vocabulary: refused with a reason, or a tokenizer that keeps its promises on any text.
#![no_main]

#[path = "promises.rs"]
mod promises;
#[path = "vocabulary.rs"]
mod vocabulary;

use gyrus_text::Tokenizer;
use libfuzzer_sys::fuzz_target;
use vocabulary::{Source, vocabulary};

fuzz_target!(|data: &[u8]| {
    let mut source = Source(data);
    let data = vocabulary(&mut source);
    let tokenizer = match data.into_data().and_then(Tokenizer::new) {
        Ok(tokenizer) => tokenizer,
        Err(error) => return assert!(!error.to_string().is_empty()),
    };
    let mut texts = vec![String::from_utf8_lossy(source.0).into_owned()];
    while !source.0.is_empty() {
        texts.push(source.text());
    }
    promises::check(&tokenizer, &texts);
});
