//! Any vocabulary: refused with a reason, or a tokenizer that keeps its promises on any text.
#![no_main]

#[path = "vocabulary.rs"]
mod vocabulary;

use gyrus_text::{Detokenizer, Special, Tokenizer};
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
    for text in &texts {
        for special in [Special::Parse, Special::Literal] {
            let ids = tokenizer.encode(text, special, true);
            assert!(ids.iter().all(|&id| (id as usize) < tokenizer.vocab_size()));
            assert_eq!(ids, tokenizer.encode(text, special, true), "the same text, the same ids");
            for render in [false, true] {
                let mut stream = Detokenizer::new(&tokenizer, render);
                let mut shown: String = ids.iter().map(|&id| stream.push(id)).collect();
                shown.push_str(&stream.finish());
                assert_eq!(shown, tokenizer.decode(&ids, render));
                assert_eq!(shown, String::from_utf8_lossy(&tokenizer.decode_bytes(&ids, render)));
            }
        }
    }
    assert!(tokenizer.end_tokens().all(|id| (id as usize) < tokenizer.vocab_size()));
});
