//! The `normalizer` part.

use super::node::Node;
use super::pre_tokenizer::pattern;
use crate::data::{BertOptions, Form, Normalizer};
use crate::error::TokenizerError;

const SUPPORTED: &str = "BertNormalizer, ByteLevel, Lowercase, NFC, NFD, NFKC, NFKD, Nmt, Precompiled, Prepend, \
                         Replace, Sequence, Strip, StripAccents";

/// Appends the steps of a normaliser.
pub(super) fn read(node: &Node<'_>, steps: &mut Vec<Normalizer>) -> Result<(), TokenizerError> {
    if node.value().is_null() {
        return Ok(());
    }
    let kind = node.require("type")?;
    steps.push(match kind.text()? {
        "Sequence" => {
            return node.require("normalizers")?.elements()?.try_for_each(|step| read(&step, steps));
        }
        "NFC" => Normalizer::Unicode(Form::Nfc),
        "NFD" => Normalizer::Unicode(Form::Nfd),
        "NFKC" => Normalizer::Unicode(Form::Nfkc),
        "NFKD" => Normalizer::Unicode(Form::Nfkd),
        "Lowercase" => Normalizer::Lowercase,
        "StripAccents" => Normalizer::StripAccents,
        "Strip" => {
            Normalizer::Strip { left: node.flag("strip_left", true)?, right: node.flag("strip_right", true)? }
        }
        "Replace" => Normalizer::Replace {
            pattern: pattern(&node.require("pattern")?)?,
            with: node.require("content")?.text()?.to_owned(),
        },
        "Prepend" => Normalizer::Prepend(node.require("prepend")?.text()?.to_owned()),
        "Nmt" => Normalizer::Nmt,
        "Precompiled" => match node.get("precompiled_charsmap") {
            Some(map) => Normalizer::Charsmap(base64(&map)?),
            None => return Ok(()),
        },
        "BertNormalizer" => {
            let lowercase = node.flag("lowercase", true)?;
            Normalizer::Bert(BertOptions {
                clean: node.flag("clean_text", true)?,
                ideographs: node.flag("handle_chinese_chars", true)?,
                strip_accents: node.flag("strip_accents", lowercase)?,
                lowercase,
            })
        }
        "ByteLevel" => Normalizer::ByteAlphabet,
        _ => return Err(kind.unsupported(SUPPORTED)),
    });
    Ok(())
}

/// The bytes of a text in base64.
fn base64(node: &Node<'_>) -> Result<Vec<u8>, TokenizerError> {
    let text = node.text()?.trim_end_matches('=');
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3 + 3);
    let (mut bits, mut count) = (0_u32, 0);
    for digit in text.bytes() {
        let value = match digit {
            b'A'..=b'Z' => digit - b'A',
            b'a'..=b'z' => digit - b'a' + 26,
            b'0'..=b'9' => digit - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return Err(node.fail("it is not base64")),
        };
        bits = bits << 6 | u32::from(value);
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count) as u8);
        }
    }
    Ok(bytes)
}
