//! The `post_processor` part: the tokens before and after a text.

use super::node::Node;
use crate::data::PairTokens;
use crate::error::TokenizerError;

const SUPPORTED: &str = "BertProcessing, ByteLevel, RobertaProcessing, Sequence, TemplateProcessing";

/// The most tokens that are added to a text.
const MAX_TOKENS: usize = 64;

type Tokens = (Vec<u32>, Vec<u32>);

/// The tokens that are added before and after a single text.
pub(super) fn read(node: &Node<'_>, id_of: &dyn Fn(&str) -> Option<u32>) -> Result<Tokens, TokenizerError> {
    let (mut prefix, mut suffix) = (Vec::new(), Vec::new());
    add(node, id_of, &mut prefix, &mut suffix)?;
    if prefix.len() + suffix.len() > MAX_TOKENS {
        return Err(node.fail(format!("it adds more than {MAX_TOKENS} tokens")));
    }
    Ok((prefix, suffix))
}

fn add(
    node: &Node<'_>,
    id_of: &dyn Fn(&str) -> Option<u32>,
    prefix: &mut Vec<u32>,
    suffix: &mut Vec<u32>,
) -> Result<(), TokenizerError> {
    if node.value().is_null() {
        return Ok(());
    }
    let kind = node.require("type")?;
    let (before, after) = match kind.text()? {
        // It only concerns the positions of tokens in the text.
        "ByteLevel" => return Ok(()),
        "Sequence" => {
            let all = node.require("processors")?;
            return all.elements()?.try_for_each(|step| add(&step, id_of, prefix, suffix));
        }
        "TemplateProcessing" => template(node, id_of)?,
        "BertProcessing" | "RobertaProcessing" => {
            let token = |key| {
                let pair = node.require(key)?;
                let mut pair = pair.elements()?.skip(1);
                let id =
                    pair.next().ok_or_else(|| node.fail(format!("{key:?} must be a token and its id")))?;
                Ok(vec![id.id()?])
            };
            (token("cls")?, token("sep")?)
        }
        _ => return Err(kind.unsupported(SUPPORTED)),
    };
    // A later step adds its tokens outside those of an earlier one.
    prefix.splice(0..0, before);
    suffix.extend(after);
    Ok(())
}

/// The tokens that are added to a pair of texts; `None` if it is no step that knows pairs.
pub(super) fn read_pair(
    node: &Node<'_>,
    id_of: &dyn Fn(&str) -> Option<u32>,
) -> Result<Option<PairTokens>, TokenizerError> {
    if node.value().is_null() {
        return Ok(None);
    }
    let kind = node.require("type")?;
    match kind.text()? {
        "Sequence" => {
            for step in node.require("processors")?.elements()? {
                if let Some(pair) = read_pair(&step, id_of)? {
                    return Ok(Some(pair));
                }
            }
            Ok(None)
        }
        "TemplateProcessing" => pair_template(node, id_of),
        kind @ ("BertProcessing" | "RobertaProcessing") => {
            let (mut prefix, mut suffix) = (Vec::new(), Vec::new());
            add(node, id_of, &mut prefix, &mut suffix)?;
            let (between, types) = match kind {
                "BertProcessing" => (suffix.clone(), [0, 1]),
                _ => ([&suffix[..], &suffix[..]].concat(), [0, 0]),
            };
            Ok(Some(PairTokens { prefix, between, suffix, types }))
        }
        _ => Ok(None),
    }
}

/// The tokens of a template for pairs; `None` if it has none, or has the texts in another order.
fn pair_template(
    node: &Node<'_>,
    id_of: &dyn Fn(&str) -> Option<u32>,
) -> Result<Option<PairTokens>, TokenizerError> {
    let Some(template) = node.get("pair").filter(|pair| !pair.value().is_null()) else { return Ok(None) };
    let mut pair = PairTokens::default();
    let mut texts = 0;
    for piece in template.elements()? {
        if let Some(text) = piece.get("Sequence") {
            let expected = ["A", "B"].get(texts).copied();
            if Some(text.require("id")?.text()?) != expected {
                return Ok(None);
            }
            pair.types[texts] = text.require("type_id")?.id()?;
            texts += 1;
            continue;
        }
        let out = match texts {
            0 => &mut pair.prefix,
            1 => &mut pair.between,
            _ => &mut pair.suffix,
        };
        special(node, &piece, id_of, out)?;
    }
    if pair.prefix.len() + pair.between.len() + pair.suffix.len() > MAX_TOKENS {
        return Err(template.fail(format!("it adds more than {MAX_TOKENS} tokens")));
    }
    Ok((texts == 2).then_some(pair))
}

/// Appends the ids of a special token of a template.
fn special(
    node: &Node<'_>,
    piece: &Node<'_>,
    id_of: &dyn Fn(&str) -> Option<u32>,
    out: &mut Vec<u32>,
) -> Result<(), TokenizerError> {
    let name = piece.require("SpecialToken")?.require("id")?;
    let text = name.text()?;
    match node.get("special_tokens").as_ref().and_then(|tokens| tokens.get(text)) {
        Some(token) => {
            for id in token.require("ids")?.elements()? {
                out.push(id.id()?);
            }
        }
        None => out.push(id_of(text).ok_or_else(|| name.fail(format!("token {text:?} is not defined")))?),
    }
    Ok(())
}

fn template(node: &Node<'_>, id_of: &dyn Fn(&str) -> Option<u32>) -> Result<Tokens, TokenizerError> {
    let (mut prefix, mut suffix) = (Vec::new(), Vec::new());
    let mut texts = 0;
    let single = node.require("single")?;
    for piece in single.elements()? {
        if piece.get("Sequence").is_some() {
            texts += 1;
            continue;
        }
        let out = if texts == 0 { &mut prefix } else { &mut suffix };
        special(node, &piece, id_of, out)?;
    }
    if texts != 1 {
        return Err(single.fail(format!("it must contain the text once, not {texts} times")));
    }
    Ok((prefix, suffix))
}
