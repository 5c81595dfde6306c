//! What every tokenizer promises on any text.

use gyrus_text::{Detokenizer, Special, Tokenizer};

pub fn check(tokenizer: &Tokenizer, texts: &[String]) {
    for text in texts {
        for special in [Special::Parse, Special::Literal] {
            let ids = tokenizer.encode(text, special, true);
            assert!(ids.iter().all(|&id| (id as usize) < tokenizer.vocab_size()));
            assert_eq!(ids, tokenizer.encode(text, special, true), "the same text, the same ids");
            for render in [false, true] {
                let mut stream = Detokenizer::new(tokenizer, render);
                let mut shown: String = ids.iter().map(|&id| stream.push(id)).collect();
                shown.push_str(&stream.finish());
                assert_eq!(shown, tokenizer.decode(&ids, render));
                assert_eq!(shown, String::from_utf8_lossy(&tokenizer.decode_bytes(&ids, render)));
            }
        }
    }
    assert!(tokenizer.end_tokens().all(|id| (id as usize) < tokenizer.vocab_size()));
}
