//! Vocabularies out of arbitrary bytes, sound often enough to be worth tokenising with.

use gyrus_text::gguf::Vocabulary;
use gyrus_text::{TokenKind, pre_names};

/// Reads numbers and strings from bytes; zeros and nothing when they run out.
pub struct Source<'a>(pub &'a [u8]);

impl<'a> Source<'a> {
    pub fn byte(&mut self) -> u8 {
        match self.0.split_first() {
            Some((&first, rest)) => {
                self.0 = rest;
                first
            }
            None => 0,
        }
    }

    /// Up to fifteen bytes, or a longer run of one.
    pub fn text(&mut self) -> String {
        let len = self.byte();
        if len >= 0xF0 {
            let unit = self.text_of(1 + usize::from(len & 3));
            return unit.repeat(1 + usize::from(self.byte()));
        }
        self.text_of(usize::from(len % 16))
    }

    fn text_of(&mut self, len: usize) -> String {
        let (head, tail) = self.0.split_at(len.min(self.0.len()));
        self.0 = tail;
        String::from_utf8_lossy(head).into_owned()
    }

    fn flag(&mut self) -> Option<bool> {
        match self.byte() % 3 {
            0 => None,
            1 => Some(false),
            _ => Some(true),
        }
    }

    fn id(&mut self) -> Option<u32> {
        match self.byte() {
            0..128 => None,
            255 => Some(u32::MAX),
            byte => Some(u32::from(byte) - 128),
        }
    }
}

/// A vocabulary; the rest of the source stays for the text.
pub fn vocabulary(source: &mut Source<'_>) -> Vocabulary {
    let models = ["gpt2", "llama", "bert", "t5", "gemma4", "none"];
    let pres = pre_names();
    let mut data = Vocabulary {
        model: models[usize::from(source.byte()) % models.len()].into(),
        pre: pres.get(usize::from(source.byte())).map(|name| (*name).to_owned()),
        ..Vocabulary::default()
    };
    let setup = source.byte();
    if setup & 1 == 0 {
        // All bytes in GPT-2's alphabet, and as byte tokens.
        let mut next = 0x100;
        for byte in 0..=255_u8 {
            let code = if matches!(byte, 0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF) {
                u32::from(byte)
            } else {
                next += 1;
                next - 1
            };
            data.tokens.extend(char::from_u32(code).map(String::from));
            data.kinds.push(TokenKind::Normal);
        }
    }
    if setup & 2 != 0 {
        data.tokens.extend((0..=255_u8).map(|byte| format!("<0x{byte:02X}>")));
        data.kinds.resize(data.tokens.len(), TokenKind::Byte);
    }
    for _ in 0..source.byte() % 64 {
        let kind = TokenKind::from_gguf(i32::from(source.byte() % 7)).unwrap_or_default();
        data.tokens.push(source.text());
        data.kinds.push(kind);
    }
    for _ in 0..source.byte() % 32 {
        let pick = |at: u8| data.tokens.get(usize::from(at) % data.tokens.len().max(1)).cloned();
        let (left, right) = (pick(source.byte()), pick(source.byte()));
        if let (Some(left), Some(right)) = (left, right) {
            let joined = format!("{left}{right}");
            if setup & 4 == 0 && joined.len() < 4096 && !data.tokens.contains(&joined) {
                data.tokens.push(joined);
                data.kinds.push(TokenKind::Normal);
            }
            data.merges.push(format!("{left} {right}"));
        }
    }
    if setup & 8 != 0 {
        data.merges.push(source.text());
    }
    data.scores = data.tokens.iter().map(|_| f32::from(source.byte()) - 100.0).collect();
    if setup & 16 != 0 {
        data.kinds.truncate(usize::from(source.byte()));
    }
    data.ids.bos = source.id();
    data.ids.eos = source.id();
    data.ids.unk = source.id();
    data.ids.sep = source.id();
    data.ids.cls = source.id();
    data.add_bos = source.flag();
    data.add_eos = source.flag();
    data.add_sep = source.flag();
    data.add_space_prefix = source.flag();
    data.remove_extra_whitespaces = source.flag();
    data.treat_whitespace_as_suffix = source.flag();
    data.lowercase = source.flag();
    data.strip_accents = source.flag();
    if setup & 32 != 0 {
        data.general_name = Some("Phi-3".into());
    }
    if setup & 64 != 0 {
        let len = usize::from(source.byte());
        let (head, tail) = source.0.split_at(len.min(source.0.len()));
        data.precompiled_charsmap = u32::try_from(head.len() / 8 * 4).unwrap_or(0).to_le_bytes().to_vec();
        data.precompiled_charsmap.extend_from_slice(head);
        data.precompiled_charsmap.push(0);
        source.0 = tail;
    }
    data
}
