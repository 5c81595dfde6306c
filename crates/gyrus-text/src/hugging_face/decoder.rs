//! The `decoder` part: how tokens become text.

use super::node::Node;
use super::pre_tokenizer::prepend;
use crate::data::{Decoder, Prepend, Spelling, TextStart};
use crate::error::TokenizerError;

const SUPPORTED: &str = "ByteFallback, ByteLevel, Fuse, Metaspace, Replace, Sequence, Strip, WordPiece";

/// Steps before and after the tokens are joined.
#[derive(Default)]
struct Steps {
    replacements: Vec<(String, String)>,
    /// A step that decides the spelling alone.
    spelling: Option<Spelling>,
    start: Option<TextStart>,
    fused: bool,
    any: bool,
}

/// Reads the decoder. Without one, tokens are joined by spaces.
pub(super) fn read(node: &Node<'_>) -> Result<Decoder, TokenizerError> {
    let mut steps = Steps::default();
    add(node, &mut steps)?;
    if !steps.any {
        let spelling = Spelling::Words { continuation: String::new(), cleanup: false };
        return Ok(Decoder { spelling, start: TextStart::Verbatim });
    }
    let start = steps.start.unwrap_or(TextStart::Keep);
    Ok(match steps.spelling {
        Some(_) if !steps.replacements.is_empty() => {
            return Err(node.fail("Replace and Metaspace are not supported next to ByteLevel or WordPiece"));
        }
        Some(spelling) => Decoder { spelling, start },
        None => Decoder { spelling: Spelling::Text(steps.replacements), start },
    })
}

fn add(node: &Node<'_>, steps: &mut Steps) -> Result<(), TokenizerError> {
    if node.value().is_null() {
        return Ok(());
    }
    let kind = node.require("type")?;
    let after_fuse = || kind.fail("it is not supported after Fuse");
    match kind.text()? {
        "Sequence" => {
            return node.require("decoders")?.elements()?.try_for_each(|step| add(&step, steps));
        }
        "Fuse" => steps.fused = true,
        // Byte tokens are always bytes.
        "ByteFallback" => {}
        "ByteLevel" if steps.spelling.is_none() => steps.spelling = Some(Spelling::ByteLevel),
        "WordPiece" if steps.spelling.is_none() => {
            let continuation = node.get("prefix").map_or(Ok("##"), |prefix| prefix.text())?.to_owned();
            let cleanup = node.flag("cleanup", true)?;
            steps.spelling = Some(Spelling::Words { continuation, cleanup });
            steps.start = Some(TextStart::Verbatim);
        }
        "ByteLevel" | "WordPiece" => {
            return Err(kind.fail("only one of ByteLevel and WordPiece is supported"));
        }
        "Replace" => {
            if steps.fused {
                return Err(after_fuse());
            }
            let pattern = node.require("pattern")?;
            let Some(from) = pattern.get("String") else { return Err(pattern.unsupported("String")) };
            let from = from.text()?;
            if from.is_empty() {
                return Err(pattern.fail("it is empty"));
            }
            steps.replacements.push((from.to_owned(), node.require("content")?.text()?.to_owned()));
        }
        "Metaspace" => {
            if steps.fused {
                return Err(after_fuse());
            }
            let replacement = node.get("replacement").map_or(Ok("\u{2581}"), |text| text.text())?;
            if replacement != "\u{2581}" {
                return Err(node.require("replacement")?.unsupported("\u{2581}"));
            }
            steps.replacements.push((replacement.to_owned(), " ".to_owned()));
            if prepend(node)? != Prepend::Never {
                steps.start = Some(TextStart::Markers);
            }
        }
        "Strip" => {
            let content = node.require("content")?;
            let (start, stop) = (node.count("start", 0)?, node.count("stop", 0)?);
            if !steps.fused || stop != 0 || content.text()? != " " {
                return Err(node.fail("Strip is supported for spaces at the start of the text, after Fuse"));
            }
            steps.start = Some(TextStart::Spaces(start));
        }
        _ => return Err(kind.unsupported(SUPPORTED)),
    }
    steps.any = true;
    Ok(())
}
