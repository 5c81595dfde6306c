//! Any bytes as text, by every splitting rule, with a vocabulary that can write all of them.
#![no_main]

use std::sync::LazyLock;

use gyrus_text::gguf::Vocabulary;
use gyrus_text::{Special, TokenKind, Tokenizer, pre_names, pretokenize};
use libfuzzer_sys::fuzz_target;

/// One tokenizer for each rule: GPT-2's alphabet, a few merges and a special token.
static TOKENIZERS: LazyLock<Vec<(&str, Tokenizer)>> = LazyLock::new(|| {
    pre_names()
        .into_iter()
        .map(|name| {
            let mut data = Vocabulary { model: "gpt2".into(), pre: Some(name.into()), ..Default::default() };
            let mut next = 0x100;
            for byte in 0..=255_u8 {
                let same = matches!(byte, 0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF);
                let code = if same { u32::from(byte) } else { next };
                next += u32::from(!same);
                data.tokens.extend(char::from_u32(code).map(String::from));
            }
            for (left, right) in [("a", "a"), ("aa", "aa"), ("Ġ", "Ġ"), ("Ġ", "a"), ("Ċ", "Ċ"), ("1", "1"), ("'", "s")] {
                data.tokens.push(format!("{left}{right}"));
                data.merges.push(format!("{left} {right}"));
            }
            data.kinds = vec![TokenKind::Normal; data.tokens.len()];
            data.tokens.push("<|end|>".into());
            data.kinds.push(TokenKind::Control);
            data.ids.bos = Some(0);
            (name, Tokenizer::new(data.into_data().expect("known names")).expect("sound"))
        })
        .collect()
});

fuzz_target!(|text: &[u8]| {
    for (name, tokenizer) in TOKENIZERS.iter() {
        let mut ids = Vec::new();
        tokenizer.encode_bytes_into(text, Special::Literal, false, &mut ids);
        let back = tokenizer.decode_bytes(&ids, true);
        // Rules that normalise change text that is not in form C.
        let normalises = ["command-r", "deepseek-r1-qwen", "f2llmv2", "kormo", "megrez", "mpt", "olmo", "qwen2", "qwen35"];
        if text.is_ascii() || !normalises.contains(name) {
            assert_eq!(back, text, "{name}");
        }
        if let Ok(text) = std::str::from_utf8(text) {
            assert_eq!(pretokenize(name, text).expect("known").concat(), text, "{name}");
        }
    }
});
